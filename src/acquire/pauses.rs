//! The pauses that this process made, for decisions that no line in the store precedes.
//!
//! The store has the pauses of all instances. It is not asked in an outage, and a decision on keys in several slots of a cluster
//! does not read its lines.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::{
    charge::{Charge, Fingerprint, OwnedCharge},
    clock::Timestamp,
    task::Mutex,
};

use super::server_clock::ServerClock;

/// Keys, and when their pauses end. A key whose pause has ended may stay.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    ends: Mutex<HashMap<Fingerprint, Timestamp>>,
    /// The number of keys. Each question reads it.
    len: AtomicUsize,
}

impl Pauses {
    /// Notes a pause. An earlier one that ends later stays.
    pub fn note(&self, charge: &Charge<'_>, length: Duration) {
        let now = ServerClock::now();
        let mut ends = self.ends.lock();
        if ends.len() >= MAX_KEYS {
            ends.retain(|_, end| *end > now);
        }
        let key = Fingerprint::of(charge.policy(), charge.key());
        if ends.len() < MAX_KEYS || ends.contains_key(&key) {
            let end = ends.entry(key).or_default();
            *end = (*end).max(now + length);
        }
        self.len.store(ends.len(), Ordering::Relaxed);
    }

    /// Returns for how long one of these charges is paused, and its index. The longest counts.
    pub fn of(&self, charges: &[OwnedCharge]) -> Option<(Duration, usize)> {
        if self.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let (now, ends) = (ServerClock::now(), self.ends.lock());
        let charges = charges.iter().map(OwnedCharge::borrow).enumerate();
        let pauses = charges.filter_map(|(index, charge)| {
            let end = ends.get(&Fingerprint::of(charge.policy(), charge.key()))?;
            Some((end.since(now), index))
        });
        pauses.filter(|(length, _)| !length.is_zero()).max()
    }
}

/// At about 60 bytes each.
const MAX_KEYS: usize = 10_000;
