//! Which keys are leased: their identity, and how often they were asked for lately.

use std::{
    hash::{Hash, Hasher},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    charge::{Charge, Fingerprint, place},
    clock::Timestamp,
};

/// Identifies a key under a policy with this quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct LeaseKey {
    pub fingerprint: Fingerprint,
    quota: u64,
}

impl LeaseKey {
    #[inline]
    pub fn of(charge: &Charge<'_>) -> Self {
        Self {
            fingerprint: Fingerprint::of(charge.policy(), charge.key()),
            // Also of the overshoot: a lease makes its reports under one.
            quota: charge
                .policy()
                .counter()
                .quota_hash()
                .wrapping_add(charge.policy().overshoot().into()),
        }
    }

    fn hash(self) -> u64 {
        self.fingerprint.low() ^ self.quota
    }
}

impl Hash for LeaseKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(Self::hash(*self));
    }
}

/// Takes the hash of a [`LeaseKey`] as it is.
#[derive(Default)]
pub(super) struct HashedAlready(u64);

impl Hasher for HashedAlready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key writes one number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

// === Warmth ===

/// Keys that were asked for lately: half of a hash, the time, and how often within a second.
#[derive(Debug)]
pub(super) struct Warmth(Box<[AtomicU64]>);

impl Warmth {
    pub fn new() -> Self {
        Self((0..WARM_KEYS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns whether a key was asked for three times within a second, with this time. Another key in its place is forgotten.
    pub fn is_warm(&self, key: LeaseKey, now: Timestamp) -> bool {
        let hash = key.hash();
        let place = &self.0[place(hash, WARM_KEYS)];
        let (millis, tag) = ((now.as_micros() / 1_000) & MILLIS, hash & TAG);
        let before = place.load(Ordering::Relaxed);
        let is_recent = before & TAG == tag
            && millis.wrapping_sub(before >> COUNT_BITS & MILLIS) & MILLIS < 1_000;
        let count = if is_recent { (before & COUNT) + 1 } else { 1 };
        if count >= WARM_FROM {
            return true;
        }
        // The time of the first of the three. A lost update costs a request more.
        let since = if is_recent {
            before & !COUNT
        } else {
            tag | millis << COUNT_BITS
        };
        place.store(since | count, Ordering::Relaxed);
        false
    }
}

/// Places for the keys that are not in the table.
const WARM_KEYS: usize = 16_384;
/// Requests within a second from which on a key is in the table.
const WARM_FROM: u64 = 3;
/// The count, the time and the tag in a word.
const COUNT_BITS: u32 = 2;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const MILLIS: u64 = (1 << 30) - 1;
const TAG: u64 = !0 << 32;
