//! The contents of the state and of the history.

use std::{
    future::Future,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use axum::Router;
use serde_json::{Value, json};
use tollgate::{
    Consistency, Key, OnOutage, Percent, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    dashboard::Dashboard, extract::Header, rules::RuleMode, tiers::Tier,
};

use super::{READ, WRITE, call, get, guarded, key_of, layer, post};
use crate::support::Server;

#[tokio::test]
async fn state_lists_the_policies_with_their_quotas_and_modes() {
    let caller = || Header::new("x-caller");
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("api", Quota::per_minute(100).burst(20)).key(caller()))
        .policy(
            Policy::concurrency("uploads", 4)
                .key(caller())
                .mode(RuleMode::Shadow),
        )
        .policy(
            Policy::new("trial", Quota::per_hour(5))
                .on_outage(OnOutage::Deny)
                .key(caller())
                .rollout(12.5)
                .candidate(Quota::per_hour(3)),
        )
        .build()
        .expect("a layer");
    let builder = Dashboard::builder(&layer).title("checkout");
    let router: Router = guarded(builder).router();
    let state = get(&router, "/api/state").await;
    assert_eq!(state["title"], "checkout");
    assert_eq!(state["mode"], "enforce");
    assert_eq!(
        state["policies"],
        json!([
            {
                "name": "api", "limit": 100, "period_millis": 60_000, "burst": 20, "unit": null,
                "algorithm": "token_bucket", "on_outage": "local", "consistency": "strict", "overshoot": null, "mode": "enforce", "rollout": 100.0,
                "candidate": null, "waiting_callers": 0, "paused_millis": null,
            },
            {
                "name": "uploads", "limit": 4, "period_millis": null, "burst": null, "unit": null,
                "algorithm": "concurrency", "on_outage": "local", "consistency": "strict", "overshoot": null, "mode": "shadow", "rollout": 100.0,
                "candidate": null, "waiting_callers": 0, "paused_millis": null,
            },
            {
                "name": "trial", "limit": 5, "period_millis": 3_600_000, "burst": null, "unit": null,
                "algorithm": "token_bucket", "on_outage": "deny", "consistency": "strict", "overshoot": null, "mode": "enforce", "rollout": 12.5,
                "candidate": { "limit": 3, "period_millis": 3_600_000, "burst": null, "unit": null },
                "waiting_callers": 0, "paused_millis": null,
            },
        ])
    );
    assert_eq!(state["health"]["mode"], "healthy");
    assert_eq!(state["servers"], json!([]));
}

#[tokio::test]
async fn decisions_are_counted_by_policy_tier_and_outcome_since_the_dashboard_was_built() {
    let tier = Tier::new("pro", Quota::per_hour(2)).expect("a tier");
    let by_name = move |head: &RequestHead, _: &tollgate::Key| {
        (head.headers["x-caller"] == "pro").then(|| tier.clone())
    };
    let policy = Policy::new("api", Quota::per_hour(1));
    let layer = RateLimitLayer::builder()
        .policy(policy.key(Header::new("x-caller")).tier_by(by_name))
        .build()
        .expect("a layer");
    call(&layer, "before").await;
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for caller in ["ada", "ada", "ada", "pro", "pro", "pro"] {
        call(&layer, caller).await;
    }
    layer.set_mode(RuleMode::Shadow);
    call(&layer, "ada").await;
    let totals = |state: &Value| {
        let decisions = state["decisions"].as_array().expect("a list").iter();
        let mut totals: Vec<_> = decisions
            .map(|row| {
                (
                    row["policy"].clone(),
                    row["tier"].clone(),
                    row["totals"].clone(),
                )
            })
            .collect();
        totals.sort_by_key(|(policy, tier, _)| format!("{policy}{tier}"));
        totals
    };
    // Allowed, denied, would have been denied, unavailable; then by the fallback, by leases and by kept denials.
    let expected = [
        (json!("api"), json!("none"), json!([1, 2, 1, 0, 0, 0, 0])),
        (json!("api"), json!("pro"), json!([2, 1, 0, 0, 0, 0, 0])),
    ];
    let state = until(&router, "/api/state", |state| totals(state) == expected).await;
    assert_eq!(state["failed_decisions"], 0);
    let history = get(&router, "/api/history").await;
    for (track, step) in [(0, 1), (1, 60)] {
        let track = &history["tracks"][track];
        assert_eq!(track["step"], step);
        let series = track["series"].as_array().expect("a list").iter();
        let own = series.clone().find(|series| series["tier"] == "none");
        let counts = &own.expect("the policy's own")["counts"];
        let sum = |kind: usize| {
            let counts = counts[kind].as_array().expect("a list").iter();
            counts
                .map(|count| count.as_u64().expect("a number"))
                .sum::<u64>()
        };
        assert_eq!([sum(0), sum(1), sum(2), sum(3)], [1, 2, 1, 0]);
        let slots = track["slots"].as_u64().expect("a number");
        assert_eq!(
            counts[0].as_array().map(Vec::len),
            usize::try_from(slots).ok()
        );
    }
}

#[tokio::test]
async fn limiter_without_a_layer_is_shown_without_modes() {
    let policy = Policy::new("jobs", Quota::per_hour(1));
    let limiter = RateLimiter::builder().policy(policy.clone()).build();
    let limiter = limiter.expect("a limiter");
    let router: Router = guarded(Dashboard::builder_for_limiter(&limiter)).router();
    let session = get(&router, "/api/session").await;
    assert_eq!(session["has_modes"], false);
    limiter
        .check(&[policy.charge(key_of("ada"))])
        .await
        .expect("a decision");
    let state = until(&router, "/api/state", |state| {
        state["decisions"][0]["totals"][0] == 1
    })
    .await;
    assert_eq!(state["mode"], Value::Null);
    assert_eq!(state["policies"][0]["name"], "jobs");
    assert_eq!(state["policies"][0]["mode"], Value::Null);
    assert_eq!(state["keys"], 1);
}

#[tokio::test]
async fn latency_instances_and_outages_of_redis_are_shown_without_its_password() {
    let mut server = Server::start();
    let url = server
        .url()
        .replace("redis://", "redis://:s3cret-password@");
    server_with_password(&server).await;
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("api", Quota::per_hour(1_000)).key(Header::new("x-caller")))
        .redis(url.as_str())
        .build()
        .expect("a layer");
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let state = until_calling(&router, &layer, |state| {
        state["latency"][0]["p99"].is_u64() && state["health"]["instances"] == 1
    })
    .await;
    // Of the last second, and of its minute.
    for latency in state["latency"].as_array().expect("a list") {
        assert!(latency["p99"].is_u64(), "{latency}");
        assert!(latency["median"].as_u64() <= latency["p99"].as_u64());
        assert!(latency["queue_p99"].is_u64(), "{latency}");
    }
    let server_state = &state["servers"][0];
    assert_eq!(server_state["is_breaker_open"], false);
    assert!(server_state["network_micros"].is_u64(), "{server_state}");

    server.kill();
    let state = until_calling(&router, &layer, |state| {
        state["health"]["mode"] == "degraded"
            && state["decisions"][0]["totals"][4].as_u64() > Some(0)
    })
    .await;
    let outage = &state["health"]["outages"][0];
    assert_eq!(outage["server"], server_state["address"]);
    assert!(
        outage["cause"]
            .as_str()
            .is_some_and(|cause| !cause.is_empty())
    );
    let shown = format!("{state}{}", get(&router, "/api/history").await);
    for secret in ["s3cret-password", READ, WRITE] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

async fn server_with_password(server: &Server) {
    let client = redis::Client::open(server.url()).expect("a URL");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("it listens");
    let set: redis::RedisResult<()> = redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "s3cret-password"])
        .query_async(&mut connection)
        .await;
    set.expect("it has a password");
}

/// Reads the state until it is as expected.
async fn until(router: &Router, path: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = get(router, path).await;
        if is_expected(&state) {
            return state;
        }
        assert!(Instant::now() < deadline, "{state:#}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// As [`until`], while requests are made.
async fn until_calling(
    router: &Router,
    layer: &RateLimitLayer,
    is_expected: impl Fn(&Value) -> bool,
) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        call(layer, "ada").await;
        let state = get(router, "/api/state").await;
        if is_expected(&state) {
            return state;
        }
        assert!(Instant::now() < deadline, "{state:#}");
        // Lets the sampler run, too.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A layer on Redis with one policy.
fn on_redis(server: &Server, policy: Policy) -> RateLimitLayer {
    let layer = RateLimitLayer::builder().policy(policy.key(Header::new("x-caller")));
    layer.redis(server.url()).build().expect("a layer")
}

#[tokio::test]
async fn leased_policy_is_shown_with_its_units_and_the_decisions_by_them() {
    let server = Server::start();
    let overshoot = Percent::new(2.5);
    let policy = Policy::new("api", Quota::per_hour(100_000));
    let layer = on_redis(
        &server,
        policy.consistency(Consistency::Delayed { overshoot }),
    );
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let state = until_calling(&router, &layer, |state| {
        state["decisions"][0]["totals"][5].as_u64() > Some(0)
            && state["leased_units"].as_u64() > Some(0)
    })
    .await;
    assert_eq!(state["policies"][0]["consistency"], "delayed");
    assert_eq!(state["policies"][0]["overshoot"], 2.5);
    assert_eq!(state["leased_keys"], 1);
    let (_, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
    let lease = &found["policies"][0]["lease"];
    assert!(
        lease["units"].is_u64() && lease["age_millis"].is_u64(),
        "{found}"
    );
    assert_eq!(lease["leased_elsewhere"], 0);
}

#[tokio::test]
async fn denials_that_are_kept_are_shown_with_their_end() {
    let server = Server::start();
    let layer = on_redis(&server, Policy::new("api", Quota::per_hour(3)));
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    let state = until_calling(&router, &layer, |state| {
        state["decisions"][0]["totals"][6].as_u64() > Some(0)
    })
    .await;
    assert_eq!(state["leased_units"], Value::Null);
    let (_, found) = post(&router, "/api/key", r#"{"key":"ada"}"#).await;
    let found = &found["policies"][0];
    if found["counted_by"] == "denial_cache" {
        assert!(found["denied_millis"].as_u64() <= Some(2_000), "{found}");
    }
    assert_eq!(found["outcome"], "limited");
}

#[tokio::test]
async fn history_keeps_its_numbers_after_the_requests_end() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    call(&layer, "ada").await;
    let has_call = |history: &Value| {
        let counts = &history["tracks"][0]["series"][0]["counts"][0];
        counts
            .as_array()
            .is_some_and(|counts| counts.len() > 2 && counts.contains(&json!(1)))
    };
    until(&router, "/api/history", has_call).await;
}

// Regression: the page added what had happened between the two responses to the chart twice, or not at all.
#[tokio::test]
async fn history_has_the_totals_up_to_its_latest_second() {
    let layer = layer();
    let router: Router = guarded(Dashboard::builder(&layer)).router();
    for _ in 0..3 {
        call(&layer, "ada").await;
    }
    let history = until(&router, "/api/history", |history| {
        history["decisions"][0]["totals"][0] == 3
    })
    .await;
    assert_eq!(history["decisions"][0]["policy"], "api");
    let [fine, coarse] = [0, 1].map(|track| &history["tracks"][track]);
    for track in [fine, coarse] {
        let counts = track["series"][0]["counts"][0].as_array().expect("a list");
        let sum: u64 = counts.iter().filter_map(Value::as_u64).sum();
        assert_eq!(sum, 3, "{history}");
    }
    let second = fine["latest"].as_u64().expect("a number");
    assert_eq!(coarse["latest"], second / 60 * 60);
    let later = until(&router, "/api/state", |state| {
        state["second"].as_u64() > Some(second)
    })
    .await;
    assert_eq!(later["decisions"], history["decisions"]);
    // The second of a sample is over.
    let time = later["time"].as_u64().expect("milliseconds");
    let end = (later["second"].as_u64().expect("a number") + 1) * 1_000;
    assert!(end <= time, "{end} {time}");
}

// Regression: all decisions since the first dashboard were in the first second of the second one.
#[tokio::test]
async fn second_dashboard_of_a_running_limiter_begins_without_a_spike() {
    let layer = layer();
    let first: Router = guarded(Dashboard::builder(&layer)).router();
    for _ in 0..3 {
        call(&layer, "ada").await;
    }
    until(&first, "/api/state", |state| {
        state["decisions"][0]["totals"][0] == 3
    })
    .await;
    let second: Router = guarded(Dashboard::builder(&layer)).router();
    let history = until(&second, "/api/history", |history| {
        history["tracks"][0]["slots"].as_u64() > Some(2)
    })
    .await;
    assert_eq!(history["decisions"][0]["totals"][0], 3, "{history}");
    for track in [0, 1] {
        let counts = &history["tracks"][track]["series"][0]["counts"][0];
        assert_eq!(*counts, json!([]), "no decision was made since");
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn policies_and_keys_show_who_waits_and_how_long_they_are_paused() {
    let partner = Policy::new("partner", Quota::per_hour(1).burst(1));
    let idle = Policy::new("idle", Quota::per_hour(1));
    let limiter = RateLimiter::builder()
        .policy(partner.clone())
        .policy(idle)
        .build()
        .expect("a limiter");
    let router: Router = guarded(Dashboard::builder_for_limiter(&limiter)).router();
    let charge = partner.charge(Key::new("ada"));
    drop(limiter.acquire(charge).await.expect("a turn"));
    let mut waiting = Box::pin(limiter.acquire(charge).max_wait(Duration::from_secs(7_200)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    limiter
        .pause(&charge, Duration::from_secs(60))
        .await
        .expect("paused");
    let waits = |policy: &Value| {
        let paused = policy["paused_millis"].as_u64();
        assert!(paused.is_none_or(|left| (1..=60_000).contains(&left)));
        (policy["waiting_callers"].clone(), paused.is_some())
    };
    let state = get(&router, "/api/state").await;
    let policies = state["policies"].as_array().expect("a list").iter();
    let policies: Vec<_> = policies.map(waits).collect();
    assert_eq!(policies, [(json!(1), true), (json!(0), false)]);

    let found = post(&router, "/api/key", r#"{ "key": "ada" }"#).await;
    let keys = found.1["policies"].as_array().expect("a list");
    assert_eq!(
        keys.iter().map(waits).collect::<Vec<_>>(),
        [(json!(1), true), (json!(0), false)]
    );
    let turns = keys.iter().map(|key| key["next_turn_millis"].as_u64());
    let turns: Vec<Option<u64>> = turns.collect();
    assert!(turns[0].is_some_and(|turn| turn > 3_000_000), "{turns:?}");
    assert_eq!(turns[1], Some(0));
    drop(waiting);
    let state = get(&router, "/api/state").await;
    assert_eq!(state["policies"][0]["waiting_callers"], 0);
}
