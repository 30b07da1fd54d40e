//! Records denied requests, from many threads.

use std::sync::{Arc, atomic::Ordering};
#[cfg(feature = "redis")]
use std::time::Duration;

use crate::{
    charge::Charge,
    decision::{Decision, Outcome},
    error::Error,
    key::Key,
    policy::Policy,
};

use super::{
    builder::TopKeysBuilder, counts::SharedCounts, interval_log::IntervalLog, snapshot::Snapshot,
};

#[cfg(feature = "redis")]
use super::shown_keys::ShownKeys;

/// Finds the keys that are denied most often, in bounded memory. Clones share the counts.
///
/// See the [module docs](super) for bounds and costs.
#[derive(Clone, Debug)]
pub struct TopKeys {
    shared: Arc<SharedCounts>,
    /// `None` if nothing is logged.
    log: Option<Arc<IntervalLog>>,
}

impl TopKeys {
    /// Returns a recorder with the default settings.
    #[must_use]
    pub fn new() -> Self {
        TopKeysBuilder::default()
            .build()
            .expect("the defaults are in range")
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> TopKeysBuilder {
        TopKeysBuilder::default()
    }

    /// Records one denied request for each charge whose policy denied it. Policies in shadow mode, and candidates, deny nobody.
    ///
    /// The charges must be those of the decision, in the same order. A request counts as 1 whatever it costs, so a client
    /// cannot push other keys out of the list with a single expensive request. Does nothing for other outcomes than
    /// [`Outcome::Limited`].
    #[inline]
    #[doc(hidden)]
    pub fn record_denied(&self, charges: &[Charge<'_>], decision: &Decision) {
        if decision.outcome() != Outcome::Limited {
            return;
        }
        for (charge, state) in charges.iter().zip(decision.states()) {
            if state.enforced_outcome() == Outcome::Limited {
                self.record(charge.policy(), charge.key(), 1);
            }
        }
    }

    /// Adds `units` to the count of a key under a policy.
    ///
    /// For custom counts: [`record_denied`](Self::record_denied) records denied requests. The first record of a policy in
    /// each shard allocates its counters; later ones allocate nothing. Sums saturate at 2^64 - 1.
    #[doc(hidden)]
    pub fn record(&self, policy: &Policy, key: &Key, units: u32) {
        let now = self.shared.clock.now();
        self.shared.record(policy, key, units, now);
        if let Some(log) = &self.log {
            log.record(policy, key, units, now);
        }
    }

    /// Returns the most frequent keys of the last half to whole window.
    ///
    /// Each shard is locked for as long as its counters are copied, about a microsecond.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let now = self.shared.clock.now();
        let number = self.shared.half_at(now);
        self.shared.snapshot(number.saturating_sub(1)..=number, now)
    }

    /// Returns a snapshot of the current half of the window, and one of the previous half, each with its number by the
    /// wall clock, so that all instances agree.
    #[cfg(feature = "redis")]
    pub(crate) fn halves(&self) -> [(u64, Snapshot); 2] {
        let now = self.shared.clock.now();
        let number = self.shared.half_at(now);
        let current = self.current_half();
        [0, 1].map(|age| {
            let half = number.saturating_sub(age);
            let snapshot = self.shared.snapshot_of(half, now);
            (current.saturating_sub(age), snapshot)
        })
    }

    /// Returns the number of the current half of the window by the wall clock.
    #[cfg(feature = "redis")]
    pub(crate) fn current_half(&self) -> u64 {
        let clock = &self.shared.clock;
        self.shared.half_at(clock.wall_time(clock.now()))
    }

    /// Returns the longest time that a snapshot covers.
    #[cfg(feature = "redis")]
    pub(crate) fn window(&self) -> Duration {
        Duration::from_micros(2 * self.shared.half)
    }

    /// Returns whether other instances can show keys in the same form.
    #[cfg(feature = "redis")]
    pub(crate) fn has_common_form(&self) -> bool {
        self.shared.shown_keys != ShownKeys::default()
    }

    /// Returns a key in the form in which snapshots show it, so that an operator can find it.
    #[must_use]
    pub fn shown(&self, key: &Key) -> String {
        self.shared.shown_keys.show(key.as_str())
    }

    /// Returns the number of records that were not counted, because they came after
    /// [`max_policies`](super::TopKeysBuilder::max_policies) other policies.
    #[must_use]
    pub fn unrecorded(&self) -> u64 {
        self.shared.unrecorded.load(Ordering::Relaxed)
    }
}

impl Default for TopKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl TopKeysBuilder {
    /// Builds the recorder. It allocates nothing for a policy before the policy denies a request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when a setting is outside of its range.
    pub fn build(self) -> Result<TopKeys, Error> {
        self.validate()?;
        let log = self.log_interval.map(|interval| {
            let counts = SharedCounts::new(&self, interval);
            Arc::new(IntervalLog::new(counts, self.clock.now()))
        });
        Ok(TopKeys {
            shared: Arc::new(SharedCounts::new(&self, self.window / 2)),
            log,
        })
    }
}
