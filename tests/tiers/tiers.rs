//! Tiers under the policies of a layer, in process and on Redis.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use http_body_util::BodyExt;
use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimiter, RequestHead,
    algorithm::{Algorithm, QueueLimits, WindowStart},
    charge::Correction,
    extract::{Global, Header},
    rejection::{Reason, Rejection},
    rules::CompletedRequest,
    tiers::{Tier, TierTable},
};
use tower::{Layer, ServiceExt, service_fn};

use super::callers::*;
use crate::middleware::witness::{World, everywhere};

everywhere! {
    tier_of_the_caller_is_the_limit_that_counts_and_is_reported
    share_of_a_bucket_goes_along_when_the_tier_changes
    number_of_a_window_and_times_of_a_log_go_along
    one_tier_holds_under_several_policies
    unlimited_tier_is_not_counted_and_denied_tier_is_refused
    cost_of_a_rule_counts_under_a_tier_too
    what_a_tier_was_charged_is_settled_under_the_tier
    slots_of_a_tier_are_held_until_the_body_has_ended
    tier_may_be_counted_in_another_way
    tier_can_be_charged_looked_at_and_reset_without_a_layer
    tier_is_looked_up_once_and_then_known
}

async fn tier_of_the_caller_is_the_limit_that_counts_and_is_reported(world: World) {
    let app = world
        .layer([api().tier_by(by_name())])
        .layer(service_fn(fine));
    for (caller, limit) in [
        ("free-1", 10),
        ("pro-1", 100),
        ("top-1", 1_000),
        ("pro-2", 100),
    ] {
        for used in 1..=3 {
            let response = ask(&app, caller).await;
            assert_eq!(
                header(&response, "x-ratelimit-limit"),
                Some(limit),
                "{caller}"
            );
            assert_eq!(
                header(&response, "x-ratelimit-remaining"),
                Some(limit - used)
            );
        }
    }
    for _ in 0..97 {
        assert_eq!(ask(&app, "pro-1").await.status(), 200);
    }
    let denied = ask(&app, "pro-1").await;
    assert_eq!(denied.status(), 429);
    assert_eq!(header(&denied, "x-ratelimit-limit"), Some(100));
    // 100 an hour: one each 36 s
    assert_eq!(header(&denied, "retry-after"), Some(36));
}

async fn share_of_a_bucket_goes_along_when_the_tier_changes(world: World) {
    let tier = Switch::default();
    let choice = follow(&tier);
    let app = world.layer([api().tier_by(choice)]).layer(service_fn(fine));
    for _ in 0..5 {
        ask(&app, "ada").await;
    }
    *tier.lock().expect("nobody panics") = Some(pro());
    // half of 10 was spent, so half of 100 is
    let response = ask(&app, "ada").await;
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some(49));
    for _ in 0..49 {
        assert_eq!(ask(&app, "ada").await.status(), 200);
    }
    *tier.lock().expect("nobody panics") = None;
    assert_eq!(ask(&app, "ada").await.status(), 429, "nothing is forgiven");
    // nobody waits longer than the new quota alone could make anybody wait
    world.clock.advance(Duration::from_secs(360));
    assert_eq!(ask(&app, "ada").await.status(), 200);
    assert_eq!(ask(&app, "ada").await.status(), 429);
}

async fn number_of_a_window_and_times_of_a_log_go_along(world: World) {
    for algorithm in [
        Algorithm::FixedWindow(WindowStart::Clock),
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        let tier = Switch::default();
        let choice = follow(&tier);
        let policy = Policy::new(algorithm.name(), Quota::per_hour(10)).algorithm(algorithm);
        let app = world
            .layer([policy.key(Global).tier_by(choice)])
            .layer(service_fn(fine));
        for _ in 0..10 {
            assert_eq!(ask(&app, "ada").await.status(), 200);
        }
        assert_eq!(ask(&app, "ada").await.status(), 429);
        *tier.lock().expect("nobody panics") = Some(pro());
        let response = ask(&app, "ada").await;
        assert_eq!(
            header(&response, "x-ratelimit-remaining"),
            Some(89),
            "{}",
            algorithm.name()
        );
        *tier.lock().expect("nobody panics") = None;
        assert_eq!(ask(&app, "ada").await.status(), 429, "{}", algorithm.name());
    }
}

async fn one_tier_holds_under_several_policies(world: World) {
    let pro = pro();
    let rule = |name| {
        let pro = pro.clone();
        let policy = Policy::new(name, Quota::per_hour(10));
        policy
            .key(Global)
            .tier_by(move |_: &RequestHead, _: &Key| Some(pro.clone()))
    };
    let window = Policy::new("window", Quota::per_hour(10)).algorithm(Algorithm::SlidingWindow);
    let other = pro.clone();
    let window = window
        .key(Global)
        .tier_by(move |_: &RequestHead, _: &Key| Some(other.clone()));
    let app = world
        .layer([
            rule("one"),
            rule("two"),
            window,
            Policy::new("own", Quota::per_hour(10)).key(Global),
        ])
        .layer(service_fn(fine));
    for _ in 0..2 {
        ask(&app, "ada").await;
    }
    let response = ask(&app, "ada").await;
    let decision = response.extensions().get::<Decision>().expect("a decision");
    let limits = decision.states().iter().map(|state| {
        let usage = state.usage().expect("it is counted");
        (state.policy().to_string(), usage.limit, usage.remaining)
    });
    let expected = [
        ("one", 100, 97),
        ("two", 100, 97),
        ("window", 100, 97),
        ("own", 10, 7),
    ];
    let expected = expected.map(|(name, limit, left)| (name.to_owned(), limit, left));
    assert_eq!(limits.collect::<Vec<_>>(), expected);
}

async fn unlimited_tier_is_not_counted_and_denied_tier_is_refused(world: World) {
    let table = TierTable::new([
        (Key::new("ourselves"), Tier::unlimited()),
        (Key::new("in-arrears"), Tier::forbidden()),
    ]);
    let everybody = Policy::new("everybody", Quota::per_hour(100));
    let rules = [everybody.clone().key(Global), api().tier_by(table)];
    let app = world.layer(rules).layer(service_fn(fine));
    for _ in 0..20 {
        let response = ask(&app, "ourselves").await;
        assert_eq!(response.status(), 200);
        let decision = response
            .extensions()
            .get::<Decision>()
            .expect("the other rule counts");
        assert_eq!(decision.states().len(), 1);
    }
    assert_eq!(world.remaining(&everybody).await, 80);
    let refused = ask(&app, "in-arrears").await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    assert_eq!(world.remaining(&everybody).await, 80, "nothing is charged");
    let rejection = refused.extensions().get::<Rejection>().expect("why");
    let Reason::Forbidden {
        policy: Some(policy),
    } = rejection.reason()
    else {
        panic!("{rejection:?}")
    };
    assert_eq!(policy.as_str(), "api");
}

async fn cost_of_a_rule_counts_under_a_tier_too(world: World) {
    let policy = Policy::new("api", Quota::per_hour(10)).cost(3);
    let rule = policy.key(Header::new("x-caller")).tier_by(by_name());
    let rule = rule.cost_by(|head: &RequestHead| {
        if head.headers.contains_key("x-cost") {
            7
        } else {
            3
        }
    });
    let app = world.layer([rule]).layer(service_fn(fine));
    assert_eq!(
        header(&ask(&app, "pro-1").await, "x-ratelimit-remaining"),
        Some(97)
    );
    let mut request = request("pro-1");
    request
        .headers_mut()
        .insert("x-cost", "7".parse().expect("a value"));
    let response = app.oneshot(request).await.expect("it answers");
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some(90));
}

async fn what_a_tier_was_charged_is_settled_under_the_tier(mut world: World) {
    let policy = Policy::new("api", Quota::per_hour(10));
    let rule = policy
        .clone()
        .cost(4)
        .key(Header::new("x-caller"))
        .tier_by(by_name());
    let rule = rule.settle(|request: &CompletedRequest<'_>| request.charged / 4);
    let app = world.layer([rule]).layer(service_fn(fine));
    for left in [99, 98] {
        let response = ask(&app, "pro-1").await;
        assert_eq!(header(&response, "x-ratelimit-remaining"), Some(left - 3));
        drop(response.into_body().collect().await);
        assert_eq!(
            world.settled().await,
            [("api".to_owned(), Correction::Refund(3))]
        );
        let under = policy.under(&pro()).expect("it fits");
        assert_eq!(world.usage(&under, Key::new("pro-1")).await.remaining, left);
    }
}

async fn slots_of_a_tier_are_held_until_the_body_has_ended(mut world: World) {
    let two = Tier::new("two", Quota::in_flight(2)).expect("a usable tier");
    let slots = Policy::concurrency("slots", 1);
    let table = TierTable::new([(Key::new("pro-1"), two)]);
    let rule = slots.key(Header::new("x-caller")).tier_by(table);
    let app = world.layer([rule]).layer(service_fn(fine));
    let first = ask(&app, "pro-1").await;
    let second = ask(&app, "pro-1").await;
    assert_eq!(
        (first.status().as_u16(), second.status().as_u16()),
        (200, 200)
    );
    assert_eq!(ask(&app, "pro-1").await.status(), 429);
    drop(first);
    assert_eq!(
        world.settled().await,
        [("slots".to_owned(), Correction::Release)]
    );
    assert_eq!(ask(&app, "pro-1").await.status(), 200);
    let only = ask(&app, "free-1").await;
    assert_eq!(ask(&app, "free-1").await.status(), 429);
    drop(only);
}

async fn tier_may_be_counted_in_another_way(mut world: World) {
    let queue = Algorithm::LeakyQueue(QueueLimits::new(1, Duration::MAX));
    let smooth = Tier::new("smooth", Quota::per_second(100)).and_then(|tier| tier.algorithm(queue));
    let log =
        Tier::new("log", Quota::per_hour(2)).and_then(|tier| tier.algorithm(Algorithm::SlidingLog));
    let table = TierTable::new([
        (Key::new("smooth"), smooth.expect("a usable tier")),
        (Key::new("log"), log.expect("a usable tier")),
    ]);
    let app = world.layer([api().tier_by(table)]).layer(service_fn(fine));
    let statuses = |caller: &'static str, count: usize| {
        let asked = (0..count).map(|_| app.clone().oneshot(request(caller)));
        asked.collect::<Vec<_>>()
    };
    for (caller, count, admitted) in [("log", 4, 2), ("smooth", 1, 1), ("free-1", 11, 10)] {
        let mut passed = 0;
        for answer in statuses(caller, count) {
            passed += usize::from(answer.await.expect("it answers").status() == 200);
        }
        assert_eq!(passed, admitted, "{caller}");
    }
    let settled = world.settled().await;
    assert_eq!(
        settled,
        [("api".to_owned(), Correction::Keep)],
        "what a queue charged is ended"
    );
}

async fn tier_can_be_charged_looked_at_and_reset_without_a_layer(world: World) {
    let policy = Policy::new("api", Quota::per_hour(10));
    let limiter = RateLimiter::new(world.store.clone(), [policy.clone()]).expect("a limiter");
    let under = policy.under(&pro()).expect("it fits");
    let key = Key::new("ada");
    let decision = limiter
        .check(&[under.charge(key).cost(60)])
        .await
        .expect("it answers");
    assert_eq!(
        decision.states()[0]
            .usage()
            .expect("it is counted")
            .remaining,
        40
    );
    assert_eq!(
        world.usage(&policy, key).await.remaining,
        4,
        "the share, seen by the policy"
    );
    limiter.reset(&under, &key).await.expect("it resets");
    assert_eq!(world.usage(&under, key).await.remaining, 100);
    for tier in [Tier::unlimited(), Tier::forbidden()] {
        let error = policy.under(&tier).expect_err("it has no quota");
        assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
    }
}

async fn tier_is_looked_up_once_and_then_known(world: World) {
    let lookups = Lookups::default();
    let cache = lookups.cache(|builder| builder);
    let session = |head: &RequestHead| {
        let caller = head.headers.get("x-caller").cloned();
        async move { Ok::<_, Infallible>(caller.map(|caller| Key::new(caller.as_bytes()))) }
    };
    let policy = Policy::new("api", Quota::per_hour(10));
    // by a key that is there, and by one that is looked up itself
    for rule in [
        policy.clone().key(Header::new("x-caller")),
        policy.clone().key_async(session),
    ] {
        let app = world
            .layer([rule.tier_cache(cache.clone())])
            .layer(service_fn(fine));
        for caller in ["ada", "bob", "ada", "ada", "bob"] {
            let response = ask(&app, caller).await;
            assert_eq!(header(&response, "x-ratelimit-limit"), Some(100));
        }
    }
    assert_eq!(lookups.asked(), ["ada", "bob"]);
    assert_eq!(
        world
            .usage(&policy.under(&pro()).expect("it fits"), Key::new("ada"))
            .await
            .remaining,
        94
    );
}

/// A tier for everybody that can be set while the layer works.
type Switch = Arc<Mutex<Option<Tier>>>;

fn follow(switch: &Switch) -> impl Fn(&RequestHead, &Key) -> Option<Tier> + use<> {
    let held = Arc::clone(switch);
    move |_: &RequestHead, _: &Key| held.lock().expect("nobody panics").clone()
}
