//! The behaviour of a policy in an outage.

/// The behaviour of a policy while the shared store is unavailable or overloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnOutage {
    /// Admits every request without counting: for limits that only smooth traffic.
    Allow,
    /// Counts in this process: each live instance grants its share of the quota.
    ///
    /// The shares of all instances sum to the quota. The docs of the module `resilience` list the exceptions.
    #[default]
    Local,
    /// Rejects every request with 503: for limits that must never be exceeded.
    Deny,
}
