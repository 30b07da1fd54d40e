//! Other quotas for some callers.

#[path = "../in_process/tiers/callers.rs"]
mod callers;
mod tiers;
