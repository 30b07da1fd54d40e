//! The health of a store: its mode, its outages, and the decisions made without it.

use std::time::Duration;

use crate::{clock::Timestamp, error::Error};

/// The health of a store: its availability, and the decisions made without it.
///
/// # Examples
///
/// ```
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("ip", Quota::per_minute(100)).key(PeerIp))
///     .build()?;
/// let health = layer.health();
/// if let Some(cause) = health.cause() {
///     eprintln!("degraded since {:?}: {cause}", health.since());
/// }
/// assert_eq!(health.fallback_decisions(), 0);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Health {
    mode: Mode,
    /// When the mode began, and when it was read.
    mode_time: Option<[Timestamp; 2]>,
    outages: Vec<Outage>,
    fallback_decisions: u64,
    shed_decisions: u64,
    probes: u64,
    instances: Option<u64>,
    merges: MergeCounts,
}

impl Health {
    /// Returns the mode in which the store decides.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns when the present [mode](Self::mode) began, or when the store was built; `None` for a store that has only one.
    #[must_use]
    pub fn mode_since(&self) -> Option<Timestamp> {
        self.mode_time.map(|[since, _]| since)
    }

    /// Returns how long the store has been in its mode, by the clock that times outages.
    #[must_use]
    pub fn mode_age(&self) -> Option<Duration> {
        self.mode_time.map(|[since, now]| now.since(since))
    }

    /// Returns whether the shared store is unavailable.
    ///
    /// In that case no decision is sent to it, and each policy applies its [`OnOutage`](crate::OnOutage) setting.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        !self.outages.is_empty()
    }

    /// Returns the outages of all servers, by their start. Keys of other servers of a cluster are decided as usual.
    #[must_use]
    pub fn outages(&self) -> &[Outage] {
        &self.outages
    }

    /// Returns the start of the longest outage; `None` while the store is available.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        self.outages.first().map(Outage::since)
    }

    /// Returns the latest cause of the longest outage; `None` while the store is available.
    #[must_use]
    pub fn cause(&self) -> Option<&Error> {
        self.outages.first().map(Outage::cause)
    }

    /// Returns the number of decisions made without the shared store because it failed.
    ///
    /// Includes single failures outside of an outage.
    #[must_use]
    pub fn fallback_decisions(&self) -> u64 {
        self.fallback_decisions
    }

    /// Returns the number of decisions that were shed.
    ///
    /// They were not sent to the store, because they would have come too late. See [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
    #[must_use]
    pub fn shed_decisions(&self) -> u64 {
        self.shed_decisions
    }

    /// Returns the number of probes that were sent while servers were unavailable.
    #[must_use]
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// Returns the number of live instances that share the store, with this one; `None` while it is unknown.
    ///
    /// During an outage it is the last known number, and each instance grants one part in this many of a quota. Idle
    /// instances do not count.
    #[must_use]
    pub fn instances(&self) -> Option<u64> {
        self.instances
    }

    /// Returns the part of each quota that this instance grants during an outage: one over the number of
    /// [instances](Self::instances), and 1 while that is unknown.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "no fleet has 2^52 instances")]
    pub fn share(&self) -> f64 {
        self.instances.map_or(1.0, |count| 1.0 / count as f64)
    }

    /// Returns the number of keys that were decided locally and whose charges are not in the shared store yet.
    #[must_use]
    pub fn pending_merges(&self) -> u64 {
        self.merges.pending
    }

    /// Returns how often the local charges of a key were added to the shared store.
    #[must_use]
    pub fn merges(&self) -> u64 {
        self.merges.made
    }

    /// Returns how often it stayed unknown whether the local charges of a key were added to the shared store.
    #[must_use]
    pub fn unconfirmed_merges(&self) -> u64 {
        self.merges.given_up
    }

    /// Sets the number of live instances, and the numbers of merges.
    #[cfg(feature = "redis")]
    pub(crate) fn with_local_counts(mut self, instances: Option<u64>, merges: MergeCounts) -> Self {
        (self.instances, self.merges) = (instances, merges);
        self
    }

    /// Returns the health of two nodes that share a fallback: degraded if one of them is.
    #[cfg(feature = "redis")]
    pub(crate) fn and(self, other: Self) -> Self {
        let modes = [self.mode, other.mode];
        let mut outages = [self.outages, other.outages].concat();
        outages.sort_by_key(Outage::since);
        Self {
            mode: modes.into_iter().min().unwrap_or_default(),
            outages,
            ..other
        }
    }

    /// Returns how long the longest outage has lasted.
    #[cfg(feature = "explain")]
    pub(crate) fn outage_age(&self) -> Option<Duration> {
        let [_, now] = self.mode_time?;
        Some(now.since(self.since()?))
    }

    /// Sets when the mode began, and the present time.
    #[cfg(feature = "redis")]
    pub(crate) fn in_mode_since(mut self, since: Timestamp, now: Timestamp) -> Self {
        self.mode_time = Some([since, now]);
        self
    }

    /// Sets the number of probes.
    #[cfg(feature = "redis")]
    pub(crate) fn with_probes(mut self, probes: u64) -> Self {
        self.probes = probes;
        self
    }

    /// Sets the current outage.
    #[cfg(feature = "redis")]
    pub(crate) fn degraded(mut self, outage: Outage) -> Self {
        (self.mode, self.outages) = (Mode::Degraded, vec![outage]);
        self
    }

    /// Returns the health of a store that is available, but may shed decisions.
    #[cfg(feature = "redis")]
    pub(crate) fn counted(is_shedding: bool, fallback_decisions: u64, shed_decisions: u64) -> Self {
        Self {
            mode: if is_shedding {
                Mode::Shedding
            } else {
                Mode::Healthy
            },
            mode_time: None,
            outages: Vec::new(),
            fallback_decisions,
            shed_decisions,
            probes: 0,
            instances: None,
            merges: MergeCounts::default(),
        }
    }
}

/// Numbers of keys that were decided locally.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MergeCounts {
    pub(crate) pending: u64,
    pub(crate) made: u64,
    pub(crate) given_up: u64,
}

// === Mode ===

/// The mode in which a store decides, from the most severe one. That of a cluster is the most severe of its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The store is unavailable: each policy applies its [`OnOutage`](crate::OnOutage) setting.
    Degraded,
    /// The store decides, but some decisions would come too late, and are made by the policies' `OnOutage` settings.
    Shedding,
    /// The store decides.
    #[default]
    Healthy,
}

impl Mode {
    /// Returns the name in log events and metrics, such as `degraded`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Degraded => "degraded",
            Self::Healthy => "healthy",
            Self::Shedding => "shedding",
        }
    }
}

// === Outage ===

/// The outage of one server.
#[derive(Clone, Debug)]
pub struct Outage {
    pub(crate) since: Timestamp,
    pub(crate) cause: Error,
    pub(crate) server: Option<String>,
}

impl Outage {
    /// Returns the start: the first failure that counts.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Returns the latest cause. A probe that fails with another error replaces it.
    #[must_use]
    pub fn cause(&self) -> &Error {
        &self.cause
    }

    /// Returns the address of the server, such as `10.0.0.1:6379`; `None` if only a pool of the application has it.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }
}
