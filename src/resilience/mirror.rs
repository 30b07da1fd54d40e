//! The last states that Redis returned, so that local counting continues from them.
//!
//! ```text
//! reply       set 0   set 1   set 2   ..           an entry: fingerprint 8 B | full again at 8 B | remaining 4 B
//!   |         +---+   +---+   +---+
//!   '--hash-->| a |   | d |   | e |                24 bytes with padding, 4 entries and a lock in each set:
//!             | b |   |   |   | f |                26 bytes for each key
//!             | c |   |   |   |   |
//!             |   |   |   |   |   |
//!             +---+   +---+   +---+
//! ```
//!
//! A key whose quota is back needs no entry. In a full set, a new key replaces the one that is full again soonest: it
//! loses the least. A key without an entry starts with a full share.

use std::sync::OnceLock;

use siphasher::sip::SipHasher13;

use crate::{clock::Timestamp, key::Key, policy::Policy, state::Usage, sync::Mutex};

/// Identifies a policy and a key in this process: 64 bits that clients cannot predict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    #[inline]
    pub(super) fn of(policy: &Policy, key: &Key) -> Self {
        let name = policy.name_hash();
        let hash = SipHasher13::new_with_keys(name.low, name.high).hash(key.as_bytes());
        // 0 marks a free entry.
        Self(hash.max(1))
    }

    /// Returns one of `places` for this fingerprint.
    #[inline]
    pub(super) fn place(self, places: usize) -> usize {
        let place = (u128::from(self.0) * places as u128) >> u64::BITS;
        usize::try_from(place).expect("below `places`")
    }
}

/// A bounded table of states by key. Nothing is allocated before the first state.
#[derive(Debug)]
pub(super) struct Mirror {
    sets: OnceLock<Box<[Mutex<Set>]>>,
    max_keys: usize,
}

/// The entries that share a lock.
type Set = [Entry; SET];

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    fingerprint: Fingerprint,
    state: Mirrored,
}

/// The last known state of a key in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mirrored {
    /// When the full quota is back, in the time of Redis.
    pub(super) reset_at: Timestamp,
    /// Units left under the whole limit, at most `u32::MAX`.
    pub(super) remaining: u32,
}

impl Mirror {
    /// Returns a mirror of this many keys; of none, it keeps nothing.
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            sets: OnceLock::new(),
            max_keys,
        }
    }

    /// Returns whether it keeps any key.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.max_keys > 0
    }

    /// Keeps the state in a reply of Redis. `reset_at` is later than `now` if anything of the quota is used.
    #[inline]
    pub(super) fn put(&self, fingerprint: Fingerprint, state: Mirrored, now: Timestamp) {
        let mut set = self.set(fingerprint).lock();
        let own = set
            .iter()
            .position(|entry| entry.fingerprint == fingerprint);
        if state.reset_at <= now {
            if let Some(own) = own {
                set[own] = Entry::default();
            }
            return;
        }
        // The default is the earliest of all times, so free entries come first.
        let soonest = || (0..SET).min_by_key(|index| set[*index].state.reset_at);
        if let Some(place) = own.or_else(soonest) {
            set[place] = Entry { fingerprint, state };
        }
    }

    /// Removes the state of a key, and returns it.
    pub(super) fn take(&self, fingerprint: Fingerprint) -> Option<Mirrored> {
        if !self.is_on() {
            return None;
        }
        let mut set = self.set(fingerprint).lock();
        let entry = set
            .iter_mut()
            .find(|entry| entry.fingerprint == fingerprint)?;
        Some(std::mem::take(entry).state)
    }

    #[inline]
    fn set(&self, fingerprint: Fingerprint) -> &Mutex<Set> {
        let sets = self.sets.get_or_init(|| {
            let sets = self.max_keys.div_ceil(SET).max(1);
            (0..sets).map(|_| Mutex::default()).collect()
        });
        &sets[fingerprint.place(sets.len())]
    }
}

impl Mirrored {
    /// Returns the state of a usage under a policy's whole limit.
    #[inline]
    pub(super) fn of(usage: Usage) -> Self {
        Self {
            reset_at: usage.reset_at,
            remaining: u32::try_from(usage.remaining).unwrap_or(u32::MAX),
        }
    }
}

/// Entries in a set.
const SET: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    fn until(second: u64) -> Mirrored {
        Mirrored {
            reset_at: at(second),
            remaining: 1,
        }
    }

    #[test]
    fn state_is_kept_until_it_is_taken_or_replaced_or_the_quota_is_back() {
        let (mirror, key) = (Mirror::new(100), Fingerprint(7));
        assert_eq!(mirror.take(key), None);
        mirror.put(key, until(10), at(0));
        mirror.put(key, until(20), at(1));
        assert_eq!(mirror.take(key), Some(until(20)));
        assert_eq!(mirror.take(key), None);
        mirror.put(key, until(30), at(2));
        mirror.put(key, until(3), at(3));
        assert_eq!(mirror.take(key), None, "the quota is back");
    }

    #[test]
    fn full_set_gives_up_the_key_that_is_full_again_soonest() {
        let mirror = Mirror::new(4);
        for second in [40, 10, 30, 20, 50] {
            mirror.put(Fingerprint(second), until(second), at(0));
        }
        let kept = [10, 20, 30, 40, 50].map(|key| mirror.take(Fingerprint(key)).is_some());
        assert_eq!(kept, [false, true, true, true, true]);
    }

    #[test]
    fn mirror_of_no_keys_allocates_nothing() {
        let mirror = Mirror::new(0);
        assert!(!mirror.is_on());
        assert_eq!(mirror.take(Fingerprint(1)), None);
        assert!(mirror.sets.get().is_none());
    }

    #[test]
    fn set_takes_as_many_bytes_as_documented() {
        assert!(
            size_of::<Mutex<Set>>() <= 4 * 26,
            "{}",
            size_of::<Mutex<Set>>()
        );
    }
}
