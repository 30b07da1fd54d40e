//! Memory that all shards of a store share.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The amount left for all shards together, in bytes or entries. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    pub(super) fn new(amount: usize) -> Self {
        let left = Arc::new(AtomicUsize::new(amount));
        Self { left }
    }

    fn take(&self, amount: usize) -> bool {
        let less = |left: usize| left.checked_sub(amount);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

// === Share ===

/// The part of a budget that one owner holds.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    held: usize,
}

impl Share {
    /// Nothing yet.
    pub(super) fn of(budget: &Budget) -> Self {
        Self {
            budget: budget.clone(),
            held: 0,
        }
    }

    /// Changes the size of the share. Returns `false`, and changes nothing, when the budget has too little left.
    #[inline]
    pub(super) fn hold(&mut self, wanted: usize) -> bool {
        wanted == self.held || self.change(wanted)
    }

    fn change(&mut self, wanted: usize) -> bool {
        if wanted <= self.held {
            let back = self.held - wanted;
            self.budget.left.fetch_add(back, Ordering::Relaxed);
        } else if !self.budget.take(wanted - self.held) {
            return false;
        }
        self.held = wanted;
        true
    }
}
