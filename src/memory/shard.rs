//! One lock's worth of keys: the table, and the buckets that newcomers share when it is full.

use crate::{clock::Timestamp, policy::Charge};

use super::{
    fingerprint::{Fingerprint, Fingerprinter},
    pools::Pools,
    table::{Place, Table},
};

/// A table and its shared buckets.
#[derive(Debug)]
pub(super) struct Shard {
    table: Table,
    /// The debt of all keys that got no slot.
    pools: Pools,
    /// Whether a key ever got no slot.
    is_crowded: bool,
}

/// A charge as the store looks it up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) charge: &'a Charge<'a>,
    pub(super) fingerprint: Fingerprint,
    pub(super) fingerprinter: &'a Fingerprinter,
}

impl Shard {
    pub(super) fn new(max_slots: usize) -> Self {
        Self {
            table: Table::new(max_slots),
            pools: Pools::default(),
            is_crowded: false,
        }
    }

    /// Where the key is or may go, and its TAT.
    #[inline]
    pub(super) fn find(&self, asked: &Asked<'_>, now: Timestamp) -> (Place, u64) {
        let place = self.table.find(asked.fingerprint, now.as_micros());
        let tat = match place {
            Place::Found(index) => self.table.tat(index),
            Place::Crowded | Place::Free(_) => {
                self.pooled_debt(asked, now).max(self.table.forgotten())
            }
        };
        (place, tat)
    }

    /// Whether a key that was looked up will be counted in its policy's shared bucket.
    pub(super) fn pools(&self, place: Place) -> bool {
        self.is_crowded && place == Place::Crowded
    }

    /// Stores a charge that moves the TAT from `before` to `after`. `false` when it went to a shared bucket.
    #[inline]
    pub(super) fn write(
        &mut self,
        asked: &Asked<'_>,
        (place, before): (Place, u64),
        after: u64,
        now: Timestamp,
    ) -> bool {
        if let Place::Found(index) = place {
            self.table.set(index, after);
            return true;
        }
        let now = now.as_micros();
        if self.table.insert(asked.fingerprint, after, now) {
            return true;
        }
        self.is_crowded = true;
        self.pools.add(asked.policy(), now, after - before.max(now));
        false
    }

    /// Forgets a key's debt. What was counted in a shared bucket stays: nobody knows whose it is.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint) {
        if let Place::Found(index) = self.table.find(fingerprint, 0) {
            self.table.set(index, 0);
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.table.taken()
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// What a key without a slot may owe at most: it may have been counted in its policy's shared bucket.
    #[inline]
    fn pooled_debt(&self, asked: &Asked<'_>, now: Timestamp) -> u64 {
        if !self.is_crowded {
            return 0;
        }
        let span = asked.charge.policy().bucket().span();
        self.pools.debt(asked.policy(), now.as_micros(), span)
    }
}

impl Asked<'_> {
    fn policy(&self) -> u64 {
        self.fingerprinter.of_policy(self.charge.policy().name())
    }
}
