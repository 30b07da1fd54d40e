//! Other quotas for some callers: who has which, what is carried over, and what holds when nobody can tell.

use std::{
    convert::Infallible,
    future, panic,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    middleware::{Next, from_fn},
    routing::get,
};
use http::{Request, Response, StatusCode};
use tokio::{task, time};
use tollgate::{
    ErrorKind, Key, OnOutage, Policy, Quota, RateLimitLayer, RequestHead,
    algorithm::Algorithm,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    diagnosis::Code,
    extract::Global,
    matching::PathPattern,
    rules::{OnMissingKey, Rule},
    tiers::{ExtensionTier, Tier, TierCache, TierCacheBuilder, TierTable},
};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::callers::*;
use crate::support::logged;

// === Which quota counts ===

#[tokio::test]
async fn tier_below_what_a_request_costs_denies_that_request_for_good_and_counts_the_others() {
    let free = Tier::new("free", Quota::per_hour(5)).expect("a usable tier");
    let rule = api().cost_when(PathPattern::new("/reports"), 8);
    let rule = rule.tier_by(move |_: &RequestHead, _: &Key| Some(free.clone()));
    let layer = RateLimitLayer::builder().policy(rule).build();
    let app = layer.expect("it is not known yet").layer(service_fn(fine));
    let mut dear = request("ada");
    *dear.uri_mut() = "/reports".parse().expect("a path");
    let response = app.clone().oneshot(dear).await.expect("it answers");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&response, "retry-after"), None);
    let response = ask(&app, "ada").await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(header(&response, "x-ratelimit-limit"), Some(5));
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some(4));
}

// === Chosen by ===

#[tokio::test]
async fn outer_layer_sets_the_tier_as_an_extension() {
    let limit = layer([api().tier_by(ExtensionTier)]);
    let authenticate = |mut request: Request<Body>, next: Next| async move {
        if request.headers()["x-caller"].as_bytes().starts_with(b"pro") {
            request.extensions_mut().insert(pro());
        }
        next.run(request).await
    };
    let app = Router::new()
        .route("/", get(|| async { "fine" }))
        .layer(limit)
        .layer(from_fn(authenticate));
    for (caller, limit) in [("pro-1", 100), ("free-1", 10)] {
        let request = request(caller).map(|()| Body::empty());
        let response = app.clone().oneshot(request).await.expect("it answers");
        assert_eq!(header(&response, "x-ratelimit-limit"), Some(limit));
    }
}

#[tokio::test]
async fn choice_goes_before_the_cache() {
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| builder);
    let rule = api().tier_by(by_name()).tier_cache(cache.clone());
    let app = layer([rule]).layer(service_fn(fine));
    assert_eq!(
        header(&ask(&app, "pro-1").await, "x-ratelimit-limit"),
        Some(100)
    );
    assert_eq!(lookups.count(), 0);
    // by_name() does not say, the cache does
    assert_eq!(
        header(&ask(&app, "looked-up").await, "x-ratelimit-limit"),
        Some(100)
    );
    assert_eq!(lookups.count(), 1);
}

#[tokio::test]
async fn caller_that_is_not_known_has_the_policys_own_quota() {
    let chosen = pro();
    let rule = api().on_missing_key(OnMissingKey::Share);
    let rule = rule.tier_by(move |_: &RequestHead, _: &Key| Some(chosen.clone()));
    let app = layer([rule]).layer(service_fn(fine));
    let response = app.oneshot(Request::new(())).await.expect("it answers");
    assert_eq!(header(&response, "x-ratelimit-limit"), Some(10));
}

// === Made ===

#[test]
fn tier_that_cannot_work_is_refused_when_it_is_made() {
    for (name, quota, kind) in [
        ("", Quota::per_hour(1), ErrorKind::InvalidPolicy),
        ("a b", Quota::per_hour(1), ErrorKind::InvalidPolicy),
        ("pro", Quota::per_hour(0), ErrorKind::InvalidQuota),
        ("pro", Quota::per_hour(1).burst(0), ErrorKind::InvalidQuota),
        ("pro", Quota::per_second(2_000_000), ErrorKind::InvalidQuota),
        ("pro", Quota::in_flight(0), ErrorKind::InvalidQuota),
    ] {
        assert_eq!(
            Tier::new(name, quota).expect_err("it cannot work").kind(),
            kind,
            "{name} {quota:?}"
        );
    }
    let log = Tier::new("pro", Quota::per_hour(20_000))
        .and_then(|tier| tier.algorithm(Algorithm::SlidingLog));
    assert_eq!(
        log.expect_err("too long a log").kind(),
        ErrorKind::InvalidQuota
    );
    let unlimited = Tier::unlimited().algorithm(Algorithm::SlidingLog);
    assert_eq!(
        unlimited.expect_err("no quota").kind(),
        ErrorKind::InvalidQuota
    );
    let error = Policy::new("api", Quota::per_hour(10))
        .cost(200)
        .under(&pro());
    assert_eq!(
        error.expect_err("too small").kind(),
        ErrorKind::InvalidPolicy
    );
}

#[tokio::test]
async fn tier_that_does_not_fit_fails_at_build_or_leaves_the_own_quota_and_is_logged_once() {
    let long = || Tier::new("long", Quota::per_hour(20_000)).expect("a bucket can");
    let log = || Policy::new("api", Quota::per_hour(10)).algorithm(Algorithm::SlidingLog);
    let table = TierTable::new([(Key::new("a"), Tier::unlimited()), (Key::new("b"), long())]);
    let built = RateLimitLayer::builder()
        .policy(log().key(Global).tier_by(table))
        .build();
    let error = built.expect_err("it is known by then");
    assert_eq!(error.kind(), ErrorKind::InvalidQuota);
    assert!(
        error.to_string().contains("tier \"long\": policy \"api\""),
        "{error}"
    );

    logged();
    let late = long();
    let rule = log()
        .key(Global)
        .tier_by(move |_: &RequestHead, _: &Key| Some(late.clone()));
    let layer = layer([rule]);
    let app = layer.layer(service_fn(fine));
    for _ in 0..3 {
        assert_eq!(
            header(&ask(&app, "ada").await, "x-ratelimit-limit"),
            Some(10)
        );
    }
    let lines = logged();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("code=TG010 policy=api detail=tier \"long\""),
        "{lines:?}"
    );
    assert_eq!(layer.warnings()[0].code(), Code::IncompatibleTier);
}

#[test]
fn policy_under_a_tier_keeps_all_but_its_quota() {
    let policy = Policy::new("api", Quota::per_hour(10))
        .cost(3)
        .count_denied(true)
        .on_outage(OnOutage::Deny);
    let under = policy.under(&pro()).expect("it fits");
    assert_eq!(under.name(), policy.name());
    assert_eq!(under.charge(Key::GLOBAL).units(), 3);
    assert!(under.counts_denied());
    assert_eq!(under.outage_choice(), OnOutage::Deny);
    assert_eq!(under.quota(), Quota::per_hour(100));
    // another policy of the same name is another one to the tier
    let pro = pro();
    let bucket = Policy::new("api", Quota::per_hour(10));
    let window = bucket.clone().algorithm(Algorithm::SlidingWindow);
    let names = [&bucket, &window, &bucket]
        .map(|policy| policy.under(&pro).expect("it fits").algorithm_name());
    assert_eq!(names, ["token_bucket", "sliding_window", "token_bucket"]);
}

// === Looked up ===

#[tokio::test]
async fn tiers_expire_and_absent_tiers_expire_sooner() {
    let clock = clock();
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| builder.clock(clock.clone()).serve_stale(Duration::ZERO));
    let app = layer([api().tier_cache(cache)]).layer(service_fn(fine));
    lookups.answer(Ok(None));
    assert_eq!(limit(&app, "ada").await, 10);
    lookups.answer(Ok(Some(pro())));
    clock.advance(Duration::from_micros(9_999_999));
    assert_eq!(limit(&app, "ada").await, 10);
    clock.advance(Duration::from_micros(1));
    assert_eq!(limit(&app, "ada").await, 100);
    lookups.answer(Ok(None));
    clock.advance(Duration::from_micros(59_999_999));
    assert_eq!(limit(&app, "ada").await, 100);
    clock.advance(Duration::from_micros(1));
    assert_eq!(limit(&app, "ada").await, 10);
    assert_eq!(lookups.count(), 3);
}

#[tokio::test]
async fn however_many_ask_a_key_is_looked_up_once_at_a_time() {
    let lookups = Lookups::default();
    lookups.close();
    let cache = lookups.cache(|builder| builder);
    let builder = RateLimitLayer::builder()
        .policy(api().tier_cache(cache))
        .lookup_timeout(PATIENCE);
    let app = builder
        .build()
        .expect("it is well set up")
        .layer(service_fn(fine));
    let asked: Vec<_> = (0..200)
        .map(|number| task::spawn(app.clone().oneshot(request(["ada", "bob"][number % 2]))))
        .collect();
    until(|| lookups.count() == 2).await;
    lookups.open();
    let mut passed = 0;
    for answer in asked {
        let response = answer.await.expect("it ends").expect("it answers");
        assert_eq!(header(&response, "x-ratelimit-limit"), Some(100));
        passed += 1;
    }
    assert_eq!((passed, lookups.count()), (200, 2));
}

#[tokio::test]
async fn last_known_tier_holds_while_look_ups_fail_and_then_the_own_quota() {
    logged();
    let clock = clock();
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| builder.clock(clock.clone()));
    let app = layer([api().tier_cache(cache)]).layer(service_fn(fine));
    assert_eq!(limit(&app, "ada").await, 100);
    lookups.answer(Err("the database is away"));
    clock.advance(Duration::from_secs(60));
    assert_eq!(limit(&app, "ada").await, 100, "the last known");
    assert_eq!(limit(&app, "new").await, 10, "nothing is known");
    // a second passes before the next try
    assert_eq!(
        (limit(&app, "ada").await, limit(&app, "new").await),
        (100, 10)
    );
    assert_eq!(lookups.count(), 3);
    clock.advance(Duration::from_secs(1));
    assert_eq!(limit(&app, "ada").await, 100);
    assert_eq!(lookups.count(), 4);
    clock.advance(Duration::from_micros(3_598_999_999));
    assert_eq!(limit(&app, "ada").await, 100);
    clock.advance(Duration::from_micros(1_000_001));
    assert_eq!(limit(&app, "ada").await, 10, "an hour is enough");
    lookups.answer(Ok(Some(pro())));
    clock.advance(Duration::from_secs(1));
    assert_eq!(limit(&app, "ada").await, 100);
    let lines = logged();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("a tier lookup failed")
            && lines[0].contains("error=the database is away")
    );
}

// Reproducer: a request waited for the lookup though the cache had a tier to go on with.
#[tokio::test(start_paused = true)]
async fn stale_tier_is_served_at_once_while_one_lookup_runs_behind() {
    let clock = clock();
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| builder.clock(clock.clone()));
    let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    assert_eq!(limit(&app, "ada").await, 100);
    let bronze = Tier::new("bronze", Quota::per_hour(50)).expect("a usable tier");
    lookups.answer(Ok(Some(bronze)));
    clock.advance(Duration::from_secs(60));
    lookups.close();
    let begun = time::Instant::now();
    for _ in 0..50 {
        assert_eq!(limit(&app, "ada").await, 100);
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits");
    assert_eq!(
        lookups.asked(),
        ["ada", "ada"],
        "one lookup for all of them"
    );
    lookups.open();
    until(|| now_or_never(limit(&app, "ada")) == Some(50)).await;
    assert_eq!(lookups.count(), 2, "what it brought is fresh");
}

#[tokio::test(start_paused = true)]
async fn tier_is_served_stale_up_to_its_bound_and_waited_for_then() {
    for (serve_stale, bound) in [(None, 60), (Some(5), 5), (Some(0), 0)] {
        let clock = clock();
        let lookups = Lookups::default();
        let cache = lookups.cache(|builder| {
            let builder = builder.clock(clock.clone());
            match serve_stale {
                Some(seconds) => builder.serve_stale(Duration::from_secs(seconds)),
                None => builder,
            }
        });
        let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
        // the last microsecond of the bound, and the first behind it
        for (back, waits) in [(1, false), (0, true)] {
            cache.clear();
            lookups.answer(Ok(Some(pro())));
            assert_eq!(limit(&app, "ada").await, 100);
            lookups.answer(Ok(None));
            clock.advance(Duration::from_secs(60 + bound) - Duration::from_micros(back));
            let is_fresh = bound == 0 && !waits;
            let expected = if waits { 10 } else { 100 };
            let lookups_before = lookups.count();
            assert_eq!(limit(&app, "ada").await, expected, "{bound} {back}");
            until(|| is_fresh || lookups.count() == lookups_before + 1).await;
        }
    }
}

// The wait ends with the layer's time for lookups, as for any late one, and then the last known tier holds.
#[tokio::test(start_paused = true)]
async fn refresh_that_fails_leaves_the_stale_tier_until_its_bound_and_is_tried_once_a_second() {
    logged();
    let clock = clock();
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| {
        let builder = builder.clock(clock.clone());
        builder.serve_last_known(Duration::ZERO)
    });
    let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    assert_eq!(limit(&app, "ada").await, 100);
    lookups.answer(Err("the database is away"));
    clock.advance(Duration::from_secs(60));
    for seconds in 0..60 {
        for _ in 0..3 {
            assert_eq!(limit(&app, "ada").await, 100, "{seconds}");
        }
        until(|| lookups.count() == 2 + seconds).await;
        // the failure is noted once its task has ended
        for _ in 0..8 {
            task::yield_now().await;
        }
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(limit(&app, "ada").await, 10, "the bound is over");
    assert_eq!(logged().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn stale_tier_is_served_where_no_more_lookups_may_run() {
    let clock = clock();
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| builder.clock(clock.clone()).max_lookups(1));
    let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    for caller in ["ada", "bob"] {
        assert_eq!(limit(&app, caller).await, 100);
    }
    clock.advance(Duration::from_secs(60));
    lookups.close();
    for caller in ["ada", "bob", "ada", "bob"] {
        assert_eq!(limit(&app, caller).await, 100);
    }
    assert_eq!(lookups.asked(), ["ada", "bob", "ada"]);
    assert_eq!(cache.len(), 2);
}

#[tokio::test]
async fn refreshes_of_many_keys_keep_the_bound_on_remembered_keys() {
    let clock = clock();
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| builder.clock(clock.clone()).max_keys(10));
    let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    for round in 0..3 {
        for caller in 0..100 {
            assert_eq!(limit(&app, &caller.to_string()).await, 100, "{round}");
            assert!(cache.len() <= 10);
        }
        clock.advance(Duration::from_secs(61));
    }
}

#[tokio::test]
async fn cache_can_be_set_to_trust_nothing_that_is_old() {
    let clock = clock();
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| {
        builder
            .clock(clock.clone())
            .serve_stale(Duration::ZERO)
            .serve_last_known(Duration::ZERO)
    });
    let app = layer([api().tier_cache(cache)]).layer(service_fn(fine));
    assert_eq!(limit(&app, "ada").await, 100);
    lookups.answer(Err("away"));
    clock.advance(Duration::from_secs(60));
    assert_eq!(limit(&app, "ada").await, 10);
}

#[tokio::test(start_paused = true)]
async fn late_look_up_is_not_waited_for_and_still_remembered() {
    let clock = clock();
    let lookups = Lookups::default();
    lookups.close();
    let cache = lookups.cache(|builder| builder.clock(clock.clone()));
    let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    let begun = time::Instant::now();
    assert_eq!(limit(&app, "ada").await, 10);
    assert_eq!(begun.elapsed(), Duration::from_millis(100));
    lookups.open();
    until(|| !cache.is_empty()).await;
    let begun = time::Instant::now();
    assert_eq!(limit(&app, "ada").await, 100);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    // late again, with something known that is too old to be served at once
    clock.advance(Duration::from_secs(120));
    lookups.close();
    assert_eq!(limit(&app, "ada").await, 100);
    assert_eq!(begun.elapsed(), Duration::from_millis(100));
    assert_eq!(lookups.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn key_and_tier_share_the_time_that_a_request_waits() {
    let lookups = Lookups::default();
    lookups.close();
    let slow = |_: &RequestHead| async {
        time::sleep(Duration::from_millis(60)).await;
        Ok::<_, Infallible>(Some(Key::new("ada")))
    };
    let rule = Policy::new("api", Quota::per_hour(10)).key_async(slow);
    let app = layer([rule.tier_cache(lookups.cache(|builder| builder))]).layer(service_fn(fine));
    let begun = time::Instant::now();
    assert_eq!(limit(&app, "-").await, 10);
    assert_eq!(begun.elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn look_up_that_never_ends_is_given_up_and_tried_again() {
    let clock = clock();
    let lookups = Lookups::default();
    lookups.close();
    let cache = lookups.cache(|builder| {
        builder
            .clock(clock.clone())
            .deadline(Duration::from_secs(2))
    });
    let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    assert_eq!(limit(&app, "ada").await, 10);
    assert_eq!(limit(&app, "ada").await, 10);
    assert_eq!(lookups.count(), 1, "it is under way still");
    time::advance(Duration::from_secs(2)).await;
    until(|| !cache.is_empty()).await;
    clock.advance(Duration::from_secs(1));
    lookups.open();
    assert_eq!(limit(&app, "ada").await, 100);
    assert_eq!(lookups.count(), 2);
}

#[tokio::test]
async fn look_up_goes_on_when_its_request_is_gone() {
    let lookups = Lookups::default();
    lookups.close();
    let cache = lookups.cache(|builder| builder);
    let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    let gone = task::spawn(app.clone().oneshot(request("ada")));
    until(|| lookups.count() == 1).await;
    gone.abort();
    assert!(gone.await.is_err());
    lookups.open();
    until(|| !cache.is_empty()).await;
    assert_eq!((limit(&app, "ada").await, lookups.count()), (100, 1));
}

#[tokio::test]
async fn panic_in_a_resolver_is_a_failed_look_up() {
    let clock = clock();
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let resolver = move |_: &RequestHead, _: &Key| {
        let call = counter.fetch_add(1, Ordering::Relaxed);
        async move {
            assert!(call > 0, "made up by the test");
            Ok::<_, Infallible>(Some(pro()))
        }
    };
    let cache = TierCache::builder(resolver)
        .clock(clock.clone())
        .build()
        .expect("a cache");
    let app = layer([api().tier_cache(cache)]).layer(service_fn(fine));
    assert_eq!(limit(&app, "ada").await, 10);
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        (limit(&app, "ada").await, calls.load(Ordering::Relaxed)),
        (100, 2)
    );
}

#[test]
fn panic_before_the_future_is_made_leaves_no_look_up_behind() {
    let resolver = |_: &RequestHead, _: &Key| -> future::Ready<Result<Option<Tier>, Infallible>> {
        panic!("made up by the test")
    };
    let cache = TierCache::builder(resolver)
        .max_lookups(1)
        .build()
        .expect("a cache");
    let mut app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    for caller in ["ada", "bob", "cyd"] {
        let call = panic::AssertUnwindSafe(|| drop(app.call(request(caller))));
        assert!(panic::catch_unwind(call).is_err(), "it is not swallowed");
    }
    assert_eq!(cache.len(), 3, "each is known to have failed");
}

#[tokio::test]
async fn forgotten_key_is_looked_up_again_and_what_was_under_way_does_not_count() {
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| builder);
    let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
    assert_eq!(limit(&app, "ada").await, 100);
    lookups.answer(Ok(None));
    assert_eq!(limit(&app, "ada").await, 100);
    cache.forget(&Key::new("ada"));
    assert_eq!(limit(&app, "ada").await, 10);
    cache.clear();
    assert!(cache.is_empty());

    // the first is under way with the old answer when the key is forgotten
    lookups.answer(Ok(Some(pro())));
    lookups.close();
    let old = task::spawn(app.clone().oneshot(request("ada")));
    until(|| lookups.count() == 3).await;
    cache.forget(&Key::new("ada"));
    lookups.open();
    drop(old.await);
    assert!(cache.is_empty(), "what came of it is not remembered");

    // and when the next look-up is under way too, it is that one which counts
    lookups.close();
    let old = task::spawn(app.clone().oneshot(request("ada")));
    until(|| lookups.count() == 4).await;
    cache.forget(&Key::new("ada"));
    lookups.answer(Ok(None));
    let new = task::spawn(app.clone().oneshot(request("ada")));
    until(|| lookups.count() == 5).await;
    lookups.open();
    drop((old.await, new.await));
    assert_eq!((limit(&app, "ada").await, lookups.count()), (10, 5));
}

#[tokio::test]
async fn cache_keeps_so_many_keys_and_those_that_are_asked_for() {
    for most in [10, 5_000] {
        let lookups = Lookups::default();
        let cache = lookups.cache(|builder| builder.max_keys(most));
        let app = layer([api().tier_cache(cache.clone())]).layer(service_fn(fine));
        for number in 0..2 * most {
            limit(&app, "regular").await;
            limit(&app, &format!("passer-by-{number}")).await;
            assert!(cache.len() <= most, "{} of {most}", cache.len());
        }
        assert!(cache.len() > most / 2, "{} of {most}", cache.len());
        let regulars = lookups
            .asked()
            .iter()
            .filter(|key| *key == "regular")
            .count();
        assert_eq!(regulars, 1, "who comes often stays");
    }
}

#[tokio::test]
async fn only_so_many_are_looked_up_at_a_time() {
    let lookups = Lookups::default();
    lookups.close();
    let cache = lookups.cache(|builder| builder.max_lookups(2));
    let builder = RateLimitLayer::builder()
        .policy(api().tier_cache(cache.clone()))
        .lookup_timeout(PATIENCE);
    let app = builder
        .build()
        .expect("it is well set up")
        .layer(service_fn(fine));
    let first = ["ada", "bob"].map(|caller| task::spawn(app.clone().oneshot(request(caller))));
    until(|| lookups.count() == 2).await;
    assert_eq!(limit(&app, "cyd").await, 10, "it does not wait");
    assert_eq!(lookups.count(), 2);
    lookups.open();
    for answer in first {
        let response = answer.await.expect("it ends").expect("it answers");
        assert_eq!(header(&response, "x-ratelimit-limit"), Some(100));
    }
    assert_eq!((limit(&app, "cyd").await, lookups.count()), (100, 3));
}

#[test]
fn cache_of_nothing_or_for_no_time_is_refused() {
    let resolver = |_: &RequestHead, _: &Key| future::ready(Ok::<_, Infallible>(None));
    type Change = fn(TierCacheBuilder) -> TierCacheBuilder;
    let changes: [(&str, Change); 6] = [
        ("max_keys", |builder| builder.max_keys(0)),
        ("max_lookups", |builder| builder.max_lookups(0)),
        ("ttl", |builder| builder.ttl(Duration::ZERO)),
        ("negative_ttl", |builder| {
            builder.negative_ttl(Duration::ZERO)
        }),
        ("retry_failed_after", |builder| {
            builder.retry_failed_after(Duration::ZERO)
        }),
        ("deadline", |builder| builder.deadline(Duration::ZERO)),
    ];
    for (name, change) in changes {
        let error = change(TierCache::builder(resolver))
            .build()
            .expect_err("it cannot work");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

// === What they stand on ===

impl Lookups {
    fn answer(&self, answer: Answer) {
        *self.answer.lock().expect("nobody panics") = answer;
    }

    fn close(&self) {
        assert_eq!(self.gate.forget_permits(GATE), GATE);
    }

    fn open(&self) {
        self.gate.add_permits(GATE);
    }

    fn count(&self) -> usize {
        self.asked().len()
    }
}

fn now_or_never<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let waker = std::task::Waker::noop();
    match future
        .as_mut()
        .poll(&mut std::task::Context::from_waker(waker))
    {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

fn layer(rules: impl IntoIterator<Item = Rule>) -> RateLimitLayer {
    let builder = RateLimitLayer::builder();
    let builder = rules
        .into_iter()
        .fold(builder, RateLimitLayerBuilder::policy);
    builder.build().expect("it is well set up")
}

/// Lets others run until it is so. Real time, since tests hold the other one.
async fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it never came to be");
        task::yield_now().await;
    }
}

async fn limit<S, B>(app: &S, caller: &str) -> u64
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    header(&ask(app, caller).await, "x-ratelimit-limit").expect("it is counted")
}
