//! How much memory the states of a store share beyond their slots.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Entries that are left for all shards together. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    pub(super) fn new(entries: usize) -> Self {
        let left = Arc::new(AtomicUsize::new(entries));
        Self { left }
    }

    /// Makes what is held as much as is wanted; `false`, and nothing changes, when that is more than is left.
    pub(super) fn hold(&self, held: &mut usize, wanted: usize) -> bool {
        if wanted <= *held {
            self.left.fetch_add(*held - wanted, Ordering::Relaxed);
        } else if !self.take(wanted - *held) {
            return false;
        }
        *held = wanted;
        true
    }

    fn take(&self, entries: usize) -> bool {
        let less = |left: usize| left.checked_sub(entries);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}
