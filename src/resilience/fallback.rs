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

use std::sync::{Arc, atomic::Ordering};

use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges, Receipt},
    decision::{CountedBy, Decision, Outcome, PolicyState},
    diagnosis::Code,
    error::{Error, ErrorKind},
    policy::OnOutage,
    store::{Health, Outage},
};

use super::{guard::Guard, local::LocalCounts, slot_probes};

impl Guard {
    /// Decides if one of the charges is in a hash slot that no node decides on.
    #[inline]
    pub fn decide_stuck(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        let all = &self.all;
        all.stuck_slots.has_any(charges).then(|| {
            slot_probes::ensure(all);
            self.decide_without(charges)
        })
    }

    /// Decides because the primary is in an outage.
    pub fn decide_without(&self, charges: &[Charge<'_>]) -> Decision {
        self.count();
        decide_locally(&self.local, charges)
    }

    /// Decides because the share of a key is used up, although the primary is available.
    pub fn decide_by_share(&self, charges: &[Charge<'_>]) -> Decision {
        self.count();
        let decision = decide_counted(&self.local, charges);
        if decision.is_allowed() && has_choice(charges, OnOutage::Deny) {
            // A unit came back just now, and nobody has decided the other policies.
            if let Some(receipt) = Receipt::of(charges, &decision) {
                // It settles at once, as it decides.
                let _ = self
                    .local
                    .settle(receipt.actual_cost(|_, _| 0))
                    .take_ready();
            }
            return unavailable(&self.local, charges);
        }
        decision
    }

    /// Counts a decision that is made here in an outage, or just after one.
    fn count(&self) {
        let (all, now) = (&self.all, self.clock.now());
        self.metrics.decided_without();
        all.note_change(all.recent.note_in_outage(now), now);
    }

    /// Decides because the primary returned this error.
    #[cold]
    fn decide_in_place_of(&self, error: &Error, charges: &[Charge<'_>]) -> Decision {
        let (all, now) = (&self.all, self.clock.now());
        if error.kind() == ErrorKind::Overloaded {
            self.metrics.shed();
            all.note_change(all.recent.note_shed(error, now), now);
        } else {
            self.metrics.decided_without();
            all.note_change(all.recent.note_failed(error, now), now);
            if let Some(slot) = error.slot() {
                self.slot_failed(slot, error, charges);
            }
        }
        decide_locally(&self.local, charges)
    }

    /// Notes that no node decides on this slot.
    fn slot_failed(&self, slot: u16, error: &Error, charges: &[Charge<'_>]) {
        let all = &self.all;
        let server = self.slot_server();
        let span = self.breaker.run_span();
        if all.slot_failed((slot, error), charges, (&server, span)) {
            let known = self.primary.warnings();
            if known
                .iter()
                .all(|known| known.code() != Code::UnreachableSlots)
            {
                all.warn_of_slot(slot);
            }
        }
        if all.stuck_slots.contains(slot) {
            slot_probes::ensure(all);
        }
    }

    /// Notes the states in a reply of the primary, which need not be the decision on a request.
    #[inline]
    pub fn note_reply(&self, decision: &Decision, charges: &mut dyn Iterator<Item = Charge<'_>>) {
        let refuses_writes = self.breaker.refuses_writes();
        let takes_notes = self.local.takes_notes();
        if refuses_writes || takes_notes {
            let is_charged = self.note(decision, charges, takes_notes);
            // Peeks and denials write nothing, so only an admitted charge shows that writes succeed.
            if refuses_writes && is_charged && decision.is_allowed() {
                self.breaker.record_write();
            }
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
                self.local.note(&charge, state, now, &self.history.doubts);
            }
        }
        is_charged
    }

    /// Returns the outages, if there are any, and the numbers of decisions made here.
    pub fn health(&self) -> Health {
        let (all, now) = (&self.all, self.clock.now());
        // Without decisions, nobody else looks.
        all.note_change(all.recent.look(now), now);
        let server_outage = self.breaker.outage().map(|outage| Outage {
            server: self.primary.server(),
            ..outage
        });
        let outages = server_outage.into_iter().chain(all.stuck_slots.outage());
        let shown = |time| self.clock.wall_time(time);
        let outages = outages.map(|outage| Outage {
            since: shown(outage.since),
            ..outage
        });
        let health = Health::of(all.modes.mode(), outages.collect())
            .with_decisions(all.recent.without_primary(), all.recent.shed())
            .with_affected(all.recent.affected(now))
            .with_probes(self.probes.load(Ordering::Relaxed))
            .in_mode_since(shown(all.modes.since()), shown(now));
        self.local.add_to(health)
    }

    /// Returns the decision of the primary, of which it notes the states, or in place of an error a local one.
    pub fn conclude(
        self: &Arc<Self>,
        result: Result<Decision, Error>,
        charges: &mut dyn Iterator<Item = Charge<'_>>,
    ) -> Decision {
        match result {
            Ok(decision) => {
                self.note_reply(&decision, charges);
                self.all.recent.note_decided(1);
                if self.all.recent.is_affected() {
                    self.all.look_at_recent(self.clock.now());
                }
                decision
            }
            Err(error) => {
                self.warn_once(&error);
                let charges: Charges<'_> = charges.collect();
                let decision = self.decide_in_place_of(&error, &charges);
                if !self.breaker.is_open() {
                    self.start_merging();
                }
                decision
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
        return unavailable(local, charges);
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
        return uncounted_decision(local, states);
    }
    // A local store that does not decide at once cannot be awaited here.
    let Some(decision) = local.decide(&counted) else {
        return unavailable(local, charges);
    };
    let mut states = decision.states().iter();
    let states = charges.iter().map(|charge| match choice(charge) {
        OnOutage::Local => *states.next().expect("one state per charge"),
        OnOutage::Allow | OnOutage::Deny => uncounted(charge, Outcome::Allowed),
    });
    Decision::new(CountedBy::Fallback, decision.decided_at(), states).timed_as(&decision)
}

/// Denies every policy that does not allow requests during an outage.
fn unavailable(local: &LocalCounts, charges: &[Charge<'_>]) -> Decision {
    let states = charges.iter().map(|charge| {
        let outcome = match charge.policy().outage_choice() {
            OnOutage::Allow => Outcome::Allowed,
            OnOutage::Local | OnOutage::Deny => Outcome::Unavailable,
        };
        uncounted(charge, outcome)
    });
    uncounted_decision(local, states)
}

/// Returns the decision on policies that nobody counts.
fn uncounted_decision(
    local: &LocalCounts,
    states: impl IntoIterator<Item = PolicyState>,
) -> Decision {
    Decision::new(CountedBy::Uncounted, local.clock.now(), states).timed_by(&local.clock)
}

/// Returns the state of a policy that nobody counted: its usage is unknown.
fn uncounted(charge: &Charge<'_>, outcome: Outcome) -> PolicyState {
    PolicyState::uncounted(*charge.policy().name(), outcome).with_shadow(charge.is_shadow())
}

#[cfg(test)]
mod tests {
    use crate::{algorithm::Quota, clock::Clock, key::Key, policy::Policy};

    use super::{super::guard::tests::guard, *};

    // Regression: a request that was refused for another policy kept the unit, and the slot, of the share.
    #[test]
    fn request_that_is_unavailable_takes_nothing_from_a_share() {
        let guard = guard(Clock::system());
        let daily = Policy::new("daily", Quota::per_day(5));
        let uploads = Policy::concurrency("uploads", 5);
        let strict = Policy::new("strict", Quota::per_day(5)).on_outage(OnOutage::Deny);
        let charges = [&daily, &uploads, &strict].map(|policy| policy.charge(Key::GLOBAL));
        for _ in 0..3 {
            let decision = guard.decide_by_share(&charges);
            assert_eq!(decision.outcome(), Outcome::Unavailable);
        }
        let peeks = charges.each_ref().map(|charge| charge.cost(0));
        let decision = decide_counted(&guard.local, &peeks[..2]);
        let usages = decision.states().iter().filter_map(PolicyState::usage);
        let remaining: Vec<u64> = usages.map(|usage| usage.remaining).collect();
        assert_eq!(remaining, [5, 5]);
    }
}
