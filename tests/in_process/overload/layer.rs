//! The layer: which class a request has, what one that is shed gets, and how its place comes back.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    future::{Future, pending},
    net::{IpAddr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use proptest::prelude::*;
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimitLayer, RequestHead,
    clock::{Clock, Timestamp},
    extract::{Global, Header, PeerIp},
    matching::{AddressList, PathPattern},
    overload::{InFlight, Overload, Priority},
    rejection::{Reason, Rejection, RejectionFormat},
    rules::RuleMode,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::places::{built, fill, stopped};

fn request(path: &str) -> Request<Body> {
    Request::get(path)
        .body(Body::empty())
        .expect("a valid request")
}

/// A service that shows the class of the request.
fn shows_class(overload: &Overload) -> Router {
    let show = |priority: Priority| async move { priority.to_string() };
    let any = Router::new().route("/", get(show)).fallback(show);
    any.layer(overload.clone())
}

async fn class_of(app: &Router, request: Request<Body>) -> String {
    let response = app.clone().oneshot(request).await.expect("it answers");
    assert_eq!(response.status(), StatusCode::OK);
    text(response).await
}

async fn text(response: Response<impl http_body::Body<Error: std::fmt::Debug>>) -> String {
    let body = response.into_body().collect().await.expect("a body");
    String::from_utf8(body.to_bytes().to_vec()).expect("text")
}

// === Class ===

#[tokio::test]
async fn class_comes_from_the_first_matcher_then_the_closure() {
    let overload = built(
        stopped()
            .0
            .key(Header::new("x-tenant"))
            .priority_when("/pay", Priority::Critical)
            .priority_when(PathPattern::prefix("/export"), Priority::Sheddable)
            .priority_by(|head, key| match key {
                Some(key) if *key == Key::new("acme") => Priority::Critical,
                _ if head.uri.path() == "/other" => Priority::Named("unknown"),
                _ => Priority::Normal,
            }),
    );
    let app = shows_class(&overload);
    for (path, tenant, class) in [
        ("/pay", "x", "critical"),
        ("/export/all", "acme", "sheddable"),
        ("/", "acme", "critical"),
        ("/", "x", "normal"),
        ("/other", "x", "normal"),
        // May be read as `/pay`, or as another path: the lower class.
        ("//pay", "x", "normal"),
        ("//export", "acme", "sheddable"),
        ("/pay/../export", "acme", "sheddable"),
    ] {
        let mut request = request(path);
        let tenant = tenant.parse().expect("a value");
        request.headers_mut().insert("x-tenant", tenant);
        assert_eq!(class_of(&app, request).await, class, "{path}");
    }
    assert_eq!(overload.in_flight(), 0);
}

#[tokio::test]
async fn header_states_the_class_of_trusted_peers_only() {
    let trusted = AddressList::new(PeerIp, ["10.0.0.0/8"]);
    let overload = built(
        stopped()
            .0
            .priority_header("x-priority", trusted)
            .priority_when("/export", Priority::Sheddable),
    );
    let app = shows_class(&overload);
    let asked = |peer: &str, lines: &[&str]| {
        let mut request = request("/export");
        for line in lines {
            let value = line.parse().expect("a value");
            request.headers_mut().append("x-priority", value);
        }
        let peer: IpAddr = peer.parse().expect("an address");
        request.extensions_mut().insert(SocketAddr::new(peer, 1));
        request
    };
    for (peer, lines, class) in [
        ("10.1.2.3", &["critical"][..], "critical"),
        ("10.1.2.3", &[" Normal "], "normal"),
        ("192.0.2.1", &["critical"], "sheddable"),
        ("10.1.2.3", &["urgent"], "sheddable"),
        ("10.1.2.3", &[""], "sheddable"),
        ("10.1.2.3", &["critical", "critical"], "critical"),
        ("10.1.2.3", &["critical", "normal"], "normal"),
        ("10.1.2.3", &["sheddable", "x"], "sheddable"),
        ("10.1.2.3", &["x", "normal"], "normal"),
        ("10.1.2.3", &[], "sheddable"),
    ] {
        assert_eq!(
            class_of(&app, asked(peer, lines)).await,
            class,
            "{peer} {lines:?}"
        );
    }
}

// Regression: a limit of some routes, without classes of its own, took away the class that the limit of all had found.
#[tokio::test]
async fn class_of_a_layer_around_stays_if_no_rule_applies() {
    let batch = Priority::Named("batch");
    let outer = stopped()
        .0
        .classes([Priority::Critical, Priority::Normal, batch]);
    let outer = outer.priority_when("/", Priority::Critical);
    let outer = built(outer.priority_when("/batch", batch));
    let inner = || stopped().0;
    for (inner, path, class) in [
        (inner(), "/", "critical"),
        (inner().mode(RuleMode::Off), "/", "critical"),
        // Not one of the classes of the inner limit.
        (inner(), "/batch", "batch"),
        // The class that is not put there counts, too.
        (inner().priority_when("/", Priority::Normal), "/", "normal"),
        (inner().priority_by(|_, _| Priority::Normal), "/", "normal"),
        (
            inner().priority_when("/", Priority::Sheddable),
            "/",
            "sheddable",
        ),
    ] {
        let app = shows_class(&built(inner)).layer(outer.clone());
        assert_eq!(class_of(&app, request(path)).await, class);
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let named = Priority::Named("critical");
    for (builder, reason) in [
        (
            Overload::adaptive().priority_when("/", Priority::Named("paid")),
            "the class paid, which is not one of the classes",
        ),
        (
            Overload::adaptive().classes([Priority::Critical, named, Priority::Normal]),
            "critical twice",
        ),
        (
            Overload::adaptive().key(Global).weight_when("/", 0),
            "a weight of 0: set 1 to 1000",
        ),
        (
            Overload::adaptive().key(Global).weight_when("/", 1_001),
            "a weight of 1001",
        ),
        (
            Overload::adaptive().weight_by(|_, _| 4),
            "weights without a key",
        ),
        (
            Overload::adaptive().priority_header("x priority", "/"),
            "is not the name of a header",
        ),
        (
            Overload::adaptive().max_retry_after(Duration::from_millis(999)),
            "set 1 s to 24 h",
        ),
        (
            Overload::adaptive().priority_when("export", Priority::Normal),
            "export",
        ),
        (Overload::adaptive().skip("health"), "health"),
    ] {
        let error = builder.build().expect_err(reason);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[cfg(feature = "body")]
#[test]
fn key_in_the_body_is_refused() {
    let key = tollgate::extract::FromBody::json("/user");
    let error = Overload::adaptive().key(key).build();
    let error = error.expect_err("the body is not read").to_string();
    assert!(error.contains("use a key from the head"), "{error}");
}

// === Response ===

#[tokio::test]
async fn request_that_is_shed_gets_503_and_charges_no_policy() {
    let overload = built(
        stopped()
            .0
            .priority_when("/export", Priority::Sheddable)
            .max_retry_after(Duration::from_secs(4)),
    );
    let limit = RateLimitLayer::builder()
        .policy(Policy::new("all", Quota::per_hour(3)).key(Global))
        .build()
        .expect("usable settings");
    let left = || async {
        let policy = limit.limiter().policy("all").expect("it is there");
        let charge = policy.charge(Key::GLOBAL).cost(0);
        let decision = limit.limiter().check(charge).await.expect("in process");
        decision.remaining()
    };
    let before = left().await;
    let app = Router::new()
        .fallback(async || "served")
        .layer(limit.clone())
        .layer(overload.clone());
    let places = fill(&overload, Priority::Sheddable);
    let mut waits = [0; 5];
    for _ in 0..200 {
        let shed = app.clone().oneshot(request("/export")).await;
        let shed = shed.expect("it answers");
        assert_eq!(shed.status(), StatusCode::SERVICE_UNAVAILABLE);
        let rejection = shed.extensions().get::<Rejection>().expect("it is shed");
        let priority = Priority::Sheddable;
        assert_eq!(*rejection.reason(), Reason::Overloaded { priority });
        let wait = shed.headers()["retry-after"].to_str().expect("digits");
        let wait: usize = wait.parse().expect("digits");
        waits[wait] += 1;
        assert_eq!(shed.headers()["cache-control"], "no-store");
        assert_eq!(
            text(shed).await,
            format!(
                "{{\"error\":\"overloaded\",\"message\":\"the service is overloaded for requests of class sheddable, \
                 retry in {wait} s\",\"retry_after\":{wait}}}"
            )
        );
    }
    assert_eq!(waits[0], 0);
    assert!(waits[1..].iter().all(|count| *count > 0), "{waits:?}");
    assert_eq!(left().await, before);
    // One of them was that which found the service full.
    assert_eq!(overload.shed().last(), Some(&(Priority::Sheddable, 201)));
    // A higher class is served beside them.
    let served = app.clone().oneshot(request("/")).await.expect("it answers");
    assert_eq!(served.status(), StatusCode::OK);
    drop(places);
    assert_eq!(overload.in_flight(), 0);
}

#[tokio::test]
async fn longest_wait_is_rounded_up_to_whole_seconds() {
    let overload = built(stopped().0.max_retry_after(Duration::from_millis(1_500)));
    let _places = fill(&overload, Priority::Critical);
    let app = shows_class(&overload);
    let mut waits = BTreeSet::new();
    for _ in 0..200 {
        let shed = app.clone().oneshot(request("/")).await;
        let shed = shed.expect("it answers");
        waits.insert(shed.headers()["retry-after"].clone());
    }
    assert!(waits.iter().eq(["1", "2"]), "{waits:?}");
}

#[tokio::test]
async fn response_has_the_form_that_is_set() {
    for (format, content_type, body) in [
        (
            RejectionFormat::problem_json(),
            "application/problem+json",
            "#temporary-reduced-capacity\",\"title\":\"Request cannot be satisfied due to temporary server capacity constraints\",\
             \"status\":503,\"detail\":\"the service is overloaded for requests of class a.b, retry in 1 s\",\
             \"violated-policies\":[]}",
        ),
        (
            RejectionFormat::text(),
            "text/plain; charset=utf-8",
            "the service is overloaded for requests of class a.b, retry in 1 s",
        ),
    ] {
        let class = Priority::Named("a.b");
        let overload = built(
            stopped()
                .0
                .classes([Priority::Normal, class])
                .priority_when("/", class)
                .max_retry_after(Duration::from_secs(1))
                .on_rejection(format),
        );
        let _places = fill(&overload, Priority::Normal);
        let app = shows_class(&overload);
        let shed = app.oneshot(request("/")).await.expect("it answers");
        assert_eq!(shed.headers()["content-type"], content_type);
        let text = text(shed).await;
        assert!(text.ends_with(body), "{text}");
    }
}

#[cfg(feature = "grpc")]
#[tokio::test]
async fn grpc_client_gets_unavailable_with_the_time_to_retry() {
    use tonic_types::StatusExt;

    let overload = built(stopped().0.max_retry_after(Duration::from_secs(1)));
    let _places = fill(&overload, Priority::Critical);
    let mut call = request("/library.Books/Find");
    *call.method_mut() = http::Method::POST;
    let content_type = "application/grpc".parse().expect("a value");
    call.headers_mut().insert("content-type", content_type);
    let shed = shows_class(&overload).oneshot(call).await;
    let shed = shed.expect("it answers");
    assert_eq!(shed.status(), StatusCode::OK);
    let status = tonic::Status::from_header_map(shed.headers()).expect("a gRPC status");
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let details = status.get_error_details();
    let retry = details.retry_info().expect("when to retry");
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(1)));
    assert!(details.quota_failure().is_none());
}

// === Who is counted ===

#[tokio::test]
async fn skipped_requests_pass_a_full_service_and_take_no_place() {
    let overload = built(stopped().0.skip("/health"));
    let _places = fill(&overload, Priority::Critical);
    let app = shows_class(&overload);
    let full = overload.in_flight();
    assert_eq!(class_of(&app, request("/health")).await, "normal");
    for shed in ["/", "//health", "/health/../x"] {
        let response = app.clone().oneshot(request(shed)).await;
        let status = response.expect("it answers").status();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{shed}");
    }
    assert_eq!(overload.in_flight(), full);
}

#[tokio::test]
async fn shadow_sheds_nothing_and_counts_what_it_would_have_shed_and_off_counts_nothing() {
    let overload = built(stopped().0.mode(RuleMode::Shadow));
    let places = fill_in_shadow(&overload, 500);
    assert_eq!(overload.in_flight(), 500);
    let limit = u64::from(overload.limit()) / 4 * 5;
    assert_eq!(shed_of(&overload, Priority::Normal), 500 - limit);
    let app = shows_class(&overload);
    assert_eq!(class_of(&app, request("/")).await, "normal");
    assert_eq!(shed_of(&overload, Priority::Normal), 501 - limit);

    overload.set_mode(RuleMode::Off);
    assert_eq!(overload.mode(), RuleMode::Off);
    assert_eq!(class_of(&app, request("/")).await, "normal");
    let place = overload.enter(Priority::Normal, None).expect("it is off");
    assert_eq!(shed_of(&overload, Priority::Normal), 501 - limit);
    assert_eq!(overload.in_flight(), 500);
    drop((place, places));
    assert_eq!(overload.in_flight(), 0);

    overload.set_mode(RuleMode::Enforce);
    let _places = fill(&overload, Priority::Critical);
    let shed = app.oneshot(request("/")).await.expect("it answers");
    assert_eq!(shed.status(), StatusCode::SERVICE_UNAVAILABLE);
}

// A closure that finds the class by the key needs it also of these requests: a reserve needs their class.
#[tokio::test]
async fn key_of_a_request_that_is_not_counted_is_read_for_its_class_only() {
    for (finds_class_by_key, reads) in [(false, 0), (true, 1)] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let builder = stopped().0.skip("/health").key(move |_: &RequestHead<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
            Some(Key::GLOBAL)
        });
        let overload = built(match finds_class_by_key {
            false => builder,
            true => builder.priority_by(|_, key| match key {
                Some(_) => Priority::Critical,
                None => Priority::Normal,
            }),
        });
        let app = shows_class(&overload);
        let class = ["normal", "critical"][reads];
        for (mode, path, reads) in [
            (RuleMode::Enforce, "/", 1),
            (RuleMode::Enforce, "/health", reads),
            (RuleMode::Off, "/", reads),
        ] {
            overload.set_mode(mode);
            assert_eq!(class_of(&app, request(path)).await, class);
            assert_eq!(count.swap(0, Ordering::Relaxed), reads, "{mode:?} {path}");
        }
    }
}

fn fill_in_shadow(overload: &Overload, count: usize) -> Vec<InFlight> {
    let enter = || overload.enter(Priority::Normal, None);
    let places = (0..count).map(|_| enter().expect("nothing is shed"));
    places.collect()
}

fn shed_of(overload: &Overload, priority: Priority) -> u64 {
    let mut classes = overload.shed().into_iter();
    let found = classes.find(|(class, _)| *class == priority);
    found.expect("a class").1
}

// Leaving the key out would be a way around the share of a key.
#[tokio::test]
async fn requests_without_a_key_share_one() {
    let overload = built(
        stopped()
            .0
            .classes([Priority::Normal])
            .key(Header::new("x-tenant")),
    );
    let service = overload.layer(service_fn(|_: Request<Body>| {
        pending::<Result<Response<Body>, Infallible>>()
    }));
    let (mut futures, limit) = (Vec::new(), overload.limit());
    for _ in 0..2 * limit {
        let mut future = Box::pin(service.clone().oneshot(request("/")));
        let _ = poll(future.as_mut());
        futures.push(future);
    }
    assert_eq!(overload.in_flight(), (limit * 16).div_ceil(17));
    let mut named = request("/");
    let tenant = "acme".parse().expect("a value");
    named.headers_mut().insert("x-tenant", tenant);
    let mut named = Box::pin(service.clone().oneshot(named));
    let _ = poll(named.as_mut());
    assert_eq!(overload.in_flight(), (limit * 16).div_ceil(17) + 1);
    drop((futures, named));
    assert_eq!(overload.in_flight(), 0);
}

#[tokio::test]
async fn key_of_a_weight_gets_so_many_times_as_many_places() {
    let builder = stopped().0.classes([Priority::Normal]);
    let overload = built(
        builder
            .key(Header::new("x-tenant"))
            .weight_when("/partner", 4)
            .weight_when(PathPattern::prefix("/"), 2)
            .weight_when("/never", 100),
    );
    let by_plan = stopped().0.classes([Priority::Normal]).key(Global);
    let by_plan = built(by_plan.weight_by(|head, _| match head.uri.path() {
        "/partner" => 4,
        _ => 0,
    }));
    for (overload, path, weight) in [
        (&overload, "/partner", 4),
        (&overload, "/", 2),
        (&by_plan, "/partner", 4),
        (&by_plan, "/", 1),
    ] {
        assert_eq!(weight_of(overload, path), weight, "{path}");
    }
}

// A key of a weight of 10 would get all of 128 places.
#[tokio::test]
async fn key_of_a_high_weight_leaves_the_last_place_to_another_key() {
    for weight in [10, 1_000] {
        let builder = stopped().0.classes([Priority::Normal]);
        let builder = builder.key(Header::new("x-tenant"));
        let overload = built(builder.weight_by(move |_, _| weight));
        let limit = overload.limit();
        let loud = waiting(&overload, "loud", 2 * limit);
        assert_eq!(overload.in_flight(), limit - 1, "{weight}");
        let quiet = waiting(&overload, "quiet", 2);
        assert_eq!(overload.in_flight(), limit, "{weight}");
        drop((loud, quiet));
        assert_eq!(overload.in_flight(), 0);
    }
}

/// Sends requests of a tenant that wait for ever, unless they are shed.
fn waiting(overload: &Overload, tenant: &str, count: u32) -> Vec<impl Sized + use<>> {
    let service = overload.layer(service_fn(|_: Request<Body>| {
        pending::<Result<Response<Body>, Infallible>>()
    }));
    let mut futures = Vec::new();
    for _ in 0..count {
        let mut request = request("/");
        let tenant = tenant.parse().expect("a value");
        request.headers_mut().insert("x-tenant", tenant);
        let mut future = Box::pin(service.clone().oneshot(request));
        let _ = poll(future.as_mut());
        futures.push(future);
    }
    futures
}

/// Returns the weight of a path, by the places that its only key gets. A weight must not be so large that the key gets all.
pub(super) fn weight_of(overload: &Overload, path: &str) -> u32 {
    let service = overload.layer(service_fn(|_: Request<Body>| {
        pending::<Result<Response<Body>, Infallible>>()
    }));
    let (mut futures, limit) = (Vec::new(), overload.limit());
    for _ in 0..2 * limit {
        let mut future = Box::pin(service.clone().oneshot(request(path)));
        let _ = poll(future.as_mut());
        futures.push(future);
    }
    let places = |weight: u32| (limit * 16 * weight).div_ceil(16 * weight + 1);
    let fits = |weight: &u32| places(*weight) == overload.in_flight();
    (1..5).find(fits).expect("a small weight")
}

// === Giving way ===

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls a request until it has its response. Returns how often it gave way.
fn times_given_way(app: &Router, clock: &Clock, lag: Duration) -> usize {
    let mut future = pin!(app.clone().oneshot(request("/")));
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut polls = 0;
    loop {
        polls += 1;
        if let Poll::Ready(response) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            assert_eq!(response.expect("it answers").status(), StatusCode::OK);
            break;
        }
        assert_eq!(
            wakes.0.load(Ordering::Relaxed),
            polls,
            "it is not woken again"
        );
        clock.advance(lag);
    }
    polls - 1
}

#[test]
fn one_request_in_ten_milliseconds_measures_the_lag_and_while_it_is_late_all_give_way() {
    let (builder, clock) = stopped();
    let app = shows_class(&built(builder));
    let gave_way = |lag| times_given_way(&app, &clock, lag);
    let quick = Duration::from_micros(900);
    assert_eq!(gave_way(quick), 1);
    for _ in 0..5 {
        assert_eq!(gave_way(quick), 0);
    }
    clock.advance(Duration::from_millis(10));
    assert_eq!(gave_way(Duration::from_millis(2)), 1);
    // It is late: each request gives way, for as long as it is.
    for _ in 0..50 {
        assert_eq!(gave_way(Duration::from_millis(2)), 1);
    }
    // 0.1 s without a late request later, only those that measure do.
    for _ in 0..3 {
        clock.advance(Duration::from_millis(110));
        let gave_way = |lag| times_given_way(&app, &clock, lag);
        assert_eq!((gave_way(quick), gave_way(quick)), (1, 0));
    }
}

// A request that gives way is in flight meanwhile, so those behind it find the queue.
#[test]
fn request_that_gives_way_keeps_its_place() {
    let (builder, clock) = stopped();
    let overload = built(builder);
    let app = shows_class(&overload);
    let mut first = Box::pin(app.clone().oneshot(request("/")));
    assert!(poll(first.as_mut()).is_pending());
    assert_eq!(overload.in_flight(), 1);
    clock.advance(Duration::from_millis(1));
    drop(first);
    assert_eq!(overload.in_flight(), 0);
}

// === Places ===

/// Where a request ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Answered,
    Denied,
    Fails,
    HangsUp,
    Panics,
    PanicsInCall,
    TimesOut,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    ends: Ends,
    awaits: usize,
    class: usize,
    tenant: u8,
}

prop_compose! {
    fn sent()(
        ends in prop_oneof![
            Just(Ends::Answered), Just(Ends::Denied), Just(Ends::Fails), Just(Ends::HangsUp),
            Just(Ends::Panics), Just(Ends::PanicsInCall), Just(Ends::TimesOut),
        ],
        awaits in 0_usize..4,
        class in 0_usize..3,
        tenant in 0_u8..5,
    ) -> Sent {
        Sent { ends, awaits, class, tenant }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    // Requests run side by side, and each ends in its way at its await. What was charged is what reached the service.
    #[test]
    fn no_place_is_lost_and_no_shed_request_charged(
        sent in proptest::collection::vec(sent(), 1..400),
        steps in proptest::collection::vec(0_u64..3_000, 1..400),
    ) {
        let (builder, clock) = stopped();
        let classes = [Priority::Critical, Priority::Normal, Priority::Sheddable];
        let overload = built(builder.key(Header::new("x-tenant")).priority_by(move |head, _| {
            classes[*head.extensions.get::<usize>().expect("it is sent")]
        }));
        let limit = RateLimitLayer::builder()
            .policy(Policy::new("all", Quota::per_hour(100_000)).key(Global))
            .clock(Clock::manual(Timestamp::from_micros(1_700_000_000_000_000)))
            .build()
            .expect("usable settings");
        let called = Arc::new(AtomicUsize::new(0));
        let calls = Arc::clone(&called);
        let inner = service_fn(move |request: Request<Body>| {
            calls.fetch_add(1, Ordering::Relaxed);
            let sent = *request.extensions().get::<Sent>().expect("it is sent");
            if let Ends::PanicsInCall = sent.ends {
                resume_unwind(Box::new("the handler"));
            }
            async move {
                for _ in 0..sent.awaits {
                    tokio::task::yield_now().await;
                }
                let mut response = Response::new(Body::empty());
                match sent.ends {
                    Ends::Panics => resume_unwind(Box::new("the handler")),
                    Ends::Fails => return Err("it fails"),
                    Ends::HangsUp => pending().await,
                    Ends::TimesOut => *response.status_mut() = StatusCode::GATEWAY_TIMEOUT,
                    Ends::Denied => {
                        let rejection = tollgate::Error::new(ErrorKind::InvalidConfig, "it is denied");
                        response.extensions_mut().insert(Rejection::from(rejection));
                    }
                    Ends::Answered | Ends::PanicsInCall => {}
                }
                Ok(response)
            }
        });
        let service = overload.layer(limit.layer(inner));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let shed = runtime.block_on(async {
            let mut running = Vec::new();
            let mut shed = 0;
            for (index, sent) in sent.iter().enumerate() {
                clock.advance(Duration::from_micros(steps[index % steps.len()]));
                let mut request = request("/");
                let tenant = sent.tenant.to_string().parse().expect("a value");
                request.headers_mut().insert("x-tenant", tenant);
                request.extensions_mut().insert(*sent);
                request.extensions_mut().insert(sent.class);
                let mut service = service.clone();
                let called = catch_unwind(AssertUnwindSafe(|| service.call(request)));
                let Ok(future) = called else { continue };
                let mut future = Box::pin(AssertUnwindSafe(future).catch_unwind());
                match poll(future.as_mut()) {
                    Poll::Ready(Ok(Ok(response))) => {
                        let rejection = response.extensions().get::<Rejection>();
                        let reason = rejection.map(Rejection::reason);
                        shed += usize::from(matches!(reason, Some(Reason::Overloaded { .. })));
                    }
                    Poll::Ready(_) => {}
                    Poll::Pending => running.push(future),
                }
                // Some go on, and some clients hang up.
                if index % 7 == 3 {
                    running.retain_mut(|future| poll(future.as_mut()).is_pending());
                }
                if index % 31 == 30 && !running.is_empty() {
                    drop(running.swap_remove(index % running.len()));
                }
            }
            for _ in 0..6 {
                running.retain_mut(|future| poll(future.as_mut()).is_pending());
            }
            drop(running);
            shed
        });
        prop_assert_eq!(overload.in_flight(), 0);
        let counted: u64 = overload.shed().iter().map(|(_, count)| count).sum();
        prop_assert_eq!(counted, shed as u64);
        let policy = limit.limiter().policy("all").expect("it is there");
        let charge = policy.charge(Key::GLOBAL).cost(0);
        let decision = limit.limiter().check(charge).now_or_never().expect("in process");
        let left = decision.expect("in process").remaining().expect("it is counted");
        prop_assert_eq!(100_000 - left, called.load(Ordering::Relaxed) as u64);
        prop_assert_eq!(called.load(Ordering::Relaxed) + shed, sent.len());
    }
}
