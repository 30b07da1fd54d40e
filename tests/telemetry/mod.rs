//! Metrics, and what is seen of callers that wait.

mod metrics;
mod waits;
