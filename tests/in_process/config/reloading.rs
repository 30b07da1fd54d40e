//! Rules that are replaced while requests run.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tollgate::{
    Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    config::{
        Format, RuleSet, RuleSetReader,
        reload::{NewRules, ReloadError, RuleSource, RuleVersion, RulesHandle},
    },
    extract::{Extracted, Header, KeyExtractor},
    headers::Headers,
    rules::RuleMode,
};
use tower::{Layer, ServiceExt, service_fn};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn rule(limit: &str) -> String {
    format!("rules: [{{ id: api, key: {{ header: x-user }}, {limit} }}]")
}

fn rules(limit: &str) -> RuleSource {
    let rules = RuleSet::parse(Format::Yaml, &rule(limit)).expect("rules without a fault");
    RuleSource::in_process(rules)
}

fn new(limit: &str) -> NewRules {
    NewRules::new(Format::Yaml, rule(limit))
}

fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder().clock(Clock::manual(START))
}

fn built(limit: &str) -> (RateLimitLayer, RulesHandle) {
    builder()
        .build_reloading(rules(limit))
        .expect("the rules fit")
}

fn of(user: &str) -> Request<Body> {
    let request = Request::get("/").header("x-user", user);
    request.body(Body::empty()).expect("a request")
}

async fn send(layer: &RateLimitLayer, user: &str) -> Response<()> {
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    service
        .oneshot(of(user))
        .await
        .expect("a response")
        .map(drop)
}

/// The status, and the headers for the limit and what remains.
async fn numbers(layer: &RateLimitLayer, user: &str) -> (u16, String, String) {
    let response = send(layer, user).await;
    let header = |name| {
        let value = response.headers().get(name);
        value
            .map_or("", |value| value.to_str().expect("text"))
            .to_owned()
    };
    (
        response.status().as_u16(),
        header("x-ratelimit-limit"),
        header("x-ratelimit-remaining"),
    )
}

fn shown(status: u16, limit: u64, remaining: u64) -> (u16, String, String) {
    (status, limit.to_string(), remaining.to_string())
}

#[tokio::test]
async fn old_limits_apply_until_the_swap_and_the_new_ones_after_it_to_what_was_used() {
    for algorithm in ["fixed_window", "sliding_log", "sliding_window"] {
        let limit = |limit| format!("limit: {limit}/h, algorithm: {algorithm}");
        let (layer, rules) = built(&limit(4));
        assert_eq!(numbers(&layer, "ada").await, shown(200, 4, 3));
        assert_eq!(numbers(&layer, "ada").await, shown(200, 4, 2));
        let pushed = rules.push(new(&limit(3))).await.expect("pushed");
        assert_eq!((pushed.number(), rules.version()), (2, pushed));
        assert_eq!(
            numbers(&layer, "ada").await,
            shown(200, 3, 0),
            "{algorithm}"
        );
        assert_eq!(
            numbers(&layer, "ada").await,
            shown(429, 3, 0),
            "{algorithm}"
        );
        rules.push(new(&limit(5))).await.expect("pushed");
        assert_eq!(
            numbers(&layer, "ada").await,
            shown(200, 5, 1),
            "{algorithm}"
        );
        // A service that was made before has the new rules too.
        assert_eq!(numbers(&layer.clone(), "bob").await, shown(200, 5, 4));
    }
}

#[tokio::test]
async fn share_that_a_key_has_spent_of_a_bucket_stays_the_same_share() {
    let (layer, rules) = built("limit: 10/h");
    for _ in 0..5 {
        send(&layer, "ada").await;
    }
    rules.push(new("limit: 100/h")).await.expect("pushed");
    assert_eq!(numbers(&layer, "ada").await, shown(200, 100, 49));
    rules
        .push(new("limit: 10/d, burst: 10"))
        .await
        .expect("pushed");
    assert_eq!(numbers(&layer, "ada").await, shown(200, 10, 3));
}

/// Sends requests of 8 keys from 8 tasks while the rules are replaced 100 times. Returns how many of each key were admitted
/// once no more were.
async fn admitted_under_load(limits: [&str; 2]) -> Vec<u64> {
    let (layer, rules) = built(limits[0]);
    let is_over = Arc::new(AtomicBool::new(false));
    let swaps = Arc::new(AtomicU64::new(0));
    let tasks = (0..8).map(|number| {
        let (layer, is_over, swaps) = (layer.clone(), Arc::clone(&is_over), Arc::clone(&swaps));
        tokio::spawn(async move {
            let (user, other) = (
                format!("user-{number}"),
                format!("user-{}", (number + 1) % 8),
            );
            let (mut own, mut others) = (0, 0);
            let mut last = 0;
            let mut seen = 0;
            while !is_over.load(Ordering::Acquire) {
                for (user, admitted) in [(&user, &mut own), (&other, &mut others)] {
                    match send(&layer, user).await.status() {
                        StatusCode::OK => *admitted += 1,
                        StatusCode::TOO_MANY_REQUESTS => {}
                        status => panic!("a request got {status}"),
                    }
                }
                let now = swaps.load(Ordering::Acquire);
                seen += u64::from(now != last);
                last = now;
                tokio::task::yield_now().await;
            }
            (own, others, seen)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for number in 1..=100 {
        let limit = limits[number % 2];
        rules.push(new(limit)).await.expect("pushed");
        swaps.fetch_add(1, Ordering::AcqRel);
        tokio::task::yield_now().await;
    }
    rules.push(new(limits[1])).await.expect("pushed");
    is_over.store(true, Ordering::Release);
    let mut admitted = vec![0; 8];
    let mut seen = 0;
    for (number, task) in tasks.into_iter().enumerate() {
        let (own, others, saw) = task.await.expect("no request failed");
        admitted[number] += own;
        admitted[(number + 1) % 8] += others;
        seen += saw;
    }
    assert!(seen > 0, "no request was sent between two swaps");
    for (number, admitted) in admitted.iter_mut().enumerate() {
        while send(&layer, &format!("user-{number}")).await.status() == StatusCode::OK {
            *admitted += 1;
        }
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rules_replaced_a_hundred_times_under_load_neither_block_nor_free_a_client() {
    for algorithm in ["fixed_window", "sliding_log"] {
        let limits =
            [1_000, 2_000].map(|limit| format!("limit: {limit}/h, algorithm: {algorithm}"));
        let admitted = admitted_under_load(limits.each_ref().map(String::as_str)).await;
        assert_eq!(admitted, [2_000; 8], "{algorithm}");
    }
    // A unit is worth twice as much under the lower limit.
    let admitted = admitted_under_load(["limit: 1000/h", "limit: 2000/h"]).await;
    assert!(
        admitted
            .iter()
            .all(|admitted| (1_000..=2_000).contains(admitted)),
        "{admitted:?}"
    );
}

/// A service whose requests wait until they are let go.
fn waiting(
    layer: &RateLimitLayer,
) -> (
    Arc<Semaphore>,
    impl Fn(&str) -> tokio::task::JoinHandle<Response<()>>,
) {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let service = layer.layer(service_fn(move |_: Request<Body>| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await.expect("it stays open").forget();
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    }));
    let start = move |user: &str| {
        let response = service.clone().oneshot(of(user));
        tokio::spawn(async move { response.await.expect("a response").map(drop) })
    };
    (gate, start)
}

#[tokio::test]
async fn request_in_flight_ends_with_the_headers_of_the_rules_that_it_began_with() {
    let base = builder().headers(Headers::draft11());
    let (layer, rules) = base
        .build_reloading(rules("limit: 4/h"))
        .expect("the rules fit");
    let (gate, start) = waiting(&layer);
    let old = start("ada");
    tokio::task::yield_now().await;
    let replaced = format!(
        "headers: legacy\n{}",
        rule("limit: 8/h")
            .replace("[{", "\n  - {")
            .replace("}]", "}")
    );
    rules
        .push(NewRules::new(Format::Yaml, replaced))
        .await
        .expect("pushed");
    let new = start("ada");
    gate.add_permits(2);
    let (old, new) = (old.await.expect("no panic"), new.await.expect("no panic"));
    assert_eq!(old.headers()["ratelimit-policy"], "\"api\";q=4;w=3600");
    assert!(old.headers().get("x-ratelimit-limit").is_none());
    assert_eq!(new.headers()["x-ratelimit-limit"], "8");
    assert_eq!(new.headers()["x-ratelimit-remaining"], "5");
}

#[tokio::test]
async fn slots_that_are_held_over_a_swap_count_under_the_new_limit_and_are_released() {
    let slots = |limit| format!("limit: {limit}, algorithm: concurrency");
    let (layer, rules) = built(&slots(2));
    let (gate, start) = waiting(&layer);
    let held = start("ada");
    tokio::task::yield_now().await;
    rules.push(new(&slots(1))).await.expect("pushed");
    assert_eq!(
        send(&layer, "ada").await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    rules.push(new("limit: 5/h")).await.expect("pushed");
    assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
    rules.push(new(&slots(1))).await.expect("pushed");
    assert_eq!(
        send(&layer, "ada").await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    gate.add_permits(1);
    assert_eq!(held.await.expect("no panic").status(), StatusCode::OK);
    assert_eq!(send(&layer, "ada").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn request_that_was_charged_before_a_swap_is_settled_after_it() {
    let from_code = |limit| {
        let policy = Policy::new("code", Quota::per_hour(limit)).cost(2);
        policy.key(Header::new("x-user")).settle(|_| 1)
    };
    let base = builder().policy(from_code(10));
    let (layer, rules) = base
        .build_reloading(rules("limit: 100/h"))
        .expect("the rules fit");
    let (gate, start) = waiting(&layer);
    let held = start("ada");
    tokio::task::yield_now().await;
    rules.push(new("limit: 200/h")).await.expect("pushed");
    gate.add_permits(1);
    held.await.expect("no panic");
    // 2 of 10 were charged, 1 came back, and this request takes 2 more.
    let response = send(&layer, "ada").await;
    assert_eq!(response.headers()["x-ratelimit-limit"], "10");
    assert_eq!(response.headers()["x-ratelimit-remaining"], "7");
}

#[tokio::test]
async fn refused_rules_change_nothing_and_the_reason_is_returned() {
    let clash = Policy::new("code", Quota::per_hour(9)).key(Header::new("x-user"));
    let (layer, rules) = builder()
        .policy(clash)
        .build_reloading(rules("limit: 4/h"))
        .expect("the rules fit");
    let text = "rules: [{ id: api, key: peer_ip, limt: 4/h }]";
    let broken = rules.push(NewRules::new(Format::Yaml, text)).await;
    let from_parse = RuleSet::parse(Format::Yaml, text).expect_err("broken");
    assert_eq!(
        broken.expect_err("broken").to_string(),
        from_parse.to_string()
    );
    let text = "rules: [{ id: code, key: peer_ip, limit: 4/h }]";
    let refused = rules.push(NewRules::new(Format::Yaml, text)).await;
    match refused.expect_err("two rules of one name") {
        ReloadError::Layer(error) => assert_eq!(error.kind(), ErrorKind::DuplicatePolicy),
        other => panic!("{other:?}"),
    }
    let long = rules.push(new("limit: 9/h").author("a".repeat(257))).await;
    assert!(matches!(long, Err(ReloadError::Source(_))), "{long:?}");
    assert_eq!(rules.version().number(), 1);
    assert_eq!(numbers(&layer, "ada").await, shown(200, 4, 3));
}

#[tokio::test]
async fn limit_that_another_layer_on_the_limiter_has_cannot_change_for_one_of_them() {
    let limiter = RateLimiter::builder().build().expect("a limiter");
    let (_layer, rules) = RateLimitLayer::builder()
        .limiter(&limiter)
        .build_reloading(rules("limit: 4/h"))
        .expect("the rules fit");
    rules
        .push(new("limit: 5/h"))
        .await
        .expect("nobody else has it");
    let other = Policy::new("api", Quota::per_hour(5)).key(Header::new("x-user"));
    let _other = RateLimitLayer::builder()
        .limiter(&limiter)
        .policy(other)
        .build()
        .expect("the same quota");
    let refused = rules.push(new("limit: 6/h")).await;
    match refused.expect_err("the other layer has it") {
        ReloadError::Layer(error) => assert_eq!(error.kind(), ErrorKind::DuplicatePolicy),
        other => panic!("{other:?}"),
    }
    rules
        .push(new("limit: 5/h, cost: 2"))
        .await
        .expect("the same quota");
}

#[tokio::test]
async fn mode_that_was_set_by_hand_stays_until_another_one_is_written() {
    let (layer, rules) = built("limit: 1/h");
    layer
        .set_rule_mode("api", RuleMode::Shadow)
        .expect("a rule");
    layer.set_rollout("api", 50.0).expect("a rule");
    layer.set_mode(RuleMode::Shadow);
    rules.push(new("limit: 2/h")).await.expect("pushed");
    assert_eq!(layer.rule_mode("api"), Some(RuleMode::Shadow));
    assert_eq!(layer.mode(), RuleMode::Shadow);
    rules
        .push(new("limit: 2/h, mode: off"))
        .await
        .expect("pushed");
    assert_eq!(layer.rule_mode("api"), Some(RuleMode::Off));
    layer
        .set_rule_mode("api", RuleMode::Enforce)
        .expect("a rule");
    rules
        .push(new("limit: 2/h, mode: off, cost: 2"))
        .await
        .expect("pushed");
    assert_eq!(layer.rule_mode("api"), Some(RuleMode::Enforce));
    assert_eq!(layer.mode(), RuleMode::Shadow);
}

#[tokio::test]
async fn history_has_ten_versions_and_an_earlier_one_is_rolled_back_to_as_a_new_one() {
    let (layer, rules) = built("limit: 100/h");
    for limit in 1..=12 {
        let pushed = new(&format!("limit: {limit}/h"))
            .author("ada")
            .comment("lower");
        rules.push(pushed).await.expect("pushed");
    }
    let history = rules.history().await.expect("a history");
    let numbers: Vec<_> = history.iter().map(RuleVersion::number).collect();
    assert_eq!(numbers, (4..=13).collect::<Vec<_>>());
    assert_eq!(history[9], rules.version());
    assert_eq!(history[0].author(), Some("ada"));
    assert_eq!(history[0].comment(), Some("lower"));
    assert!(history[0].time() <= history[9].time());
    let back = rules.roll_back(5, "bob").await.expect("rolled back");
    assert_eq!((back.number(), back.author()), (14, Some("bob")));
    assert_eq!(back.comment(), Some("roll back to version 5"));
    assert_eq!(back.text(), rule("limit: 4/h"));
    assert_eq!(self::numbers(&layer, "ada").await, shown(200, 4, 3));
    let error = rules.roll_back(3, "bob").await.expect_err("it is gone");
    assert_eq!(
        error.to_string(),
        "no version 3: the history has 5, 6, 7, 8, 9, 10, 11, 12, 13, 14"
    );
}

#[tokio::test]
async fn of_two_pushes_over_the_same_version_one_gets_a_conflict() {
    let (_layer, rules) = built("limit: 100/h");
    rules
        .push(new("limit: 1/h").replacing(1))
        .await
        .expect("pushed");
    let conflict = rules.push(new("limit: 2/h").replacing(1)).await;
    assert!(
        matches!(conflict, Err(ReloadError::Conflict { stored: 2, .. })),
        "{conflict:?}"
    );
    assert_eq!(rules.version().text(), rule("limit: 1/h"));
}

#[tokio::test]
async fn handle_keeps_nothing_alive() {
    let (layer, rules) = built("limit: 100/h");
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    drop(layer);
    let mut changes = rules.subscribe();
    rules
        .push(new("limit: 1/h"))
        .await
        .expect("the service has the rules");
    assert!(changes.changed().await.is_ok());
    drop(service);
    let closed = tokio::time::timeout(Duration::from_secs(10), changes.changed()).await;
    assert!(closed.expect("it does not wait").is_err());
    assert_eq!(rules.version().number(), 2);
    let error = rules.push(new("limit: 2/h")).await.expect_err("no layer");
    assert_eq!(error.to_string(), "the layer of these rules was dropped");
}

#[test]
fn settings_that_cannot_work_fail_when_the_layer_is_built() {
    let zero = builder().build_reloading(rules("limit: 1/h").poll_interval(Duration::ZERO));
    let error = zero.expect_err("it would never pause").to_string();
    assert!(error.starts_with("poll_interval of zero"), "{error}");
    let twice = Policy::new("api", Quota::per_hour(9)).key(Header::new("x-user"));
    let error = builder().policy(twice).build_reloading(rules("limit: 1/h"));
    assert!(matches!(error, Err(ReloadError::Layer(_))), "{error:?}");
}

// What docs/rules.md states about running bans.
#[tokio::test]
async fn running_bans_follow_the_penalty_of_the_current_rules() {
    let penalty = |numbers: &str| format!("limit: 1/s, penalty: {{ denials: 2, {numbers} }}");
    let clock = Clock::manual(START);
    let second = Duration::from_secs(1);
    let (layer, rules) = RateLimitLayer::builder()
        .clock(clock.clone())
        .build_reloading(rules("limit: 1/s"))
        .expect("the rules fit");
    let retry = async || {
        let response = send(&layer, "ada").await;
        let retry = response.headers().get("retry-after");
        retry.map(|retry| {
            retry
                .to_str()
                .expect("text")
                .parse::<u64>()
                .expect("seconds")
        })
    };
    let push = async |limit: &str| rules.push(new(limit)).await.map(drop).expect("pushed");

    // Added: what was denied before does not count.
    assert_eq!(retry().await, None);
    for _ in 0..5 {
        assert_eq!(retry().await, Some(1));
    }
    let long = penalty("within: 1m, ban: 100s, longest_ban: 400s");
    push(&long).await;
    assert_eq!(retry().await, Some(1));
    assert_eq!(retry().await, Some(100), "the ban begins");

    // Another first ban, another limit: it stays.
    clock.set(START + 10 * second);
    push(&penalty("within: 5m, ban: 7s, longest_ban: 400s")).await;
    assert_eq!(retry().await, Some(90));
    push(&long.replace("1/s", "5/s")).await;
    assert_eq!(retry().await, Some(90));

    // A shorter longest ban counts from the begin of the ban, however often the key is asked for.
    push(&penalty("within: 1m, ban: 30s, longest_ban: 40s")).await;
    assert_eq!(retry().await, Some(30));
    clock.set(START + 35 * second);
    assert_eq!(retry().await, Some(5));

    // Removed, it is lifted, and added again it denies again.
    push("limit: 1/s").await;
    assert_eq!(retry().await, None);
    push(&long).await;
    assert_eq!(retry().await, Some(65));
    push(&penalty("within: 1m, ban: 30s, longest_ban: 35s")).await;
    assert_eq!(retry().await, Some(1), "only the quota denies");

    // The next ban is the second one, by the new numbers.
    push(&penalty(
        "within: 1m, ban: 30s, factor: 3, longest_ban: 400s",
    ))
    .await;
    clock.set(START + 101 * second);
    assert_eq!(retry().await, None);
    assert_eq!(retry().await, Some(1));
    assert_eq!(retry().await, Some(90));
}

/// An extractor whose check waits until the test lets it go on.
struct Slow(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl KeyExtractor for Slow {
    fn extract(&self, _: &RequestHead) -> Extracted<Key> {
        Extracted::Found(Key::GLOBAL)
    }

    fn validate(&self) -> Result<(), Error> {
        let receiver = self.0.lock().expect("no test panics here");
        let _ = receiver.recv_timeout(Duration::from_secs(20));
        Ok(())
    }
}

// Regression: a text was parsed on a worker of the runtime, under a lock that whoever lists the versions waits for.
#[tokio::test]
async fn rules_are_listed_and_requests_decided_while_a_text_is_parsed() {
    let (go_on, receiver) = std::sync::mpsc::channel();
    let reader = RuleSetReader::default().extractor("slow", Slow(std::sync::Mutex::new(receiver)));
    let (layer, rules) = builder()
        .build_reloading(self::rules("limit: 4/h").reader(reader))
        .expect("usable rules");
    let text = "rules: [{ id: api, key: { custom: slow }, limit: 5/h }]";
    let pushing = rules.push(NewRules::new(Format::Yaml, text));
    let meanwhile = async {
        tokio::task::yield_now().await;
        for _ in 0..100 {
            assert_eq!(rules.history().await.expect("a history").len(), 1);
            assert_eq!(rules.state().version().number(), 1);
            send(&layer, "ada").await;
            tokio::task::yield_now().await;
        }
        go_on.send(()).expect("it waits");
        // Closes the channel: later checks of the extractor do not wait.
        drop(go_on);
    };
    let (pushed, ()) = tokio::join!(pushing, meanwhile);
    assert_eq!(pushed.expect("usable rules").number(), 2);
}

#[tokio::test]
async fn author_or_comment_with_a_control_character_is_refused() {
    let (_layer, rules) = built("limit: 4/h");
    for new in [
        new("limit: 5/h").author("ada\nbob"),
        new("limit: 5/h").comment("\u{1b}[2J"),
        new("limit: 5/h").author("a".repeat(257)),
    ] {
        let error = rules.push(new).await.expect_err("unusable").to_string();
        assert!(
            error.ends_with("bytes, without control characters"),
            "{error}"
        );
    }
}
