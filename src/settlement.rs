//! What a request really cost, told after it was admitted.

use smallvec::SmallVec;

use crate::{
    algorithm::{ChargeMark, Counter},
    charge::{Charge, OwnedCharge},
    decision::Decision,
    policy::Policy,
    state::{CountedBy, Outcome, PolicyState},
};

/// A charge that was made, with what it really cost.
#[derive(Clone, Debug)]
pub struct Settlement {
    charge: OwnedCharge,
    mark: ChargeMark,
    actual: u64,
    /// Whether a command that takes its slots may reach the store after the one that releases them.
    take_is_pending: bool,
}

/// How a charge is put right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Correction {
    /// It cost more: charge so many units, whether they fit or not.
    Charge(u64),
    /// It cost what was charged.
    Keep,
    /// It cost less: give so many units back.
    Refund(u64),
    /// It is no longer in flight: free its slots, whatever it cost.
    Release,
}

impl Settlement {
    /// The charge that led to this state, at its full cost until the receipt is priced.
    ///
    /// `None` when nothing was charged: it was a peek, it was denied, or nobody could count.
    #[must_use]
    pub fn of(charge: &Charge<'_>, state: &PolicyState) -> Option<Self> {
        let usage = state.usage()?;
        (state.outcome() == Outcome::Allowed && charge.units() > 0).then(|| Self {
            charge: charge.to_owned(),
            mark: ChargeMark {
                made: usage.reset_at,
                returned: state.returned_before(),
            },
            actual: charge.units(),
            take_is_pending: false,
        })
    }

    /// The release of slots that a charge may have taken, by a command that may still be on its way if it is `pending`.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn of_slots(charge: OwnedCharge, pending: bool) -> Self {
        Self {
            actual: charge.borrow().units(),
            charge,
            mark: ChargeMark::default(),
            take_is_pending: pending,
        }
    }

    /// The charge that was made.
    #[must_use]
    pub fn charge(&self) -> Charge<'_> {
        self.charge.borrow()
    }

    /// By what the charge is known: with it the state tells what the charge still weighs.
    #[must_use]
    pub fn mark(&self) -> ChargeMark {
        self.mark
    }

    /// Whether a command that takes its slots may reach the store after the one that releases them.
    #[must_use]
    pub fn take_is_pending(&self) -> bool {
        self.take_is_pending
    }

    /// The same settlement when such a command may be on its way.
    pub(crate) fn with_pending_take(mut self) -> Self {
        self.take_is_pending = true;
        self
    }

    /// What is to be put right.
    #[must_use]
    pub fn correction(&self) -> Correction {
        if let Counter::Concurrency(_) = self.charge().policy().counter() {
            return Correction::Release;
        }
        let charged = self.charge().units();
        match self.actual.checked_sub(charged) {
            Some(0) => Correction::Keep,
            Some(more) => Correction::Charge(more),
            None => Correction::Refund(charged - self.actual),
        }
    }
}

// === Receipt ===

/// What a decision charged, to be settled once.
///
/// Not `Clone`: settling consumes it, so that nothing is given back twice. Dropped unsettled, the charges stand.
#[derive(Debug)]
#[must_use = "a receipt that is not settled leaves the charges as they are"]
pub struct Receipt {
    settlements: Vec<Settlement>,
    counted_by: CountedBy,
}

impl Receipt {
    /// The receipt of a decision on these charges. `None` when it charged nothing.
    #[must_use]
    pub fn of(charges: &[Charge<'_>], decision: &Decision) -> Option<Self> {
        if !decision.is_allowed() {
            return None;
        }
        let made = charges.iter().zip(decision.states());
        let settlements: Vec<_> = made
            .filter_map(|(charge, state)| match decision.ticket() {
                None => Settlement::of(charge, state),
                Some(ticket) => Settlement::of(&charge.with_ticket(ticket), state),
            })
            .collect();
        (!settlements.is_empty()).then_some(Self {
            settlements,
            counted_by: decision.counted_by(),
        })
    }

    /// A receipt of charges in the shared store.
    pub(crate) fn again(settlements: Vec<Settlement>) -> Self {
        Self {
            settlements,
            counted_by: CountedBy::Shared,
        }
    }

    pub(crate) fn into_settlements(self) -> Vec<Settlement> {
        self.settlements
    }

    /// Notes that a command that takes the slots may reach the store after the one that releases them.
    pub(crate) fn note_pending_take(&mut self) {
        for settlement in &mut self.settlements {
            settlement.take_is_pending = true;
        }
    }

    /// Sets what the request really cost under each policy: a function of the policy and of what was charged.
    pub fn price(mut self, actual: impl FnMut(&Policy, u64) -> u64) -> Self {
        self.set_prices(actual);
        self
    }

    /// As [`price`](Self::price). If `actual` panics, nothing is set.
    pub(crate) fn set_prices(&mut self, mut actual: impl FnMut(&Policy, u64) -> u64) {
        let settlements = self.settlements.iter();
        let prices = settlements.map(|settlement| {
            let charge = settlement.charge();
            actual(charge.policy(), charge.units())
        });
        let prices: SmallVec<[u64; 4]> = prices.collect();
        for (settlement, units) in self.settlements.iter_mut().zip(prices) {
            settlement.actual = units;
        }
    }

    /// Who counted the charges, and so is to put them right.
    #[must_use]
    pub fn counted_by(&self) -> CountedBy {
        self.counted_by
    }

    /// The charges.
    #[must_use]
    pub fn settlements(&self) -> &[Settlement] {
        &self.settlements
    }
}
