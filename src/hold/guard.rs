//! A charge that is held until its request has ended.

use std::{fmt, sync::Arc};

use crate::{policy::Policy, store::Receipt};

use super::keeper::Keeper;

/// Holds a decision's charges until the request ends. Dropping it settles them in the background at the charged cost.
///
/// The slots of a [concurrency](crate::Policy::concurrency) policy are renewed as long as this exists, and released by
/// settling. In process they need no renewal, since they have no lease any more. Over Redis both need a Tokio runtime: drop
/// this within one. One task renews all holds of a limiter, on a runtime on which one of them was made. If that runtime ends,
/// or is no longer driven, a task on the runtime of another hold takes over.
///
/// A failed release is retried until Redis confirms it or the lease must have ended; a correction that was not sent, for the
/// policy's period, at most an hour. At most 65,536 of both wait per limiter, in about 40 MB; a correction only waits while
/// fewer than 32,768 others do. Beyond that, slots end with their lease and charges stand.
#[must_use = "dropped at once, the request has ended"]
pub struct Hold {
    receipt: Option<Receipt>,
    /// By which the keeper knows its slots.
    number: Option<u64>,
    keeper: Arc<Keeper>,
}

impl Hold {
    pub(crate) fn new(receipt: Receipt, keeper: &Arc<Keeper>) -> Self {
        Self {
            number: keeper.register(&receipt),
            receipt: Some(receipt),
            keeper: Arc::clone(keeper),
        }
    }

    /// What was charged.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Ends it, with what the request really cost under each policy: a function of the policy and of what was charged.
    ///
    /// # Panics
    ///
    /// If the function panics. The hold ends then too, and what was charged stands.
    pub fn settle(mut self, actual: impl FnMut(&Policy, u64) -> u64) {
        // In place: if it panics, the receipt is still there to be settled by the drop.
        if let Some(receipt) = &mut self.receipt {
            receipt.set_actual_costs(actual);
        }
        self.end();
    }

    /// Forgets what was charged: it stands, and the leases of slots end.
    pub(crate) fn forget(mut self) {
        self.receipt = None;
        self.keeper.forget(self.number);
    }

    fn end(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.keeper.end(self.number, receipt);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(receipt) = &mut self.receipt {
            receipt.set_actual_costs(|_, charged| charged);
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
