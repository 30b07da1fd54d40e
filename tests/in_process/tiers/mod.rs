//! Other quotas for some callers.

mod callers;
mod tiers;
