//! Settlements: corrections of charges to the actual cost of a request.
//!
//! # Why is a refund limited to the outstanding part of a charge?
//!
//! Time returns units too. If a refund returned them again, the bucket would admit more than its capacity. So a refund is at most
//! what is outstanding: for a bucket, the time from now until the TAT right after the charge. By then, the charge and all earlier
//! ones are paid off. A window accepts a refund only while the window of the charge still counts.
//!
//! A refund of an earlier charge moves that TAT closer. So the key stores the sum of its refunds, and each charge carries the sum
//! as it was then. Refunds since then count as refunds of earlier charges (`src/memory/refunds.rs` has an example). If one of
//! them was of a later charge, slightly less is refunded than could be, and never more. Refunds in the order of the charges, or
//! in the reverse order, are complete. The sum takes 7 bytes, only at keys with refunds, and only while these charges are
//! outstanding.
//!
//! A receipt does not show whether it is older than a `reset`. One from before the `reset` can refund later charges, up to the
//! units that it charged. The same holds if a limit is changed and changed back while a request runs.

use std::time::Duration;

use smallvec::SmallVec;

#[cfg(feature = "redis")]
use super::charge::Site;
use super::charge::{Charge, OwnedCharge};
use crate::{
    algorithm::{Counter, RefundToken},
    clock::Timestamp,
    decision::{CountedBy, Decision, Outcome, PolicyState},
    error::{Error, ErrorKind},
    policy::Policy,
};

/// A charge that was made, with the actual cost of its request.
#[derive(Clone, Debug)]
pub struct Settlement {
    charge: OwnedCharge,
    mark: RefundToken,
    actual: u64,
    effect: KeyEffect,
    /// Whether the delay after a failure has begun before the end of the request.
    is_delayed: bool,
    is_acquire_pending: bool,
    /// Whether others may wait for the slots.
    wakes: bool,
    counted_by: CountedBy,
}

/// The correction that a [`Settlement`] needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Correction {
    /// The request cost more: charge this many units, even over the limit.
    Charge(u64),
    /// The request cost what was charged.
    Keep,
    /// The request cost less: refund this many units.
    Refund(u64),
    /// The request is no longer in flight: release its slots, whatever it costs.
    Release,
}

impl Settlement {
    /// Returns a settlement that keeps the full cost. `state` is the policy's state after the charge.
    ///
    /// `None` if nothing was charged: the charge is a peek, was denied, or could not be counted.
    #[must_use]
    pub fn of(charge: &Charge<'_>, state: &PolicyState) -> Option<Self> {
        let usage = state.usage()?;
        let is_queue = charge.policy().counter().is_queue();
        let mark = match Timestamp::from_micros(state.refunded_before()) {
            // It has taken a turn that was given up.
            ends if is_queue && ends > Timestamp::default() => RefundToken {
                reset_at: ends,
                refunded_before: 0,
            },
            _ => RefundToken {
                reset_at: usage.reset_at,
                refunded_before: state.refunded_before(),
            },
        };
        (state.outcome() == Outcome::Allowed && charge.units() > 0).then(|| Self {
            charge: charge.to_owned(),
            mark,
            actual: charge.units(),
            effect: KeyEffect::Nothing,
            is_delayed: false,
            is_acquire_pending: false,
            wakes: false,
            counted_by: state.counted_by().unwrap_or(CountedBy::Shared),
        })
    }

    /// Returns the release of slots that a charge may have acquired.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn release(charge: OwnedCharge, is_acquire_pending: bool) -> Self {
        Self {
            actual: charge.borrow().units(),
            charge,
            mark: RefundToken::default(),
            effect: KeyEffect::Nothing,
            is_delayed: false,
            is_acquire_pending,
            wakes: false,
            counted_by: CountedBy::Shared,
        }
    }

    /// Returns the charge.
    #[must_use]
    pub fn charge(&self) -> Charge<'_> {
        self.charge.borrow()
    }

    /// Returns where the charge is counted, and so must be settled.
    pub(crate) fn counted_by(&self) -> CountedBy {
        self.counted_by
    }

    /// Returns the mark that identifies the charge when it is refunded.
    #[must_use]
    pub(crate) fn mark(&self) -> RefundToken {
        self.mark
    }

    /// Sets the key's total of refunds before the charge.
    #[cfg(feature = "redis")]
    pub(crate) fn set_refunded_before(&mut self, total: u64) {
        self.mark.refunded_before = total;
    }

    /// Returns whether the request waits for the turn of the charge.
    pub(crate) fn has_turn(&self) -> bool {
        let charge = self.charge();
        charge.policy().counter().is_queue() && !charge.is_shadow()
    }

    /// Sets what identifies the charge.
    pub(crate) fn set_mark(&mut self, reset_at: Timestamp, refunded_before: u64) {
        self.mark = RefundToken {
            reset_at,
            refunded_before,
        };
    }

    /// Sets where the charge's key is counted.
    #[cfg(feature = "redis")]
    pub(crate) fn set_site(&mut self, site: Site) {
        self.charge = self.charge.borrow().at(site).to_owned();
    }

    /// Returns whether the store may acquire the slots after it has released them.
    ///
    /// This happens if the acquiring command is still on its way. A shared store must then reject the ticket for a
    /// lease.
    #[must_use]
    #[doc(hidden)]
    pub fn is_acquire_pending(&self) -> bool {
        self.is_acquire_pending
    }

    /// Returns whether others may wait for the slots, so that the release wakes one of them.
    pub(crate) fn wakes(&self) -> bool {
        self.wakes
    }

    /// Marks a release that such a command may follow.
    pub(crate) fn with_pending_acquire(mut self) -> Self {
        self.is_acquire_pending = true;
        self
    }

    /// Returns the lease of the slots that the charge took, or `None` if its policy does not count slots.
    pub(crate) fn lease(&self) -> Option<Duration> {
        match self.charge.borrow().policy().counter() {
            Counter::Concurrency(slots) => Some(slots.lease()),
            Counter::Bucket(_)
            | Counter::FixedWindow(_)
            | Counter::SlidingLog(_)
            | Counter::SlidingWindow(_) => None,
        }
    }

    /// Returns whether it releases slots, and so may be repeated when the fate of a try is unknown.
    pub(crate) fn is_release(&self) -> bool {
        self.correction() == Correction::Release
    }

    /// Returns whether another try may succeed, and cannot count anything twice.
    ///
    /// | | another try |
    /// |---|---|
    /// | release | after a transient, protocol or script error |
    /// | correction | if the store certainly did not do it |
    pub(crate) fn may_retry(&self, error: &Error) -> bool {
        match self.correction() {
            Correction::Keep => false,
            // An operator may grant the Redis user a missing permission.
            Correction::Release => {
                error.is_transient()
                    || matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Script)
            }
            Correction::Charge(_) | Correction::Refund(_) => error.was_not_executed(),
        }
    }

    /// Returns how long the settlement is of use: until the lease or the policy's period is over.
    pub(crate) fn retry_span(&self) -> Duration {
        let period = self.charge().policy().quota().period();
        let lease = self.lease();
        lease.unwrap_or(period.min(MAX_RETRY_SPAN))
    }

    /// Returns the correction from the charged to the actual cost.
    #[must_use]
    pub fn correction(&self) -> Correction {
        if self.charge().policy().is_concurrency() {
            return Correction::Release;
        }
        if self.effect == KeyEffect::Cleared {
            // A refund that came after would be one of later charges.
            return Correction::Keep;
        }
        let charged = self.charge().units();
        match self.actual.checked_sub(charged) {
            Some(0) => Correction::Keep,
            Some(more) => Correction::Charge(more),
            None => Correction::Refund(charged - self.actual),
        }
    }
}

// === Actual ===

/// Cost of a request in the end, and the effect of its end on its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actual {
    pub units: u64,
    pub effect: KeyEffect,
}

impl From<u64> for Actual {
    fn from(units: u64) -> Self {
        Self {
            units,
            effect: KeyEffect::Nothing,
        }
    }
}

/// Effect of the end of a request on its key, besides the correction of the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyEffect {
    /// Everything that has counted is cleared, the charge too.
    Cleared,
    /// The next delay of a backoff begins.
    Failed,
    Nothing,
}

/// Maximum time for which a correction is retried.
const MAX_RETRY_SPAN: Duration = Duration::from_secs(3_600);

// === Receipt ===

/// The charges of a decision, to settle once.
///
/// Settling consumes the receipt, and it is not `Clone`. Make one receipt per decision: a second one could refund the
/// same charges again. If it is dropped, the charges are kept.
#[derive(Debug)]
#[must_use = "a receipt that is not settled leaves the charges as they are"]
pub struct Receipt {
    settlements: Vec<Settlement>,
}

impl Receipt {
    /// Returns the receipt of a decision on these charges; `None` if nothing was charged.
    #[must_use]
    pub fn of(charges: &[Charge<'_>], decision: &Decision) -> Option<Self> {
        if !decision.is_allowed() {
            return None;
        }
        let made = charges.iter().zip(decision.states());
        let settlements: Vec<_> = made
            .filter_map(|(charge, state)| {
                let settlement = match decision.ticket() {
                    None => Settlement::of(charge, state),
                    Some(ticket) => Settlement::of(&charge.with_ticket(ticket), state),
                };
                let counted_by = state.counted_by().unwrap_or(decision.counted_by());
                settlement.map(|settlement| Settlement {
                    counted_by,
                    ..settlement
                })
            })
            .collect();
        (!settlements.is_empty()).then_some(Self { settlements })
    }

    /// Returns the receipt of these settlements.
    pub(crate) fn with(settlements: Vec<Settlement>) -> Self {
        Self { settlements }
    }

    pub(crate) fn into_settlements(self) -> Vec<Settlement> {
        self.settlements
    }

    /// Marks every settlement as [`Settlement::is_acquire_pending`].
    pub(crate) fn mark_acquire_pending(&mut self) {
        for settlement in &mut self.settlements {
            settlement.is_acquire_pending = true;
        }
    }

    /// Marks every settlement as [`Settlement::wakes`].
    pub(crate) fn mark_waking(&mut self) {
        for settlement in &mut self.settlements {
            settlement.wakes = true;
        }
    }

    /// Replaces the turn in a queue by one that is over at this time.
    pub(crate) fn set_turn(&mut self, over: Timestamp) {
        for settlement in &mut self.settlements {
            if settlement.has_turn() {
                settlement.set_mark(over, 0);
            }
        }
    }

    /// Replaces the policies of charges by others, which must count in the same way.
    pub(crate) fn replace_policies(&mut self, replacement: impl Fn(&Charge<'_>) -> Policy) {
        for settlement in &mut self.settlements {
            let charge = settlement.charge.borrow();
            let policy = replacement(&charge);
            settlement.charge = charge.under(&policy).to_owned();
        }
    }

    /// Sets the actual cost of the request under each policy.
    ///
    /// `actual` gets the policy and the units charged. Default: the units charged.
    pub fn actual_cost(mut self, mut actual: impl FnMut(&Policy, u64) -> u64) -> Self {
        self.set_actual_costs(|policy, charged| actual(policy, charged).into());
        self
    }

    /// As [`actual_cost`](Self::actual_cost). If `actual` panics, nothing is set.
    pub(crate) fn set_actual_costs(&mut self, mut actual: impl FnMut(&Policy, u64) -> Actual) {
        let settlements = self.settlements.iter();
        let costs = settlements.map(|settlement| {
            let charge = settlement.charge();
            actual(charge.policy(), charge.units())
        });
        let costs: SmallVec<[Actual; 4]> = costs.collect();
        for (settlement, Actual { units, effect }) in self.settlements.iter_mut().zip(costs) {
            let is_done = settlement.is_delayed && effect == KeyEffect::Failed;
            settlement.actual = units;
            settlement.effect = if is_done { KeyEffect::Nothing } else { effect };
        }
    }

    /// Returns the charges that `has_failed` chooses, whose delays are to begin now. At the end of the request they begin no other.
    pub(crate) fn fail(
        &mut self,
        mut has_failed: impl FnMut(&Policy, u64) -> bool,
    ) -> Vec<OwnedCharge> {
        let mut failed = Vec::new();
        for settlement in &mut self.settlements {
            let charge = settlement.charge.borrow();
            if !settlement.is_delayed && has_failed(charge.policy(), charge.units()) {
                failed.push(settlement.charge.clone());
                settlement.is_delayed = true;
            }
        }
        failed
    }

    /// Returns the charges whose keys the end of the request changes besides.
    pub(crate) fn effects(&self) -> Vec<(OwnedCharge, KeyEffect)> {
        let settlements = self.settlements.iter();
        let with_effect = settlements.filter(|settlement| settlement.effect != KeyEffect::Nothing);
        let effects = with_effect.map(|settlement| (settlement.charge.clone(), settlement.effect));
        effects.collect()
    }

    /// Returns where the charges are counted, and so must be settled. If they are not counted in one place, the least
    /// reliable of these places.
    #[must_use]
    pub fn counted_by(&self) -> CountedBy {
        let counted_by = self.settlements.iter().map(Settlement::counted_by);
        counted_by
            .reduce(CountedBy::least)
            .unwrap_or(CountedBy::Uncounted)
    }

    /// Returns one settlement per charge that was made.
    #[must_use]
    pub fn settlements(&self) -> &[Settlement] {
        &self.settlements
    }
}
