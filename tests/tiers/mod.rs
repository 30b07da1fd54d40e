//! Other quotas for some callers.

mod tiers;
