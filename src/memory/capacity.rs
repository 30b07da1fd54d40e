//! Memory limits: of each shard, and of all shards together.
//!
//! ```text
//! max_keys ── slots_for ──> slots, of which max_keys fill 3/4 ── / shards ──> max_slots of each table
//!          ── * 4 ────────> log entries that all logs share
//!          ── + 100,000 ──> * 64 bytes for requests in flight
//! ```
//!
//! Tables have a fixed share of each shard, because keys spread evenly. Logs and requests in flight do not: a few keys can
//! need most of the memory. So all shards take from one [`Budget`], and each keeps an [`Allotment`] of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::available_parallelism,
};

use crate::{algorithm::Concurrency, task::Mutex};

/// Limits of one shard, and the budgets that all shards share.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    /// Number of slots in the smallest table that has any.
    pub min_slots: usize,
    /// Number of slots in a table that cannot grow further.
    pub max_slots: usize,
    /// Log entries beyond those that every log may have.
    pub log_entries: Budget,
    /// Bytes for requests in flight.
    pub in_flight: Budget,
    /// Held while a table grows, so that the old and the new memory of only one table coexist.
    pub growth: Arc<Mutex<()>>,
}

impl Capacity {
    /// Returns the limits for each of `shards` shards, so that a store for `max_keys` keys takes at most the documented
    /// bytes.
    pub fn of(max_keys: usize, shards: usize) -> Self {
        let slots = slots_for(max_keys);
        let (min_slots, max_slots) = if shards < MIN_GROWING_SHARDS {
            let slots = slots.div_ceil(shards);
            (slots, slots)
        } else {
            // The old slots of one growing table are also in memory: two thirds as many as its new ones.
            (MIN_SLOTS, slots / (3 * shards + 2) * 3)
        };
        let in_flight = max_keys
            .saturating_add(FULLEST_KEY)
            .saturating_mul(IN_FLIGHT_BYTES);
        Self {
            min_slots,
            max_slots,
            log_entries: Budget::new(max_keys.saturating_mul(SHARED_LOG_ENTRIES)),
            in_flight: Budget::new(in_flight),
            growth: Arc::default(),
        }
    }
}

/// Returns the number of shards for `max_keys` keys: enough for all cores, but none so small that it overflows by chance.
pub(super) fn shards_for(max_keys: usize) -> usize {
    let wanted = available_parallelism().map_or(16, |cores| cores.get() * 16);
    let most = (max_keys / 1_024).max(1).next_power_of_two();
    wanted.next_power_of_two().min(most)
}

/// Returns the number of slots of which `keys` keys fill three quarters.
pub(super) const fn slots_for(keys: usize) -> usize {
    keys.div_ceil(3).saturating_mul(4)
}

/// With fewer shards, one growing table would be a large part of the whole. Their tables are small, so they are allocated
/// at full size.
const MIN_GROWING_SHARDS: usize = 16;
/// Slots in the smallest table, if tables grow.
const MIN_SLOTS: usize = 16;
/// Log entries that all logs share, per key of `max_keys`.
const SHARED_LOG_ENTRIES: usize = 4;
/// Bytes for requests in flight, per key of `max_keys`.
const IN_FLIGHT_BYTES: usize = 64;
/// Requests in flight beyond `max_keys`, so that one key can fill the highest limit even in a small store.
#[expect(clippy::cast_possible_truncation, reason = "it fits")]
const FULLEST_KEY: usize = Concurrency::MAX_LIMIT as usize;

// === Budget ===

/// An amount, in bytes or entries, that all shards share. Clones share it too.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    /// Returns a budget of which nothing is taken.
    fn new(amount: usize) -> Self {
        let left = Arc::new(AtomicUsize::new(amount));
        Self { left }
    }

    /// Returns an empty allotment of this budget.
    pub fn allotment(&self) -> Allotment {
        Allotment {
            budget: self.clone(),
            amount: 0,
        }
    }

    /// Takes an amount. Returns `false`, and takes nothing, when too little is left.
    fn take(&self, amount: usize) -> bool {
        let less = |left: usize| left.checked_sub(amount);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

// === Allotment ===

/// The part of a budget that one owner has reserved.
#[derive(Debug)]
pub(super) struct Allotment {
    budget: Budget,
    /// Reserved at present.
    amount: usize,
}

impl Allotment {
    /// Sets the reserved amount. Returns `false`, and changes nothing, when the budget has too little left.
    #[inline]
    pub fn reserve(&mut self, amount: usize) -> bool {
        amount == self.amount || self.change(amount)
    }

    /// As [`reserve`](Self::reserve), for an amount that differs from the current one.
    fn change(&mut self, amount: usize) -> bool {
        if amount <= self.amount {
            let back = self.amount - amount;
            self.budget.left.fetch_add(back, Ordering::Relaxed);
        } else if !self.budget.take(amount - self.amount) {
            return false;
        }
        self.amount = amount;
        true
    }
}
