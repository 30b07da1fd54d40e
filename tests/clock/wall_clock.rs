//! A wall clock that is wrong when the process starts, and is set later: what is shown outside follows it.
//!
//! The tests run in processes of their own, which preload a clock that they set: `wall_clock/set.c`.

use std::{
    convert::Infallible,
    env, fs, future,
    path::Path,
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use axum::{Router, body::Body};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    clock::{Clock, Timestamp},
    config::{
        Format, RuleSet,
        reload::{NewRules, RuleSource},
    },
    dashboard::Dashboard,
    extract::Header,
    headers::{Headers, LegacyHeaders, ResetFormat},
    middleware::RateLimitInfo,
    policy::Penalty,
    remote::RedisStore,
    top_keys::{ShownKeys, TopKeys},
};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    fleet::shares::{until_degraded, until_shared},
    support::Server,
};

const HOUR: Duration = Duration::from_secs(3_600);
/// How exact a time must be that was wrong by an hour.
const NEAR: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(10);
/// The file with the seconds by which the wall clock of a process is ahead.
const AHEAD: &str = "WALL_CLOCK_AHEAD";

/// Runs a test of this module in a process whose wall clock is an hour ahead when it starts. Returns whether this is that
/// process, which is to go on.
fn is_apart(test: &str) -> bool {
    if env::var_os(AHEAD).is_some() {
        return true;
    }
    let name = format!("tollgate-{test}-{}", std::process::id());
    let [file, library] = ["ahead", "so"].map(|end| env::temp_dir().join(format!("{name}.{end}")));
    fs::write(&file, "3600").expect("it can be written");
    build(&library);
    let output = Command::new(env::current_exe().expect("this test"))
        .args([
            &format!("clock::wall_clock::{test}"),
            "--exact",
            "--nocapture",
        ])
        .env("LD_PRELOAD", &library)
        .env(AHEAD, &file)
        .output()
        .expect("it runs");
    for made in [file, library] {
        fs::remove_file(made).expect("it is there");
    }
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success(), "{}", said.concat());
    assert!(said[0].contains("1 passed"), "{}", said[0]);
    false
}

/// Builds the library that sets the wall clock, by the linker that Rust needs too.
fn build(library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clock/wall_clock/set.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([library, &source])
        .output()
        .expect("cc is there");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
}

/// Sets the wall clock of this process this far ahead, and waits until this is noticed.
fn set_ahead(by: Duration) {
    let file = env::var(AHEAD).expect("the process is apart");
    fs::write(file, by.as_secs().to_string()).expect("it can be written");
    let deadline = Instant::now() + PATIENCE;
    let shown = || Clock::system().wall_time(Clock::system().now());
    while !is_near(shown(), wall()) {
        assert!(Instant::now() < deadline, "{:?} at {:?}", shown(), wall());
    }
}

/// Returns the time of the wall clock as this process reads it.
fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.expect("after 1970").as_micros();
    Timestamp::from_micros(u64::try_from(micros).expect("it fits"))
}

fn is_near(one: Timestamp, other: Timestamp) -> bool {
    one.since(other).max(other.since(one)) < NEAR
}

#[track_caller]
fn assert_near(shown: Timestamp, expected: Timestamp) {
    let (late, early) = (shown.since(expected), expected.since(shown));
    assert!(
        late.max(early) < NEAR,
        "late by {late:?}, early by {early:?}"
    );
}

fn millis(value: &Value) -> Timestamp {
    Timestamp::from_micros(value.as_u64().expect("a number") * 1_000)
}

// === The machine of the test ===

#[tokio::test]
async fn clock_of_the_test_is_wrong_and_can_be_set() {
    if !is_apart("clock_of_the_test_is_wrong_and_can_be_set") {
        return;
    }
    let before = wall();
    let began = Clock::system().now();
    assert_near(began, before);
    set_ahead(Duration::ZERO);
    assert_near(wall(), before - HOUR);
    assert_near(Clock::system().now(), began);
    set_ahead(24 * HOUR);
    assert_near(wall(), before + 23 * HOUR);
}

// === Responses ===

/// The headers of three requests of a caller, and the reset that the handler of the first one saw.
async fn responses(layer: &RateLimitLayer, caller: &str) -> (Vec<HeaderMap>, Timestamp) {
    let app = layer.layer(service_fn(async |request: Request<()>| {
        let info = RateLimitInfo::from_extensions(request.extensions());
        let mut response = Response::new(());
        let reset_at = info.and_then(|info| info.reset_at()).expect("counted");
        response.extensions_mut().insert(reset_at);
        Ok::<_, Infallible>(response)
    }));
    let (mut headers, mut seen) = (Vec::new(), None);
    for _ in 0..3 {
        let request = Request::builder().header("x-caller", caller).body(());
        let response = app.clone().oneshot(request.expect("a request")).await;
        let (head, _) = response.expect("infallible").into_parts();
        seen = seen.or(head.extensions.get::<Timestamp>().copied());
        headers.push(head.headers);
    }
    (headers, seen.expect("the first was admitted"))
}

fn hourly() -> Policy {
    Policy::new("hourly", Quota::per_hour(2))
}

#[tokio::test]
async fn headers_and_handlers_show_the_wall_clock_of_the_moment() {
    if !is_apart("headers_and_handlers_show_the_wall_clock_of_the_moment") {
        return;
    }
    let formats: [(Headers, f64); 3] = [
        (Headers::default(), 1.0),
        (
            LegacyHeaders::default()
                .reset(ResetFormat::EpochMillis)
                .into(),
            1_000.0,
        ),
        (Headers::from(Headers::discord()), 1.0),
    ];
    let layers = formats.map(|(headers, unit)| {
        let layer = RateLimitLayer::builder().policy(hourly().key(Header::new("x-caller")));
        (layer.headers(headers).build().expect("a layer"), unit)
    });
    // Of two decisions, before and after a lookup, one is made.
    let user = |_: &RequestHead| future::ready(Ok::<_, Infallible>(Some(Key::new("ada"))));
    let looked_up = RateLimitLayer::builder()
        .policy(hourly().key(Header::new("x-caller")))
        .policy(Policy::new("plenty", Quota::per_hour(1_000)).key_async(user))
        .build();
    let looked_up = [(looked_up.expect("a layer"), 1.0)];
    let layers = layers.into_iter().chain(looked_up);
    let layers: Vec<_> = layers.collect();
    // Keys in debt stay so, whatever the wall clock does: only what is shown changes.
    for (number, ahead) in [HOUR, Duration::ZERO, 24 * HOUR, HOUR]
        .into_iter()
        .enumerate()
    {
        set_ahead(ahead);
        for (layer, unit) in &layers {
            let (headers, seen) = responses(layer, &format!("caller{number}")).await;
            for (sent, reset) in headers.iter().zip([HOUR / 2, HOUR, HOUR]) {
                let shown: f64 = sent["x-ratelimit-reset"]
                    .to_str()
                    .expect("text")
                    .parse()
                    .expect("a number");
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "times"
                )]
                let shown = Timestamp::from_micros((shown / unit * 1e6) as u64);
                assert_near(shown, wall() + reset);
            }
            let after = headers[2]
                .get("retry-after")
                .expect("denied")
                .to_str()
                .expect("text");
            let after: u64 = after.parse().expect("a number");
            assert!((1_770..=1_800).contains(&after), "{after}");
            assert_near(seen, wall() + HOUR / 2);
        }
    }
}

// === Operators ===

async fn api(router: &Router, method: Method, path: &str, body: &str) -> Value {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", "Bearer write-0123456789abcdef")
        .header("content-type", "application/json")
        .header("sec-fetch-site", "same-origin")
        .header("x-tollgate-dashboard", "1");
    let request = request
        .body(Body::from(body.to_owned()))
        .expect("a request");
    let response = router.clone().oneshot(request).await.expect("infallible");
    assert!(
        response.status().is_success(),
        "{path}: {}",
        response.status()
    );
    let body = response.into_body().collect().await.expect("a whole body");
    serde_json::from_slice(&body.to_bytes()).unwrap_or(Value::Null)
}

fn rules(limit: &str) -> String {
    format!("rules: [{{ id: hourly, key: {{ header: x-caller }}, limit: {limit} }}]")
}

#[tokio::test]
async fn operators_see_the_wall_clock_of_the_moment() {
    if !is_apart("operators_see_the_wall_clock_of_the_moment") {
        return;
    }
    let source = RuleSet::parse(Format::Yaml, &rules("2/hour")).expect("rules");
    let top_keys = TopKeys::builder().build().expect("usable");
    let layer = RateLimitLayer::builder().top_keys(top_keys);
    let layer = layer.build_reloading(RuleSource::in_process(source));
    let (layer, handle) = layer.expect("a layer");
    let dashboard = Dashboard::builder(&layer)
        .rules(&handle)
        .write_token("write-0123456789abcdef")
        .build();
    let router: Router = dashboard.expect("a dashboard").router();
    api(&router, Method::GET, "/api/state", "").await;
    let block = r#"{"key":"ada","seconds":1800}"#;
    api(&router, Method::POST, "/api/key/block", block).await;
    let began = Instant::now();
    for ahead in [HOUR, Duration::ZERO, 24 * HOUR] {
        set_ahead(ahead);
        let limiter = layer.limiter();
        let policy = Policy::new("other", Quota::per_hour(2));
        let denied = limiter.check(&[policy.charge(Key::new("ada"))]).await;
        let denied = denied.expect("a decision");
        assert!(!denied.is_allowed(), "the key is blocked");
        assert_near(denied.wall_time(denied.decided_at()), wall());
        let blocks = limiter.blocks();
        assert_near(blocks[0].since(), wall());
        assert_near(blocks[0].until(), wall() + HOUR / 2);
        let listed = api(&router, Method::GET, "/api/blocks", "").await;
        assert_near(millis(&listed["blocks"][0]["until"]), wall() + HOUR / 2);

        let state = api(&router, Method::GET, "/api/state", "").await;
        assert_near(millis(&state["time"]), wall());
        let history = api(&router, Method::GET, "/api/history", "").await;
        let second = history["tracks"][0]["latest"].as_i64().expect("a number");
        let shown = second * 1_000 + state["ahead_millis"].as_i64().expect("a number");
        assert_near(millis(&shown.into()), wall());

        responses(&layer, &format!("caller{}", ahead.as_secs())).await;
        let top = api(&router, Method::GET, "/api/top-keys", "").await;
        assert_near(millis(&top["until"]), wall());
        assert_near(millis(&top["since"]), wall() - began.elapsed());

        let pushed = NewRules::new(
            Format::Yaml,
            rules(&format!("{}/hour", 3 + ahead.as_secs())),
        );
        let pushed = handle.push(pushed).await.expect("usable rules");
        assert_near(pushed.time(), wall());

        let login = Policy::new("login", Quota::per_hour(1));
        let login = login.penalty(Penalty::after(1, HOUR).ban(HOUR));
        let key = Key::new(format!("bob{}", ahead.as_secs()));
        for _ in 0..2 {
            limiter
                .check(&[login.charge(key)])
                .await
                .expect("a decision");
        }
        let ban_status = limiter.ban_status(&login, &key).await.expect("known");
        let banned = ban_status.and_then(|ban_status| ban_status.banned_until());
        let banned = banned.expect("it was denied");
        assert_near(limiter.wall_time(banned), wall() + HOUR);
    }
}

#[tokio::test]
async fn redis_gets_and_shows_the_wall_clock_of_the_moment() {
    if !is_apart("redis_gets_and_shows_the_wall_clock_of_the_moment") {
        return;
    }
    let server = Server::start();
    let top_keys = TopKeys::builder().shown_keys(ShownKeys::plain());
    let top_keys = top_keys.window(HOUR / 2).build().expect("usable");
    let limiter = |redis| {
        let limiter = RateLimiter::builder().redis(redis).policy(hourly());
        limiter.deadline(Duration::from_millis(250))
    };
    let by_server = limiter(RedisStore::builder(server.url()))
        .top_keys(top_keys.clone())
        .share_top_keys()
        .build()
        .expect("usable");
    let by_client = RedisStore::builder(server.url()).prefix("client");
    let by_client = limiter(by_client.client_time(Clock::system()))
        .build()
        .expect("usable");
    let ada = hourly();
    let ada = ada.charge(Key::new("ada"));
    until_shared(&by_server).await;
    // The time of the server is its own, and right.
    let right = wall() - HOUR;
    let decision = by_server.check(&[ada]).await.expect("a decision");
    assert_near(decision.wall_time(decision.decided_at()), right);
    set_ahead(Duration::ZERO);
    let decision = by_server.check(&[ada]).await.expect("a decision");
    assert_near(decision.wall_time(decision.decided_at()), wall());
    let decision = by_client.check(&[ada]).await.expect("a decision");
    assert_near(decision.decided_at(), wall());
    assert_near(decision.wall_time(decision.decided_at()), wall());

    // Instances whose wall clocks are right find what each other shares.
    top_keys.record(&hourly(), &Key::new("ada"), 1);
    let half = wall().as_micros() / u64::try_from(HOUR.as_micros() / 4).expect("it fits");
    let names = [half, half + 1].map(|half| format!("top:{half}"));
    let deadline = Instant::now() + PATIENCE;
    while !server
        .keys()
        .iter()
        .any(|key| names.iter().any(|name| key.contains(name)))
    {
        assert!(
            Instant::now() < deadline,
            "{names:?} in {:?}",
            server.keys()
        );
        by_server.check(&[ada]).await.expect("a decision");
        // A denial that is kept leaves no time for the connection.
        tokio::task::yield_now().await;
    }

    drop(server);
    until_degraded(std::slice::from_ref(&by_server)).await;
    let since = by_server.health().since().expect("an outage");
    assert_near(since, wall());
    // The fallback goes on by the clock of the server.
    let decision = by_server.check(&[ada]).await.expect("a decision");
    assert_near(decision.wall_time(decision.decided_at()), wall());
}

#[tokio::test]
async fn fallback_without_a_first_reply_shows_the_wall_clock_of_the_moment() {
    if !is_apart("fallback_without_a_first_reply_shows_the_wall_clock_of_the_moment") {
        return;
    }
    let server = Server::start();
    let url = server.url();
    drop(server);
    let limiter = RateLimiter::builder().redis(RedisStore::builder(url));
    let limiter = limiter.policy(hourly()).build().expect("usable");
    let ada = hourly();
    let ada = ada.charge(Key::new("ada"));
    for ahead in [HOUR, Duration::ZERO, 24 * HOUR] {
        set_ahead(ahead);
        let decision = limiter.check(&[ada]).await.expect("a decision");
        assert_near(decision.wall_time(decision.decided_at()), wall());
    }
}
