//! Modes of rules and layers, rollouts and candidates, as requests through a layer see them.

use std::{collections::HashSet, convert::Infallible, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    decision::Outcome,
    extract::{Global, Header, KeyExtractor},
    matching::PathPattern,
    rejection::Rejection,
    remote::RedisStore,
    rules::{Rule, RuleMode},
    tiers::Tier,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{Random, Server};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn layer(rules: impl IntoIterator<Item = Rule>) -> RateLimitLayerBuilder {
    let builder = RateLimitLayer::builder().clock(Clock::manual(START));
    rules
        .into_iter()
        .fold(builder, RateLimitLayerBuilder::policy)
}

fn by_user(name: &str, per_hour: u64) -> Rule {
    Policy::new(name, Quota::per_hour(per_hour)).key(Header::new("x-user"))
}

fn of(user: &str) -> Request<Body> {
    let request = Request::get("/").header("x-user", user);
    request.body(Body::empty()).expect("a request")
}

fn anonymous() -> Request<Body> {
    Request::get("/").body(Body::empty()).expect("a request")
}

/// Sends a request through the layer. Returns the response, and the decision that the handler saw.
async fn send(layer: &RateLimitLayer, request: Request<Body>) -> (Response<()>, Option<Decision>) {
    let service = layer.layer(service_fn(async |request: Request<Body>| {
        let decision = request.extensions().get::<Decision>().cloned();
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(decision);
        Ok::<_, Infallible>(response)
    }));
    let response = service.oneshot(request).await.expect("a response");
    let decision = response.extensions().get::<Option<Decision>>().cloned();
    (response.map(drop), decision.flatten())
}

async fn status(layer: &RateLimitLayer, request: Request<Body>) -> StatusCode {
    send(layer, request).await.0.status()
}

fn would_deny(decision: Option<&Decision>) -> Vec<String> {
    let states = decision.into_iter().flat_map(Decision::would_deny);
    states.map(|state| state.policy().to_string()).collect()
}

#[tokio::test]
async fn rule_in_shadow_counts_and_denies_nothing_and_the_headers_are_those_of_the_others() {
    let layer = layer([
        by_user("wide", 5),
        by_user("tight", 2).mode(RuleMode::Shadow),
    ]);
    let layer = layer.build().expect("a layer");
    for number in 1..=5 {
        let (response, decision) = send(&layer, of("ada")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["x-ratelimit-limit"], "5");
        assert_eq!(
            response.headers()["x-ratelimit-remaining"],
            (5 - number).to_string()
        );
        let expected: &[&str] = if number > 2 { &["tight"] } else { &[] };
        assert_eq!(would_deny(decision.as_ref()), expected, "{number}");
    }
    let (response, _) = send(&layer, of("ada")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn rule_that_is_off_reads_no_key_and_is_not_in_the_decision() {
    let layer = layer([by_user("off", 1).mode(RuleMode::Off)])
        .build()
        .expect("a layer");
    for _ in 0..3 {
        let (response, decision) = send(&layer, anonymous()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(decision.is_none());
        assert!(response.headers().get("x-ratelimit-limit").is_none());
    }
}

#[tokio::test]
async fn kill_switch_of_a_layer_and_of_a_rule_acts_on_the_next_request_and_keeps_the_counts() {
    let layer = layer([by_user("a", 2), by_user("b", 1)])
        .build()
        .expect("a layer");
    let clone = layer.clone();
    assert_eq!(status(&layer, of("ada")).await, StatusCode::OK);
    assert_eq!(
        status(&layer, of("ada")).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    clone.set_rule_mode("b", RuleMode::Off).expect("a rule");
    assert_eq!(layer.rule_mode("b"), Some(RuleMode::Off));
    assert_eq!(status(&layer, of("ada")).await, StatusCode::OK);
    assert_eq!(
        status(&layer, of("ada")).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    clone.set_mode(RuleMode::Off);
    for _ in 0..5 {
        assert_eq!(status(&layer, of("ada")).await, StatusCode::OK);
    }
    clone.set_mode(RuleMode::Enforce);
    assert_eq!(
        status(&layer, of("ada")).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    let error = layer
        .set_rule_mode("c", RuleMode::Off)
        .expect_err("no such rule");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(
        error.to_string(),
        r#"the layer has no policy "c"; its policies are "a", "b""#
    );
}

#[tokio::test]
async fn shadow_rejects_neither_a_missing_key_nor_a_repeated_one_nor_a_forbidden_request_or_tier() {
    let forbidden = |head: &RequestHead, _: &Key| {
        let is_banned = head.headers.get("x-user").is_some_and(|user| user == "eve");
        is_banned.then(Tier::forbidden)
    };
    let build = |mode| {
        let rule = by_user("user", 5).tier_by(forbidden);
        let layer = layer([rule]).forbid(PathPattern::new("/secret")).mode(mode);
        layer.build().expect("a layer")
    };
    let twice = || {
        let request = Request::get("/")
            .header("x-user", "a")
            .header("x-user", "b");
        request.body(Body::empty()).expect("a request")
    };
    let secret = || {
        Request::get("/secret")
            .body(Body::empty())
            .expect("a request")
    };
    let enforced = build(RuleMode::Enforce);
    assert_eq!(
        status(&enforced, anonymous()).await,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(status(&enforced, twice()).await, StatusCode::BAD_REQUEST);
    assert_eq!(status(&enforced, secret()).await, StatusCode::FORBIDDEN);
    assert_eq!(status(&enforced, of("eve")).await, StatusCode::FORBIDDEN);
    let shadow = build(RuleMode::Shadow);
    for request in [anonymous(), twice(), secret(), of("eve")] {
        assert_eq!(status(&shadow, request).await, StatusCode::OK);
    }
    let partly = layer([by_user("user", 5).rollout(99.9)])
        .build()
        .expect("a layer");
    assert_eq!(status(&partly, anonymous()).await, StatusCode::OK);
}

#[tokio::test]
async fn more_rules_than_can_be_decided_reject_nothing_in_shadow() {
    let names = (0..17).map(|number| format!("rule-{number}"));
    let conditional = |name: String| by_user(&name, 1).when(PathPattern::new("/"));
    let rules: Vec<Rule> = names.map(conditional).collect();
    let enforced = layer(rules.clone()).build().expect("a layer");
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!(status(&enforced, of("ada")).await, unavailable);
    enforced.set_mode(RuleMode::Shadow);
    assert_eq!(status(&enforced, of("ada")).await, StatusCode::OK);
    let shadow = rules.into_iter().map(|rule| rule.mode(RuleMode::Shadow));
    let shadow: Vec<Rule> = shadow.collect();
    let watched = layer(shadow.clone()).build().expect("a layer");
    let (response, decision) = send(&watched, of("ada")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(decision.is_none(), "nothing was decided");
    // With tiers, which are chosen before the decision.
    let tiered = shadow
        .iter()
        .cloned()
        .map(|rule| rule.tier_by(|_: &RequestHead, _: &Key| None::<Tier>));
    let tiered = layer(tiered).build().expect("a layer");
    assert_eq!(status(&tiered, of("ada")).await, StatusCode::OK);
    // With a key that is looked up after the first decision.
    let found = |head: &RequestHead| {
        std::future::ready(Ok::<_, Infallible>(Header::new("x-user").extract(head)))
    };
    for (mode, expected) in [
        (RuleMode::Shadow, StatusCode::OK),
        (RuleMode::Enforce, StatusCode::TOO_MANY_REQUESTS),
    ] {
        let late = Policy::new("late", Quota::per_hour(1)).key_async(found);
        let looked_up = layer(shadow.clone()).policy(late.mode(mode));
        let looked_up = looked_up.build().expect("a layer");
        assert_eq!(status(&looked_up, of("ada")).await, StatusCode::OK);
        assert_eq!(status(&looked_up, of("ada")).await, expected);
    }
}

#[test]
fn settings_that_cannot_work_fail_at_build() {
    let kind = |rule: Rule| {
        layer([rule])
            .build()
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let too_much = kind(by_user("user", 5).rollout(101.0)).expect_err("no percentage");
    assert_eq!(too_much, "a rollout of 101 %: use a number from 0 to 100");
    let long = "a-name-of-thirty-characters-...";
    let long = kind(by_user(long, 5).candidate(Quota::per_hour(7))).expect_err("too long");
    assert!(long.contains("use at most 29 characters"), "{long}");
    let empty = kind(by_user("user", 5).candidate(Quota::per_hour(0))).expect_err("no quota");
    assert!(empty.contains("user.candidate"), "{empty}");
    let taken = layer([
        by_user("user", 5).candidate(Quota::per_hour(7)),
        by_user("user.candidate", 5),
    ]);
    assert_eq!(
        taken.build().expect_err("one name twice").kind(),
        ErrorKind::DuplicatePolicy
    );
}

/// The stream through a layer: an enforced policy, a shadow, a rollout of 30 % and a candidate, against counters.
async fn stream_is_decided_as_by_the_model(builder: RateLimitLayerBuilder) {
    const REQUESTS: u64 = 100_000;
    const USERS: u64 = 400;
    let (all, user, new, tried) = (60_000, 260, 200, 320);
    let layer = builder
        .policy(Policy::new("all", Quota::per_hour(all)).key(Global))
        .policy(by_user("user", user).candidate(Quota::per_hour(tried)))
        .policy(by_user("shadow", new).mode(RuleMode::Shadow))
        .policy(by_user("rollout", new).rollout(30.0))
        .build()
        .expect("a layer");
    let mut random = Random(11);
    let mut used_of_all = 0;
    let mut used = vec![[0_u64; 4]; USERS as usize];
    let mut in_rollout: HashSet<u64> = HashSet::new();
    let mut out_of_rollout: HashSet<u64> = HashSet::new();
    let mut counts = [0_u64; 6];
    for _ in 0..REQUESTS {
        // Some users send much more than others.
        let name = random.below(USERS).min(random.below(USERS));
        let (response, decision) = send(&layer, of(&format!("u{name}"))).await;
        let is_allowed = response.status() == StatusCode::OK;
        let rejection = response.extensions().get::<Rejection>();
        let denial = rejection.and_then(|rejection| rejection.decision().cloned());
        let decision = decision.or(denial).expect("a decision");
        let is_in = !decision.state("rollout").expect("counted").is_shadow();
        let set = if is_in {
            &mut in_rollout
        } else {
            &mut out_of_rollout
        };
        set.insert(name);

        let [own, candidate, shadow, rollout] = &mut used[name as usize];
        let fits = [
            used_of_all < all,
            *own < user,
            *candidate < tried,
            *shadow < new,
            *rollout < new,
        ];
        let others = fits[0] && (fits[4] || !is_in);
        let expected = others && fits[1];
        assert_eq!(is_allowed, expected, "user {name} {fits:?} {is_in}");
        let states = decision.states().iter();
        let outcomes = states.map(|state| state.outcome() == Outcome::Allowed);
        assert_eq!(outcomes.collect::<Vec<_>>(), fits);
        if expected {
            used_of_all += 1;
            *own += 1;
        }
        *candidate += u64::from(others && fits[2]);
        *shadow += u64::from(expected && fits[3]);
        *rollout += u64::from(expected && fits[4]);
        counts[0] += u64::from(is_allowed);
        for (count, fits) in counts[1..].iter_mut().zip(fits) {
            *count += u64::from(!fits);
        }
    }
    println!(
        "{counts:?}, {} of {USERS} users in the rollout",
        in_rollout.len()
    );
    assert!(
        in_rollout.is_disjoint(&out_of_rollout),
        "a key is always in or out"
    );
    // 30 % of 400, give or take four standard deviations.
    assert!(
        (84..=156).contains(&in_rollout.len()),
        "{}",
        in_rollout.len()
    );
    assert!(
        counts.iter().all(|count| *count > 1_000),
        "each case occurs: {counts:?}"
    );
}

#[tokio::test]
async fn modes_decide_a_stream_in_process_as_the_model() {
    stream_is_decided_as_by_the_model(layer([])).await;
}

#[tokio::test]
async fn modes_decide_a_stream_in_redis_as_the_model() {
    let server = Server::start();
    let store = RedisStore::builder(server.url())
        .deadline(Duration::from_secs(10))
        .client_time(Clock::manual(START));
    let builder = RateLimitLayer::builder()
        .redis(store)
        .deadline(Duration::from_secs(10));
    stream_is_decided_as_by_the_model(builder).await;
}
