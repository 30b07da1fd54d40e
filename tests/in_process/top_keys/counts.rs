//! The keys that are denied most often: bounds against exact counts, the window, memory, and how keys are shown.

use std::{mem, sync::Barrier, thread, time::Duration};

use allocation_counter::measure;
use proptest::{collection::vec, prelude::*};
use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimiter,
    clock::Clock,
    decision::{CountedBy, Outcome, PolicyState},
    extract::HashSecret,
    top_keys::{PolicyTopKeys, ShownKeys, TopKeys, TopKeysBuilder},
};

use super::exact::{Exact, START, assert_bounds, policy, record};
use crate::support::Random;

/// Top keys in plain text, on a clock that does not move.
pub(crate) fn plain(capacity: usize) -> TopKeys {
    let builder = builder(&Clock::manual(START)).capacity(capacity);
    builder.build().expect("usable settings")
}

fn builder(clock: &Clock) -> TopKeysBuilder {
    let builder = TopKeys::builder().shown_keys(ShownKeys::plain());
    builder.clock(clock.clone())
}

// === Bounds ===

/// Streams of keys with their units: some that services see, and some that try to break the bounds.
pub(crate) fn any_stream() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let random = |keys: u32, units: u32| vec((0..keys, 0..=units), 0..600);
    // The probability of key n is about 1 / n.
    let zipf = vec(0.0..1.0_f64, 0..600).prop_map(|points| {
        let zipf = |point: f64| (5_000_f64.powf(point) as u32, 1);
        points.into_iter().map(zipf).collect()
    });
    // Each key once or in short runs, around a key that comes back now and then.
    let rotating = (1..4_u32, 2..40_u32, 0..600_u32).prop_map(|(run, pause, length)| {
        let key = |at: u32| {
            if at.is_multiple_of(pause) {
                0
            } else {
                1 + at / run
            }
        };
        (0..length).map(|at| (key(at), 1)).collect()
    });
    // All counters get the same count, then new keys evict them in turn, and the evicted ones come back.
    let cyclic = (1..40_u32, 1..5_u32, 0..600_u32)
        .prop_map(|(keys, units, length)| (0..length).map(|at| (at % keys, units)).collect());
    // A few keys with nearly all units, last.
    let late = (
        vec((0..2_000_u32, 1..2_u32), 0..300),
        vec((0..3_u32, 0..1_000_000_u32), 0..9),
    );
    let late = late.prop_map(|(mut noise, heavy)| {
        noise.extend(heavy);
        noise
    });
    prop_oneof![
        random(20, 3),
        random(2_000, 1),
        random(200, u32::MAX),
        zipf,
        rotating,
        cyclic,
        late,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn counts_of_any_stream_are_within_their_bounds(stream in any_stream(), capacity in 1..40_usize) {
        let (top_keys, mut exact) = (plain(capacity), Exact::new());
        record(&top_keys, &mut exact, &stream);
        assert_bounds(&top_keys.snapshot(), capacity, &exact);
    }

    #[test]
    fn few_keys_are_counted_exactly(stream in vec((0..30_u32, 0..5_u32), 0..300)) {
        let (top_keys, mut exact) = (plain(30), Exact::new());
        record(&top_keys, &mut exact, &stream);
        let snapshot = top_keys.snapshot();
        let keys = snapshot.policy("per-ip").map_or(&[][..], PolicyTopKeys::keys);
        for top in keys {
            prop_assert_eq!((top.count(), top.error()), (exact[top.key()], 0));
        }
    }

    #[test]
    fn counts_of_several_threads_and_halves_are_within_their_bounds(
        streams in vec((any_stream(), 0..3_u32), 1..5),
        capacity in 1..40_usize,
    ) {
        let clock = Clock::manual(START);
        let builder = builder(&clock).capacity(capacity).window(Duration::from_secs(60));
        let top_keys = builder.build().expect("usable settings");
        let mut halves = [Exact::new(), Exact::new()];
        for (stream, pause) in &streams {
            for _ in 0..*pause {
                clock.advance(Duration::from_secs(30));
                halves = [Exact::new(), mem::take(&mut halves[0])];
            }
            // A new thread has another shard.
            let exact = &mut halves[0];
            thread::scope(|scope| drop(scope.spawn(|| record(&top_keys, exact, stream))));
        }
        let [mut exact, previous] = halves;
        for (key, count) in previous {
            *exact.entry(key).or_default() += count;
        }
        assert_bounds(&top_keys.snapshot(), capacity, &exact);
    }
}

#[test]
fn threads_that_record_at_once_lose_nothing() {
    const THREADS: u64 = 12; // more than there are shards
    const RECORDS: u64 = 20_000;
    let (top_keys, policy) = (plain(64), policy());
    let barrier = Barrier::new(THREADS as usize);
    let streams = (0..THREADS).map(|thread| {
        let mut random = Random(thread);
        let heavy = format!("user:{}", thread % 3);
        (0..RECORDS).map(move |_| match random.below(4) {
            0 => heavy.clone(),
            _ => format!("user:{}", random.below(1_000_000)),
        })
    });
    let streams: Vec<Vec<String>> = streams.map(Iterator::collect).collect();
    thread::scope(|scope| {
        for stream in &streams {
            let (top_keys, policy, barrier) = (&top_keys, &policy, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for (index, key) in stream.iter().enumerate() {
                    top_keys.record(policy, &Key::new(key), 1);
                    if index % 1_000 == 0 {
                        let _ = top_keys.snapshot();
                    }
                }
            });
        }
    });
    let mut exact = Exact::new();
    for key in streams.into_iter().flatten() {
        *exact.entry(key).or_default() += 1;
    }
    let snapshot = top_keys.snapshot();
    assert_bounds(&snapshot, 64, &exact);
    let list = snapshot.policy("per-ip").expect("records");
    let mut first: Vec<&str> = list.keys()[..3]
        .iter()
        .map(tollgate::top_keys::TopKey::key)
        .collect();
    first.sort_unstable();
    assert_eq!(first, ["user:0", "user:1", "user:2"]);
}

#[test]
fn policies_are_counted_apart() {
    let top_keys = plain(2);
    let [quiet, noisy] = ["quiet", "noisy"].map(|name| Policy::new(name, Quota::per_minute(1)));
    top_keys.record(&quiet, &Key::new("ada"), 3);
    for number in 0..1_000_u64 {
        top_keys.record(&noisy, &Key::from(number), 1);
    }
    let snapshot = top_keys.snapshot();
    let names = snapshot
        .policies()
        .iter()
        .map(|list| list.policy().as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["noisy", "quiet"]);
    let quiet = snapshot.policy("quiet").expect("a list");
    assert_eq!((quiet.total(), quiet.unlisted()), (3, 0));
    let ranked = snapshot.keys();
    let ranked: Vec<&str> = ranked.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(ranked, ["noisy", "noisy", "quiet"]);
}

#[test]
fn policies_beyond_the_maximum_are_reported() {
    let clock = Clock::manual(START);
    let top_keys = builder(&clock).max_policies(3).build().expect("usable");
    for round in 0..2 {
        for index in 0..5 {
            let policy = Policy::new(format!("p{index}"), Quota::per_minute(1));
            top_keys.record(&policy, &Key::GLOBAL, 1);
        }
        assert_eq!(top_keys.unrecorded(), 2 * (round + 1));
    }
    let snapshot = top_keys.snapshot();
    assert_eq!(snapshot.policies().len(), 3);
    assert!(snapshot.policies().iter().all(|list| list.total() == 2));
}

// === Window ===

#[test]
fn snapshot_covers_half_a_window_to_a_whole_one() {
    let clock = Clock::manual(START);
    let top_keys = builder(&clock).window(Duration::from_secs(600)).build();
    let top_keys = top_keys.expect("usable settings");
    let total = || {
        top_keys
            .snapshot()
            .policy("per-ip")
            .map(PolicyTopKeys::total)
    };
    let record = || top_keys.record(&policy(), &Key::new("ada"), 1);

    record();
    assert_eq!(
        top_keys.snapshot().since(),
        START,
        "not before it was built"
    );
    clock.advance(Duration::from_secs(299));
    record();
    assert_eq!(total(), Some(2));
    clock.advance(Duration::from_secs(1)); // the second half begins
    record();
    assert_eq!(total(), Some(3));
    clock.advance(Duration::from_secs(299));
    assert_eq!(total(), Some(3), "599 s later");
    clock.advance(Duration::from_secs(1)); // the first half is dropped
    let snapshot = top_keys.snapshot();
    assert_eq!(total(), Some(1));
    assert_eq!(snapshot.since(), START + Duration::from_secs(300));
    assert_eq!(snapshot.until(), START + Duration::from_secs(600));
    clock.advance(Duration::from_secs(300));
    assert_eq!(total(), None);
}

#[test]
fn counts_before_a_pause_are_dropped_by_the_next_record() {
    let clock = Clock::manual(START);
    let top_keys = builder(&clock).window(Duration::from_secs(60)).build();
    let top_keys = top_keys.expect("usable settings");
    top_keys.record(&policy(), &Key::new("ada"), 5);
    clock.advance(Duration::from_secs(3_600));
    top_keys.record(&policy(), &Key::new("bob"), 1);
    let snapshot = top_keys.snapshot();
    let list = snapshot.policy("per-ip").expect("a list");
    assert_eq!((list.total(), list.keys().len()), (1, 1));
    assert_eq!(list.keys()[0].key(), "bob");
}

#[test]
fn key_is_counted_over_both_halves() {
    let clock = Clock::manual(START);
    let top_keys = builder(&clock).window(Duration::from_secs(60)).build();
    let top_keys = top_keys.expect("usable settings");
    let mut exact = Exact::new();
    record(&top_keys, &mut exact, &[(1, 4), (2, 1)]);
    clock.advance(Duration::from_secs(30));
    record(&top_keys, &mut exact, &[(1, 3), (3, 2)]);
    assert_bounds(&top_keys.snapshot(), 256, &exact);
    let snapshot = top_keys.snapshot();
    let top = &snapshot.policy("per-ip").expect("a list").keys()[0];
    assert_eq!((top.key(), top.count()), ("user:1", 7));
}

#[test]
fn thread_that_read_the_clock_early_counts_in_the_current_half() {
    let clock = Clock::manual(START + Duration::from_secs(30));
    let top_keys = builder(&clock).window(Duration::from_secs(60)).build();
    let top_keys = top_keys.expect("usable settings");
    top_keys.record(&policy(), &Key::new("ada"), 1);
    clock.set(START + Duration::from_secs(29));
    top_keys.record(&policy(), &Key::new("ada"), 1);
    clock.set(START + Duration::from_secs(31));
    let snapshot = top_keys.snapshot();
    assert_eq!(snapshot.policy("per-ip").map(PolicyTopKeys::total), Some(2));
}

// === Decisions ===

#[test]
fn only_policies_that_denied_the_request_record_its_key() {
    let [narrow, wide] =
        [1, 100].map(|count| Policy::new(format!("up-to-{count}"), Quota::per_hour(count)));
    let limiter = RateLimiter::new(tollgate::memory::MemoryStore::new(), []);
    let (limiter, top_keys) = (limiter.expect("usable"), plain(8));
    for _ in 0..4 {
        let charges = [
            wide.charge(Key::GLOBAL),
            narrow.charge(Key::new("ada")).cost(1),
        ];
        let decision = limiter.check(&charges).take_ready().expect("at once");
        top_keys.record_denied(&charges, &decision.expect("decided"));
    }
    let snapshot = top_keys.snapshot();
    assert_eq!(snapshot.policies().len(), 1);
    let list = snapshot.policy("up-to-1").expect("a list");
    assert_eq!((list.total(), list.keys()[0].key()), (3, "ada"));
}

#[test]
fn denied_request_counts_as_one_at_every_cost() {
    let top_keys = plain(8);
    let policy = policy();
    let charges = [policy.charge(Key::new("ada")).cost(u64::MAX)];
    top_keys.record_denied(&charges, &limited(&charges));
    assert_eq!(top_keys.snapshot().policies()[0].total(), 1);
}

#[test]
fn request_that_no_limit_denied_is_not_recorded() {
    let (top_keys, policy) = (plain(8), policy());
    let charges = [policy.charge(Key::new("ada"))];
    for outcome in [Outcome::Allowed, Outcome::Unavailable] {
        let state = PolicyState::uncounted(*policy.name(), outcome);
        let decision = Decision::new(CountedBy::Uncounted, START, [state]);
        top_keys.record_denied(&charges, &decision);
    }
    assert!(top_keys.snapshot().policies().is_empty());
}

fn limited(charges: &[Charge<'_>]) -> Decision {
    let states = charges
        .iter()
        .map(|charge| PolicyState::uncounted(*charge.policy().name(), Outcome::Limited));
    Decision::new(CountedBy::InProcess, START, states)
}

// === Memory ===

#[test]
fn record_allocates_nothing_after_the_first_one_in_a_shard() {
    const KEYS: u64 = 1_000_000;
    let clock = Clock::manual(START);
    for capacity in [1, 100, 256, 257, 4_096] {
        let top_keys = builder(&clock).capacity(capacity).build();
        let (top_keys, policy) = (top_keys.expect("usable"), policy());
        let charges = [policy.charge(Key::new("ada"))];
        let decision = limited(&charges);
        let first = measure(|| top_keys.record_denied(&charges, &decision));
        let most = 1_000 + 2 * capacity * 96;
        assert!(first.bytes_max <= most as u64, "{} bytes", first.bytes_max);
        let keys = if capacity == 256 { KEYS } else { 10_000 };
        let later = measure(|| {
            for key in 0..keys {
                top_keys.record(&policy, &Key::from(key), 1);
                if key % 1_000 == 0 {
                    clock.advance(Duration::from_secs(60));
                }
            }
        });
        assert_eq!(later.count_total, 0, "capacity {capacity}");
    }
}

// === Shown keys ===

#[test]
fn keys_are_hashed_unless_plain_text_is_allowed() {
    let clock = Clock::manual(START);
    let address = Key::new("203.0.113.7");
    let first_key = |top_keys: &TopKeys| {
        top_keys.record(&policy(), &address, 1);
        let snapshot = top_keys.snapshot();
        snapshot.policies()[0].keys()[0].key().to_owned()
    };
    let by_default = TopKeys::builder()
        .clock(clock.clone())
        .build()
        .expect("usable");
    let shown = first_key(&by_default);
    assert_eq!(shown.len(), 33);
    assert!(!shown.contains("203.") && shown.starts_with('$'), "{shown}");
    assert_ne!(
        shown,
        Key::secret("203.0.113.7").as_str(),
        "a public constant"
    );
    assert_eq!(by_default.shown(&address), shown, "an operator finds it");

    let secret = HashSecret::new([7; 32]);
    let hashed = |secret| {
        let builder = TopKeys::builder().shown_keys(ShownKeys::hashed(secret));
        builder.clock(clock.clone()).build().expect("usable")
    };
    let by_fleet = first_key(&hashed(secret));
    assert_eq!(by_fleet, first_key(&hashed(secret)), "all instances agree");
    assert_ne!(by_fleet, first_key(&hashed(HashSecret::new([8; 32]))));
    let as_api_key = Key::secret_with(&secret, "203.0.113.7");
    assert_ne!(by_fleet, as_api_key.as_str());

    assert_eq!(first_key(&plain(8)), "203.0.113.7");
}

#[test]
fn keys_that_identify_no_client_are_not_hashed() {
    let top_keys = TopKeys::new();
    assert_eq!(top_keys.shown(&Key::GLOBAL), "*");
    assert_eq!(top_keys.shown(&Key::UNIDENTIFIED), "?");
    assert_eq!(top_keys.shown(&Key::new("*")).len(), 33, "a client sent it");
}

#[test]
fn debug_output_contains_no_key_and_no_secret() {
    let secret = HashSecret::from_passphrase("hunter2");
    let top_keys = TopKeys::builder()
        .shown_keys(ShownKeys::hashed(secret))
        .build();
    let top_keys = top_keys.expect("usable");
    top_keys.record(&policy(), &Key::new("ada@example.org"), 1);
    let text = format!("{top_keys:?}");
    assert!(!text.contains("ada") && !text.contains("hunter2"), "{text}");
}

// === Settings ===

#[test]
fn setting_out_of_range_fails_the_build() {
    let secs = Duration::from_secs;
    for (builder, text) in [
        (TopKeys::builder().capacity(0), "capacity of 0"),
        (TopKeys::builder().capacity(4_097), "capacity of 4097"),
        (TopKeys::builder().max_policies(0), "max_policies of 0"),
        (
            TopKeys::builder().max_policies(1_025),
            "max_policies of 1025",
        ),
        (TopKeys::builder().window(secs(1)), "window of 1s"),
        (
            TopKeys::builder().window(secs(200_000)),
            "window of 200000s",
        ),
    ] {
        let error = builder.build().expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(text), "{error}");
    }
}
