//! The metrics of callers that wait for their turn, and of pauses.
//!
//! ```text
//! Acquire::poll --> has its turn at once ------------------------> recorded, with a wait of 0
//!               '-> waits: counted among the callers that wait --> recorded when it ends, or is dropped
//! ```
//!
//! The number of callers that wait is kept in this process as well, since a gauge of the `metrics` facade cannot be read.

use std::time::Duration;
#[cfg(feature = "metrics")]
use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

#[cfg(feature = "metrics")]
use metrics::{Counter, Histogram, counter, histogram};

use crate::policy::Policy;

#[cfg(feature = "metrics")]
use super::{catalog, per_recorder::PerRecorder, series::SeriesTable};

#[cfg(feature = "dashboard")]
use crate::clock::{Clock, Timestamp};

/// The waits and the pauses of one limiter.
///
/// Without the feature `metrics` it has no size, and does nothing.
#[derive(Debug, Default)]
pub(crate) struct WaitMetrics {
    #[cfg(feature = "metrics")]
    handles: PerRecorder<SeriesTable<WaitHandles>>,
    /// Empty until somebody waits or a key is paused.
    #[cfg(feature = "metrics")]
    present: OnceLock<Box<SeriesTable<OnceLock<Arc<PresentWaits>>>>>,
}

/// How the wait of a caller ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitOutcome {
    /// The key is blocked.
    Denied,
    /// The store could not decide.
    Failed,
    /// The caller dropped its future.
    Left,
    TooLate,
    Turn,
}

/// The handles of one policy, each registered with its first use.
#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
struct WaitHandles {
    waits: [OnceLock<Histogram>; OUTCOMES],
    stored_pauses: OnceLock<Counter>,
    failed_pauses: OnceLock<Counter>,
}

/// The callers of one policy that wait now, and the end of its pauses.
#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
struct PresentWaits {
    callers: AtomicU64,
    /// When the pause that this process began and that ends last does so, in microseconds.
    #[cfg(feature = "dashboard")]
    paused_until: AtomicU64,
}

impl WaitMetrics {
    /// Records how the wait of a caller ended.
    #[inline]
    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, clippy::unused_self, reason = "nothing is recorded")
    )]
    pub fn ended(&self, policy: &Policy, outcome: WaitOutcome, waited: Duration) {
        #[cfg(feature = "metrics")]
        self.handles.with(SeriesTable::default, |table| {
            let series = table.of(policy);
            let histogram = series.value.waits[outcome as usize].get_or_init(|| {
                histogram!(
                    catalog::TURN_WAIT.name,
                    "policy" => series.policy.to_string(),
                    "outcome" => outcome.name(),
                )
            });
            histogram.record(waited);
        });
    }

    /// Counts a caller that begins to wait, until the result is dropped.
    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, clippy::unused_self, reason = "nothing is counted")
    )]
    pub fn begun(&self, policy: &Policy) -> CountedWait {
        #[cfg(feature = "metrics")]
        let present = self.present(policy);
        #[cfg(feature = "metrics")]
        present.callers.fetch_add(1, Ordering::Relaxed);
        CountedWait {
            #[cfg(feature = "metrics")]
            present: Arc::clone(present),
        }
    }

    /// Counts a pause of a key, which is stored or not.
    #[cfg_attr(
        not(feature = "metrics"),
        expect(unused_variables, clippy::unused_self, reason = "nothing is counted")
    )]
    pub fn count_pause(&self, policy: &Policy, is_stored: bool) {
        #[cfg(feature = "metrics")]
        self.handles.with(SeriesTable::default, |table| {
            let series = table.of(policy);
            let (counter, result) = match is_stored {
                true => (&series.value.stored_pauses, "stored"),
                false => (&series.value.failed_pauses, "failed"),
            };
            let policy = || series.policy.to_string();
            let register =
                || counter!(catalog::PAUSES.name, "policy" => policy(), "result" => result);
            counter.get_or_init(register).increment(1);
        });
    }

    /// Notes for how long a key of the policy is paused from now on.
    #[cfg_attr(
        not(feature = "dashboard"),
        expect(unused_variables, clippy::unused_self, reason = "nobody reads it")
    )]
    pub fn note_pause(&self, policy: &Policy, length: Duration) {
        #[cfg(feature = "dashboard")]
        {
            let until = (Clock::system().now() + length).as_micros();
            let present = self.present(policy);
            present.paused_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Returns the number of callers that wait now, by policy. A policy for which somebody has waited is in it with 0.
    #[cfg(feature = "metrics")]
    pub fn waiting(&self) -> BTreeMap<&str, u64> {
        let mut waiting = BTreeMap::new();
        for (policy, present) in self.all_present() {
            *waiting.entry(policy).or_default() += present.callers.load(Ordering::Relaxed);
        }
        waiting
    }

    /// Returns for how long keys of a policy are still paused, as far as this process has paused them. `None` if none is.
    #[cfg(feature = "dashboard")]
    pub fn paused_for(&self, policy: &str) -> Option<Duration> {
        let present = self.all_present().filter(|(name, _)| *name == policy);
        let ends = present.map(|(_, present)| present.paused_until.load(Ordering::Relaxed));
        let left = Timestamp::from_micros(ends.max()?).since(Clock::system().now());
        Some(left).filter(|left| !left.is_zero())
    }

    #[cfg(feature = "metrics")]
    fn present(&self, policy: &Policy) -> &Arc<PresentWaits> {
        let table = self.present.get_or_init(Box::default);
        table.of(policy).value.get_or_init(Arc::default)
    }

    #[cfg(feature = "metrics")]
    fn all_present(&self) -> impl Iterator<Item = (&str, &PresentWaits)> {
        let series = self
            .present
            .get()
            .into_iter()
            .flat_map(|table| table.iter());
        series.filter_map(|series| Some((&*series.policy, &**series.value.get()?)))
    }
}

#[cfg(feature = "metrics")]
impl WaitOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Left => "left",
            Self::TooLate => "too_late",
            Self::Turn => "turn",
        }
    }
}

#[cfg(feature = "metrics")]
const OUTCOMES: usize = WaitOutcome::Turn as usize + 1;

// === CountedWait ===

/// A caller among those that wait now.
#[derive(Debug)]
pub(crate) struct CountedWait {
    #[cfg(feature = "metrics")]
    present: Arc<PresentWaits>,
}

#[cfg(feature = "metrics")]
impl Drop for CountedWait {
    fn drop(&mut self) {
        self.present.callers.fetch_sub(1, Ordering::Relaxed);
    }
}
