//! The last states that Redis returned, so that local counting continues from them.
//!
//! ```text
//! reply       set 0   set 1   set 2   ..           an entry: fingerprint 8 B | full again at 8 B | used 4 B
//!   |         +---+   +---+   +---+                          | noted at, and epoch 4 B
//!   '--hash-->| a |   | d |   | e |
//!             | b |   |   |   | f |                4 entries and a lock in each set: 26 bytes for each key
//!             | c |   |   |   |   |
//!             |   |   |   |   |   |
//!             +---+   +---+   +---+
//! ```
//!
//! A key whose quota is back needs no entry. In a full set, a new key replaces the one that is full again soonest: it
//! loses the least. A key without an entry starts with a full share.
//!
//! # Doubt
//!
//! A server that restarts may lose its states. Those that were kept before are then *doubtful* for this server: they belong
//! to an earlier epoch, and a reply does not replace them until they are back in the server. Each server of a cluster has
//! separate [`Doubts`].
//!
//! # Why does a restart of the server not clear the table of states?
//!
//! After a restart that lost data, the table is the only record of it, so replies of an empty server must not replace it. Its
//! states have hashes and no keys, so they cannot be sent all at once. Instead, a decision on a key merges the old state first.
//! The script keeps the greater of both usages, so a state that was not lost changes nothing, however many instances send it. The
//! price: a charge that was refunded after this instance saw the key may count again.
//!
//! Each decision does so until one of these merges is confirmed. An instance has two connections, and a decision on the one could
//! overtake the merge on the other. For the same reason the run of the server is noted before the first call on a new connection,
//! and requests that are meant for the run before are not sent.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use siphasher::sip::SipHasher13;

use crate::{
    clock::{Clock, Timestamp},
    decision::Usage,
    key::Key,
    policy::Policy,
    task::Mutex,
};

/// Identifies a policy and a key in this process: 64 bits that clients cannot predict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct KeyHash(u64);

impl KeyHash {
    #[inline]
    pub fn of(policy: &Policy, key: &Key) -> Self {
        let name = policy.name_hash();
        let hash = SipHasher13::new_with_keys(name.low, name.high).hash(key.as_bytes());
        // 0 marks a free entry.
        Self(hash.max(1))
    }

    /// Returns a number for the merge that restores this state in this epoch.
    pub fn restore_id(self, state: Mirrored, epoch: Epoch) -> u64 {
        let hasher = SipHasher13::new_with_keys(self.0, u64::from(epoch));
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&state.reset_at.as_micros().to_be_bytes());
        bytes[8..].copy_from_slice(&state.used.to_be_bytes());
        hasher.hash(&bytes)
    }

    /// Returns one of `places` for this fingerprint.
    #[inline]
    pub fn place(self, places: usize) -> usize {
        let place = (u128::from(self.0) * places as u128) >> u64::BITS;
        usize::try_from(place).expect("below `places`")
    }
}

/// A bounded table of states by key. Nothing is allocated before the first state.
#[derive(Debug)]
pub(super) struct Mirror {
    sets: OnceLock<Box<[Mutex<Set>]>>,
    max_keys: usize,
    /// The present [`Epoch`].
    epoch: AtomicU8,
}

/// Which states in a mirror a server may lack.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// The [`Epoch`] after the latest possible loss: the server may lack states of earlier epochs.
    since: AtomicU8,
    /// When the last of their quotas is back, in microseconds since the Unix epoch. 0 if the server lost nothing.
    until: AtomicU64,
}

/// The entries that share a lock.
type Set = [Entry; SET];

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    fingerprint: KeyHash,
    reset_at: Timestamp,
    used: u32,
    stamp: Stamp,
}

/// How often a server may have lost its states. It wraps around.
pub(super) type Epoch = u8;

/// The time when an entry was noted, and the epoch. The time is in seconds, and wraps around after 194 days.
#[derive(Clone, Copy, Debug, Default)]
struct Stamp(u32);

/// The last known state of a key in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mirrored {
    /// When the full quota is back, in the time of Redis.
    pub reset_at: Timestamp,
    /// Units used of the whole limit, at most `u32::MAX`.
    pub used: u32,
    /// When Redis returned it; up to a second later, and at most the present time.
    pub noted_at: Timestamp,
}

impl Mirror {
    /// Returns a mirror of this many keys; of none, it keeps nothing.
    pub fn new(max_keys: usize) -> Self {
        Self {
            sets: OnceLock::new(),
            max_keys,
            epoch: AtomicU8::new(0),
        }
    }

    /// Returns whether it keeps any key.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.max_keys > 0
    }

    /// Keeps the state in a reply of a server, unless the present one is doubtful.
    #[inline]
    pub fn put(&self, fingerprint: KeyHash, state: Mirrored, doubts: &Doubts) {
        let epoch = self.epoch();
        let mut set = self.set(fingerprint).lock();
        let own = set
            .iter()
            .position(|entry| entry.fingerprint == fingerprint);
        // `reset_at` is later than the reply if anything of the quota is used.
        let is_full = state.reset_at <= state.noted_at;
        if let Some(own) = own {
            if doubts.concern(&set[own], state.noted_at) && set[own].reset_at > state.noted_at {
                return;
            }
            if set[own].is_later_than(state) {
                return;
            }
            if is_full {
                set[own] = Entry::default();
                return;
            }
        }
        if !is_full {
            Self::insert(&mut set, own, Entry::new(fingerprint, state, epoch));
        }
    }

    /// Returns the state of a key.
    pub fn get(&self, fingerprint: KeyHash, now: Timestamp) -> Option<Mirrored> {
        let set = self.set_of(fingerprint)?.lock();
        let own = set.iter().find(|entry| entry.fingerprint == fingerprint);
        own.map(|entry| entry.state(now))
    }

    /// Lowers the state of a key by a refund of units, whose quota is back by so many microseconds earlier.
    pub fn lower(&self, fingerprint: KeyHash, units: u64, micros: u64) {
        self.amend(fingerprint, |entry| {
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            entry.used = entry.used.saturating_sub(units);
            let reset_at = entry.reset_at.as_micros().saturating_sub(micros);
            entry.reset_at = Timestamp::from_micros(reset_at);
        });
    }

    /// Raises the state of a key by units that were charged afterwards, whose quota is back by so many microseconds later.
    pub fn raise(&self, fingerprint: KeyHash, units: u64, micros: u64, now: Timestamp) {
        self.amend(fingerprint, |entry| {
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            entry.used = entry.used.saturating_add(units);
            if micros > 0 {
                entry.reset_at = entry.reset_at.max(now) + Duration::from_micros(micros);
            }
        });
    }

    fn amend(&self, fingerprint: KeyHash, amend: impl FnOnce(&mut Entry)) {
        let Some(set) = self.set_of(fingerprint) else {
            return;
        };
        let mut set = set.lock();
        let own = set.iter_mut();
        let mut own = own.filter(|entry| entry.fingerprint == fingerprint);
        if let Some(entry) = own.next() {
            amend(entry);
        }
    }

    /// Removes the state of a key, and returns it.
    pub fn take(&self, fingerprint: KeyHash, now: Timestamp) -> Option<Mirrored> {
        self.take_if(fingerprint, now, |_| true)
    }

    /// Returns the state of a key if it is doubtful.
    pub fn doubtful(
        &self,
        fingerprint: KeyHash,
        now: Timestamp,
        doubts: &Doubts,
    ) -> Option<Mirrored> {
        let set = self.set_of(fingerprint)?.lock();
        let mut entries = set.iter();
        let own = entries.find(|entry| entry.fingerprint == fingerprint)?;
        doubts.concern(own, now).then(|| own.state(now))
    }

    /// Ends the doubt about a state that was restored in this epoch, unless the state was corrected meanwhile.
    pub fn confirm(&self, fingerprint: KeyHash, restored: Mirrored, epoch: Epoch, doubts: &Doubts) {
        self.amend(fingerprint, |entry| {
            let is_same = (entry.reset_at, entry.used) == (restored.reset_at, restored.used);
            if is_same && doubts.since() == epoch {
                *entry = Entry::new(fingerprint, restored, epoch);
            }
        });
    }

    /// Removes the state of a key that is doubtful, and returns it.
    pub fn take_doubtful(
        &self,
        fingerprint: KeyHash,
        now: Timestamp,
        doubts: &Doubts,
    ) -> Option<Mirrored> {
        self.take_if(fingerprint, now, |entry| doubts.concern(entry, now))
    }

    /// Puts back a doubtful state that was taken. A reply since then does not count it.
    pub fn put_back(&self, fingerprint: KeyHash, state: Mirrored, now: Timestamp, doubts: &Doubts) {
        let before = doubts.since.load(Ordering::Acquire).wrapping_sub(1);
        let mut set = self.set(fingerprint).lock();
        let own = set
            .iter()
            .position(|entry| entry.fingerprint == fingerprint);
        if own.is_none_or(|own| !doubts.concern(&set[own], now)) {
            Self::insert(&mut set, own, Entry::new(fingerprint, state, before));
            // It was not in the table when this time was computed.
            let until = state.reset_at.as_micros();
            doubts.until.fetch_max(until, Ordering::AcqRel);
        }
    }

    /// Makes all states doubtful for a server.
    pub fn doubt(&self, doubts: &Doubts) {
        // First: from the next epoch on, a reply must not replace a state of this one.
        doubts.until.store(u64::MAX, Ordering::Release);
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        doubts.since.store(epoch, Ordering::Release);
        let sets = self.sets.get().into_iter().flatten();
        let latest = sets.flat_map(|set| set.lock().map(|entry| entry.reset_at));
        let until = latest.max().unwrap_or_default().as_micros();
        if doubts.since() == epoch {
            doubts.until.store(until, Ordering::Release);
        }
    }

    /// Replaces the entry at `own`. Without `own`, replaces the entry whose full quota is back soonest.
    #[inline]
    fn insert(set: &mut Set, own: Option<usize>, entry: Entry) {
        // The default is the earliest of all times, so free entries come first.
        let soonest = || (0..SET).min_by_key(|index| set[*index].reset_at);
        if let Some(place) = own.or_else(soonest) {
            set[place] = entry;
        }
    }

    fn take_if(
        &self,
        fingerprint: KeyHash,
        now: Timestamp,
        is_wanted: impl Fn(&Entry) -> bool,
    ) -> Option<Mirrored> {
        let mut set = self.set_of(fingerprint)?.lock();
        let entry = set
            .iter_mut()
            .find(|entry| entry.fingerprint == fingerprint && is_wanted(entry))?;
        Some(std::mem::take(entry).state(now))
    }

    #[inline]
    fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the set of a key, unless no key has a state yet.
    fn set_of(&self, fingerprint: KeyHash) -> Option<&Mutex<Set>> {
        let sets = self.sets.get()?;
        Some(&sets[fingerprint.place(sets.len())])
    }

    #[inline]
    fn set(&self, fingerprint: KeyHash) -> &Mutex<Set> {
        let sets = self.sets.get_or_init(|| {
            let sets = self.max_keys.div_ceil(SET).max(1);
            (0..sets).map(|_| Mutex::default()).collect()
        });
        &sets[fingerprint.place(sets.len())]
    }
}

impl Doubts {
    /// Returns whether the server may lack a state.
    #[inline]
    pub fn are_present(&self, clock: &Clock) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until > 0 && clock.now().as_micros() < until
    }

    /// Returns the epoch in which the server had its states the last time, as far as is known.
    pub fn since(&self) -> Epoch {
        self.since.load(Ordering::Acquire)
    }

    #[inline]
    fn concern(&self, entry: &Entry, now: Timestamp) -> bool {
        let epochs = self.since().wrapping_sub(entry.stamp.epoch());
        now.as_micros() < self.until.load(Ordering::Acquire)
            && (1..=Epoch::MAX / 2).contains(&epochs)
    }
}

impl Mirrored {
    /// Returns the state of a usage under a policy's whole limit.
    #[inline]
    pub fn of(usage: Usage, noted_at: Timestamp) -> Self {
        let used = usage.limit.saturating_sub(usage.remaining);
        Self {
            reset_at: usage.reset_at,
            used: u32::try_from(used).unwrap_or(u32::MAX),
            noted_at,
        }
    }
}

impl Entry {
    #[inline]
    fn new(fingerprint: KeyHash, state: Mirrored, epoch: Epoch) -> Self {
        Self {
            fingerprint,
            reset_at: state.reset_at,
            used: state.used,
            stamp: Stamp::new(state.noted_at, epoch),
        }
    }

    /// Returns whether a reply was made before the one that this entry is of, as far as that can be known: replies on two
    /// connections may be read out of order. Within a second, usage grows, except by refunds and resets.
    #[inline]
    fn is_later_than(&self, reply: Mirrored) -> bool {
        self.stamp.is_near(reply.noted_at)
            && (self.reset_at, self.used) > (reply.reset_at, reply.used)
    }

    fn state(&self, now: Timestamp) -> Mirrored {
        Mirrored {
            reset_at: self.reset_at,
            used: self.used,
            noted_at: self.stamp.noted_at(now),
        }
    }
}

impl Stamp {
    #[inline]
    fn new(noted_at: Timestamp, epoch: Epoch) -> Self {
        let [.., a, b, c] = noted_at.as_secs_ceil().to_be_bytes();
        Self(u32::from_be_bytes([epoch, a, b, c]))
    }

    /// Returns whether this is the second of a time, or the one after it.
    #[inline]
    fn is_near(self, time: Timestamp) -> bool {
        let seconds = u64::from(self.0) % SECONDS;
        (seconds + SECONDS - time.as_secs_ceil() % SECONDS) % SECONDS <= 1
    }

    #[inline]
    fn epoch(self) -> Epoch {
        self.0.to_be_bytes()[0]
    }

    /// Returns the latest time with these seconds, at most `now`.
    fn noted_at(self, now: Timestamp) -> Timestamp {
        let seconds = u64::from(self.0) % SECONDS;
        let ago = (now.as_secs_ceil() + SECONDS - seconds) % SECONDS;
        let then = now.as_secs_ceil().saturating_sub(ago) * 1_000_000;
        Timestamp::from_micros(then).min(now)
    }
}

/// Seconds until a [`Stamp`] wraps around.
const SECONDS: u64 = 1 << 24;
/// Entries in a set.
const SET: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    fn until(second: u64, noted_at: u64) -> Mirrored {
        Mirrored {
            reset_at: at(second),
            used: 1,
            noted_at: at(noted_at),
        }
    }

    #[test]
    fn state_is_kept_until_it_is_taken_or_replaced_or_the_quota_is_back() {
        let (mirror, key, doubts) = (Mirror::new(100), KeyHash(7), Doubts::default());
        assert_eq!(mirror.take(key, at(0)), None);
        mirror.put(key, until(10, 0), &doubts);
        mirror.put(key, until(20, 1), &doubts);
        assert_eq!(mirror.take(key, at(5)), Some(until(20, 1)));
        assert_eq!(mirror.take(key, at(5)), None);
        mirror.put(key, until(30, 2), &doubts);
        mirror.put(key, until(3, 3), &doubts);
        assert_eq!(mirror.take(key, at(5)), None, "the quota is back");
    }

    #[test]
    fn full_set_gives_up_the_key_that_is_full_again_soonest() {
        let (mirror, doubts) = (Mirror::new(4), Doubts::default());
        for second in [40, 10, 30, 20, 50] {
            mirror.put(KeyHash(second), until(second, 0), &doubts);
        }
        let kept = [10, 20, 30, 40, 50].map(|key| mirror.take(KeyHash(key), at(0)).is_some());
        assert_eq!(kept, [false, true, true, true, true]);
    }

    #[test]
    fn doubtful_state_stays_until_it_is_taken_or_its_quota_is_back() {
        let (mirror, key, doubts) = (Mirror::new(100), KeyHash(7), Doubts::default());
        mirror.doubt(&doubts);
        assert_eq!(doubts.until.load(Ordering::Relaxed), 0);
        mirror.put(key, until(10, 0), &doubts);
        assert_eq!(mirror.take_doubtful(key, at(1), &doubts), None);
        mirror.doubt(&doubts);
        assert_eq!(doubts.until.load(Ordering::Relaxed), at(10).as_micros());
        mirror.put(key, until(60, 1), &doubts);
        let doubtful = mirror.take_doubtful(key, at(1), &doubts);
        assert_eq!(doubtful, Some(until(10, 0)));
        mirror.put_back(key, until(10, 0), at(1), &doubts);
        assert_eq!(mirror.take_doubtful(key, at(1), &doubts), doubtful);
        mirror.put(key, until(5, 1), &doubts);
        mirror.put_back(key, until(10, 0), at(1), &doubts);
        mirror.put_back(key, until(5, 1), at(1), &doubts);
        assert_eq!(mirror.take_doubtful(key, at(1), &doubts), doubtful);
        mirror.put(key, until(10, 0), &doubts);
        mirror.doubt(&doubts);
        mirror.put(key, until(60, 10), &doubts);
        assert_eq!(mirror.take_doubtful(key, at(10), &doubts), None);
        assert_eq!(mirror.take(key, at(10)), Some(until(60, 10)));
    }

    #[test]
    fn state_is_doubtful_for_the_server_that_was_replaced_and_no_other() {
        let (mirror, key) = (Mirror::new(100), KeyHash(7));
        let [one, other] = [(); 2].map(|()| Doubts::default());
        mirror.put(key, until(10, 0), &one);
        mirror.doubt(&other);
        assert_eq!(mirror.take_doubtful(key, at(1), &one), None);
        mirror.put(key, until(20, 1), &one);
        assert_eq!(mirror.get(key, at(1)), Some(until(20, 1)));
        mirror.doubt(&one);
        mirror.doubt(&other);
        mirror.put(key, until(30, 1), &one);
        let doubtful = mirror.take_doubtful(key, at(1), &one);
        assert_eq!(doubtful, Some(until(20, 1)));
        mirror.put(key, until(30, 1), &one);
        assert_eq!(mirror.take_doubtful(key, at(1), &one), None);
    }

    // Regression: a reply that was read late replaced the state of a decision after it.
    #[test]
    fn reply_that_is_read_late_does_not_replace_a_later_one() {
        let (mirror, key, doubts) = (Mirror::new(100), KeyHash(7), Doubts::default());
        let state = |second, used, noted_at| Mirrored {
            used,
            ..until(second, noted_at)
        };
        mirror.put(key, state(20, 5, 3), &doubts);
        for late in [
            state(20, 4, 3),
            state(19, 9, 3),
            state(20, 4, 2),
            until(2, 3),
        ] {
            mirror.put(key, late, &doubts);
            assert_eq!(mirror.get(key, at(3)), Some(state(20, 5, 3)), "{late:?}");
        }
        // A reset, a refund elsewhere, and a clock that was set back.
        for next in [
            state(18, 1, 4),
            state(18, 6, 4),
            state(12, 1, 9),
            state(12, 1, 1),
        ] {
            mirror.put(key, next, &doubts);
            let kept = mirror
                .get(key, at(60))
                .map(|state| (state.reset_at, state.used));
            assert_eq!(kept, Some((next.reset_at, next.used)), "{next:?}");
        }
    }

    // Regression: once other servers had been replaced 129 times, no reply of this one was noted any more.
    #[test]
    fn doubt_ends_when_the_quotas_are_back_however_often_other_servers_are_replaced() {
        let (mirror, key) = (Mirror::new(100), KeyHash(7));
        let [one, other] = [(); 2].map(|()| Doubts::default());
        mirror.put(key, until(10, 0), &one);
        mirror.doubt(&one);
        for _ in 0..129 {
            mirror.doubt(&other);
        }
        for second in [30, 40] {
            mirror.put(key, until(second, second - 10), &one);
            let kept = mirror.get(key, at(second - 10));
            assert_eq!(kept, Some(until(second, second - 10)));
        }
        assert_eq!(mirror.doubtful(key, at(30), &one), None);
    }

    #[test]
    fn state_that_is_put_back_is_doubtful_until_its_own_quota_is_back() {
        let (mirror, key, doubts) = (Mirror::new(100), KeyHash(7), Doubts::default());
        mirror.doubt(&doubts);
        mirror.put_back(key, until(10, 0), at(1), &doubts);
        assert!(doubts.until.load(Ordering::Relaxed) >= at(10).as_micros());
        mirror.put(key, until(60, 2), &doubts);
        assert_eq!(mirror.doubtful(key, at(3), &doubts), Some(until(10, 0)));
        assert_eq!(mirror.doubtful(key, at(10), &doubts), None);
    }

    #[test]
    fn stamp_returns_the_second_after_the_time_but_not_the_future() {
        let noted = Timestamp::from_micros(at(0).as_micros() + 1);
        let stamp = Stamp::new(noted, 255);
        assert_eq!(stamp.epoch(), 255);
        assert_eq!(stamp.noted_at(noted), noted);
        for later in [1, 2, 86_400, SECONDS] {
            assert_eq!(stamp.noted_at(at(later)), at(1), "{later}");
        }
    }

    #[test]
    fn mirror_of_no_keys_allocates_nothing() {
        let mirror = Mirror::new(0);
        assert!(!mirror.is_on());
        assert_eq!(mirror.take(KeyHash(1), at(0)), None);
        mirror.doubt(&Doubts::default());
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
