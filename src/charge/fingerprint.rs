//! Fingerprints, which identify the keys of policies in this process.
//!
//! # Why does the table keep a 96-bit fingerprint instead of the key?
//!
//! A slot of a bucket then takes 24 bytes whatever the key, in one flat array. With 64 bits, collisions among millions of keys
//! would matter, and under a known hash an attacker could search for them. With 96 bits and a random key per process, one
//! collision among a million keys has the probability 6e-18, and nobody can aim for one. Each algorithm has its own table, so
//! that a bucket does not pay for the length of a log.

use std::{
    array,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use crate::{key::Key, policy::Policy};

/// 96-bit hash of a policy and a key. It is never zero, because zero marks an empty slot.
///
/// The hash is multilinear over the words of the key, with random numbers of the process, and begins with the policy's
/// [`name_hash`](Policy::name_hash). It is strongly universal: two keys that are chosen without knowledge of the numbers agree
/// in all 96 bits with a probability of 2^-96, and clients cannot aim at a shard or slot (Lemire and Kaser, "Strongly universal
/// string hashing is fast", 2014). Whoever sees hashes can compute the numbers, so none may leave the process.
///
/// Packed, so that no padding separates it from a state of the same alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, packed(4))]
pub(crate) struct Fingerprint {
    low: u64,
    high: u32,
}

impl Fingerprint {
    pub const EMPTY: Self = Self { low: 0, high: 0 };

    /// Hashes a key under a policy.
    // Always inlined: called for each of three policies, it made a request through the layer 5 to 9 % slower.
    #[inline(always)]
    pub fn of(policy: &Policy, key: &Key) -> Self {
        Self::of_words(policy, key.words())
    }

    /// As [`of`](Self::of), for a key in words.
    #[inline(always)]
    pub fn of_words(policy: &Policy, words: impl Iterator<Item = u64>) -> Self {
        let name = policy.name_hash();
        let (mut low, mut high) = (u128::from(name.low) << 64, u128::from(name.high) << 64);
        for (word, numbers) in words.zip(&*NUMBERS) {
            let [for_low, for_high] = numbers.map(|number| number.wrapping_mul(word.into()));
            low = low.wrapping_add(for_low);
            high = high.wrapping_add(for_high);
        }
        let (low, high) = (mix((low >> 64) as u64), (high >> 96) as u32);
        Self {
            low: low.max(1),
            high: high ^ (low >> 32) as u32,
        }
    }

    /// Returns the index at which a search among `slots` slots starts.
    #[inline]
    pub fn place(self, slots: usize) -> usize {
        place(self.low, slots)
    }

    /// The low 64 bits.
    #[inline]
    pub fn low(self) -> u64 {
        self.low
    }

    /// The high 32 bits.
    #[inline]
    pub fn high(self) -> u32 {
        self.high
    }

    /// Returns the index of the key's shard among `shards`, a power of two. It is independent of the place in the shard.
    #[inline]
    pub fn shard(self, shards: usize) -> usize {
        self.high as usize & (shards - 1)
    }
}

/// Hashes a key without a policy. As with fingerprints, clients cannot aim at a hash.
pub(crate) fn key_hash(key: &Key) -> u64 {
    let words = key.words().zip(&*NUMBERS);
    let sum = words.fold(0_u128, |sum, (word, [number, _])| {
        sum.wrapping_add(number.wrapping_mul(word.into()))
    });
    mix((sum >> 64) as u64)
}

/// Maps each number to another one that differs in about half of its bits (the last step of MurmurHash3).
///
/// Keys that differ in a few characters have sums at regular distances, which would leave some shards and slots crowded, and
/// others empty.
#[inline]
pub(crate) fn mix(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}

/// Two random numbers for each word of a key, drawn from the standard library's per-process entropy.
static NUMBERS: LazyLock<[[u128; 2]; Key::WORDS]> = LazyLock::new(|| {
    let draw = || {
        let source = RandomState::new();
        let [high, low] = [1_u64, 2].map(|number| u128::from(source.hash_one(number)));
        high << 64 | low
    };
    array::from_fn(|_| [draw(), draw()])
});

/// Maps evenly distributed bits to one of `places`, by a multiplication instead of a division (Lemire, "fast range").
#[inline]
pub(crate) fn place(hash: u64, places: usize) -> usize {
    let product = u128::from(hash) * places as u128;
    // Invariant: the high half of a product with `places` is below `places`.
    #[expect(clippy::cast_possible_truncation, reason = "below `places`, a usize")]
    let place = (product >> 64) as usize;
    place
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crate::algorithm::Quota;

    use super::*;

    #[test]
    fn every_byte_of_a_key_its_length_and_its_policy_count() {
        let policies = ["one", "two"].map(|name| Policy::new(name, Quota::per_second(1)));
        let mut seen = HashSet::new();
        let mut keys = 0;
        for length in 1..=Key::MAX_LENGTH {
            let mut text = vec![b'a'; length];
            for place in 0..length {
                for byte in *b"bz" {
                    text[place] = byte;
                    for policy in &policies {
                        seen.insert(Fingerprint::of(policy, &Key::new(&text)));
                        keys += 1;
                    }
                }
                text[place] = b'a';
            }
        }
        assert_eq!(seen.len(), keys);
    }

    fn bits(fingerprint: Fingerprint) -> u128 {
        u128::from(fingerprint.high()) << 64 | u128::from(fingerprint.low())
    }

    #[test]
    fn one_changed_character_changes_each_bit_of_every_second_hash() {
        const KEYS: u32 = 20_000;
        let policy = Policy::new("one", Quota::per_second(1));
        for (one, other) in [("a", "b"), ("a", "c"), ("a", "A"), ("0", "1")] {
            let mut changed = [0_u32; 96];
            for number in 0..KEYS {
                let [before, after] = [one, other].map(|character| {
                    let key = Key::new(format!("{character}-{number}"));
                    bits(Fingerprint::of(&policy, &key))
                });
                for (bit, changed) in changed.iter_mut().enumerate() {
                    *changed += u32::from((before ^ after) >> bit & 1 == 1);
                }
            }
            // 10,000 each, with a standard deviation of 71.
            let (least, most) = (changed.iter().min(), changed.iter().max());
            let is_even = least > Some(&9_500) && most < Some(&10_500);
            assert!(is_even, "{one} and {other}: {changed:?}");
        }
    }

    #[test]
    fn pairs_of_keys_agree_in_some_bits_as_often_as_by_chance() {
        /// Ten million pairs.
        const KEYS: usize = 4_473;
        const BITS: u32 = 18;
        let policy = Policy::new("one", Quota::per_second(1));
        let families: [fn(usize) -> String; 4] = [
            |number| number.to_string(),
            |number| format!("192.0.{}.{}", number / 256, number % 256),
            |number| format!("2001:db8:{number:x}::"),
            // They differ in a bit or two.
            |number| {
                let case = |bit: usize| if number >> bit & 1 == 1 { 'A' } else { 'a' };
                (0..13).map(case).collect()
            },
        ];
        for family in families {
            let hashes: Vec<u128> = (0..KEYS)
                .map(|number| bits(Fingerprint::of(&policy, &Key::new(family(number)))))
                .collect();
            for shift in [0, 30, 46, 64, 78] {
                let part = |hash: &u128| hash >> shift & ((1 << BITS) - 1);
                let mut parts: Vec<u128> = hashes.iter().map(part).collect();
                parts.sort_unstable();
                let same = parts.chunk_by(|one, other| one == other);
                let pairs: usize = same.map(|same| same.len() * (same.len() - 1) / 2).sum();
                // 38, with a standard deviation of 6: outside of this once in 10^11 tests.
                assert!((4..90).contains(&pairs), "{} {shift}: {pairs}", family(1));
            }
        }
    }

    #[test]
    fn numbered_keys_are_spread_evenly_over_shards_and_slots() {
        const PLACES: usize = 64;
        const KEYS: u32 = 64_000;
        let policy = Policy::new("one", Quota::per_second(1));
        let mut found = [[0_u32; PLACES]; 3];
        for number in 0..KEYS {
            let fingerprint = Fingerprint::of(&policy, &Key::from(u64::from(number)));
            let (shard, place) = (fingerprint.shard(PLACES), fingerprint.place(PLACES));
            found[0][shard] += 1;
            found[1][place] += 1;
            // Places are even within the shards, too.
            found[2][fingerprint.shard(8) * 8 + fingerprint.place(8)] += 1;
        }
        // 1,000 each, with a standard deviation of 31.
        for counts in found {
            let (least, most) = (counts.iter().min(), counts.iter().max());
            assert!(least > Some(&800) && most < Some(&1_200), "{counts:?}");
        }
    }
}
