//! Keys that are awaited: what is asked when, how long it may take, and that nothing is charged meanwhile.

use std::{
    collections::HashMap,
    convert::Infallible,
    future, io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{Extension, Router, body::Body, routing::get};
use http::{Request, Response, StatusCode};
use proptest::{collection::vec, prelude::*};
use tokio::{
    sync::{Notify, RwLock, oneshot},
    task, time,
};
use tollgate::{
    Charge, Decision, Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    algorithm::{Algorithm, QueueLimits},
    builder::RateLimitLayerBuilder,
    charge::{Correction, Receipt},
    extract::{AsyncKeyExtractor, Extracted, Global, Header, KeyExtractor, KeyLookup},
    headers::Headers,
    matching::PathPattern,
    middleware::RateLimitInfo,
    rejection::{Reason, Rejection},
    rules::{BodyOutcome, CompletedRequest, OnMissingKey, RequestOutcome, Rule},
    store::{Store, StoreFuture},
    tiers::{Tier, TierCache},
};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_test::mock;

use crate::{
    middleware::witness::{Witness, World, everywhere},
    support::logged,
};

everywhere! {
    key_is_looked_up_in_state_and_counted
    nothing_is_looked_up_for_a_request_that_is_over_a_limit
    rules_that_wait_and_rules_that_do_not_are_decided_all_or_nothing
    both_decisions_are_one_in_the_order_of_the_rules
    charge_before_the_lookups_stands_when_they_find_no_key
    charge_before_the_lookups_stands_when_a_tier_is_forbidden
    denial_after_the_lookups_keeps_what_a_policy_counts_of_denied_requests
    lookups_that_end_in_a_denial_are_bounded_by_a_policy_that_counts_denied_requests
    slots_and_queues_on_both_sides_of_the_lookups_work
    both_sides_of_the_lookups_are_settled_once
    request_dropped_while_its_key_is_looked_up_is_charged_by_its_head_only
    queue_and_slots_work_behind_a_look_up
}

// === What is found ===

async fn key_is_looked_up_in_state_and_counted(world: World) {
    let sessions = HashMap::from([
        ("s-1".to_owned(), 7),
        ("s-2".to_owned(), 7),
        ("s-3".to_owned(), 8),
    ]);
    let sessions = Arc::new(RwLock::new(sessions));
    let rule = plan().key_async(Session {
        sessions: Arc::clone(&sessions),
    });
    let app = Router::new()
        .route(
            "/",
            get(|Extension(decision): Extension<Decision>| async move {
                decision.states()[0]
                    .usage()
                    .expect("it is counted")
                    .remaining
                    .to_string()
            }),
        )
        .layer(world.layer([rule]));
    for (session, status, left) in [
        ("s-1", 200, Some("9")),
        ("s-2", 200, Some("8")),
        ("s-3", 200, Some("9")),
        ("s-1", 200, Some("7")),
        ("unknown", 401, None),
    ] {
        let request = Request::get("/").header("x-session", session);
        let request = request.body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("it answers");
        assert_eq!(response.status(), status, "{session}");
        let remaining = response.headers().get("x-ratelimit-remaining");
        assert_eq!(
            remaining.map(|value| value.to_str().expect("text")),
            left,
            "{session}"
        );
    }
    assert_eq!(world.usage(&plan(), Key::from(7)).await.remaining, 7);
}

/// The user of a session.
struct Session {
    sessions: Arc<RwLock<HashMap<String, u64>>>,
}

impl AsyncKeyExtractor for Session {
    fn extract(&self, head: &RequestHead) -> KeyLookup {
        let sessions = Arc::clone(&self.sessions);
        let session = head.headers.get("x-session").cloned();
        Box::pin(async move {
            let Some(session) = session else {
                return Ok(Extracted::Absent);
            };
            let user = sessions.read().await.get(session.to_str()?).copied();
            Ok(user.map(Key::from).into())
        })
    }

    fn label(&self) -> &'static str {
        "session"
    }

    fn missing_status(&self) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }
}

// Reproducer: 1,000 requests of which five were admitted were 1,000 queries to a database.
async fn nothing_is_looked_up_for_a_request_that_is_over_a_limit(world: World) {
    let per_client = Policy::new("client", Quota::per_hour(5));
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = |asked: &Arc<AtomicUsize>| {
        let asked = Arc::clone(asked);
        move |_: &RequestHead| {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            future::ready(Ok::<_, Infallible>(Some(Key::from(number as u64))))
        }
    };
    let tiers_asked = Arc::clone(&asked);
    let tiers = TierCache::builder(move |_: &RequestHead, _: &Key| {
        tiers_asked.fetch_add(1, Ordering::Relaxed);
        future::ready(Ok::<_, Infallible>(None))
    });
    let tiers = tiers.build().expect("a usable cache");
    let made_up = Arc::new(AtomicUsize::new(0));
    let made_up = move |_: &RequestHead| {
        let number = made_up.fetch_add(1, Ordering::Relaxed);
        Key::from(number as u64)
    };
    for (rule, name) in [
        (plan().key_async(counted(&asked)), "keys"),
        (plan().key(made_up).tier_cache(tiers), "tiers"),
    ] {
        asked.store(0, Ordering::Relaxed);
        let limiter = world.layer([per_client.clone().key(Global)]);
        let reset = limiter.limiter().reset(&per_client, &Key::GLOBAL).await;
        reset.expect("it starts afresh");
        let rules = [rule, per_client.clone().key(Global)];
        let app = world.layer(rules).layer(service_fn(fine));
        let mut admitted = 0;
        for _ in 0..1_000 {
            admitted += usize::from(ask(&app).await.status() == 200);
        }
        assert_eq!(admitted, 5, "{name}");
        assert_eq!(asked.load(Ordering::Relaxed), 5, "lookups of {name}");
    }
}

async fn rules_that_wait_and_rules_that_do_not_are_decided_all_or_nothing(mut world: World) {
    let user = Policy::new("user", Quota::per_hour(1));
    let app = world
        .layer([plan().key(Global), user.clone().key_async(at_once("ada"))])
        .layer(service_fn(fine));
    for status in [200, 429, 429] {
        let response = ask(&app).await;
        assert_eq!(response.status(), status);
        // the plan's one unit, once it is given back
        let left = response.headers()["x-ratelimit-remaining"].clone();
        assert_eq!(left, "0", "of the narrowest");
        if status == 429 {
            let rejection = response.extensions().get::<Rejection>().expect("why");
            let decision = rejection.decision().expect("it was decided");
            let left = |name| decision.state(name)?.usage().map(|usage| usage.remaining);
            assert_eq!((left("plan"), left("user")), (Some(9), Some(0)));
            let violated: Vec<_> = rejection
                .violated()
                .map(|state| state.policy().as_str())
                .collect();
            assert_eq!(violated, ["user"]);
            let settled = world.settled().await;
            assert_eq!(settled, [("plan".to_owned(), Correction::Refund(1))]);
        }
    }
    assert_eq!(world.decided(), [1, 1, 1, 1, 1, 1]);
    assert_eq!(world.remaining(&plan()).await, 9);
    assert_eq!(world.usage(&user, Key::new("ada")).await.remaining, 0);
}

async fn both_decisions_are_one_in_the_order_of_the_rules(world: World) {
    let policy = |name| Policy::new(name, Quota::per_hour(10));
    let tier = Tier::new("pro", Quota::per_hour(100)).expect("a usable tier");
    let tiers = TierCache::builder(move |_: &RequestHead, _: &Key| {
        future::ready(Ok::<_, Infallible>(Some(tier.clone())))
    });
    let tiers = tiers.build().expect("a usable cache");
    let rules = || {
        [
            policy("a").key_async(at_once("ada")),
            policy("b").key(Global),
            policy("c").key(Global).tier_cache(tiers.clone()),
            policy("d").cost(3).key(Global),
        ]
    };
    let builder = RateLimitLayer::builder().store(world.store.clone());
    let builder = rules()
        .into_iter()
        .fold(builder, RateLimitLayerBuilder::policy);
    let app = built(builder.headers(Headers::draft11())).layer(service_fn(fine));
    let calls = [vec![2, 2], vec![3, 1]]; // the tier is known at the second request
    for (used, calls) in (1..).zip(calls) {
        let response = ask(&app).await;
        let decision = response.extensions().get::<Decision>().expect("a decision");
        let states = decision.states().iter().map(|state| {
            let usage = state.usage().expect("it is counted");
            (state.policy().as_str(), usage.limit - usage.remaining)
        });
        let expected = [("a", used), ("b", used), ("c", used), ("d", 3 * used)];
        assert_eq!(states.collect::<Vec<_>>(), expected);
        assert_eq!(world.decided(), calls);
        let policies = response.headers()["ratelimit-policy"]
            .to_str()
            .expect("text");
        assert_eq!(
            policies,
            "\"a\";q=10;w=3600, \"b\";q=10;w=3600, \"c\";q=100;w=3600, \"d\";q=10;w=3600"
        );
        let limits = response.headers()["ratelimit"].to_str().expect("text");
        let left: Vec<_> = limits
            .split(", ")
            .map(|limit| limit.split(";t=").next())
            .collect();
        let left: Vec<_> = left.into_iter().flatten().map(str::to_owned).collect();
        let of = |name: &str, left: u64| format!("\"{name}\";r={left}");
        let expected = [
            of("d", 10 - 3 * used),
            of("a", 10 - used),
            of("b", 10 - used),
            of("c", 100 - used),
        ];
        assert_eq!(left, expected);
    }
    // nothing to look up: one call, as ever
    let app = world.layer(["x", "y"].map(|name| policy(name).key(Global)));
    assert_eq!(ask(&app.layer(service_fn(fine))).await.status(), 200);
    assert_eq!(world.decided(), [2]);
}

// Who has no key has had a lookup: it is not free.
async fn charge_before_the_lookups_stands_when_they_find_no_key(world: World) {
    let twice = |_: &RequestHead| future::ready(Ok::<_, Infallible>(Extracted::<Key>::Ambiguous));
    for (number, (rule, status)) in [
        (plan().key_async(nobody), 400),
        (plan().key_async(fails), 503),
        (plan().key_async(never), 503),
        (plan().key_async(twice), 400),
        (
            plan().key_async(twice).on_missing_key(OnMissingKey::Skip),
            400,
        ),
        (
            plan().key_async(twice).on_missing_key(OnMissingKey::Share),
            400,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let head = Policy::new(format!("head-{number}"), Quota::per_hour(3));
        let other = Policy::new("other", Quota::per_hour(100));
        let rules = [
            rule,
            head.clone().key(Global),
            other.clone().key_async(at_once("ada")),
        ];
        let app = world.layer(rules).layer(service_fn(fine));
        let mut statuses = Vec::new();
        for _ in 0..5 {
            statuses.push(ask(&app).await.status().as_u16());
        }
        assert_eq!(statuses, [status, status, status, 429, 429], "{number}");
        assert_eq!(world.remaining(&head).await, 0);
        // what was found beside it is charged as well
        let used = 3 * (u64::try_from(number).expect("few") + 1);
        let left = world.usage(&other, Key::new("ada")).await.remaining;
        assert_eq!(left, 100 - used, "{number}");
    }
    assert_eq!(world.remaining(&plan()).await, 10);
}

async fn charge_before_the_lookups_stands_when_a_tier_is_forbidden(world: World) {
    let tiers = TierCache::builder(|_: &RequestHead, _: &Key| {
        future::ready(Ok::<_, Infallible>(Some(Tier::forbidden())))
    });
    let tiers = tiers.build().expect("a usable cache");
    let head = Policy::new("head", Quota::per_hour(10));
    let rules = [
        head.clone().key(Global),
        plan().key(Global).tier_cache(tiers),
    ];
    let app = world.layer(rules).layer(service_fn(fine));
    for left in [9, 9, 9] {
        let response = ask(&app).await;
        assert_eq!(response.status(), 403);
        // once it is known, it is refused before anything is charged
        assert_eq!(world.remaining(&head).await, left);
    }
}

async fn denial_after_the_lookups_keeps_what_a_policy_counts_of_denied_requests(mut world: World) {
    let policy = |name| Policy::new(name, Quota::per_hour(10));
    let (strict, usual) = (policy("strict").count_denied(true), policy("usual"));
    let rules = [
        strict.clone().key(Global),
        usual.clone().key(Global),
        Policy::new("user", Quota::per_hour(1)).key_async(at_once("ada")),
    ];
    let app = world.layer(rules).layer(service_fn(fine));
    for (status, left) in [(200, (9, 9)), (429, (8, 9)), (429, (7, 9))] {
        let response = ask(&app).await;
        assert_eq!(response.status(), status);
        if let Some(rejection) = response.extensions().get::<Rejection>() {
            let decision = rejection.decision().expect("it was decided");
            let of = |name| {
                decision
                    .state(name)
                    .and_then(tollgate::decision::PolicyState::usage)
                    .map(|usage| usage.remaining)
            };
            assert_eq!((of("strict"), of("usual")), (Some(left.0), Some(left.1)));
            world.settled_of(&["strict", "usual"]).await;
        }
        let found = (
            world.remaining(&strict).await,
            world.remaining(&usual).await,
        );
        assert_eq!(found, left);
    }
}

async fn lookups_that_end_in_a_denial_are_bounded_by_a_policy_that_counts_denied_requests(
    world: World,
) {
    let per_client = Policy::new("client", Quota::per_hour(5)).count_denied(true);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let session = move |_: &RequestHead| {
        counted.fetch_add(1, Ordering::Relaxed);
        future::ready(Ok::<_, Infallible>(Some(Key::new("ada"))))
    };
    let user = Policy::new("user", Quota::per_hour(1)).key_async(session);
    let app = world.layer([per_client.key(Global), user]);
    let app = app.layer(service_fn(fine));
    let mut admitted = 0;
    for _ in 0..100 {
        admitted += usize::from(ask(&app).await.status() == 200);
    }
    assert_eq!((admitted, asked.load(Ordering::Relaxed)), (1, 5));
}

#[tokio::test]
async fn clients_that_hang_up_in_a_queue_spend_what_a_layer_outside_of_it_charges() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let session = move |_: &RequestHead| {
        counted.fetch_add(1, Ordering::Relaxed);
        future::ready(Ok::<_, Infallible>(Some(Key::new("ada"))))
    };
    let queue = Policy::new("queue", Quota::per_hour(1));
    let queue = queue.algorithm(Algorithm::LeakyQueue(QueueLimits::new(3, Duration::MAX)));
    let inside = Policy::new("inside", Quota::per_hour(5)).count_denied(true);
    let rules = [inside.key(Global), queue.key_async(session)];
    let outside = Policy::new("outside", Quota::per_hour(20));
    let app = layer(rules).layer(service_fn(fine));
    let app = layer([outside.key(Global)]).layer(app);
    assert_eq!(ask(&app).await.status(), 200);
    for _ in 0..100 {
        if let Some(response) = now(app.clone().oneshot(request("/"))) {
            let response: Response<_> = response.expect("it answers");
            assert_eq!(response.status(), 429);
        }
    }
    assert_eq!(asked.load(Ordering::Relaxed), 20);
}

async fn slots_and_queues_on_both_sides_of_the_lookups_work(mut world: World) {
    let queue = |name| {
        let queue = Algorithm::LeakyQueue(QueueLimits::new(3, Duration::MAX));
        Policy::new(name, Quota::per_second(50)).algorithm(queue)
    };
    let (before, after) = (
        Policy::concurrency("before", 1),
        Policy::concurrency("after", 1),
    );
    let rules = [
        before.clone().key(Global),
        queue("first").key(Global),
        after.clone().key_async(at_once("ada")),
        queue("second").key_async(at_once("ada")),
    ];
    let app = world.layer(rules).layer(service_fn(fine));
    for number in 0..3 {
        let begun = time::Instant::now();
        let response = ask(&app).await;
        assert_eq!(response.status(), 200);
        // the clock of the counts stands still, so the second one's turn is 20 ms off, and so on
        let waited = begun.elapsed();
        assert!(
            waited >= number * Duration::from_millis(20),
            "{number}: {waited:?}"
        );
        // both slots are held until the body has ended
        assert_eq!(world.remaining(&before).await, 0);
        assert_eq!(world.usage(&after, Key::new("ada")).await.remaining, 0);
        assert_eq!(ask(&app).await.status(), 429, "one is in flight");
        drop(response);
        while world.remaining(&before).await + world.usage(&after, Key::new("ada")).await.remaining
            < 2
        {
            world.settled().await;
        }
    }
}

async fn both_sides_of_the_lookups_are_settled_once(mut world: World) {
    let policy = |name| Policy::new(name, Quota::per_hour(100)).cost(10);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let priced = |name: &'static str, price: u64| {
        let asked = Arc::clone(&asked);
        move |request: &CompletedRequest<'_>| {
            let mut asked = asked.lock().expect("nobody panics");
            asked.push((name, request.charged, status(request)));
            price
        }
    };
    let rules = [
        policy("before").key(Global).settle(priced("before", 4)),
        policy("kept").key(Global),
        policy("after")
            .key_async(at_once("ada"))
            .settle(priced("after", 7)),
    ];
    let app = world.layer(rules).layer(service_fn(fine));
    drop(ask(&app).await);
    let settled = world.settled_of(&["after", "before", "kept"]).await;
    let expected = [
        ("after".to_owned(), Correction::Refund(3)),
        ("before".to_owned(), Correction::Refund(6)),
        ("kept".to_owned(), Correction::Keep),
    ];
    assert_eq!(settled, expected);
    let asked = std::mem::take(&mut *asked.lock().expect("nobody panics"));
    assert_eq!(asked, [("before", 10, Some(200)), ("after", 10, Some(200))]);
    assert_eq!(world.remaining(&policy("before")).await, 96);
    assert_eq!(
        world
            .usage(&policy("after"), Key::new("ada"))
            .await
            .remaining,
        93
    );
}

fn status(request: &CompletedRequest<'_>) -> Option<u16> {
    match request.outcome {
        RequestOutcome::Responded { status, .. } => Some(status.as_u16()),
        _ => None,
    }
}

// A client that hangs up during a lookup is charged as one that hangs up later: by the closure, with no way around it.
#[tokio::test]
async fn client_that_goes_away_during_a_lookup_is_settled_as_gone() {
    let mut world = World::in_process();
    let settle = |request: &CompletedRequest<'_>| match request.outcome {
        RequestOutcome::ClientGone => 2,
        _ => 0,
    };
    let rules = [
        plan().key(Global).settle(settle),
        Policy::new("user", Quota::per_hour(9)).key_async(never),
    ];
    let app = world.layer(rules).layer(service_fn(fine));
    let mut waiting = Box::pin(app.oneshot(request("/")));
    assert!(poll(waiting.as_mut()).is_pending());
    drop(waiting);
    let expected = [("plan".to_owned(), Correction::Charge(1))];
    assert_eq!(world.settled().await, expected);
}

// The prices of a rule count for a request that another rule turns away, too.
#[tokio::test]
async fn rejection_for_a_missing_key_is_what_the_others_are_settled_by() {
    let mut world = World::in_process();
    let failures = Policy::new("failures", Quota::per_hour(10));
    let only_failures = |request: &CompletedRequest<'_>| match request.outcome {
        RequestOutcome::Responded { status, body, .. } if status == StatusCode::BAD_REQUEST => {
            assert_eq!(body, BodyOutcome::Complete);
            request.charged
        }
        _ => 0,
    };
    let slots = Policy::concurrency("slots", 1);
    let rules = [
        failures.clone().key(Global).settle(only_failures),
        slots.clone().key(Global),
        plan().key(Header::new("x-tenant")),
    ];
    let app = world.layer(rules).layer(service_fn(fine));
    for left in [9, 8, 7] {
        assert_eq!(ask(&app).await.status(), 400);
        world.settled().await;
        assert_eq!(world.remaining(&failures).await, left);
        assert_eq!(world.remaining(&slots).await, 1, "its slot is free again");
    }
}

#[tokio::test]
async fn decision_that_fails_after_the_lookups_gives_the_first_charge_back() {
    let world = World::in_process();
    let store = FailsLater {
        store: world.store.clone(),
        is_second: Arc::default(),
    };
    let builder = RateLimitLayer::builder()
        .store(store)
        .policy(plan().key(Global))
        .policy(Policy::new("user", Quota::per_hour(9)).key_async(at_once("ada")));
    let app = built(builder).layer(service_fn(fine));
    for _ in 0..3 {
        assert_eq!(ask(&app).await.status(), 503);
        assert_eq!(world.remaining(&plan()).await, 10);
    }
}

/// A store of which every second decision fails.
#[derive(Debug)]
struct FailsLater {
    store: Witness,
    is_second: Arc<AtomicBool>,
}

impl Store for FailsLater {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match self.is_second.fetch_not(Ordering::Relaxed) {
            true => StoreFuture::ready(Err(Error::new(ErrorKind::Unavailable, "not today"))),
            false => self.store.decide(charges),
        }
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.store.reset(policy, key)
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        self.store.settle(receipt)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Lookups change when a decision is made, and nothing about what it is.
    #[test]
    fn decisions_with_lookups_are_those_without(
        // whole microseconds a unit: elsewhere a refund rounds by one, against the client
        rules in vec((1_u64..=6, 1_u64..4, 0_u8..3, any::<bool>()), 1..6),
        requests in vec(vec(any::<bool>(), 6), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let (plain, looking) = (World::in_process(), World::in_process());
            let algorithms = [Algorithm::TokenBucket, Algorithm::SlidingWindow, Algorithm::SlidingLog];
            let policies: Vec<_> = (0..).zip(&rules).map(|(number, (quota, cost, algorithm, _))| {
                Policy::new(format!("p{number}"), Quota::per_hour(*quota))
                    .algorithm(algorithms[usize::from(*algorithm)])
                    .cost((*cost).min(*quota))
            }).collect();
            // a request has the headers of the rules that count it
            let key = |number: usize| Header::new(format!("x-{number}"));
            let head = |number: usize| policies[number].clone().key(key(number)).on_missing_key(OnMissingKey::Skip);
            let later = |number: usize| {
                let key = key(number);
                let looked = move |head: &RequestHead| future::ready(Ok::<_, Infallible>(key.extract(head)));
                policies[number].clone().key_async(looked).on_missing_key(OnMissingKey::Skip)
            };
            let without = plain.layer((0..rules.len()).map(head)).layer(service_fn(fine));
            let with = (0..rules.len()).map(|number| match rules[number].3 {
                true => later(number),
                false => head(number),
            });
            let with = looking.layer(with).layer(service_fn(fine));
            for counted in requests {
                let request = || (0..rules.len()).filter(|number| counted[*number]).fold(
                    Request::builder(),
                    |request, number| request.header(format!("x-{number}"), "k"),
                ).body(()).expect("a request");
                let one = without.clone().oneshot(request()).await.expect("it answers");
                let other = with.clone().oneshot(request()).await.expect("it answers");
                prop_assert_eq!(one.status(), other.status());
                for policy in &policies {
                    let usage = async |world: &World| world.usage(policy, Key::new("k")).await;
                    prop_assert_eq!(usage(&plain).await, usage(&looking).await);
                }
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn all_keys_are_looked_up_at_the_same_time() {
    let meeting = Arc::new(tokio::sync::Barrier::new(3));
    let meet = |name: &'static str| {
        let meeting = Arc::clone(&meeting);
        Policy::new(name, Quota::per_hour(10)).key_async(move |_: &RequestHead| {
            let meeting = Arc::clone(&meeting);
            async move {
                meeting.wait().await;
                Ok::<_, Infallible>(Some(Key::new(name)))
            }
        })
    };
    let builder = RateLimitLayer::builder()
        .policy(meet("one"))
        .policy(meet("two"))
        .policy(meet("three"))
        .lookup_timeout(PATIENCE);
    let app = built(builder).layer(service_fn(fine));
    let response = ask(&app).await;
    assert_eq!(response.status(), 200);
    let decision = response.extensions().get::<Decision>();
    assert_eq!(decision.expect("a decision").states().len(), 3);
}

#[tokio::test]
async fn nothing_is_looked_up_for_a_request_that_the_rule_does_not_count() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let rule = plan()
        .key_async(move |_: &RequestHead| {
            counter.fetch_add(1, Ordering::Relaxed);
            future::ready(Ok::<_, Infallible>(Some(Key::GLOBAL)))
        })
        .unless(PathPattern::new("/"));
    let builder = RateLimitLayer::builder().policy(rule);
    let app = built(builder.skip(PathPattern::new("/skipped"))).layer(service_fn(fine));
    for uri in ["/", "/skipped"] {
        assert!(at(&app, uri).await.extensions().get::<Decision>().is_none());
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    at(&app, "/x").await;
    assert_eq!(asked.load(Ordering::Relaxed), 1, "once");
}

#[tokio::test]
async fn request_that_a_rule_refuses_anyway_is_not_looked_up_to_the_end() {
    let rules = [
        plan().key_async(never),
        Policy::new("tenant", Quota::per_hour(1)).key(Header::new("x-tenant")),
    ];
    let app = layer(rules).layer(service_fn(fine));
    let refused = ask(&app);
    let response = now(refused).expect("it does not wait");
    assert_eq!(response.status(), 400);
}

// === What is not found ===

#[tokio::test(start_paused = true)]
async fn late_or_failed_key_follows_the_rules_choice_for_missing_keys() {
    for (choice, expected) in [
        (OnMissingKey::Reject, [503, 503, 400]),
        (OnMissingKey::Share, [200, 200, 200]),
        (OnMissingKey::Skip, [200, 200, 200]),
    ] {
        let rules = [
            plan().key_async(never).on_missing_key(choice),
            plan().key_async(fails).on_missing_key(choice),
            plan().key_async(nobody).on_missing_key(choice),
        ];
        for (rule, status) in rules.into_iter().zip(expected) {
            let layer = layer([rule]);
            let app = layer.layer(service_fn(fine));
            let response = ask(&app).await;
            assert_eq!(response.status(), status, "{choice:?}");
            let decision = response.extensions().get::<Decision>();
            assert_eq!(decision.is_some(), choice == OnMissingKey::Share);
            if choice == OnMissingKey::Reject {
                let rejection = response.extensions().get::<Rejection>().expect("why");
                let is_missing = matches!(rejection.reason(), Reason::MissingKey { .. });
                assert_eq!(is_missing, status == 400);
            }
            let policy = plan();
            let shared = policy.charge(Key::UNIDENTIFIED);
            let peek = layer.limiter().peek(&[shared]).await.expect("it answers");
            let left = peek.states()[0].usage().expect("it is counted").remaining;
            assert_eq!(left, if choice == OnMissingKey::Share { 9 } else { 10 });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_the_timeout_of_the_layer_and_no_longer() {
    for (timeout, expected) in [(None, 100), (Some(Duration::from_millis(30)), 30)] {
        let rules = ["one", "two"].map(|name| {
            let rule = Policy::new(name, Quota::per_hour(1)).key_async(never);
            rule.on_missing_key(OnMissingKey::Skip)
        });
        let mut builder = rules
            .into_iter()
            .fold(RateLimitLayer::builder(), RateLimitLayerBuilder::policy);
        if let Some(timeout) = timeout {
            builder = builder.lookup_timeout(timeout);
        }
        let app = built(builder).layer(service_fn(fine));
        let begun = time::Instant::now();
        assert_eq!(ask(&app).await.status(), 200);
        assert_eq!(begun.elapsed().as_millis(), expected);
    }
    let error = RateLimitLayer::builder()
        .policy(plan().key(Global))
        .lookup_timeout(Duration::ZERO)
        .build();
    assert_eq!(error.expect_err("no time").kind(), ErrorKind::InvalidConfig);
}

#[tokio::test(start_paused = true)]
async fn first_key_that_is_late_or_failed_is_logged_and_only_that() {
    logged();
    for (rule, said) in [
        (
            plan().key_async(never),
            "a key lookup timed out policy=plan",
        ),
        (
            plan().key_async(fails),
            "a key lookup failed policy=plan error=the session store is away",
        ),
        (
            plan().key_async(nobody),
            "policy=plan detail=closure found no key in a request",
        ),
    ] {
        let app = layer([rule.on_missing_key(OnMissingKey::Share)]).layer(service_fn(fine));
        for _ in 0..3 {
            ask(&app).await;
        }
        let lines = logged();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(said), "{lines:?}");
    }
}

// === Dropped ===

// Whoever hangs up during a lookup has had it: it is not free.
async fn request_dropped_while_its_key_is_looked_up_is_charged_by_its_head_only(world: World) {
    let slots = Policy::concurrency("slots", 2);
    let rules = [
        plan().key(Global),
        slots.clone().key(Global),
        Policy::new("user", Quota::per_hour(9)).key_async(never),
    ];
    let inner = ConcurrencyLimit::new(service_fn(fine), 1);
    let mut app = world.layer(rules).layer(inner);
    for _ in 0..3 {
        // a permit that is not given back would never be there again
        let ready = time::timeout(PATIENCE, future::poll_fn(|context| app.poll_ready(context)));
        ready
            .await
            .expect("the permit is there")
            .expect("it is ready");
        let mut waiting = Box::pin(app.call(request("/")));
        while !format!("{waiting:?}").contains("lookups") {
            assert!(poll(waiting.as_mut()).is_pending());
            task::yield_now().await;
        }
        assert!(poll(waiting.as_mut()).is_pending());
        drop(waiting);
        while world.remaining(&slots).await < 2 {
            task::yield_now().await;
        }
    }
    assert_eq!(world.remaining(&plan()).await, 7);
}

#[tokio::test]
async fn service_that_was_polled_ready_is_called_when_the_key_is_there() {
    let (tell, told) = oneshot::channel();
    let told = Mutex::new(Some(told));
    let rule = plan().key_async(move |_: &RequestHead| {
        let told = told.lock().expect("nobody panics").take();
        async move { Ok::<_, oneshot::error::RecvError>(Some(told.expect("asked once").await?)) }
    });
    let (inner, mut handle) = mock::pair::<Request<()>, Response<Body>>();
    let mut app = layer([rule]).layer(inner);
    handle.allow(1);
    assert!(
        future::poll_fn(|context| app.poll_ready(context))
            .await
            .is_ok()
    );
    let mut answer = pin!(app.call(request("/")));
    assert!(poll(answer.as_mut()).is_pending());
    assert!(
        poll(pin!(handle.next_request())).is_pending(),
        "not before the key is there"
    );
    tell.send(Key::new("ada")).expect("it waits");
    assert!(poll(answer.as_mut()).is_pending());
    let (_, respond) = handle.next_request().await.expect("it is called");
    respond.send_response(Response::new(Body::empty()));
    assert_eq!(answer.await.expect("it answers").status(), 200);
}

// === Ways of counting that wait or hold ===

async fn queue_and_slots_work_behind_a_look_up(mut world: World) {
    let queue = Algorithm::LeakyQueue(QueueLimits::new(3, Duration::MAX));
    let queue = Policy::new("queue", Quota::per_second(50)).algorithm(queue);
    let slots = Policy::concurrency("slots", 1);
    let gate = Arc::new(Notify::new());
    let open = Arc::clone(&gate);
    let rules: [Rule; 2] = [
        queue.key_async(at_once("ada")),
        slots.clone().key_async(at_once("ada")),
    ];
    let app = world
        .layer(rules)
        .layer(service_fn(move |request: Request<()>| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                fine(request).await
            }
        }));
    let first = tokio::spawn(app.clone().oneshot(request("/")));
    while world.usage(&slots, Key::new("ada")).await.remaining > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&app).await.status(), 429, "one is in flight");
    open.notify_one();
    let response = first.await.expect("it ends").expect("it answers");
    assert_eq!(response.status(), 200);
    drop(response);
    world.settled_of(&["queue", "slots"]).await;
    assert_eq!(world.usage(&slots, Key::new("ada")).await.remaining, 1);
}

// === What they stand on ===

fn plan() -> Policy {
    Policy::new("plan", Quota::per_hour(10))
}

fn built(builder: RateLimitLayerBuilder) -> RateLimitLayer {
    builder.build().expect("it is well set up")
}

fn layer(rules: impl IntoIterator<Item = Rule>) -> RateLimitLayer {
    let builder = RateLimitLayer::builder();
    built(
        rules
            .into_iter()
            .fold(builder, RateLimitLayerBuilder::policy),
    )
}

fn at_once(key: &'static str) -> impl AsyncKeyExtractor {
    move |_: &RequestHead| future::ready(Ok::<_, Infallible>(Some(Key::new(key))))
}

fn never(_: &RequestHead) -> future::Pending<Result<Option<Key>, Infallible>> {
    future::pending()
}

fn fails(_: &RequestHead) -> future::Ready<Result<Option<Key>, io::Error>> {
    future::ready(Err(io::Error::other("the session store is away")))
}

fn nobody(_: &RequestHead) -> future::Ready<Result<Option<Key>, io::Error>> {
    future::ready(Ok(None))
}

/// Answers with the request's decision in the extensions, if there is one.
async fn fine(request: Request<()>) -> Result<Response<Body>, Infallible> {
    let mut response = Response::new(Body::empty());
    if let Some(decision) = request.extensions().get::<Decision>() {
        response.extensions_mut().insert(decision.clone());
    }
    Ok(response)
}

fn request(uri: &str) -> Request<()> {
    Request::builder().uri(uri).body(()).expect("a request")
}

async fn ask<S, B>(app: &S) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    at(app, "/").await
}

async fn at<S, B>(app: &S, uri: &str) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    let answer = time::timeout(PATIENCE, app.clone().oneshot(request(uri))).await;
    answer.expect("in time").expect("it answers")
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn now<F: Future>(future: F) -> Option<F::Output> {
    match poll(pin!(future)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

// Regression: a request that the rules of such a layer passed over looked to its handler as if there were no layer.
#[tokio::test]
async fn handler_of_a_request_that_is_passed_over_knows_of_the_layer() {
    for is_looked_up_first in [false, true] {
        let absent = |_: &RequestHead| future::ready(Ok::<_, Infallible>(None));
        let rule = plan().key_async(absent).on_missing_key(OnMissingKey::Skip);
        let rule = match is_looked_up_first {
            true => rule,
            false => rule.when(PathPattern::new("/login")),
        };
        let layer = RateLimitLayer::builder().policy(rule).build();
        let info = get(async |info: RateLimitInfo| format!("{:?}", info.decisions().len()));
        let app = Router::new()
            .route("/", info)
            .layer(layer.expect("it is well set up"));
        let request = Request::new(Body::empty());
        let response = app.oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK, "{is_looked_up_first}");
    }
}
