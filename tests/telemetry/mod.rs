//! Metrics.

mod metrics;
