//! Requests that are replayed against limits, by time that nobody waits for.

use std::{net::IpAddr, time::Duration};

use http::{Method, StatusCode};
use tollgate::{
    Error, ErrorKind, Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    algorithm::Algorithm,
    assert_allowed, assert_limited, assert_remaining,
    extract::{ApiKey, ClientIp, Global, Header, KeyExtractor, PeerIp},
    matching::PathPattern,
    rejection::Reason,
    rules::RuleMode,
    testing::{Replay, Replayed, ScriptedStore, TestRequest, replay},
};

const SECOND: Duration = Duration::from_secs(1);

fn login() -> TestRequest {
    TestRequest::post("/login").peer("203.0.113.7")
}

fn by_peer() -> tollgate::builder::RateLimitLayerBuilder {
    let login = Policy::new("login", Quota::per_minute(2)).key(PeerIp);
    RateLimitLayer::builder().policy(login.when(PathPattern::new("/login")))
}

#[test]
fn replay_shows_which_policies_counted_each_request_under_which_key() {
    let limits = by_peer().policy(
        Policy::new("keys", Quota::per_hour(9))
            .cost(3)
            .key(ApiKey::header("x-api-key").or_else(PeerIp)),
    );
    let requests = [
        login(),
        TestRequest::get("/search?q=1")
            .header("x-api-key", "k-1")
            .peer("203.0.113.7"),
    ];
    let replay = replay(limits, requests).expect("usable limits");
    let peer = Key::from("203.0.113.7".parse::<IpAddr>().expect("an address"));
    let counted = |at: usize| {
        let counts = replay[at].counts().iter();
        let counts = counts.map(|count| (count.policy().as_str(), *count.key(), count.units()));
        counts.collect::<Vec<_>>()
    };
    let [(_, by_peer, _), (_, or_peer, _)] = counted(0)[..] else {
        panic!("{replay}");
    };
    assert_eq!((by_peer, counted(0)[0].0), (peer, "login"));
    assert_ne!(or_peer, peer, "a key in the namespace of its label");
    assert_eq!(counted(1), [("keys", Key::secret("k-1"), 3)]);
    assert_eq!(replay.results().len(), 2);
    let count = replay[1].count("keys").expect("it counted");
    assert_eq!(count.state().usage().expect("a usage").remaining, 6);
    assert!(replay[1].count("login").is_none());
}

#[test]
fn time_moves_from_request_to_request() {
    let waits = [0, 0, 10, 19, 1, 30, 30].map(|seconds| login().after(seconds * SECOND));
    let replay = replay(by_peer(), waits).expect("usable limits");
    assert_eq!(
        replay.allowed(),
        [true, true, false, false, true, true, true]
    );
    assert_limited!(replay[2], "login", 20);
    assert_limited!(replay[3], "login", SECOND);
    assert_allowed!(replay[4]);
    assert_remaining!(replay[0], 1);
    // The headers of the response name no policy.
    assert_remaining!(replay[0], "login", 1);
    assert_eq!(replay[6].at(), 90 * SECOND);
    let line = "29 s POST /login: 429 Too Many Requests, rate limit login exceeded, retry in 1 second; login 203.0.113.7 0/2";
    assert_eq!(replay[3].to_string(), line);
    let lines: Vec<String> = replay.to_string().lines().map(str::to_owned).collect();
    assert_eq!((lines.len(), lines[3].as_str()), (7, line));
    assert_eq!(lines[0], "0 s POST /login: allowed; login 203.0.113.7 1/2");
}

#[test]
fn requests_that_last_keep_their_slots_until_they_end() {
    let limits = || RateLimitLayer::builder().policy(Policy::concurrency("slots", 1).key(Global));
    let get = |after: u32, lasting: u32| {
        TestRequest::get("/")
            .after(after * SECOND)
            .lasting(lasting * SECOND)
    };
    let requests = [
        get(0, 10),
        get(9, 10),
        get(1, 0),
        get(0, 5),
        get(4, 1),
        get(1, 1),
    ];
    let replay = replay(limits(), requests).expect("usable limits");
    assert_eq!(replay.allowed(), [true, false, true, true, false, true]);
}

#[test]
fn request_in_a_queue_is_allowed_after_a_delay() {
    use tollgate::algorithm::QueueLimits;
    let policy = Policy::new("queue", Quota::per_minute(60).burst(1));
    let policy = policy.algorithm(Algorithm::LeakyQueue(QueueLimits::new(2, 9 * SECOND)));
    let limits = RateLimitLayer::builder().policy(policy.key(Global));
    let requests = [(); 4].map(|()| TestRequest::get("/"));
    let replay = replay(limits, requests).expect("usable limits");
    let delays: Vec<_> = replay.results().iter().map(Replayed::delay).collect();
    assert_eq!(delays, [None, Some(SECOND), Some(2 * SECOND), None]);
    assert_eq!(replay.allowed(), [true, true, true, false]);
    assert!(
        replay[1]
            .to_string()
            .starts_with("0 s GET /: allowed in 1 s; "),
        "{replay}"
    );
}

#[test]
fn status_of_the_handler_and_headers_are_in_the_response() {
    let requests = [
        login().answered(StatusCode::NOT_FOUND),
        TestRequest::new(Method::PUT, "/login"),
    ];
    let replay = replay(by_peer(), requests).expect("usable limits");
    let response = replay[0].response();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    assert_eq!(response.headers()["x-ratelimit-remaining"], "1");
    assert!(replay[0].rejection().is_none());
    let rejection = replay[1].rejection().expect("it has no address");
    assert!(matches!(rejection.reason(), Reason::MissingKey { .. }));
    assert_eq!(
        replay[1].response().status(),
        StatusCode::INTERNAL_SERVER_ERROR
    );
}

#[test]
fn peer_is_what_extractors_of_addresses_read() {
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("clients", Quota::per_hour(1)).key(ClientIp::behind(["10.0.0.0/8"])));
    let through = |client: &str| {
        TestRequest::get("/")
            .peer("10.1.2.3")
            .header("x-forwarded-for", client)
    };
    let requests = [
        through("203.0.113.7"),
        through("203.0.113.8"),
        through("203.0.113.7"),
    ];
    let replay = replay(limits, requests).expect("usable limits");
    assert_eq!(replay.allowed(), [true, true, false]);
}

#[test]
fn value_in_the_extensions_is_read_by_a_closure() {
    #[derive(Clone)]
    struct User(&'static str);
    let by_user = |head: &RequestHead| head.extensions.get::<User>().map(|user| Key::new(user.0));
    let limits =
        RateLimitLayer::builder().policy(Policy::new("users", Quota::per_hour(1)).key(by_user));
    let request = |user| TestRequest::get("/").extension(User(user));
    let replay = replay(limits, [request("ada"), request("grace")]).expect("usable limits");
    assert_eq!(replay.allowed(), [true, true]);
    assert_eq!(*replay[1].counts()[0].key(), Key::new("grace"));
}

#[test]
fn policy_in_shadow_counts_and_denies_nothing() {
    let limits = by_peer().mode(RuleMode::Shadow);
    let replay = replay(limits, [(); 3].map(|()| login())).expect("usable limits");
    assert_eq!(replay.allowed(), [true; 3]);
    let state = replay[2].counts()[0].state();
    assert!(state.is_shadow() && state.outcome() != tollgate::decision::Outcome::Allowed);
}

#[tokio::test]
async fn store_and_limiter_of_the_builder_are_left_out_also_within_a_runtime() {
    let store = ScriptedStore::failing(ErrorKind::Unavailable, "down");
    let allowed = |limits| replay(limits, [login()]).expect("usable limits").allowed();
    assert_eq!(allowed(by_peer().store(store.clone())), [true]);
    let limiter = RateLimiter::new(store.clone(), []).expect("a limiter");
    assert_eq!(allowed(by_peer().limiter(&limiter)), [true]);
    #[cfg(feature = "redis")]
    assert_eq!(allowed(by_peer().redis("redis://192.0.2.1/")), [true]);
    assert_eq!(store.calls(), 0);
}

#[test]
fn limits_that_cannot_work_and_lookups_that_take_time_are_errors() {
    let kind = |replay: Result<Replay, Error>| replay.expect_err("an error").kind();
    let none = RateLimitLayer::builder();
    assert_eq!(kind(replay(none, [login()])), ErrorKind::NoPolicy);
    let never = |_: &RequestHead| std::future::pending::<Result<Option<Key>, Error>>();
    let looking = Policy::new("looking", Quota::per_hour(1)).key_async(never);
    let limits = RateLimitLayer::builder().policy(looking);
    assert_eq!(kind(replay(limits, [login()])), ErrorKind::InvalidConfig);
    let at_once = |_: &RequestHead| std::future::ready(Ok::<_, Error>(Some(Key::new("ada"))));
    let looked = Policy::new("looked", Quota::per_hour(1)).key_async(at_once);
    let limits = RateLimitLayer::builder().policy(looked);
    let replay = replay(limits, [login(), login()]).expect("usable limits");
    assert_eq!(replay.allowed(), [true, false]);
}

#[test]
fn header_that_is_sent_twice_is_in_the_request_twice() {
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("tenants", Quota::per_hour(5)).key(Header::new("x-tenant")));
    let twice = TestRequest::get("/")
        .header("x-tenant", "a")
        .header("x-tenant", "b");
    let replay = replay(limits, [twice]).expect("usable limits");
    let reason = replay[0].rejection().expect("an ambiguous key").reason();
    assert!(matches!(reason, Reason::AmbiguousKey { .. }), "{reason:?}");
}

#[cfg(feature = "rules")]
#[test]
fn rule_file_is_replayed_as_a_table() {
    use tollgate::config::{Format, RuleSet};
    let text = r#"
rules:
  - id: login
    path: /login
    method: POST
    key: peer_ip
    limit: 2/min
  - id: api
    key: { api_key: { header: x-api-key } }
    limit: 3/h
    unless: { path: /login }
skip: { path: /health }
"#;
    let rules = RuleSet::parse(Format::Yaml, text).expect("a valid file");
    let api = |key| TestRequest::get("/v1/search").header("x-api-key", key);
    let table = [
        (login(), "login", true),
        (login(), "login", true),
        (login().after(20 * SECOND), "login", false),
        (login().after(10 * SECOND), "login", true),
        (api("k-1"), "api", true),
        (api("k-1"), "api", true),
        (api("k-1"), "api", true),
        (api("k-1"), "api", false),
        (api("k-2"), "api", true),
        (TestRequest::get("/health"), "", true),
    ];
    let requests = table.iter().map(|(request, ..)| request.clone());
    let limits = RateLimitLayer::builder().rules(rules);
    let replay = replay(limits, requests).expect("usable limits");
    for (result, (_, policy, is_allowed)) in replay.results().iter().zip(&table) {
        let counted = result.counts().iter().map(|count| count.policy().as_str());
        assert_eq!(counted.collect::<String>(), *policy, "{replay}");
        assert_eq!(result.is_allowed(), *is_allowed, "{replay}");
    }
}

#[cfg(feature = "body")]
#[test]
fn login_by_the_body_is_replayed() {
    use tollgate::{extract::FromBody, policy::Backoff};

    let name = FromBody::json("/name").or_form("name").ignore_case();
    let limits = RateLimitLayer::builder().policy(
        Policy::new("login", Quota::per_hour(5))
            .backoff(Backoff::doubling(SECOND, 900 * SECOND))
            .key(name.and(PeerIp))
            .count_failures()
            .clear_on_success(),
    );
    let guess = |body: &str| {
        let body = body.to_owned();
        login().body(body).answered(StatusCode::UNAUTHORIZED)
    };
    let form = "application/x-www-form-urlencoded";
    let ada = r#"{"name":"Ada"}"#;
    let requests = [
        guess(ada),
        guess("name=ada").header("content-type", form),
        guess(ada).after(SECOND),
        login().body(ada).after(2 * SECOND),
        guess(ada),
        guess(ada).after(SECOND),
        guess(r#"{"name":"#),
        login(),
    ];
    let replay = replay(limits, requests).expect("usable limits");
    assert_eq!(
        replay.allowed(),
        [true, false, true, true, true, true, false, false],
        "{replay}"
    );
    assert_limited!(replay[1], "login", 1);
    for unread in [&replay[6], &replay[7]] {
        assert_eq!(unread.response().status(), StatusCode::BAD_REQUEST);
    }
}
