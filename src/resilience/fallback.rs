//! Decisions without the primary: by each policy's [`OnOutage`] setting.
//!
//! A request with two policies, while the primary is in an outage or returned an error:
//!
//! | settings | decision | counted by |
//! |---|---|---|
//! | `Allow`, `Allow` | allowed | nobody |
//! | `Allow`, `Local` | the local store's on the second policy | the local store: the second policy |
//! | `Local`, `Local` | the local store's on both: all or nothing | the local store |
//! | `Deny`, `Allow` or `Local` | unavailable (503) | nobody |
//!
//! After [`ErrorKind::Overloaded`], which the primary returns instead of sending a decision too late, the same settings
//! apply, but the decision counts as shed and not as a failure of the primary.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges},
    clock::Timestamp,
    decision::Decision,
    error::{Error, ErrorKind},
    error_chain::ErrorChain,
    log,
    policy::OnOutage,
    state::{CountedBy, Outcome, PolicyState},
    store::{Fallback, Health, Outage},
};

use super::{local::LocalCounts, merging::Merger, monitor::PrimaryMonitor};

/// Decides when the primary does not, and counts how often that happens.
#[derive(Debug)]
pub(super) struct LocalFallback {
    /// The counts of this process, which the fallbacks of all servers share.
    pub(super) local: Arc<LocalCounts>,
    /// Charges what was admitted locally to the primary.
    pub(super) merger: Arc<Merger>,
    /// Provides the clock, and the breaker for the health.
    monitor: Arc<PrimaryMonitor>,
    shedding: Arc<Shedding>,
    /// Number of decisions made without a primary because it failed.
    decisions: Arc<AtomicU64>,
}

impl LocalFallback {
    pub(super) fn new(local: Arc<LocalCounts>, monitor: Arc<PrimaryMonitor>) -> Self {
        Self {
            merger: Merger::new(Arc::clone(&local), Arc::clone(&monitor)),
            local,
            monitor,
            shedding: Arc::default(),
            decisions: Arc::default(),
        }
    }

    /// Returns the fallback of another node, with the same local counts.
    pub(super) fn for_node(&self, monitor: Arc<PrimaryMonitor>) -> Self {
        Self {
            merger: Merger::new(Arc::clone(&self.local), Arc::clone(&monitor)),
            local: Arc::clone(&self.local),
            monitor,
            shedding: Arc::clone(&self.shedding),
            decisions: Arc::clone(&self.decisions),
        }
    }

    /// Returns whether decisions are shed now.
    pub(super) fn is_shedding(&self) -> bool {
        self.shedding.is_on()
    }

    /// Decides because the primary is in an outage.
    pub(super) fn decide(&self, charges: &[Charge<'_>]) -> Decision {
        self.count();
        decide_locally(&self.local, charges)
    }

    /// Decides because the share of a key is used up, although the primary is available.
    pub(super) fn decide_by_share(&self, charges: &[Charge<'_>]) -> Decision {
        self.count();
        let decision = decide_counted(&self.local, charges);
        if decision.is_allowed() && has_choice(charges, OnOutage::Deny) {
            // A unit came back just now, and nobody has decided the other policies.
            return unavailable(charges, decision.decided_at());
        }
        decision
    }

    /// Counts a decision that is made here.
    fn count(&self) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.monitor.metrics.decided_without();
    }

    /// Decides because the primary returned this error.
    #[cold]
    fn decide_after(&self, error: &Error, charges: &[Charge<'_>]) -> Decision {
        if error.kind() != ErrorKind::Overloaded {
            return self.decide(charges);
        }
        self.monitor.metrics.shed();
        let now = self.monitor.clock.now();
        if self.shedding.shed(now) {
            self.monitor.modes.set_shedding(true, now);
            log::event!(
                WARN,
                "some decisions are not sent, because they would come too late: their policies apply `on_outage`",
                mode = "shedding",
                error = ErrorChain(error),
            );
        }
        decide_locally(&self.local, charges)
    }

    /// Ends shedding if it was calm for long enough, and logs that.
    #[cold]
    fn end_shedding(&self) {
        let now = self.monitor.clock.now();
        if self.shedding.end(now) {
            self.monitor.modes.set_shedding(false, now);
            log::event!(
                INFO,
                "all decisions are sent again",
                mode = "healthy",
                calm = format_args!("{CALM:?}"),
                shed_decisions = self.shedding.decisions(),
            );
        }
    }

    /// Keeps the states in a decision of the primary, if `takes_notes`. Returns whether a charge costs anything.
    #[inline]
    fn note(
        &self,
        decision: &Decision,
        charges: &mut dyn Iterator<Item = Charge<'_>>,
        takes_notes: bool,
    ) -> bool {
        let now = decision.decided_at();
        let mut is_charged = false;
        for (charge, state) in charges.zip(decision.states()) {
            is_charged |= charge.units() > 0;
            if takes_notes && charge.policy().outage_choice() == OnOutage::Local {
                self.local
                    .note(&charge, state, now, &self.merger.history.doubts);
            }
        }
        is_charged
    }

    /// Returns the outage, if there is one, and the numbers of decisions made here.
    pub(super) fn health(&self) -> Health {
        let decisions = self.decisions.load(Ordering::Relaxed);
        let health = Health::counted(self.shedding.is_on(), decisions, self.shedding.decisions());
        let health = self
            .local
            .add_to(health)
            .with_probes(self.monitor.prober.probes())
            .in_mode_since(self.monitor.modes.since(), self.monitor.clock.now());
        match self.monitor.breaker.outage() {
            Some(outage) => health.degraded(Outage {
                server: self.monitor.primary.server(),
                ..outage
            }),
            None => health,
        }
    }
}

impl Fallback for LocalFallback {
    fn complete(
        &self,
        result: Result<Decision, Error>,
        charges: &mut dyn Iterator<Item = Charge<'_>>,
    ) -> Result<Decision, Error> {
        match result {
            Ok(decision) => {
                let refuses_writes = self.monitor.breaker.refuses_writes();
                let takes_notes = self.local.takes_notes();
                if refuses_writes || takes_notes {
                    let is_charged = self.note(&decision, charges, takes_notes);
                    // Peeks and denials write nothing, so only an admitted charge shows that writes succeed.
                    if refuses_writes && is_charged && decision.is_allowed() {
                        self.monitor.breaker.record_write();
                    }
                }
                if self.shedding.is_on() {
                    self.end_shedding();
                }
                Ok(decision)
            }
            Err(error) => {
                self.monitor.warn_once(&error);
                let charges: Charges<'_> = charges.collect();
                let decision = self.decide_after(&error, &charges);
                if !self.monitor.breaker.is_open() {
                    self.merger.start();
                }
                Ok(decision)
            }
        }
    }
}

// === Outage choices ===

/// Decides by each policy's outage choice.
///
/// If one policy denies, nothing is counted.
fn decide_locally(local: &LocalCounts, charges: &[Charge<'_>]) -> Decision {
    if has_choice(charges, OnOutage::Deny) {
        return unavailable(charges, local.clock.now());
    }
    decide_counted(local, charges)
}

/// Returns whether one of the policies that can deny has this outage choice.
fn has_choice(charges: &[Charge<'_>], choice: OnOutage) -> bool {
    let mut charges = charges.iter().filter(|charge| !charge.is_shadow());
    charges.any(|charge| charge.policy().outage_choice() == choice)
}

/// Decides the policies that count locally in the local store, all together. The others allow.
///
/// The usage of policies that nobody counts stays unknown.
fn decide_counted(local: &LocalCounts, charges: &[Charge<'_>]) -> Decision {
    let now = local.clock.now();
    let choice = |charge: &Charge<'_>| charge.policy().outage_choice();
    let counted: SmallVec<[Charge<'_>; 4]> = charges
        .iter()
        .filter(|charge| choice(charge) == OnOutage::Local)
        .copied()
        .collect();
    if counted.is_empty() {
        let states = charges
            .iter()
            .map(|charge| uncounted(charge, Outcome::Allowed));
        return Decision::new(CountedBy::Nobody, now, states);
    }
    // A local store that does not decide at once cannot be awaited here.
    let Some(decision) = local.decide(&counted) else {
        return unavailable(charges, now);
    };
    let mut states = decision.states().iter();
    let states = charges.iter().map(|charge| match choice(charge) {
        OnOutage::Local => *states.next().expect("one state per charge"),
        OnOutage::Allow | OnOutage::Deny => uncounted(charge, Outcome::Allowed),
    });
    Decision::new(CountedBy::Fallback, decision.decided_at(), states)
}

/// Denies every policy that does not allow requests during an outage.
fn unavailable(charges: &[Charge<'_>], now: Timestamp) -> Decision {
    let states = charges.iter().map(|charge| {
        let outcome = match charge.policy().outage_choice() {
            OnOutage::Allow => Outcome::Allowed,
            OnOutage::Local | OnOutage::Deny => Outcome::Unavailable,
        };
        uncounted(charge, outcome)
    });
    Decision::new(CountedBy::Nobody, now, states)
}

/// Returns the state of a policy that nobody counted: its usage is unknown.
fn uncounted(charge: &Charge<'_>, outcome: Outcome) -> PolicyState {
    PolicyState::uncounted(*charge.policy().name(), outcome).with_shadow(charge.is_shadow())
}

// === Shedding ===

/// Counts decisions that were not sent because they would have come too late, and detects when that begins and ends.
#[derive(Debug, Default)]
struct Shedding {
    decisions: AtomicU64,
    is_on: AtomicBool,
    /// Time of the latest shed decision, in microseconds.
    latest: AtomicU64,
}

impl Shedding {
    /// Returns the number of decisions shed so far.
    fn decisions(&self) -> u64 {
        self.decisions.load(Ordering::Relaxed)
    }

    /// Returns whether shedding has begun and not ended.
    #[inline]
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Counts a shed decision. Returns whether shedding begins with it.
    fn shed(&self, now: Timestamp) -> bool {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.latest.fetch_max(now.as_micros(), Ordering::Relaxed);
        !self.is_on() && !self.is_on.swap(true, Ordering::Relaxed)
    }

    /// Ends shedding if no decision was shed for [`CALM`]. Returns whether this call ended it.
    fn end(&self, now: Timestamp) -> bool {
        let latest = Timestamp::from_micros(self.latest.load(Ordering::Relaxed));
        now.since(latest) > CALM && self.is_on.swap(false, Ordering::Relaxed)
    }
}

/// Time without a shed decision after which shedding ends. A process at its limit sheds now and then, and should not log
/// each time.
const CALM: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shedding_begins_and_ends_once_and_ends_only_after_a_while() {
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        let shedding = Shedding::default();
        assert_eq!(
            [10, 10, 15].map(|second| shedding.shed(at(second))),
            [true, false, false]
        );
        assert_eq!(
            [16, 25, 26, 27].map(|second| shedding.end(at(second))),
            [false, false, true, false]
        );
        assert!(shedding.shed(at(30)));
        assert_eq!(shedding.decisions(), 4);
    }
}
