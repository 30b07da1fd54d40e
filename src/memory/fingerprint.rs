//! Fingerprints, which identify keys in memory.

use siphasher::sip128::SipHasher13;

use crate::{key::Key, policy::Policy};

/// 96-bit hash of a policy and a key. It is never zero, because zero marks an empty slot.
///
/// The hash is SipHash-1-3 under the policy's [`name_hash`](Policy::name_hash), which is itself a hash under a random key
/// of the process. Clients that choose keys can therefore not aim at a collision, a shard or a slot.
///
/// Packed, so that no padding separates it from a state of the same alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, packed(4))]
pub(super) struct Fingerprint {
    low: u64,
    high: u32,
}

impl Fingerprint {
    pub(super) const EMPTY: Self = Self { low: 0, high: 0 };

    /// Hashes a key under a policy.
    #[inline]
    pub(super) fn of(policy: &Policy, key: &Key) -> Self {
        let name = policy.name_hash();
        let hash = SipHasher13::new_with_keys(name.low, name.high).hash(key.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "96 bits are kept")]
        let high = hash.h2 as u32;
        Self {
            low: hash.h1.max(1),
            high,
        }
    }

    /// Returns the index at which a search among `slots` slots starts.
    #[inline]
    pub(super) fn place(self, slots: usize) -> usize {
        place(self.low, slots)
    }

    /// The low 64 bits.
    #[inline]
    pub(super) fn low(self) -> u64 {
        self.low
    }

    /// The high 32 bits.
    #[inline]
    pub(super) fn high(self) -> u32 {
        self.high
    }

    /// Returns the index of the key's shard among `shards`, a power of two. It is independent of the place in the shard.
    #[inline]
    pub(super) fn shard(self, shards: usize) -> usize {
        self.high as usize & (shards - 1)
    }
}

/// Maps evenly distributed bits to one of `places`, by a multiplication instead of a division (Lemire, "fast range").
#[inline]
pub(super) fn place(hash: u64, places: usize) -> usize {
    let product = u128::from(hash) * places as u128;
    // Invariant: the high half of a product with `places` is below `places`.
    #[expect(clippy::cast_possible_truncation, reason = "below `places`, a usize")]
    let place = (product >> 64) as usize;
    place
}
