//! Penalties: their arithmetic, their state in Redis, outages, and a layer that bans.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use proptest::prelude::*;
use redis::Value;
use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    clock::{Clock, Timestamp},
    decision::{CountedBy, DeniedBy, Retry},
    extract::Header,
    memory::MemoryStore,
    policy::{Backoff, BanRecord, Penalty},
    remote::{RedisStore, Script},
    rules::RuleMode,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    fleet::shares::{until_acquainted, until_degraded, until_shared},
    support::{Mode, Proxy, Server, unpack},
};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Bans for a minute after two denials within a minute.
fn penalty() -> Penalty {
    Penalty::after(2, MINUTE)
}

fn login() -> Policy {
    Policy::new("login", Quota::per_hour(1)).penalty(penalty())
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    limiter.check(charges).await.expect("a decision")
}

fn cause(decision: &Decision) -> Option<DeniedBy> {
    decision.states()[0].denied_by()
}

/// Charges a key until it is banned.
async fn ban(limiter: &RateLimiter, policy: &Policy, key: Key) {
    for _ in 0..10 {
        if cause(&check(limiter, &[policy.charge(key)]).await) == Some(DeniedBy::Ban) {
            return;
        }
    }
    panic!("it is not banned");
}

proptest! {
    #[test]
    fn bans_lengthen_by_their_number_up_to_the_longest(
        denials in 1_u32..6,
        first in 1_u64..100,
        factor in 1_u32..=100,
        longest in 100_u64..10_000,
        steps in prop::collection::vec((0_u64..300, 0_u64..2_000), 1..200),
    ) {
        let penalty = Penalty::after(denials, 200 * SECOND)
            .ban(Duration::from_secs(first))
            .growing(factor, Duration::from_secs(longest))
            .forgiven_after(1_000 * SECOND);
        prop_assert!(penalty.validate().is_ok());
        let seconds = Duration::from_secs;
        let (mut state, mut now) = (BanRecord::default(), START);
        let (mut bans, mut counted, mut calm_since) = (0_u32, Vec::new(), START);
        for (step, rest) in steps {
            now = now + seconds(step);
            if step % 7 == 0 {
                now = now + seconds(rest);
            }
            if let Some(until) = penalty.banned_until(&state, now) {
                prop_assert!(until > now && until <= now + seconds(longest));
                now = until;
                prop_assert_eq!(penalty.banned_until(&state, now), None);
            }
            if now >= calm_since + 1_000 * SECOND {
                bans = 0;
                counted.clear();
            }
            if counted.first().is_some_and(|since| now >= *since + 200 * SECOND) {
                counted.clear();
            }
            counted.push(now);
            let until = penalty.count_denial(&mut state, now);
            calm_since = now;
            if counted.len() == denials as usize {
                let grown = u128::from(factor).saturating_pow(bans).saturating_mul(first.into());
                let length = u64::try_from(grown.min(u128::from(longest))).expect("it fits");
                prop_assert_eq!(until, Some(now + seconds(length)));
                counted.clear();
                bans = (bans + 1).min(19);
                calm_since = now + seconds(length);
            } else {
                prop_assert_eq!(until, None);
            }
            prop_assert_eq!(state.forgiven_at(), calm_since + 1_000 * SECOND);
        }
    }
}

#[test]
fn unusable_penalties_are_refused_when_a_limiter_is_built() {
    let year = 366 * 86_400 * SECOND;
    let refused = [
        Penalty::after(0, MINUTE),
        Penalty::after(1_000_001, MINUTE),
        Penalty::after(1, Duration::ZERO),
        Penalty::after(1, year + SECOND),
        Penalty::after(1, MINUTE + Duration::from_nanos(1)),
        penalty().ban(Duration::ZERO),
        penalty().ban(2 * MINUTE).growing(2, MINUTE),
        penalty().growing(0, 60 * MINUTE),
        penalty().growing(101, 60 * MINUTE),
        penalty().growing(2, year + SECOND),
        penalty().forgiven_after(Duration::ZERO),
    ];
    for penalty in refused {
        let policy = login().penalty(penalty);
        let error = RateLimiter::builder().policy(policy).build();
        let error = error.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidPolicy, "{penalty:?}");
        assert!(error.to_string().contains("\"login\""), "{error}");
    }
    let largest = Penalty::after(1_000_000, year)
        .ban(year)
        .growing(100, year)
        .forgiven_after(year);
    assert!(login().penalty(largest).validate().is_ok());
}

// Regression: such a policy was built, and no client ever noticed a ban.
#[test]
fn penalty_whose_bans_never_outlast_the_wait_of_a_denial_is_refused() {
    // A denied request that counts leaves nothing, so it waits for the 300 s of a unit.
    let policy = Policy::new("login", Quota::per_hour(12)).count_denied(true);
    let penalty = |longest| Penalty::after(3, MINUTE).ban(SECOND).growing(2, longest);
    for (longest, is_refused) in [(SECOND, true), (300 * SECOND, true), (301 * SECOND, false)] {
        let policy = policy.clone().penalty(penalty(longest));
        assert_eq!(policy.validate().is_err(), is_refused, "{longest:?}");
        // A request that is denied just before a unit comes back has a shorter wait, unless it counts.
        assert!(policy.count_denied(false).validate().is_ok());
    }
    let error = policy
        .penalty(penalty(SECOND))
        .validate()
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
    assert_eq!(
        error.to_string(),
        "policy \"login\": the longest ban lasts 1s, but a denied request that counts has a wait of 300s or more, so no ban \
         has an effect: lengthen the bans or remove the penalty"
    );
}

#[test]
fn example_in_the_header_of_the_script_is_true() {
    let server = Server::start();
    let mut start = vec!["EVAL", Script::DECIDE.source(), "2", "p{a}", "p{a}#b", "@"];
    let charge = "^ 2 60000000 30000000 2 3600000000 600000000 wAAAA 60000000 60000000";
    let now = |micros: u64| START.as_micros() + micros;
    let denied = [0, 0, now(60_000_000)];
    for (micros, expected) in [
        (0, [1, 1, now(60_000_000), 0]),
        (1_000_000, [denied[0], denied[1], denied[2], 0]),
        (
            2_000_000,
            [denied[0], denied[1], denied[2], now(32_000_000)],
        ),
        (
            3_000_000,
            [denied[0], denied[1], denied[2], now(32_000_000)],
        ),
    ] {
        let time = now(micros).to_string();
        start.truncate(6);
        let before = server.command(&["DUMP", "p{a}#b"]);
        let mut words = start.clone();
        words.push(&time);
        words.extend(charge.split(' '));
        let reply: Vec<u64> = unpack(&server.command(&words))
            .iter()
            .map(|n| *n as u64)
            .collect();
        assert_eq!(reply, [&[now(micros)][..], &expected].concat());
        let is_written = server.command(&["DUMP", "p{a}#b"]) != before;
        assert_eq!(is_written, [1_000_000, 2_000_000].contains(&micros));
    }
    let Value::Int(length) = server.command(&["STRLEN", "p{a}#b"]) else {
        panic!("it is a string")
    };
    assert_eq!(length, 26);
}

// Regression: after the clock was set back, denials counted together however far apart they were.
#[test]
fn denials_far_apart_ban_no_key_after_the_clock_is_set_back() {
    let server = Server::start();
    let after_three = Penalty::after(3, MINUTE);
    let mut state = BanRecord::default();
    let hour = 3_600 * SECOND;
    // Twenty minutes apart, an hour before the first one by the clock.
    let denials = [hour, Duration::ZERO, hour / 3, hour * 2 / 3];
    for (index, after) in denials.into_iter().enumerate() {
        let now = START + after;
        assert_eq!(after_three.count_denial(&mut state, now), None, "{after:?}");
        let time = now.as_micros().to_string();
        let charge = "^ 3 60000000 30000000 2 3600000000 600000000 wAAAA -1 60000000";
        let mut words = vec!["EVAL", Script::DECIDE.source(), "2", "p{a}", "p{a}#b"];
        words.extend(["@", &time]);
        words.extend(charge.split(' '));
        let reply = unpack(&server.command(&words));
        assert_eq!(reply[1], 0, "denied");
        assert_eq!(reply.last(), Some(&0), "denial {index} bans the key");
    }
}

#[tokio::test]
async fn ban_is_one_short_key_that_expires_once_it_is_forgiven() {
    let server = Server::start();
    let store = RedisStore::builder(server.url()).build().expect("a store");
    let policy = login();
    let limiter = RateLimiter::new(store, [policy.clone()]).expect("a limiter");
    let ada = Key::new("ada");
    check(&limiter, &[policy.charge(ada)]).await;
    assert_eq!(
        server.keys(),
        ["tollgate:{ada}:login"],
        "only denials write it"
    );
    ban(&limiter, &policy, ada).await;
    let Value::Int(ttl) = server.command(&["PTTL", "tollgate:{ada}:login#b"]) else {
        panic!("it lives")
    };
    // A minute of ban, an hour until it is forgiven, and the margin.
    assert!((3_600_000..=3_661_000).contains(&ttl), "{ttl}");
    limiter.reset(&policy, &ada).await.expect("reset");
    assert!(server.keys().is_empty());
}

#[tokio::test]
async fn ban_survives_a_flush_of_the_scripts_and_a_restart_with_data() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let policy = login();
    let limiter = || {
        let builder = RateLimiter::builder().redis(server.url()).policy(login());
        builder.deadline(5 * SECOND).build().expect("a limiter")
    };
    let first = limiter();
    let ada = Key::new("ada");
    ban(&first, &policy, ada).await;
    server.command(&["SCRIPT", "FLUSH"]);
    let decision = check(&first, &[policy.charge(ada)]).await;
    assert_eq!(cause(&decision), Some(DeniedBy::Ban));
    let second = limiter();
    server.kill();
    server.restart();
    let decision = check(&second, &[policy.charge(ada)]).await;
    assert_eq!(cause(&decision), Some(DeniedBy::Ban));
    assert_eq!(decision.counted_by(), CountedBy::Shared);
}

#[tokio::test]
async fn foreign_value_in_place_of_a_ban_is_an_error_and_nothing_is_charged() {
    let server = Server::start();
    let store = RedisStore::builder(server.url()).build().expect("a store");
    let policy = login();
    let limiter = RateLimiter::new(store, [policy.clone()]).expect("a limiter");
    let charge = policy.charge(Key::new("ada"));
    let key = "tollgate:{ada}:login#b";
    for words in [
        &["SET", key, "foreign"][..],
        &["SET", key, "twenty-six foreign bytes!!"],
        &["LPUSH", key, "1"],
        &["SET", key, ""],
    ] {
        server.command(&["DEL", key]);
        server.command(words);
        let error = limiter.check(&[charge]).await.expect_err("it is foreign");
        assert_eq!(error.kind(), ErrorKind::ForeignValue, "{words:?}");
        let error = limiter.ban_status(&policy, charge.key()).await;
        let error = error.expect_err("it is foreign");
        assert_eq!(error.kind(), ErrorKind::ForeignValue, "{words:?}");
        // Regression: a failure overwrote it.
        let delayed = policy
            .clone()
            .backoff(Backoff::doubling(SECOND, 8 * SECOND));
        let error = limiter.count_failure(&delayed, charge.key()).await;
        let error = error.expect_err("it is foreign");
        assert_eq!(error.kind(), ErrorKind::ForeignValue, "{words:?}");
        assert_eq!(server.keys(), [key], "{words:?}");
    }
    server.command(&["DEL", key]);
    assert!(check(&limiter, &[charge]).await.is_allowed());
}

#[tokio::test]
async fn denial_that_a_full_server_cannot_store_does_not_count() {
    let server = Server::start();
    let store = RedisStore::builder(server.url())
        .deadline(5 * SECOND)
        .build();
    let policy = login();
    let limiter = RateLimiter::new(store.expect("a store"), [policy.clone()]);
    let limiter = limiter.expect("a limiter");
    let charge = policy.charge(Key::new("ada"));
    assert!(check(&limiter, &[charge]).await.is_allowed());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..5 {
        let decision = limiter.check(&[charge]).await;
        // A server may refuse a script that could write, before it runs.
        if let Ok(decision) = decision {
            assert_eq!(cause(&decision), Some(DeniedBy::Quota));
        }
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(server.keys().len(), 1);
    assert_eq!(
        cause(&check(&limiter, &[charge]).await),
        Some(DeniedBy::Quota)
    );
    assert_eq!(
        cause(&check(&limiter, &[charge]).await),
        Some(DeniedBy::Ban)
    );
}

#[tokio::test]
async fn ban_that_an_instance_has_seen_holds_during_an_outage() {
    let mut server = Server::start();
    // Bob's quota is back at once, so only the ban denies him.
    let policy =
        Policy::new("quick", Quota::per_second(1_000).burst(1)).penalty(Penalty::after(1, MINUTE));
    let builder = || {
        RateLimiter::builder()
            .redis(server.url())
            .policy(policy.clone())
    };
    let fleet = [(); 2].map(|()| builder().deadline(SECOND / 2).build().expect("a limiter"));
    // Each of them has a share of about half of the keys, and of the others none.
    until_acquainted(&fleet).await;
    let [limiter, unaware] = &fleet;
    let store = RedisStore::builder(server.url()).build().expect("a store");
    let other = RateLimiter::new(store, [policy.clone()]).expect("a limiter");
    let started = Instant::now();
    let mut seen = Vec::new();
    for number in 0.. {
        assert!(started.elapsed() < 60 * SECOND, "never shared");
        let charges = [policy.charge(Key::new(format!("bob{number}")))];
        while cause(&check(&other, &charges).await) != Some(DeniedBy::Ban) {
            assert!(started.elapsed() < 60 * SECOND, "never banned");
        }
        let decision = check(limiter, &charges).await;
        // On a loaded machine, a decision may miss its deadline: then the ban is not the first thing that is seen.
        if decision.counted_by() == CountedBy::Shared {
            assert_eq!(cause(&decision), Some(DeniedBy::Ban));
            seen.push((charges[0].to_owned(), decision.states()[0].retry()));
        }
        if seen.len() == 16 {
            break;
        }
    }
    server.kill();
    for limiter in &fleet {
        while !limiter.health().is_degraded() {
            check(limiter, &[policy.charge(Key::new("ada"))]).await;
            assert!(started.elapsed() < 60 * SECOND, "never degraded");
        }
    }
    // Regression: a key without a share was to be retried after 5 s, although its ban was longer.
    for (charge, retry) in &seen {
        for _ in 0..2 {
            let decision = check(limiter, &[charge.borrow()]).await;
            assert_eq!(decision.counted_by(), CountedBy::Fallback);
            assert_eq!(cause(&decision), Some(DeniedBy::Ban));
            assert_eq!(decision.states()[0].retry(), *retry, "the same end");
        }
    }
    let mut allowed = 0;
    for (charge, _) in &seen {
        let decision = check(unaware, &[charge.borrow()]).await;
        allowed += usize::from(decision.is_allowed());
    }
    assert!(allowed > 0, "it has not seen the bans");
}

// Regression: the fallback took the retry time of the quota for the end of the ban.
#[tokio::test]
async fn ban_of_a_key_whose_quota_is_slow_ends_in_an_outage_as_it_does_in_redis() {
    let mut server = Server::start();
    let policy = Policy::new("slow", Quota::per_day(1)).penalty(Penalty::after(1, MINUTE));
    let limiter = RateLimiter::builder()
        .redis(server.url())
        .policy(policy.clone())
        .deadline(SECOND / 2)
        .build()
        .expect("a limiter");
    until_shared(&limiter).await;
    let (ada, started) = (Key::new("ada"), Instant::now());
    let banned = loop {
        let decision = check(&limiter, &[policy.charge(ada)]).await;
        assert!(started.elapsed() < 60 * SECOND, "never banned");
        let state = decision.states()[0];
        if decision.counted_by() == CountedBy::Shared && state.banned_until().is_some() {
            break state;
        }
    };
    assert!(banned.retry() > Retry::At(banned.banned_until().expect("banned") + 60 * MINUTE));
    let ban_status = limiter.ban_status(&policy, &ada).await.expect("ban_status");
    let ban_status = ban_status.expect("banned");
    assert_eq!(ban_status.banned_until(), banned.banned_until());
    server.kill();
    until_degraded(std::slice::from_ref(&limiter)).await;
    let decision = check(&limiter, &[policy.charge(ada)]).await;
    assert_eq!(decision.counted_by(), CountedBy::Fallback);
    assert_eq!(decision.states()[0].banned_until(), banned.banned_until());
    let seen = limiter.ban_status(&policy, &ada).await.expect("ban_status");
    let seen = seen.expect("banned");
    assert_eq!(seen.banned_until(), banned.banned_until());
    assert!(
        seen.banned_since() >= ban_status.banned_since(),
        "when it was seen"
    );
}

// Regression: it denied the key for the rest of the ban, although Redis had admitted it again.
#[tokio::test]
async fn instance_forgets_a_ban_that_another_one_has_ended() {
    let mut server = Server::start();
    let policy = Policy::new("reset", Quota::per_hour(8)).penalty(Penalty::after(1, MINUTE));
    let instance = || {
        let builder = RateLimiter::builder().redis(server.url());
        let builder = builder.policy(policy.clone()).deadline(SECOND / 2);
        builder.build().expect("a limiter")
    };
    let (limiter, other) = (instance(), instance());
    until_shared(&limiter).await;
    let ada = Key::new("ada");
    ban(&limiter, &policy, ada).await;
    // Within a second, a state with less usage may be that of an older reply.
    tokio::time::sleep(2 * SECOND).await;
    other.reset(&policy, &ada).await.expect("reset");
    let decision = check(&limiter, &[policy.charge(ada)]).await;
    assert!(decision.is_allowed());
    assert_eq!(decision.counted_by(), CountedBy::Shared);
    server.kill();
    until_degraded(std::slice::from_ref(&limiter)).await;
    let decision = check(&limiter, &[policy.charge(ada)]).await;
    assert_eq!(decision.counted_by(), CountedBy::Fallback);
    assert!(decision.is_allowed(), "{decision:?}");
}

// The fallback of an instance whose breaker was open may have banned the key first, for less long.
#[tokio::test]
async fn longer_ban_that_an_instance_sees_replaces_the_one_of_its_fallback() {
    let mut server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    let policy =
        Policy::new("quick", Quota::per_second(1_000).burst(1)).penalty(Penalty::after(1, MINUTE));
    let limiter = RateLimiter::builder()
        .redis(proxy.url())
        .policy(policy.clone())
        .deadline(SECOND / 2)
        .build()
        .expect("a limiter");
    let charges = [policy.charge(Key::new("bob"))];
    let started = Instant::now();
    while check(&limiter, &[policy.charge(Key::new("ada"))])
        .await
        .counted_by()
        != CountedBy::Shared
    {
        assert!(started.elapsed() < 60 * SECOND, "never shared");
    }
    proxy.set(Mode::BlackHole);
    while cause(&check(&limiter, &charges).await) != Some(DeniedBy::Ban) {
        assert!(started.elapsed() < 60 * SECOND, "never banned");
    }
    // The clock of the server may be a little behind that of this process.
    let banned_at = Instant::now();
    while banned_at.elapsed() < SECOND / 100 {
        tokio::task::yield_now().await;
    }
    let store = RedisStore::builder(server.url()).build().expect("a store");
    let other = RateLimiter::new(store, [policy.clone()]).expect("a limiter");
    let banned = loop {
        let decision = check(&other, &charges).await;
        if cause(&decision) == Some(DeniedBy::Ban) {
            break decision.states()[0].retry();
        }
        assert!(started.elapsed() < 60 * SECOND, "never banned");
    };
    proxy.set(Mode::Pass);
    let retry = loop {
        let decision = check(&limiter, &charges).await;
        if decision.counted_by() == CountedBy::Shared {
            assert_eq!(cause(&decision), Some(DeniedBy::Ban));
            break decision.states()[0].retry();
        }
        assert!(started.elapsed() < 60 * SECOND, "never shared");
    };
    assert_eq!(retry, banned, "the end in redis");
    server.kill();
    while !limiter.health().is_degraded() {
        check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        assert!(started.elapsed() < 60 * SECOND, "never degraded");
    }
    let decision = check(&limiter, &charges).await;
    assert_eq!(decision.counted_by(), CountedBy::Fallback);
    assert_eq!(cause(&decision), Some(DeniedBy::Ban));
    assert_eq!(decision.states()[0].retry(), retry, "the same end");
}

#[tokio::test]
async fn candidate_and_peeking_rule_ban_no_key() {
    let layer = RateLimitLayer::builder()
        .clock(Clock::manual(START))
        .policy(
            Policy::new("login", Quota::per_hour(10))
                .penalty(penalty())
                .key(Header::new("x-user"))
                .candidate(Quota::per_hour(1)),
        )
        .build()
        .expect("a layer");
    for _ in 0..10 {
        assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
    }
}

/// Sends a request of `user` through the layer.
async fn send(layer: &RateLimitLayer, user: &str) -> Response<()> {
    let handler =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let request = Request::get("/").header("x-user", user);
    let request = request.body(Body::empty()).expect("a request");
    let response = layer.layer(handler).oneshot(request).await;
    response.expect("a response").map(drop)
}

#[tokio::test]
async fn layer_denies_a_banned_key_until_the_end_of_its_ban() {
    let clock = Clock::manual(START);
    let policy = Policy::new("login", Quota::new(1, SECOND)).penalty(penalty());
    let build = |mode: RuleMode| {
        let rule = policy.clone().key(Header::new("x-user")).mode(mode);
        let layer = RateLimitLayer::builder().clock(clock.clone()).policy(rule);
        layer.build().expect("a layer")
    };
    let layer = build(RuleMode::Enforce);
    assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
    let limited = send(&layer, "ada").await;
    assert_eq!(limited.headers()["retry-after"], "1");
    for seconds in [60, 60, 59, 1] {
        clock.set(START + MINUTE - seconds * SECOND);
        let response = send(&layer, "ada").await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], seconds.to_string());
        assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
    }
    assert_eq!(send(&layer, "bob").await.status(), StatusCode::OK);
    clock.set(START + MINUTE);
    assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
    let shadow = build(RuleMode::Shadow);
    for _ in 0..10 {
        assert_eq!(send(&shadow, "ada").await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn flood_of_denied_keys_stays_within_the_memory_and_leaves_bans() {
    let clock = Clock::manual(START);
    let store = MemoryStore::builder().clock(clock.clone()).max_keys(1_000);
    let store = store.build().expect("a store");
    let policy = login().algorithm(Algorithm::TokenBucket);
    let limiter = RateLimiter::new(store.clone(), [policy.clone()]).expect("a limiter");
    let ada = Key::new("ada");
    ban(&limiter, &policy, ada).await;
    let mut banned = 0;
    for number in 0..20_000 {
        let key = Key::new(format!("flood{number}"));
        for _ in 0..3 {
            let decision = check(&limiter, &[policy.charge(key)]).await;
            banned += u32::from(cause(&decision) == Some(DeniedBy::Ban));
        }
    }
    assert!((500..2_000).contains(&banned), "{banned}");
    assert!(store.bytes() < 32 * 1_400 + 75 * 1_400, "{}", store.bytes());
    let decision = check(&limiter, &[policy.charge(ada)]).await;
    assert_eq!(cause(&decision), Some(DeniedBy::Ban));
    // Once all is forgiven, further keys have room.
    clock.set(START + 3 * 3_600 * SECOND);
    ban(&limiter, &policy, Key::new("bob")).await;
}

// Regression: a crowd that filled the store got callers banned who had sent nothing before.
#[tokio::test]
async fn denial_by_the_shared_count_of_new_keys_bans_no_key() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow(WindowStart::FirstHit),
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        let clock = Clock::manual(START);
        let store = MemoryStore::builder().clock(clock.clone()).max_keys(16);
        let policy = login().algorithm(algorithm);
        let limiter = RateLimiter::new(store.build().expect("a store"), [policy.clone()]);
        let limiter = limiter.expect("a limiter");
        let mut newcomer = None;
        for number in 0..1_000 {
            let key = Key::new(format!("user{number}"));
            if !check(&limiter, &[policy.charge(key)]).await.is_allowed() {
                newcomer = Some(key);
                break;
            }
        }
        let charge = policy.charge(newcomer.expect("the store is full"));
        for _ in 0..5 {
            let decision = check(&limiter, &[charge]).await;
            assert_eq!(cause(&decision), Some(DeniedBy::Quota), "{algorithm:?}");
        }
        clock.set(START + 2 * 3_600 * SECOND);
        assert!(
            check(&limiter, &[charge]).await.is_allowed(),
            "{algorithm:?}"
        );
        // What it uses itself gets it banned.
        ban(&limiter, &policy, *charge.key()).await;
    }
}

#[test]
fn ban_moves_with_a_clock_that_is_set_after_the_start() {
    let clock = Clock::manual(START);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let policy = login();
    let limiter = RateLimiter::new(store.expect("a store"), [policy.clone()]);
    let limiter = limiter.expect("a limiter");
    let take = || {
        let decided = limiter
            .check(&[policy.charge(Key::new("ada"))])
            .take_ready();
        decided.expect("at once").expect("a decision")
    };
    for _ in 0..3 {
        take();
    }
    assert_eq!(cause(&take()), Some(DeniedBy::Ban));
    clock.step(86_400 * 365 * SECOND);
    assert_eq!(cause(&take()), Some(DeniedBy::Ban));
    clock.advance(MINUTE);
    assert_eq!(cause(&take()), Some(DeniedBy::Quota));
}
