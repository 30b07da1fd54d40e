//! Metrics.

#[path = "../in_process/resilience/full.rs"]
mod full;
mod metrics;
