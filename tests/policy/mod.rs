//! Penalties of policies.

mod penalties;
