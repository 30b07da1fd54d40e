//! Refunds to the buckets of one shard.
//!
//! A bucket identifies a charge by the TAT after it. A refund of an earlier charge moves that TAT back, so the key's total
//! of refunds is kept: the difference to the total at the time of a charge is how far the charge has moved since.
//!
//! ```text
//! charge A (100 ms)  TAT = 100              mark of A: reset_at 100, refunded_before 0
//! charge B (100 ms)  TAT = 200              mark of B: reset_at 200, refunded_before 0
//! refund A           TAT = 100, total 100
//! refund B           B ends at 200 - (100 - 0) = 100, which is at most the TAT: all of it can be refunded
//! ```
//!
//! # Why are refunds beside the buckets, and not in them?
//!
//! Only a bucket with overlapping requests has to remember its refunds. Inside the bucket, the sum would cost every key 12 bytes,
//! 50 % more. Here it costs 24 bytes, only for keys that need it.

use std::mem;

use crate::{
    algorithm::{BucketState, Counting, FreeTurns, TokenBucket},
    charge::Fingerprint,
    clock::Timestamp,
};

use super::{
    capacity::{Allotment, Capacity},
    table::{Place, Table, TableEntry},
};

/// Total refunds of each key that has any, kept until the charges before the last refund have lapsed.
///
/// The totals are apart from the buckets because few keys have one: only a refund that moves a later charge is added.
#[derive(Debug)]
pub(super) struct Refunds {
    totals: Table<RefundTotal>,
    /// Turns that were given up in queues, while others are behind them.
    turns: Table<FreeTurns>,
    /// Memory for spans of turns, from that of all logs.
    spans: Allotment,
}

/// Total refunds of one key, in microseconds of its TAT.
///
/// Packed, so that a key takes 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
struct RefundTotal {
    total: u64,
    /// Time by which all charges before the last refund have lapsed, in units of [`COARSE`] microseconds, rounded up.
    lapses: u32,
}

impl TableEntry for RefundTotal {
    #[inline]
    fn owes_until(&self) -> u64 {
        u64::from(self.lapses) * COARSE
    }

    fn shift(&mut self, micros: u64) {
        self.lapses = coarse(self.owes_until().saturating_add(micros));
    }
}

impl Refunds {
    pub fn new(capacity: &Capacity) -> Self {
        Self {
            totals: Table::new(capacity),
            turns: Table::new(capacity),
            spans: capacity.log_entries.allotment(),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.totals.taken() == 0
    }

    /// Returns whether a total is kept for a key.
    pub fn has(&mut self, fingerprint: Fingerprint) -> bool {
        !self.is_empty() && matches!(self.totals.find(fingerprint, 0), Place::Found(_))
    }

    /// Returns the total before a charge of a key, and keeps it until the charge lapses at `until`.
    #[inline(never)]
    pub fn before_charge(&mut self, fingerprint: Fingerprint, until: u64) -> u64 {
        let Place::Found(index) = self.totals.find(fingerprint, 0) else {
            return 0;
        };
        let refunds = self.totals.state(index);
        refunds.lapses = refunds.lapses.max(coarse(until));
        refunds.total
    }

    /// Returns the total of a key, or `None` when it was evicted and `now` is too early to assume 0.
    pub fn total(&mut self, fingerprint: Fingerprint, now: u64) -> Option<u64> {
        match self.totals.find(fingerprint, now) {
            Place::Found(index) => Some(self.totals.state(index).total),
            Place::Full | Place::Free(_) => (self.totals.evicted_until() <= now).then_some(0),
        }
    }

    /// Sets the total of a key whose last charge lapses at `until`. Returns `false` when no slot is free.
    pub fn set(&mut self, (fingerprint, total): (Fingerprint, u64), until: u64, now: u64) -> bool {
        let lapses = coarse(until);
        if let Place::Found(index) = self.totals.find(fingerprint, now) {
            let refunds = self.totals.state(index);
            refunds.total = total;
            refunds.lapses = refunds.lapses.max(lapses);
            return true;
        }
        let refunds = RefundTotal { total, lapses };
        self.totals.insert(fingerprint, refunds, now).is_ok()
    }

    /// Takes a turn that was given up, for a charge of a queue. Returns when it is over. If it `is_dry`, the turn stays free.
    pub fn take_turn(
        &mut self,
        (bucket, state): (&TokenBucket, BucketState),
        (fingerprint, cost): (Fingerprint, u64),
        is_dry: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let turns = self.take_turns(fingerprint);
        let mut left = turns.clone();
        let over = bucket.take_turn(&state, &mut left, now, cost);
        let is_kept = is_dry && over.is_some();
        self.keep_turns(
            fingerprint,
            if is_kept { turns } else { left },
            now.as_micros(),
        );
        over
    }

    /// Returns whether no queue has turns that were given up.
    pub fn has_no_turns(&self) -> bool {
        self.turns.taken() == 0
    }

    /// Removes the turns that were given up in the queue of a key, and returns them.
    pub fn take_turns(&mut self, fingerprint: Fingerprint) -> FreeTurns {
        let Place::Found(index) = self.turns.find(fingerprint, 0) else {
            return FreeTurns::default();
        };
        let turns = mem::take(self.turns.state(index));
        self.turns.account(index, turns.heap_entries());
        turns
    }

    /// Keeps the turns that were given up in the queue of a key. Without memory for them, they do not come back.
    pub fn keep_turns(&mut self, fingerprint: Fingerprint, turns: FreeTurns, now: u64) {
        let entries = turns.heap_entries();
        if !turns.is_empty() {
            if !self.spans.reserve(self.turns.heap_entries() + entries) {
                self.turns.evict_for(entries, now);
            }
            if self.spans.reserve(self.turns.heap_entries() + entries) {
                let _ = self.turns.insert(fingerprint, turns, now);
            }
        }
        let is_reserved = self.spans.reserve(self.turns.heap_entries());
        debug_assert!(is_reserved, "memory is reserved before it is taken");
    }

    /// Moves all times forward by `micros` microseconds.
    pub fn shift(&mut self, micros: u64) {
        self.totals.shift(micros);
        self.turns.shift(micros);
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.totals.bytes() + self.turns.bytes()
    }
}

impl TableEntry for FreeTurns {
    fn owes_until(&self) -> u64 {
        self.end()
    }

    fn shift(&mut self, micros: u64) {
        self.shift(micros);
    }

    fn bytes(&self) -> usize {
        self.allocated() * size_of::<(u64, u64)>()
    }

    fn heap_entries(&self) -> usize {
        self.allocated()
    }
}

/// Packs a time into four bytes, enough until the year 2540. The result is up to 4 seconds later.
fn coarse(micros: u64) -> u32 {
    u32::try_from(micros.div_ceil(COARSE)).unwrap_or(u32::MAX)
}

const COARSE: u64 = 1 << 22;
