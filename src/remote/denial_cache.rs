//! Denials by Redis that still hold: requests that they cover are denied without a round trip.
//!
//! ```text
//! request ── one of its charges denied until later? ── yes ──▶ denied here, until then
//!                       │ no
//!                       └──▶ Redis ── denied by a quota ──▶ kept until a request of this cost can succeed, for 2 s at most
//! ```
//!
//! # Why may a denial be repeated without Redis?
//!
//! A denial has the time from which a request of its cost can succeed, if nothing more is charged. Whatever others charge only
//! moves that time away. So a request of the same cost or more is denied until then, by any instance: a bucket's TAT and the counts
//! of the present windows only rise, and the wait includes the fall of the window before. Units that instances have leased may come
//! back, so they are left out of the wait. That holds for policies
//! that are counted by units and that a denied request leaves alone: not for concurrency, queues, counted denials and penalties.
//! A request with a shadow charge or a peek asks Redis too, since it is to learn their state.
//!
//! A denial of a key whose home is another region is not kept. The region's server denies while the home has no units, but a report
//! that is under way may bring some before the time that it states, for example units that a third region has given back.
//!
//! # What brings units back sooner
//!
//! | | the denial holds on this instance for |
//! |---|---|
//! | a reset by this instance, or a restart of the server that it notices | 0 |
//! | a refund under a policy for which this instance has refunded before | 100 ms at most |
//! | anything else: a reset or refund elsewhere, a charge that is taken back, another limit, a clock that is set forward | 2 s at most |
//!
//! So a denial is kept for 2 s at most, and Redis is asked again: a flood on one key costs it one call in 2 s for each instance.
//! The denials of calls that are under way when a reset ends are void too, since each is kept under the number of resets that it
//! began with.
//!
//! # Why is a denial kept for two seconds, and not for its whole wait?
//!
//! The wait may be a day, and not all that brings units back can be announced: refunds are as frequent as requests, a group that
//! is denied in a cluster takes its other charges back a round trip later, and a quota that changes and changes back converts the
//! usage meanwhile. A bound that holds whatever happens is worth the call.
//!
//! # Clocks
//!
//! The end of a denial is kept in the time of this process: a wait begins before the call is sent, so it is over here before it
//! is at the server. Redis is asked again a thousandth of the wait and 50 us before, for clocks that run apart.
//!
//! # Why does one request ask when a denial is over?
//!
//! Units come back one by one. If all callers of a flood asked at once, all but one would be denied, in each interval of the limit
//! and by each instance: under a limit of 10 a second, eight instances with 64 callers each sent four calls in place of one. So they
//! ask in turn until one is denied: within an interval after the denial, 100 ms at most, and for a quarter of the deadline at most. That
//! is so if an interval is at least 10 ms: faster limits have several units in a round trip. A fixed window has all when it begins.
//!
//! # Memory
//!
//! Five words without a lock for each denial, in sets of four: 16,384 of them take 640 KiB, from the first denial on. Words of
//! two denials do not match: the first is a hash of the others and of the key. A full set gives up the one that ends soonest.

use std::{
    collections::HashSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    algorithm::Counter,
    charge::{Charge, Fingerprint, mix},
    clock::{self, Timestamp},
    decision::{DeniedBy, PolicyState, Retry, Usage},
    policy::Policy,
    task::Mutex,
};

use super::single_flight::SingleFlight;

/// The denials of one server.
#[derive(Debug)]
pub(super) struct DenialCache {
    /// `None` if nothing is kept.
    sets: Option<OnceLock<Box<[Set]>>>,
    /// The times of entries count from here.
    base: Timestamp,
    /// When the last denial is over, in microseconds since the base, and the requests after it need not wait for each other. Later,
    /// nobody looks for any.
    latest_end: AtomicU64,
    /// How often all denials became void because of this instance.
    reliefs: AtomicU64,
    /// Hashes of the names of policies under which this instance has refunded.
    refunded: Mutex<HashSet<u64>>,
    has_refunded: AtomicBool,
    /// The requests that ask when a denial is over.
    flights: Arc<SingleFlight>,
}

/// The number of reliefs that a denial is kept under. After another relief, it is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity(u64);

/// The denial that is kept for a charge, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is denied.
    Holds(CoveringDenial),
    /// Its denial was over less than an interval of its slow limit ago. The number identifies its key.
    JustOver(u64),
    Nothing,
}

/// A denial that covers a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CoveringDenial {
    /// From when on Redis is asked again.
    pub ask_from: Timestamp,
    /// From when on a request of the cost that was denied can succeed.
    pub until: Timestamp,
    /// When the full quota is back.
    pub reset_at: Timestamp,
    /// Units that were left, fewer than the cost.
    pub remaining: u64,
    /// The cost that was denied.
    pub cost: u64,
}

type Set = [Entry; SET];

#[derive(Debug, Default)]
struct Entry {
    /// The key, and a hash of the words.
    check: AtomicU64,
    words: [AtomicU64; 4],
}

/// A denial in an entry. Times are in microseconds since the base of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// From when on Redis is asked again.
    ask_from: u64,
    /// From when on a request of the cost can succeed.
    until: u64,
    reset_at: u64,
    cost: u32,
    remaining: u32,
}

impl DenialCache {
    /// Returns a cache that is on, or one that keeps nothing.
    pub fn new(is_on: bool, now: Timestamp) -> Self {
        Self {
            sets: is_on.then(OnceLock::new),
            base: now,
            latest_end: AtomicU64::new(0),
            reliefs: AtomicU64::new(0),
            refunded: Mutex::default(),
            has_refunded: AtomicBool::new(false),
            flights: Arc::default(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.sets.is_some()
    }

    /// Returns whether a denial was ever kept.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.latest_end.load(Ordering::Relaxed) > 0
    }

    /// Returns whether any denial may hold at this time.
    #[inline]
    pub fn may_cover(&self, now: Timestamp) -> bool {
        self.latest_end.load(Ordering::Relaxed) > self.micros_at(now)
    }

    /// Returns the number that denials are kept under now.
    #[inline]
    pub fn validity(&self) -> Validity {
        Validity(self.reliefs.load(Ordering::Acquire))
    }

    /// Returns what is kept for a charge at this time.
    pub fn find(&self, charge: &Charge<'_>, validity: Validity, now: Timestamp) -> Found {
        let check = KeyCheck::of(charge, validity);
        let now = self.micros_at(now);
        let mut found = Found::Nothing;
        for entry in self.set(check).into_iter().flatten() {
            let Some(kept) = entry.read(check) else {
                continue;
            };
            if u64::from(kept.cost) > charge.units() {
                continue;
            }
            if now < kept.ask_from {
                return Found::Holds(CoveringDenial {
                    ask_from: self.time_of(kept.ask_from),
                    until: self.time_of(kept.until),
                    reset_at: self.time_of(kept.reset_at),
                    remaining: kept.remaining.into(),
                    cost: kept.cost.into(),
                });
            }
            if now < kept.ask_from + slow_interval(charge, kept.cost) {
                found = Found::JustOver(check.hash);
            }
        }
        found
    }

    /// Returns who asks for keys whose denials are just over.
    pub fn flights(&self) -> &Arc<SingleFlight> {
        &self.flights
    }

    /// Keeps the denial of a charge, if others may rely on it. `sent_at` is a time before the call was sent, and `decided_at` the
    /// time of the state.
    pub fn put(
        &self,
        charge: &Charge<'_>,
        state: &PolicyState,
        (sent_at, decided_at): (Timestamp, Timestamp),
        validity: Validity,
    ) {
        let (Some(usage), Retry::At(retry_at), Some(DeniedBy::Quota)) =
            (state.usage(), state.retry(), state.denied_by())
        else {
            return;
        };
        let (Ok(cost), Ok(remaining)) = (charge.units().try_into(), usage.remaining.try_into())
        else {
            return;
        };
        let wait = retry_at.since(decided_at);
        // The leased units in the wait may come back.
        let certain = state.certain_wait(decided_at);
        let mut kept_for = certain
            .saturating_sub(certain / 1_000 + MARGIN)
            .min(LONGEST);
        if self.has_refunded.load(Ordering::Relaxed) && self.is_refunded(charge.policy()) {
            kept_for = kept_for.min(LONGEST_IF_REFUNDED);
        }
        if kept_for.is_zero() {
            return;
        }
        let kept = Kept {
            ask_from: self.micros_at(sent_at + kept_for),
            until: self.micros_at(sent_at + wait),
            reset_at: self.micros_at(sent_at + usage.reset_at.since(decided_at)),
            cost,
            remaining,
        };
        self.insert(KeyCheck::of(charge, validity), kept);
        let end = kept.ask_from + slow_interval(charge, cost);
        self.latest_end.fetch_max(end, Ordering::Relaxed);
    }

    /// Makes all denials void, also those of calls under way.
    pub fn relieve_all(&self) {
        self.reliefs.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes the denials of a charge that is refunded. Those of its policy are kept for a shorter time from now on.
    pub fn relieve(&self, charge: &Charge<'_>) {
        if self.sets.is_none() {
            return;
        }
        if self.refunded.lock().insert(charge.policy().name_hash().low) {
            self.has_refunded.store(true, Ordering::Release);
            // Those that were kept for longer.
            self.relieve_all();
            return;
        }
        let check = KeyCheck::of(charge, self.validity());
        for entry in self.set(check).into_iter().flatten() {
            if entry.read(check).is_some() {
                entry.check.store(0, Ordering::Release);
            }
        }
    }

    fn is_refunded(&self, policy: &Policy) -> bool {
        self.refunded.lock().contains(&policy.name_hash().low)
    }

    fn insert(&self, check: KeyCheck, kept: Kept) {
        let Some(sets) = &self.sets else { return };
        let sets = sets.get_or_init(|| (0..SETS).map(|_| Set::default()).collect());
        let set = &sets[check.place];
        let own = set.iter().find(|entry| {
            let own = entry.read(check);
            own.is_some_and(|own| own.cost == kept.cost)
        });
        let soonest = || set.iter().min_by_key(|entry| entry.ask_from());
        if let Some(entry) = own.or_else(soonest) {
            entry.write(check, kept);
        }
    }

    fn set(&self, check: KeyCheck) -> Option<&Set> {
        let sets = self.sets.as_ref()?.get()?;
        Some(&sets[check.place])
    }

    /// Returns a time in microseconds since the base.
    fn micros_at(&self, time: Timestamp) -> u64 {
        time.as_micros().saturating_sub(self.base.as_micros())
    }

    fn time_of(&self, micros: u64) -> Timestamp {
        self.base + Duration::from_micros(micros)
    }
}

impl CoveringDenial {
    /// Returns the state of a policy whose request is denied again, in the time of a decision that is made at `now`.
    pub fn state(&self, charge: &Charge<'_>, now: Timestamp, decided_at: Timestamp) -> PolicyState {
        let then = |time: Timestamp| decided_at + time.since(now);
        let counter = charge.counter();
        let usage = Usage::new(counter.limit(), self.remaining, then(self.reset_at));
        let retry = match counter.retry_under(usage, charge.units(), decided_at) {
            Retry::At(at) if charge.units() > self.cost => Retry::At(at.max(then(self.until))),
            Retry::Never => Retry::Never,
            Retry::At(_) | Retry::Now => Retry::At(then(self.until)),
        };
        counter.annotate(PolicyState::counted(*charge.policy().name(), usage, retry))
    }
}

impl Entry {
    /// Returns the denial, if it is of this key and valid.
    fn read(&self, check: KeyCheck) -> Option<Kept> {
        let own = self.check.load(Ordering::Acquire);
        let words = self.words.each_ref();
        let words = words.map(|word| word.load(Ordering::Relaxed));
        (own == check.with(words)).then(|| Kept::of_words(words))
    }

    /// Replaces the words one after the other. Nobody relies on those of two denials.
    fn write(&self, check: KeyCheck, kept: Kept) {
        let words = kept.words();
        for (word, new) in self.words.iter().zip(words) {
            word.store(new, Ordering::Relaxed);
        }
        self.check.store(check.with(words), Ordering::Release);
    }

    /// Returns when Redis is asked again, whatever the key is.
    fn ask_from(&self) -> u64 {
        self.words[0].load(Ordering::Relaxed)
    }
}

impl Kept {
    fn of_words([ask_from, until, reset_at, units]: [u64; 4]) -> Self {
        let [cost, remaining] = [units >> 32, units & u64::from(u32::MAX)];
        Self {
            ask_from,
            until,
            reset_at,
            cost: u32::try_from(cost).expect("the upper half"),
            remaining: u32::try_from(remaining).expect("the lower half"),
        }
    }

    fn words(self) -> [u64; 4] {
        let units = u64::from(self.cost) << 32 | u64::from(self.remaining);
        [self.ask_from, self.until, self.reset_at, units]
    }
}

// === KeyCheck ===

/// Identifies the denials of a key under a quota that are valid.
#[derive(Clone, Copy, Debug)]
struct KeyCheck {
    place: usize,
    hash: u64,
}

impl KeyCheck {
    fn of(charge: &Charge<'_>, Validity(validity): Validity) -> Self {
        let fingerprint = Fingerprint::of(charge.policy(), charge.key());
        Self {
            place: fingerprint.shard(SETS),
            hash: fingerprint.low() ^ mix(mix(validity) ^ charge.counter().quota_hash()),
        }
    }

    /// Returns the check of a denial with these words.
    fn with(self, words: [u64; 4]) -> u64 {
        let hash = |hash, word| mix(hash ^ word);
        // 0 is that of an empty entry.
        words.into_iter().fold(self.hash, hash).max(1)
    }
}

/// Returns whether a denial of this policy may be kept: it changes nothing, and only time or a refund ends it. Under a delayed policy,
/// a charge may be ahead of the limit while units are leased: what Redis replies to a report shows whether the key is.
pub(super) fn is_repeatable(policy: &Policy) -> bool {
    !policy.notes_denied() && !policy.must_be_settled() && policy.overshoot() == 0
}

/// Returns whether a request may be denied by what is known of its charges: Redis would charge nothing, and nobody waits for the
/// state of a charge that denies nothing.
pub(super) fn may_be_denied_here(charge: &Charge<'_>) -> bool {
    !charge.policy().notes_denied() && !charge.is_shadow() && charge.units() > 0
}

/// Returns the microseconds in which so many units come back on average, 100 ms at most; 0 if they do so more than once in a round
/// trip, or all together.
fn slow_interval(charge: &Charge<'_>, cost: u32) -> u64 {
    let counter = charge.counter();
    let all = match counter {
        Counter::FixedWindow(_) => 0,
        Counter::SlidingWindow(window) => window.millis() * 1_000,
        counter => clock::micros(counter.longest_recovery()),
    };
    let interval = all / counter.limit().max(1);
    let interval = interval.saturating_mul(cost.into());
    if interval < SLOW {
        0
    } else {
        interval.min(LONGEST_TURNS)
    }
}

/// For how long a denial is kept at most.
const LONGEST: Duration = Duration::from_secs(2);
/// For how long a denial under a policy with refunds is kept at most.
const LONGEST_IF_REFUNDED: Duration = Duration::from_millis(100);
/// By how much less than its wait each denial is kept, besides a thousandth.
const MARGIN: Duration = Duration::from_micros(50);
/// Microseconds between two requests that a slow limit admits at least.
const SLOW: u64 = 10_000;
/// For how many microseconds after a denial requests ask in turn at most.
const LONGEST_TURNS: u64 = 100_000;
/// Entries in a set.
const SET: usize = 4;
/// The sets.
const SETS: usize = 4_096;

#[cfg(test)]
mod tests {
    use crate::{
        algorithm::{Algorithm, Quota, WindowStart},
        key::Key,
    };

    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn after(millis: u64) -> Timestamp {
        START + Duration::from_millis(millis)
    }

    /// A cache, and the denial of a policy by a server whose clock is an hour behind.
    struct World {
        cache: DenialCache,
        policy: Policy,
        validity: Validity,
    }

    impl World {
        fn new() -> Self {
            let cache = DenialCache::new(true, START);
            Self {
                validity: cache.validity(),
                policy: Policy::new("user", Quota::per_second(1).burst(5)),
                cache,
            }
        }

        fn charge(&self, key: &str, units: u64) -> Charge<'_> {
            self.policy.charge(Key::new(key)).cost(units)
        }

        /// Keeps a denial until 2 s after it was sent.
        fn deny(&self, charge: &Charge<'_>, sent_at: Timestamp) {
            self.deny_for(Duration::from_secs(2), charge, sent_at);
        }

        fn deny_for(&self, wait: Duration, charge: &Charge<'_>, sent_at: Timestamp) {
            let decided_at = START - Duration::from_secs(3_600);
            let usage = Usage::new(5, charge.units() - 1, decided_at + 3 * wait);
            let state =
                PolicyState::counted(*charge.policy().name(), usage, Retry::At(decided_at + wait));
            self.cache
                .put(charge, &state, (sent_at, decided_at), self.validity);
        }

        fn covers(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
            let found = self.cache.find(charge, self.validity, now);
            self.cache.may_cover(now) && matches!(found, Found::Holds(_))
        }
    }

    #[test]
    fn denial_covers_its_key_its_cost_and_its_wait_from_before_it_was_sent() {
        let world = World::new();
        let denied = world.charge("ada", 3);
        assert!(!world.covers(&denied, after(100)));
        world.deny(&denied, after(100));
        // 2 s less a thousandth and 50 us.
        for (charge, millis, is_covered) in [
            (denied, 100, true),
            (denied, 2_097, true),
            (denied, 2_098, false),
            (world.charge("ada", 4), 200, true),
            (world.charge("ada", 2), 200, false),
            (world.charge("bob", 3), 200, false),
        ] {
            assert_eq!(world.covers(&charge, after(millis)), is_covered, "{millis}");
        }
        let renamed = Policy::new("users", world.policy.quota());
        let other = Policy::new("user", Quota::per_second(1).burst(6));
        for policy in [&renamed, &other] {
            let charge = policy.charge(Key::new("ada")).cost(3);
            assert!(!world.covers(&charge, after(200)));
        }
    }

    #[test]
    fn denial_of_a_slow_limit_is_just_over_for_an_interval() {
        let window = |policy: Policy| policy.algorithm(Algorithm::FixedWindow(WindowStart::Clock));
        for (policy, cost, millis) in [
            (Policy::new("one", Quota::per_second(1)), 1, 100),
            (Policy::new("fifty", Quota::per_second(50)), 1, 20),
            (Policy::new("fast", Quota::per_second(101)), 1, 0),
            (Policy::new("fast", Quota::per_second(101)), 5, 50),
            (window(Policy::new("window", Quota::per_second(1))), 1, 0),
        ] {
            let world = World::new();
            let charge = policy.charge(Key::new("ada")).cost(cost);
            world.deny_for(Duration::from_millis(10), &charge, after(0));
            // Denials end 60 us early.
            let is_over = |millis| {
                let found = world.cache.find(&charge, world.validity, after(millis));
                assert_eq!(
                    world.cache.may_cover(after(millis)),
                    found != Found::Nothing
                );
                matches!(found, Found::JustOver(_))
            };
            assert!(!is_over(9), "{policy:?}");
            assert_eq!(is_over(10), millis > 0, "{policy:?}");
            assert_eq!(is_over(9 + millis), millis > 0, "{policy:?}");
            assert!(!is_over(10 + millis), "{policy:?}");
        }
    }

    #[test]
    fn denials_of_several_costs_stay_beside_each_other() {
        let world = World::new();
        let costs = [4, 3, 2, 1];
        for cost in costs {
            world.deny(&world.charge("ada", cost), after(cost));
            world.deny(&world.charge("ada", cost), after(10 * cost));
        }
        let last = |cost| world.charge("ada", cost);
        for cost in costs {
            assert!(world.covers(&last(cost), after(2_000)), "{cost}");
        }
    }

    #[test]
    fn state_has_the_times_of_the_decision_and_waits_longer_for_a_higher_cost() {
        let world = World::new();
        let (now, decided_at) = (after(1_000), after(500_000));
        world.deny(&world.charge("ada", 1), after(0));
        let state = |cost| {
            let charge = world.charge("ada", cost);
            match world.cache.find(&charge, world.validity, now) {
                Found::Holds(denial) => denial.state(&charge, now, decided_at),
                found => panic!("it is covered: {found:?}"),
            }
        };
        let same = state(1);
        let usage = same.usage().expect("it is counted");
        assert_eq!((usage.limit, usage.remaining), (5, 0));
        assert_eq!(usage.reset_at, decided_at + Duration::from_secs(5));
        assert_eq!(same.retry(), Retry::At(decided_at + Duration::from_secs(1)));
        // The bucket has 5 units in 5 s, so one in 1 s and five in 5 s.
        assert_eq!(state(5).retry(), Retry::At(usage.reset_at));
        assert_eq!(state(6).retry(), Retry::Never);
    }

    #[test]
    fn relief_makes_denials_void_also_those_that_are_kept_afterwards() {
        let world = World::new();
        let charge = world.charge("ada", 1);
        for relieve in [(|world| world.cache.relieve_all()) as fn(&World), |world| {
            world.cache.relieve(&world.charge("ada", 1));
        }] {
            let world = World::new();
            world.deny(&charge, after(0));
            assert!(world.covers(&charge, after(1)));
            relieve(&world);
            // That of a call which was under way.
            world.deny(&charge, after(0));
            let validity = world.cache.validity();
            let found = world.cache.find(&charge, validity, after(1));
            assert_eq!(found, Found::Nothing);
        }
    }

    #[test]
    fn denial_under_a_policy_that_is_settled_is_kept_for_a_tenth_of_a_second() {
        let mut world = World::new();
        let policy = world.policy.clone();
        let charge = policy.charge(Key::new("ada"));
        world.cache.relieve(&charge);
        world.validity = world.cache.validity();
        world.deny(&charge, after(0));
        assert!(world.covers(&charge, after(99)));
        assert!(!world.covers(&charge, after(100)));
        world.deny(&charge, after(200));
        world.cache.relieve(&charge);
        assert!(!world.covers(&charge, after(201)), "it was settled again");
    }

    // Regression: what brings units back elsewhere was seen at the end of the wait only.
    #[test]
    fn denial_is_kept_for_two_seconds_at_most() {
        let world = World::new();
        let charge = world.charge("ada", 1);
        world.deny_for(Duration::from_secs(86_400), &charge, after(0));
        assert!(world.covers(&charge, after(1_999)));
        assert!(!world.covers(&charge, after(2_000)));
    }

    #[test]
    fn denials_that_are_too_dear_or_over_at_once_are_not_kept() {
        let world = World::new();
        world.deny(&world.charge("ada", 1 << 32), after(0));
        let charge = world.charge("ada", 1);
        let usage = Usage::new(5, 0, START);
        for retry in [Retry::Never, Retry::At(START + MARGIN)] {
            let state = PolicyState::counted(*charge.policy().name(), usage, retry);
            let times = (START, START);
            world.cache.put(&charge, &state, times, world.validity);
        }
        assert!(!world.cache.has_any());
    }

    #[test]
    fn full_set_gives_up_the_denial_that_ends_soonest() {
        let world = World::new();
        let place = |number: &u32| {
            let charge = world.charge("", 1);
            let key = Key::new(number.to_string());
            KeyCheck::of(&charge.policy().charge(key), world.validity).place
        };
        let first = place(&0);
        let crowded: Vec<u32> = (0..)
            .filter(|number| place(number) == first)
            .take(5)
            .collect();
        for (order, number) in [3, 1, 2, 0, 4].into_iter().zip(&crowded) {
            let charge = world.charge(&number.to_string(), 1);
            world.deny(&charge, after(order));
        }
        let kept = crowded.iter().map(|number| {
            let charge = world.charge(&number.to_string(), 1);
            world.covers(&charge, after(10))
        });
        let kept: Vec<bool> = kept.collect();
        assert_eq!(kept, [true, true, true, false, true]);
    }

    #[test]
    fn words_of_two_denials_do_not_match() {
        let world = World::new();
        let check = KeyCheck::of(&world.charge("ada", 1), world.validity);
        let entry = Entry::default();
        assert_eq!(entry.read(check), None);
        let kept = Kept {
            ask_from: 1,
            until: 2,
            reset_at: 3,
            cost: u32::MAX,
            remaining: u32::MAX - 1,
        };
        for word in &entry.words {
            entry.write(check, kept);
            assert_eq!(entry.read(check), Some(kept));
            word.fetch_add(1, Ordering::Relaxed);
            assert_eq!(entry.read(check), None);
        }
    }

    #[test]
    fn cache_takes_as_much_memory_as_documented() {
        assert_eq!(SETS * size_of::<Set>(), 640 * 1_024);
        let off = DenialCache::new(false, START);
        assert!(!off.is_on() && !off.has_any());
    }
}
