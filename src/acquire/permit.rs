//! The permit of a caller whose turn it is.

use std::{fmt, mem, sync::Arc, time::Duration};

use crate::{
    charge::Receipt,
    decision::Decision,
    hold::{Hold, HoldRegistry},
    policy::Policy,
};

/// Charges that were made. Holds the slots of [concurrency](crate::Policy::concurrency) policies until it is dropped.
///
/// [`RateLimiter::enforce`](crate::RateLimiter::enforce) and [`RateLimiter::acquire`](crate::RateLimiter::acquire) return it. Slots
/// in Redis are renewed while it exists, as by a [`Hold`].
#[must_use = "a permit that is dropped releases its slots"]
pub struct Permit {
    decision: Decision,
    waited: Duration,
    holds: Arc<HoldRegistry>,
    held: Held,
}

/// The charges of a permit, by how they end.
enum Held {
    /// Nothing.
    Kept(Option<Receipt>),
    /// Slots are released, and charges settled.
    Slots(Hold),
}

impl Permit {
    /// Holds the slots of a receipt.
    pub(crate) fn new(
        decision: Decision,
        receipt: Option<Receipt>,
        holds: &Arc<HoldRegistry>,
    ) -> Self {
        let has_slots = receipt.as_ref().is_some_and(has_slots);
        let held = match receipt {
            Some(receipt) if has_slots => Held::Slots(Hold::new(receipt, holds)),
            receipt => Held::Kept(receipt),
        };
        Self {
            decision,
            waited: Duration::ZERO,
            holds: Arc::clone(holds),
            held,
        }
    }

    /// Takes over charges that are held.
    pub(crate) fn of_hold(decision: Decision, hold: Hold, holds: &Arc<HoldRegistry>) -> Self {
        Self {
            held: Held::Slots(hold),
            ..Self::new(decision, None, holds)
        }
    }

    /// Sets how long the caller has waited.
    pub(crate) fn after(mut self, waited: Duration) -> Self {
        self.waited = waited;
        self
    }

    /// Returns the decision that made the charges.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns how long the caller has waited for its turn.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Ends the permit with the actual cost: `actual` receives each policy and the units charged.
    ///
    /// As [`Hold::settle`], which states what is retried.
    ///
    /// # Panics
    ///
    /// If `actual` panics.
    pub fn settle(mut self, actual: impl FnMut(&Policy, u64) -> u64) {
        match mem::replace(&mut self.held, Held::Kept(None)) {
            Held::Kept(Some(receipt)) => self.holds.end(None, receipt.actual_cost(actual)),
            Held::Kept(None) => {}
            Held::Slots(hold) => hold.settle(actual),
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("decision", &self.decision)
            .field("waited", &self.waited)
            .finish_non_exhaustive()
    }
}

// === Grant ===

/// The turn of a caller that has not got it yet. Dropped before that, it gives everything back.
#[derive(Debug)]
pub(super) struct Grant {
    decision: Decision,
    receipt: Option<Receipt>,
    holds: Arc<HoldRegistry>,
}

impl Grant {
    pub fn new(decision: Decision, receipt: Option<Receipt>, holds: &Arc<HoldRegistry>) -> Self {
        Self {
            decision,
            receipt,
            holds: Arc::clone(holds),
        }
    }

    /// Gives the turn to a caller that has waited for so long.
    pub fn into_permit(mut self, waited: Duration) -> Permit {
        let receipt = self.receipt.take();
        Permit::new(self.decision.clone(), receipt, &self.holds).after(waited)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(mut receipt) = self.receipt.take() {
            // Later callers may have been granted the units behind: then these come back after them.
            receipt.replace_policies(|charge| charge.policy().for_giving_back());
            self.holds.give_back(receipt.actual_cost(|_, _| 0));
        }
    }
}

fn has_slots(receipt: &Receipt) -> bool {
    let mut settlements = receipt.settlements().iter();
    settlements.any(|settlement| settlement.charge().ticket().is_some())
}
