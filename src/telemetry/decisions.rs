//! The one place that sees every decision of a limiter.
//!
//! # Why does a decision count once per policy?
//!
//! Operators tune policies, and of two policies that are decided together, one may be limited while the other has quota left.
//! Counted by request, a denial could not be assigned to a limit. For the number of requests, take a policy that all requests
//! have. A label that is added later makes new series of all, and breaks everybody's queries. So `mode` was there when all series
//! had the value `enforced`.
//!
//! Tiers can have any number of names, since closures choose them. So the number of series has a limit, which the names of the
//! first tiers use up, and the others share one series.

use std::fmt;
use std::mem;
use std::sync::Arc;
#[cfg(feature = "dashboard")]
use std::sync::OnceLock;

use smallvec::SmallVec;

use crate::{
    charge::{Charge, OwnedCharge},
    decision::Decision,
    error::{Error, ErrorKind},
    store::StoreFuture,
};

#[cfg(feature = "tracing")]
use crate::diagnosis::outside_text::Logged;
#[cfg(feature = "metrics")]
use crate::{
    decision::{CountedBy, Outcome},
    policy::Policy,
};

#[cfg(any(feature = "metrics", feature = "tracing"))]
use crate::decision::{DeniedBy, PolicyState};

use super::recorders::{Hook, Recorders};

#[cfg(feature = "metrics")]
use super::{counters::DecisionCounters, per_recorder::PerRecorder};

#[cfg(feature = "dashboard")]
use super::tally::DecisionTally;

/// Observes the decisions of one limiter, whether a layer or [`RateLimiter::check`](crate::RateLimiter::check) asked.
///
/// ```text
/// RateLimiter::check --> Store::decide --> observe --> record --> counters, hooks, debug event
/// ```
///
/// Without the features `metrics` and `tracing` and without hooks, it does nothing. Clones share the counters.
#[derive(Clone)]
pub(crate) struct DecisionObserver {
    #[cfg(feature = "metrics")]
    counters: Arc<PerRecorder<DecisionCounters>>,
    hooks: Option<Arc<[Hook]>>,
    /// Empty until a dashboard is built for the limiter.
    #[cfg(feature = "dashboard")]
    tally: Arc<OnceLock<DecisionTally>>,
}

impl DecisionObserver {
    /// Returns an observer that passes decisions to these recorders too.
    pub fn with(recorders: &Recorders) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            counters: Arc::default(),
            #[cfg(feature = "dashboard")]
            tally: Arc::default(),
            hooks: recorders.hooks(),
        }
    }

    /// Describes all metrics to the recorder, and exports the counter of errors, at first with 0.
    #[cfg(feature = "metrics")]
    pub fn show(&self) {
        self.counters.with(DecisionCounters::register, |_| {});
    }

    /// Returns the numbers of decisions, which are counted from the first call on.
    #[cfg(feature = "dashboard")]
    pub fn tally(&self) -> &DecisionTally {
        self.tally.get_or_init(DecisionTally::default)
    }

    /// Returns whether nothing would be done with a decision, so that it need not be shown.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !cfg!(feature = "metrics") && !self.needs_decisions()
    }

    /// Returns whether somebody looks at each decision, and not only at the numbers of them.
    #[inline]
    pub fn needs_decisions(&self) -> bool {
        #[cfg(feature = "tracing")]
        let is_logged = is_logged();
        #[cfg(not(feature = "tracing"))]
        let is_logged = false;
        self.hooks.is_some() || is_logged
    }

    /// Counts enforced decisions of the store in process, which nobody looks at.
    #[cfg(feature = "metrics")]
    #[inline]
    pub fn count_verdicts<'a>(
        &self,
        verdicts: impl Iterator<Item = (&'a Policy, Outcome)> + Clone,
    ) {
        let place = CountedBy::InProcess;
        self.counters.with(DecisionCounters::register, |counters| {
            for (policy, outcome) in verdicts.clone() {
                counters.count(policy, false, outcome, place);
            }
        });
        #[cfg(feature = "dashboard")]
        if let Some(tally) = self.tally.get() {
            for (policy, outcome) in verdicts {
                tally.count(policy, false, outcome, place);
            }
        }
    }

    /// Records the decision when it is made. A decision whose caller leaves before that is not recorded.
    #[inline]
    pub fn observe(&self, charges: &[Charge<'_>], decided: &mut StoreFuture<Decision>) {
        match decided.as_ready() {
            Some(result) => self.record(charges, result),
            None => self.observe_pending(charges, decided),
        }
    }

    fn observe_pending(&self, charges: &[Charge<'_>], decided: &mut StoreFuture<Decision>) {
        let observer = self.clone();
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        let unmade = Err(Error::new(ErrorKind::Unavailable, "not decided"));
        let pending = mem::replace(decided, StoreFuture::ready(unmade));
        *decided = pending.map(move |result| {
            let charges: SmallVec<[Charge<'_>; 1]> =
                charges.iter().map(OwnedCharge::borrow).collect();
            observer.record(&charges, &result);
            result
        });
    }

    /// Passes a decision to everything that records decisions.
    #[inline]
    fn record(&self, charges: &[Charge<'_>], result: &Result<Decision, Error>) {
        #[cfg(feature = "metrics")]
        self.count(charges, result);
        if let Some(hooks) = &self.hooks {
            for hook in &**hooks {
                hook(charges, result);
            }
        }
        #[cfg(feature = "tracing")]
        if is_logged() {
            log(result);
        }
    }

    /// Counts each policy of the decision. Peeks are left out.
    #[cfg(feature = "metrics")]
    #[inline]
    fn count(&self, charges: &[Charge<'_>], result: &Result<Decision, Error>) {
        self.counters.with(DecisionCounters::register, |counters| {
            let Ok(decision) = result else {
                return counters.failed.increment(1);
            };
            for_each_counted(charges, decision, |policy, is_shadow, outcome, by| {
                counters.count(policy, is_shadow, outcome, by);
            });
        });
        #[cfg(feature = "dashboard")]
        if let Some(tally) = self.tally.get() {
            add_to(tally, charges, result);
        }
    }
}

/// Adds a decision to the numbers that a dashboard reads.
#[cfg(feature = "dashboard")]
#[inline(never)]
fn add_to(tally: &DecisionTally, charges: &[Charge<'_>], result: &Result<Decision, Error>) {
    let Ok(decision) = result else {
        return tally.count_failure();
    };
    for_each_counted(charges, decision, |policy, is_shadow, outcome, by| {
        tally.count(policy, is_shadow, outcome, by);
    });
}

/// Calls `count` with each policy that charged the request, whether in shadow, its outcome, and the place that counted.
#[cfg(feature = "metrics")]
#[inline]
fn for_each_counted(
    charges: &[Charge<'_>],
    decision: &Decision,
    mut count: impl FnMut(&Policy, bool, Outcome, CountedBy),
) {
    let is_by_block =
        |state: &PolicyState| state.denied_by() == Some(DeniedBy::Block) && !state.is_shadow();
    for (charge, state) in charges.iter().zip(decision.states()) {
        let counted_by = match state.usage() {
            Some(_) => state.counted_by().unwrap_or(decision.counted_by()),
            // A block or a denial that is kept denied the request, so the other policies were not asked. Nothing is out of order.
            None if decision.counted_by() == CountedBy::DenialCache
                || decision.states().iter().any(is_by_block) =>
            {
                decision.counted_by()
            }
            None => CountedBy::Uncounted,
        };
        if charge.units() > 0 {
            count(
                charge.policy(),
                charge.is_shadow(),
                state.outcome(),
                counted_by,
            );
        }
    }
}

// By hand: a derive would print all series.
impl fmt::Debug for DecisionObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionObserver").finish_non_exhaustive()
    }
}

/// Returns whether a subscriber wants an event per decision.
#[cfg(feature = "tracing")]
#[inline]
fn is_logged() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
}

/// Logs a decision, without the key.
#[cfg(feature = "tracing")]
#[cold]
fn log(result: &Result<Decision, Error>) {
    match result {
        Ok(decision) => {
            let state = decision.denying().or_else(|| decision.narrowest());
            let usage = state.and_then(PolicyState::usage);
            tracing::debug!(
                target: TARGET,
                policy = state.map(|state| state.policy().as_str()),
                outcome = decision.outcome().name(),
                denied_by = state.and_then(PolicyState::denied_by).map(DeniedBy::name),
                counted_by = decision.counted_by().name(),
                remaining = usage.map(|usage| usage.remaining),
                retry_after = decision.retry_after().map(tracing::field::debug),
                "rate limit decision",
            );
        }
        Err(error) => tracing::debug!(
            target: TARGET,
            outcome = "failed",
            error = %Logged(error),
            "rate limit decision",
        ),
    }
}

#[cfg(feature = "tracing")]
const TARGET: &str = "tollgate::decision";

#[cfg(test)]
#[cfg(feature = "tracing")]
mod tests {
    use std::{
        io::{self, Write},
        sync::Arc,
    };

    use tracing::{Level, subscriber::with_default};

    use crate::{
        algorithm::Quota,
        error::{Error, ErrorKind},
        key::Key,
        limiter::RateLimiter,
        policy::Policy,
        task::Mutex,
    };

    /// Returns the log of two decisions on a quota of one, by a subscriber with this level.
    fn log_of_two_decisions(level: Level) -> String {
        let policy = Policy::new("per-ip", Quota::per_hour(1));
        log_of(level, || {
            let limiter = RateLimiter::builder().build().expect("a limiter");
            let charges = [policy.charge(Key::new("ada"))];
            for _ in 0..2 {
                let decided = limiter.check(&charges).take_ready();
                decided.expect("it is ready").expect("a decision");
            }
        })
    }

    /// Returns the log of `work`, from a subscriber with this level.
    fn log_of(level: Level, work: impl FnOnce()) -> String {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_max_level(level)
            .with_ansi(false)
            .finish();
        with_default(subscriber, work);
        let bytes = log.0.lock().clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn decision_is_an_event_at_debug_without_the_key() {
        let log = log_of_two_decisions(Level::DEBUG);
        let events: Vec<&str> = log
            .lines()
            .filter_map(|line| {
                line.split_once("DEBUG tollgate::decision: ")
                    .map(|(_, event)| event)
            })
            .collect();
        let [allowed, limited] = events.as_slice() else {
            panic!("two events: {log}")
        };
        let message = "rate limit decision policy=\"per-ip\"";
        assert_eq!(
            *allowed,
            format!("{message} outcome=\"allowed\" counted_by=\"in_process\" remaining=0")
        );
        let limited_by = format!(
            "{message} outcome=\"limited\" denied_by=\"quota\" counted_by=\"in_process\" remaining=0 retry_after=3"
        );
        assert!(limited.starts_with(&limited_by), "{limited}");
        assert!(!log.contains("ada"), "{log}");
    }

    #[test]
    fn error_of_a_decision_stays_on_one_line() {
        let error = Error::new(ErrorKind::Script, "x\r\nWARN tollgate: forged\u{1b}[2J");
        let log = log_of(Level::DEBUG, || super::log(&Err(error)));
        assert_eq!(log.lines().count(), 1, "{log}");
        let expected = "error=x\\r\\nWARN tollgate: forged\\u{1b}[2J\n";
        assert!(log.ends_with(expected), "{log:?}");
    }

    #[test]
    fn decision_is_no_event_at_info() {
        assert_eq!(log_of_two_decisions(Level::INFO), "");
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
