//! The health of a store: whether it is well, its outages, and the decisions made without it.

use std::time::Duration;

use crate::{clock::Timestamp, error::Error};

/// The health of a store: whether it is well, and the decisions made without it.
///
/// [`is_well`](Self::is_well) is the question for alerts and health endpoints. All other methods agree with it:
///
/// | [`mode`](Self::mode) | well | decisions without the store | [`outages`](Self::outages) | [`cause`](Self::cause) |
/// |---|---|---|---|---|
/// | `Healthy` | yes | fewer than 1 % | none | of the last 10 s: the latest failed or shed decision's, if any |
/// | `Shedding` | no | 1 % were not sent, since they would have come too late | none | whether the server or this process is too slow |
/// | `Failing` | no | 1 % failed | none | of the latest failure |
/// | `Degraded` | no | all of some servers or hash slots | one per server, and one for all slots | of the longest outage |
///
/// The decisions are those of the last 10 s, but none from before the latest start or end of an outage. Of few
/// decisions, three or half of all must be affected. A state ends below 0.5 %, so that it does not flicker.
/// Failures count once the first is over a second old, since an outage has usually begun by then. Until that the mode is
/// `Healthy`, and only [`affected_share`](Self::affected_share) and [`cause`](Self::cause) show them.
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
/// if !health.is_well() {
///     let share = health.affected_share() * 100.0;
///     eprintln!("{}: {share:.1} % decided without Redis", health.mode().name());
/// }
/// if let Some(cause) = health.cause() {
///     eprintln!("the latest reason: {cause}");
/// }
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Health {
    mode: Mode,
    /// When the mode began, and when it was read.
    mode_time: Option<[Timestamp; 2]>,
    outages: Vec<Outage>,
    affected_share: f64,
    /// The latest cause of a decision without the store, outside of an outage.
    latest_cause: Option<Error>,
    fallback_decisions: u64,
    shed_decisions: u64,
    probes: u64,
    instances: Option<u64>,
    merges: MergeCounts,
    cut_off_regions: Vec<String>,
}

impl Health {
    /// Returns whether the store makes the decisions, but for fewer than 1 % of the latest ones.
    ///
    /// This is the case in the mode [`Healthy`](Mode::Healthy), and in no other. Two times are left out, in which the mode is
    /// healthy and only [`affected_share`](Self::affected_share) shows these decisions: the first second of failures, and 2.5 s
    /// after an outage, in which the instance itself denies keys that have used up their share in it.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.mode == Mode::Healthy
    }

    /// Returns the mode in which the store decides.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns when the present [mode](Self::mode) began, or when the store was built, by the wall clock; `None` for a store that
    /// has only one.
    #[must_use]
    pub fn mode_since(&self) -> Option<Timestamp> {
        self.mode_time.map(|[since, _]| since)
    }

    /// Returns how long the store has been in its mode, by the clock that times outages.
    #[must_use]
    pub fn mode_age(&self) -> Option<Duration> {
        self.mode_time.map(|[since, now]| now.since(since))
    }

    /// Returns the part of the latest decisions that was made without the store, from 0 to 1.
    ///
    /// Such a decision failed, was shed, or was made in an outage or just after it. The latest decisions are those of
    /// the last 10 s, but none from before the latest start or end of an outage.
    #[must_use]
    pub fn affected_share(&self) -> f64 {
        self.affected_share
    }

    /// Returns whether the shared store is unavailable: the mode is [`Degraded`](Mode::Degraded).
    ///
    /// In that case no decision is sent to it, or to one of its servers, or for one of its hash slots, and each policy applies
    /// its [`OnOutage`](crate::OnOutage) setting. [`is_well`](Self::is_well) also covers stores that decide too little.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.mode == Mode::Degraded
    }

    /// Returns the outages of all servers, by their start, and one for all hash slots that no node decides on.
    ///
    /// Keys of other servers or slots of a cluster are decided as usual.
    #[must_use]
    pub fn outages(&self) -> &[Outage] {
        &self.outages
    }

    /// Returns the start of the longest outage; `None` while the store is available.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        self.outages.first().map(Outage::since)
    }

    /// Returns why decisions are made without the store.
    ///
    /// That is the latest cause of the longest outage. Without an outage it is the reason for the latest decision that failed or
    /// was shed, up to 10 s ago; `None` if there was none.
    #[must_use]
    pub fn cause(&self) -> Option<&Error> {
        let outage = self.outages.first().map(Outage::cause);
        outage.or(self.latest_cause.as_ref())
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

    /// Returns the number of hash slots of a cluster that no node decides on now.
    #[must_use]
    pub fn stuck_slots(&self) -> usize {
        self.outages.iter().filter_map(Outage::stuck_slots).sum()
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

    /// Returns how often the local charges of a key were added to the shared store. Always 0 for a custom store.
    #[must_use]
    pub fn merges(&self) -> u64 {
        self.merges.made
    }

    /// Returns how often it stayed unknown whether the local charges of a key were added to the shared store.
    #[must_use]
    pub fn unconfirmed_merges(&self) -> u64 {
        self.merges.given_up
    }

    /// Returns the names of the other [regions](crate::remote::Regions) that this process cannot reach, in the order of the
    /// settings.
    ///
    /// This region admits its share of the limits of their keys meanwhile. The mode is that of this region's own store.
    #[must_use]
    pub fn cut_off_regions(&self) -> &[String] {
        &self.cut_off_regions
    }

    /// Sets the names of the regions that cannot be reached.
    #[cfg(feature = "redis")]
    pub(crate) fn with_cut_off_regions(mut self, names: Vec<String>) -> Self {
        self.cut_off_regions = names;
        self
    }

    /// Returns the health of a store in this mode.
    #[cfg(feature = "redis")]
    pub(crate) fn of(mode: Mode, outages: Vec<Outage>) -> Self {
        Self {
            mode,
            outages,
            ..Self::default()
        }
    }

    /// Sets the numbers of decisions that were made without the store, and that were shed.
    #[cfg(feature = "redis")]
    pub(crate) fn with_decisions(mut self, fallback_decisions: u64, shed_decisions: u64) -> Self {
        (self.fallback_decisions, self.shed_decisions) = (fallback_decisions, shed_decisions);
        self
    }

    /// Sets the affected part of the latest decisions, and the latest cause.
    #[cfg(feature = "redis")]
    pub(crate) fn with_affected(mut self, (share, cause): (f64, Option<Error>)) -> Self {
        (self.affected_share, self.latest_cause) = (share, cause);
        self
    }

    /// Sets the number of live instances, and the numbers of merges.
    #[cfg(feature = "redis")]
    pub(crate) fn with_local_counts(mut self, instances: Option<u64>, merges: MergeCounts) -> Self {
        (self.instances, self.merges) = (instances, merges);
        self
    }

    /// Returns the health of two nodes that share everything but the outages of servers.
    #[cfg(feature = "redis")]
    pub(crate) fn merge(self, other: Self) -> Self {
        let servers = |outage: &Outage| outage.stuck_slots.is_none();
        let mut outages = other.outages;
        outages.extend(self.outages.into_iter().filter(servers));
        outages.sort_by_key(Outage::since);
        Self { outages, ..other }
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
}

/// Numbers of keys that were decided locally.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MergeCounts {
    pub pending: u64,
    pub made: u64,
    pub given_up: u64,
}

// === Mode ===

/// The mode in which a store decides, from the most severe one. That of a cluster is the most severe of its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The store, one of its servers, or a hash slot is unavailable: each policy applies its [`OnOutage`](crate::OnOutage)
    /// setting.
    Degraded,
    /// The store decides, but at least 1 % of the latest decisions failed, and were made by the policies' `OnOutage` settings.
    Failing,
    /// The store decides, but at least 1 % of the latest decisions were not sent, since they would have come too late. The
    /// policies' `OnOutage` settings apply to them. [`Health::cause`] shows whether the server or this process is too slow.
    Shedding,
    /// The store decides, but for fewer than 1 % of the latest decisions.
    #[default]
    Healthy,
}

impl Mode {
    /// Returns the name in log events and metrics, such as `degraded`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Degraded => "degraded",
            Self::Failing => "failing",
            Self::Healthy => "healthy",
            Self::Shedding => "shedding",
        }
    }
}

// === Outage ===

/// The outage of one server, or of all hash slots that no node decides on.
#[derive(Clone, Debug)]
pub struct Outage {
    pub(crate) since: Timestamp,
    pub(crate) cause: Error,
    pub(crate) server: Option<String>,
    pub(crate) stuck_slots: Option<usize>,
}

impl Outage {
    /// Returns the start by the wall clock: the first failure that counts.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Returns the latest cause. A probe that fails with another error replaces it.
    #[must_use]
    pub fn cause(&self) -> &Error {
        &self.cause
    }

    /// Returns the address of the server, such as `10.0.0.1:6379`; `None` if only a pool of the application has it, or if the
    /// outage is one of hash slots.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// Returns how many hash slots of the cluster no node decides on, although their nodes decide on others; `None` for an
    /// outage of a server.
    #[must_use]
    pub fn stuck_slots(&self) -> Option<usize> {
        self.stuck_slots
    }
}
