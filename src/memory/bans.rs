//! Denials and bans of the keys of one shard, under policies with a penalty.
//!
//! They are apart from the states of the algorithms, because few keys have any: only a denial under a penalty adds one.

use crate::{
    charge::Fingerprint,
    clock::Timestamp,
    policy::{BanRecord, Penalty},
};

use super::{
    capacity::Capacity,
    table::{Place, Table, TableEntry},
};

/// The denials and bans of each key that has any, until they are forgiven.
#[derive(Debug)]
pub(super) struct Bans {
    states: Table<BanRecord>,
}

impl TableEntry for BanRecord {
    #[inline]
    fn owes_until(&self) -> u64 {
        self.forgiven_at().as_micros()
    }

    fn shift(&mut self, micros: u64) {
        self.move_by(micros);
    }
}

impl Bans {
    pub fn new(capacity: &Capacity) -> Self {
        Self {
            states: Table::new(capacity),
        }
    }

    /// Returns when the ban of a key ends; `None` if it is not banned.
    pub fn banned_until(
        &mut self,
        penalty: &Penalty,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Option<Timestamp> {
        match self.states.find(fingerprint, now.as_micros()) {
            Place::Found(index) => {
                let state = self.states.state(index);
                penalty.begin_by(state, now);
                penalty.banned_until(state, now)
            }
            Place::Free(_) | Place::Full => None,
        }
    }

    /// Returns the denials and the ban of a key; `None` if there are none.
    pub fn state(&mut self, fingerprint: Fingerprint, now: Timestamp) -> Option<BanRecord> {
        match self.states.find(fingerprint, now.as_micros()) {
            Place::Found(index) => Some(*self.states.state(index)),
            Place::Free(_) | Place::Full => None,
        }
    }

    /// Counts a denial of a key that is not banned. Returns when its ban ends, if it is banned now.
    ///
    /// Without memory, the denial does not count.
    pub fn count_denial(
        &mut self,
        penalty: &Penalty,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if penalty.is_backoff() {
            return None;
        }
        let micros = now.as_micros();
        if let Place::Found(index) = self.states.find(fingerprint, micros) {
            return penalty.count_denial(self.states.state(index), now);
        }
        let mut state = BanRecord::default();
        let until = penalty.count_denial(&mut state, now);
        let inserted = self.states.insert(fingerprint, state, micros);
        until.filter(|_| inserted.is_ok())
    }

    /// Counts a failure of a key. Returns when the delay that begins with it ends.
    ///
    /// Without memory, the failure does not count.
    pub fn count_failure(
        &mut self,
        penalty: &Penalty,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let micros = now.as_micros();
        if let Place::Found(index) = self.states.find(fingerprint, micros) {
            return Some(penalty.count_failure(self.states.state(index), now));
        }
        let mut state = BanRecord::default();
        let until = penalty.count_failure(&mut state, now);
        let inserted = self.states.insert(fingerprint, state, micros);
        inserted.is_ok().then_some(until)
    }

    /// Bans a key that another store has banned, unless a longer ban is known.
    pub fn restore(
        &mut self,
        penalty: &Penalty,
        fingerprint: Fingerprint,
        until: Timestamp,
        now: Timestamp,
    ) {
        let state = BanRecord::banned(penalty, until, now);
        match self.states.find(fingerprint, now.as_micros()) {
            Place::Found(index) => {
                let known = self.states.state(index);
                if known.last_ban() < until {
                    *known = state;
                }
            }
            Place::Free(_) | Place::Full => {
                // Without memory, the local count of the quota is all that limits the key.
                let _ = self.states.insert(fingerprint, state, now.as_micros());
            }
        }
    }

    /// Ends the ban of a key that began by this time, at which another store found none.
    pub fn end(&mut self, fingerprint: Fingerprint, at: Timestamp) {
        if let Place::Found(index) = self.states.find(fingerprint, at.as_micros()) {
            self.states.state(index).end_by(at);
        }
    }

    /// Forgets the denials and the ban of a key.
    pub fn reset(&mut self, fingerprint: Fingerprint) {
        if let Place::Found(index) = self.states.find(fingerprint, 0) {
            *self.states.state(index) = BanRecord::default();
        }
    }

    /// Moves all times forward by `micros` microseconds.
    pub fn shift(&mut self, micros: u64) {
        self.states.shift(micros);
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.states.bytes()
    }
}
