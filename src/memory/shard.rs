//! One lock's worth of keys: the table, and the buckets that newcomers share when it is full.

use crate::{clock::Timestamp, policy::Charge};

use super::{
    fingerprint::{Fingerprint, Fingerprinter},
    table::{Place, Table},
};

/// A table and its shared buckets.
#[derive(Debug)]
pub(super) struct Shard {
    table: Table,
    /// TATs of buckets that hold the debt of all keys that got no slot; made when first needed.
    pools: Option<Box<[u64; POOLS]>>,
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
            pools: None,
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

    /// Stores a TAT. `false` when it went to a shared bucket.
    #[inline]
    pub(super) fn write(
        &mut self,
        place: Place,
        asked: &Asked<'_>,
        tat: u64,
        now: Timestamp,
    ) -> bool {
        if let Place::Found(index) = place {
            self.table.set(index, tat);
            return true;
        }
        if self.table.insert(asked.fingerprint, tat, now.as_micros()) {
            return true;
        }
        let pool = &mut self.pools.get_or_insert_with(|| Box::new([0; POOLS]))[asked.pool()];
        *pool = tat.max(*pool);
        false
    }

    /// Forgets a key's debt.
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
        let Some(pools) = &self.pools else { return 0 };
        // Another policy may share the pool and owe for longer; this one's keys never owe beyond its span.
        let most = now.as_micros() + asked.charge.policy().bucket().span();
        pools[asked.pool()].min(most)
    }
}

impl Asked<'_> {
    fn pool(&self) -> usize {
        let number = self.fingerprinter.of_policy(self.charge.policy().name());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "only the low bits are used"
        )]
        let pool = number as usize % POOLS;
        pool
    }
}

const POOLS: usize = 64;
