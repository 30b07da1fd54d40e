//! Corrections of the states in a shard: settlements, refunds, and what other stores and the other side of a call have counted.

use crate::{
    algorithm::{Admitted, Counter, Counting, RefundToken, Refunded, TokenBucket},
    charge::{Charge, Correction, Fingerprint, Settlement},
    clock::Timestamp,
    decision::Usage,
};

use super::{
    keyed::KeyRef,
    shard::{Shard, with_states},
};

impl Shard {
    /// Corrects an earlier charge: charges the rest, refunds a part, or releases the slots.
    pub fn settle(&mut self, settlement: &Settlement, key: &KeyRef, now: Timestamp) {
        let charge = settlement.charge();
        match settlement.correction() {
            Correction::Charge(units) => with_states!(self, charge, |counter, states| {
                let ((), _) = states.update(counter, key, now, |state| {
                    counter.adopt(state, now);
                    counter.force_charge(state, now, units);
                    ((), true)
                });
            }),
            Correction::Keep => {}
            Correction::Refund(units) => self.refund(&charge, key, (settlement.mark(), units), now),
            Correction::Release => self.in_flight.release(key.fingerprint, key.ticket()),
        }
    }

    /// Adds a charge that was made elsewhere, or a least usage.
    pub fn merge(&mut self, charge: &Charge<'_>, key: &KeyRef, admitted: Admitted, now: Timestamp) {
        with_states!(self, charge, |counter, states| {
            let ((), _) = states.update(counter, key, now, |state| {
                counter.adopt(state, now);
                counter.merge(state, now, admitted);
                ((), true)
            });
        });
    }

    /// Returns whether there is room for a separate state of a charge's key. The overflow state is that of other keys, too.
    pub fn has_room(&self, charge: &Charge<'_>, key: &KeyRef, now: Timestamp) -> bool {
        let may_overflow = match charge.counter() {
            Counter::Bucket(_) => self.buckets.may_overflow(key, now),
            Counter::Concurrency(_) => false,
            Counter::FixedWindow(_) => self.windows.may_overflow(key, now),
            Counter::SlidingLog(_) => self.logs.may_overflow(key, now),
            Counter::SlidingWindow(_) => self.slides.may_overflow(key, now),
        };
        !may_overflow
    }

    /// Moves the TAT of a bucket to `tat`, if it is earlier.
    pub fn raise(&mut self, bucket: &TokenBucket, key: &KeyRef, tat: u64, now: Timestamp) {
        let ((), _) = self.buckets.update(bucket, key, now, |state| {
            bucket.adopt(state, now);
            *state = bucket.state(state.tat().max(tat));
            ((), true)
        });
    }

    /// Replaces the state of a charge's key by one with this usage, if there is room for a separate state.
    pub fn restore(&mut self, charge: &Charge<'_>, usage: Usage, now: Timestamp) {
        let key = KeyRef::of(charge).adding(true);
        drop(self.refunds.take_turns(key.fingerprint));
        with_states!(self, charge, |counter, states| {
            // The overflow state is that of other keys, too.
            if !states.may_overflow(&key, now) {
                let ((), _) = states.update(counter, &key, now, |state| {
                    *state = counter.restored(usage, now);
                    ((), true)
                });
            }
        });
    }

    /// Refunds units of an earlier charge, which `refund` identifies by its mark.
    fn refund(
        &mut self,
        charge: &Charge<'_>,
        key: &KeyRef,
        refund: (RefundToken, u64),
        now: Timestamp,
    ) {
        let fingerprint = key.fingerprint;
        match charge.counter() {
            Counter::Bucket(bucket) => self.refund_bucket(bucket, fingerprint, refund, now),
            // Slots are released by their ticket.
            Counter::Concurrency(_) => {}
            Counter::FixedWindow(window) => {
                self.windows.refund(window, fingerprint, refund, now);
            }
            Counter::SlidingLog(log) => {
                self.logs.refund(log, fingerprint, refund, now);
            }
            Counter::SlidingWindow(window) => {
                self.slides.refund(window, fingerprint, refund, now);
            }
        }
    }

    /// Refunds units of a bucket's charge. Makes no refund if the total of refunds cannot be stored.
    ///
    /// Without the total, a later refund of another charge could return units that this one has already returned.
    fn refund_bucket(
        &mut self,
        bucket: &TokenBucket,
        fingerprint: Fingerprint,
        (mark, units): (RefundToken, u64),
        now: Timestamp,
    ) {
        let micros = now.as_micros();
        let refunds = &mut self.refunds;
        let Some(before) = refunds.total(fingerprint, micros) else {
            return;
        };
        let mut refunded = Refunded {
            total: before,
            turns: refunds.take_turns(fingerprint),
        };
        self.buckets.amend(fingerprint, now, |state| {
            let charged = *state;
            bucket.refund(state, &mut refunded, now, mark, units);
            let total = refunded.total;
            if total != before && !refunds.set((fingerprint, total), charged.tat(), micros) {
                *state = charged;
            }
        });
        self.refunds.keep_turns(fingerprint, refunded.turns, micros);
    }
}
