//! What a slot remembers of its key.

use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

use crate::{key::Key, state::PolicyName};

/// 96 bits that stand for one policy and key; never zero, which marks an empty slot.
///
/// Packed, so that it takes no padding beside a state of the same alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, packed(4))]
pub(super) struct Fingerprint {
    low: u64,
    high: u32,
}

impl Fingerprint {
    pub(super) const EMPTY: Self = Self { low: 0, high: 0 };

    /// Where to begin looking among `slots` slots.
    #[inline]
    pub(super) fn place(self, slots: usize) -> usize {
        place(self.low, slots)
    }

    /// 64 of its bits.
    #[inline]
    pub(super) fn low(self) -> u64 {
        self.low
    }

    /// Which of `shards` (a power of two) the key belongs to; independent of its place there.
    #[inline]
    pub(super) fn shard(self, shards: usize) -> usize {
        self.high as usize & (shards - 1)
    }
}

// === Fingerprinter ===

/// Makes fingerprints under a key that only this process has.
#[derive(Debug)]
pub(super) struct Fingerprinter {
    hasher: SipHasher13,
}

impl Fingerprinter {
    pub(super) fn random() -> Self {
        // Two draws from the standard library's per-process entropy.
        let (first, second) = (RandomState::new(), RandomState::new());
        Self {
            hasher: SipHasher13::new_with_keys(first.hash_one(1_u64), second.hash_one(2_u64)),
        }
    }

    /// The fingerprint of a key under a policy. The name holds no 0xFF, so the two cannot run into each other.
    #[inline]
    pub(super) fn of(&self, policy: &PolicyName, key: &Key) -> Fingerprint {
        let mut hasher = self.hasher;
        hasher.write(policy.as_bytes());
        hasher.write_u8(0xFF);
        hasher.write(key.as_bytes());
        let hash = hasher.finish128();
        #[expect(clippy::cast_possible_truncation, reason = "so many bits are kept")]
        let high = hash.h2 as u32;
        Fingerprint {
            low: hash.h1.max(1),
            high,
        }
    }

    /// A number for a policy alone.
    pub(super) fn of_policy(&self, policy: &PolicyName) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(policy.as_bytes());
        hasher.finish128().h1
    }
}

/// Maps evenly distributed bits to one of `places`, by multiplication instead of division (Lemire, "fast range").
#[inline]
pub(super) fn place(hash: u64, places: usize) -> usize {
    let product = u128::from(hash) * places as u128;
    // Invariant: the high half of a product with `places` is below `places`.
    #[expect(clippy::cast_possible_truncation, reason = "below `places`, a usize")]
    let place = (product >> 64) as usize;
    place
}
