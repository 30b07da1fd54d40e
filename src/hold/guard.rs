//! The guard that holds a request's charges.

use std::{fmt, sync::Arc};

use crate::{
    charge::{Actual, Receipt, Settlement},
    clock::{Moment, Timestamp},
    policy::Policy,
};

use super::{registry::HoldRegistry, turns::PlaceInQueue};

/// Holds a decision's charges until the request ends. Dropping it settles them in the background at the charged cost.
///
/// The slots of a [concurrency](crate::Policy::concurrency) policy are renewed while the hold exists, and released when
/// it is settled or dropped. In process, slots have no lease while they are held and need no renewal. Over Redis, one task
/// renews all holds of a limiter, on the thread `tollgate-home`. A hold may also be created and dropped on a thread without a Tokio runtime.
///
/// # When settling fails
///
/// | | retried | for |
/// |---|---|---|
/// | release of slots | until Redis confirms it | the length of the lease |
/// | correction of a charge | if it was certainly not sent | the policy's period, at most 1 hour |
///
/// At most 65,536 settlements wait per limiter, in about 40 MB; a correction waits only while fewer than 32,768 settlements do.
/// Beyond that, slots end with their lease and charges are kept.
#[must_use = "dropping the hold at once ends the request"]
pub struct Hold {
    /// Taken when the hold ends.
    receipt: Option<Receipt>,
    /// Number of the hold in the registry, if it is renewed.
    number: Option<u64>,
    registry: Arc<HoldRegistry>,
}

impl Hold {
    pub(crate) fn new(receipt: Receipt, registry: &Arc<HoldRegistry>) -> Self {
        Self {
            number: registry.register(&receipt),
            receipt: Some(receipt),
            registry: Arc::clone(registry),
        }
    }

    /// Returns the receipt of the charges.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Returns the charge whose turn the request waits for, if it is the only one.
    fn turn(&self) -> Option<&Settlement> {
        let settlements = self.receipt.as_ref()?.settlements().iter();
        let mut turns = settlements.filter(|settlement| settlement.has_turn());
        let turn = turns.next()?;
        turns.next().is_none().then_some(turn)
    }

    /// Returns whether others wait that came before.
    pub(crate) fn has_others_before(&self) -> bool {
        let has_waiting = |turn| self.registry.turns().has_waiting(turn);
        self.turn().is_some_and(has_waiting)
    }

    /// Begins to wait for the turn of the charges, which begins at this time; `None` if they have no turn, or several.
    pub(crate) fn wait_in_queue(&self, begins: Moment) -> Option<PlaceInQueue> {
        self.registry.turns().join(self.turn()?, begins)
    }

    /// Replaces the turn of the charges by one that is over at this time in the store.
    pub(crate) fn set_turn(&mut self, over: Timestamp) {
        if let Some(receipt) = &mut self.receipt {
            receipt.set_turn(over);
        }
    }

    /// Ends the hold with the actual cost of the request: `actual` receives each policy and the units charged.
    ///
    /// # Panics
    ///
    /// If `actual` panics. The hold then ends too, and the charges are kept.
    pub fn settle(self, mut actual: impl FnMut(&Policy, u64) -> u64) {
        self.settle_at(|policy, charged| actual(policy, charged).into());
    }

    /// As [`settle`](Self::settle), with what the end of the request does to each key.
    pub(crate) fn settle_at(mut self, actual: impl FnMut(&Policy, u64) -> Actual) {
        // In place, so that the drop can still settle the receipt if `actual` panics.
        if let Some(receipt) = &mut self.receipt {
            receipt.set_actual_costs(actual);
        }
        self.end();
    }

    /// Begins the delays after failures that `has_failed` finds, while the request goes on.
    pub(crate) fn fail(&mut self, has_failed: impl FnMut(&Policy, u64) -> bool) {
        let receipt = self.receipt.as_mut();
        let failed = receipt.map(|receipt| receipt.fail(has_failed));
        for charge in failed.unwrap_or_default() {
            self.registry.begin_delay(&charge.borrow());
        }
    }

    /// Ends the hold without settling: the charges are kept. Not for slots: in process,
    /// they would stay taken.
    pub(crate) fn forget(mut self) {
        self.receipt = None;
        self.registry.forget(self.number);
    }

    fn end(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.registry.end(self.number, receipt);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(receipt) = &mut self.receipt {
            receipt.set_actual_costs(|_, charged| charged.into());
        }
        self.end();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("receipt", &self.receipt)
            .finish_non_exhaustive()
    }
}
