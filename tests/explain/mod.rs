//! Explanations: why a client was limited.

mod explanations;
mod leases;
