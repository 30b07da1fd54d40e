//! Units refunded to the buckets of one shard, so that a later refund never exceeds what is left of its charge.

use super::{
    capacity::Capacity,
    fingerprint::Fingerprint,
    table::{Held, Place, Table},
};

/// The sum of refunds of each key that has one, for as long as it matters.
///
/// Apart from the buckets, since few keys have one: only a refund that moves a later charge forward is added.
#[derive(Debug)]
pub(super) struct Refunds {
    sums: Table<RefundSum>,
}

/// Total units refunded to one key.
///
/// Packed, so that a key takes 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
pub(super) struct RefundSum {
    sum: u64,
    /// Time by which all charges made before the last refund have lapsed, in units of [`COARSE`] microseconds, rounded up.
    lapses: u32,
}

impl Held for RefundSum {
    #[inline]
    fn owes_until(&self) -> u64 {
        u64::from(self.lapses) * COARSE
    }

    fn shift(&mut self, micros: u64) {
        self.lapses = coarse(self.owes_until().saturating_add(micros));
    }
}

impl Refunds {
    pub(super) fn new(capacity: &Capacity) -> Self {
        Self {
            sums: Table::new(capacity),
        }
    }

    /// Returns the sum that marks a charge of a key, which lapses at `until`.
    #[inline]
    pub(super) fn mark(&mut self, fingerprint: Fingerprint, until: u64) -> u64 {
        match self.sums.taken() {
            0 => 0,
            _ => self.mark_some(fingerprint, until),
        }
    }

    #[inline(never)]
    fn mark_some(&mut self, fingerprint: Fingerprint, until: u64) -> u64 {
        let Place::Found(index) = self.sums.find(fingerprint, 0) else {
            return 0;
        };
        let known = self.sums.state(index);
        known.lapses = known.lapses.max(coarse(until));
        known.sum
    }

    /// Returns the units refunded to a key, or `None` when they are forgotten and `now` is too old to know that they were 0.
    pub(super) fn of(&mut self, fingerprint: Fingerprint, now: u64) -> Option<u64> {
        match self.sums.find(fingerprint, now) {
            Place::Found(index) => Some(self.sums.state(index).sum),
            Place::Crowded | Place::Free(_) => (self.sums.forgotten() <= now).then_some(0),
        }
    }

    /// Sets the units refunded to a key whose last charge lapses at `until`. Returns `false` when there is no room.
    pub(super) fn set(
        &mut self,
        (fingerprint, sum): (Fingerprint, u64),
        until: u64,
        now: u64,
    ) -> bool {
        let lapses = coarse(until);
        if let Place::Found(index) = self.sums.find(fingerprint, now) {
            let known = self.sums.state(index);
            known.sum = sum;
            known.lapses = known.lapses.max(lapses);
            return true;
        }
        let state = RefundSum { sum, lapses };
        self.sums.insert(fingerprint, state, now).is_ok()
    }

    /// Moves every time forwards by so many microseconds.
    pub(super) fn shift(&mut self, micros: u64) {
        self.sums.shift(micros);
    }

    /// Bytes that the sums take.
    pub(super) fn bytes(&self) -> usize {
        self.sums.bytes()
    }
}

/// A time in four bytes, until the year 2540; up to 4 seconds late.
fn coarse(micros: u64) -> u32 {
    u32::try_from(micros.div_ceil(COARSE)).unwrap_or(u32::MAX)
}

const COARSE: u64 = 1 << 22;
