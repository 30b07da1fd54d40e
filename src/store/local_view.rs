//! How a process decides on a key without asking the store.

use std::time::Duration;

/// What a process holds of one key under one policy, so that it decides without asking the store.
///
/// A [`Store`](super::Store) returns it for explanations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalView {
    lease: Option<KeyLease>,
    denied_for: Option<Duration>,
}

impl LocalView {
    /// Creates a view from the lease of the key, and from the time for which its requests are denied in process.
    #[must_use]
    pub fn new(lease: Option<KeyLease>, denied_for: Option<Duration>) -> Self {
        Self { lease, denied_for }
    }

    /// Returns the lease of the key; `None` if this process has none.
    #[must_use]
    pub fn lease(&self) -> Option<KeyLease> {
        self.lease
    }

    /// Returns for how long requests are denied by an earlier denial of the store; `None` if the store is asked.
    #[must_use]
    pub fn denied_for(&self) -> Option<Duration> {
        self.denied_for
    }
}

// === KeyLease ===

/// The units of one key that are [leased](crate::Consistency::Leased).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLease {
    units: u64,
    leased_elsewhere: u64,
    age: Duration,
}

impl KeyLease {
    /// Creates a lease of this many units here and elsewhere. The latter was read this long ago.
    #[must_use]
    pub fn new(units: u64, leased_elsewhere: u64, age: Duration) -> Self {
        Self {
            units,
            leased_elsewhere,
            age,
        }
    }

    /// Returns the units that this process can admit without asking the store.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Returns the units that other instances had leased at the last report.
    #[must_use]
    pub fn leased_elsewhere(&self) -> u64 {
        self.leased_elsewhere
    }

    /// Returns the age of the last reply to a report, from which decisions by leased units continue.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }
}
