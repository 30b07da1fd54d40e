//! Waits that are longer at random, so that clients that are denied together do not come back together.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use axum::body::{Body, to_bytes};
use http::{HeaderMap, Request, Response, StatusCode, header::CONTENT_TYPE};
use tollgate::{
    Policy, Quota, RateLimitLayer,
    builder::RateLimitLayerBuilder,
    clock::{Clock, Timestamp},
    extract::{Global, Header},
    headers::{Headers, ResetFormat},
    rejection::{Rejection, RejectionFormat},
};
use tower::{Layer, Service, ServiceExt, service_fn};

#[tokio::test]
async fn waits_of_many_denials_are_spread_over_the_whole_range() {
    let clock = stopped();
    let mut app = app(one_in_ten_seconds(&clock).retry_after_jitter(0.3));
    assert_eq!(app.send(plain()).await.status, 200);
    clock.advance(Duration::from_millis(800));
    let mut counts = BTreeMap::<u64, u32>::new();
    for _ in 0..600 {
        *counts
            .entry(app.send(plain()).await.retry_after())
            .or_default() += 1;
    }
    // 9.2 s to 11.96 s, and each number about 200 times
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&10, &11, &12]);
    assert!(
        counts.values().all(|count| (100..300).contains(count)),
        "{counts:?}"
    );
}

#[tokio::test]
async fn header_body_and_message_show_the_same_wait() {
    let own = |rejection: &Rejection| {
        let seconds = rejection.retry_after_secs().expect("waiting helps");
        Response::new(format!("retry in {seconds} seconds"))
    };
    let formats = [
        RejectionFormat::json(),
        RejectionFormat::problem_json(),
        RejectionFormat::text(),
        RejectionFormat::by(move |rejection, _| own(rejection)),
    ];
    let mut seen = BTreeMap::<u64, u32>::new();
    for format in formats {
        for headers in [Headers::default(), Headers::draft11(), Headers::none()] {
            let clock = stopped();
            let builder = one_in_ten_seconds(&clock)
                .headers(headers)
                .on_rejection(format.clone());
            let mut app = app(builder.retry_after_jitter(0.3));
            app.send(plain()).await;
            for _ in 0..40 {
                let denial = app.send(plain()).await;
                let seconds = denial.retry_after();
                *seen.entry(seconds).or_default() += 1;
                let message = format!("retry in {seconds} seconds");
                assert!(denial.body.contains(&message), "{format:?}: {denial:?}");
                assert_eq!(denial.rejection().retry_after_secs(), Some(seconds));
                let kind = denial.headers.get(CONTENT_TYPE);
                if kind.is_some_and(|kind| kind == "application/json") {
                    let number = format!("\"retry_after\":{seconds}}}");
                    assert!(denial.body.ends_with(&number), "{denial:?}");
                }
            }
        }
    }
    assert!(seen.len() == 4, "{seen:?}");
}

#[cfg(feature = "grpc")]
#[tokio::test]
async fn grpc_client_receives_the_same_wait_and_never_one_that_is_too_short() {
    use tollgate::Decision;
    use tonic_types::StatusExt;

    let clock = stopped();
    let format = RejectionFormat::json().grpc_pushback(true);
    let builder = one_in_ten_seconds(&clock).on_rejection(format);
    let mut app = app(builder.retry_after_jitter(0.3));
    assert_eq!(app.send(grpc()).await.status, 200);
    let mut shares = Vec::new();
    for round in 0..200_u64 {
        clock.advance(Duration::from_micros(round * 1_234));
        let denial = app.send(grpc()).await;
        let status = tonic::Status::from_header_map(&denial.headers).expect("a status");
        let info = status.get_details_retry_info().expect("waiting helps");
        let wait = info.retry_delay.expect("it has one");
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        assert_eq!(denial.retry_after(), seconds, "{wait:?}");
        let message = format!("rate limit slow exceeded, retry in {seconds} seconds");
        assert_eq!(status.message(), message);
        let pushback = denial.headers["grpc-retry-pushback-ms"].to_str();
        let millis: u128 = pushback.expect("text").parse().expect("a number");
        assert_eq!(millis, wait.as_micros().div_ceil(1_000));

        let real = denial
            .rejection()
            .decision()
            .and_then(Decision::retry_after);
        let real = real.expect("waiting helps");
        assert!(
            real <= wait && wait <= real.mul_f64(1.3),
            "{real:?} {wait:?}"
        );
        shares.push(wait.div_duration_f64(real) - 1.0);
        clock.advance(wait);
        assert_eq!(app.send(grpc()).await.status, 200, "after {wait:?}");
    }
    assert!(shares.iter().any(|share| *share < 0.06), "{shares:?}");
    assert!(shares.iter().any(|share| *share > 0.24), "{shares:?}");
}

#[tokio::test]
async fn other_headers_are_the_same_as_without_jitter() {
    let headers = || {
        Headers::draft11()
            .with(Headers::discord())
            .with(Headers::draft06())
            .with(Headers::legacy().reset(ResetFormat::DeltaSeconds))
            .with(Headers::reason_with_policy())
    };
    let clock = stopped();
    let mut apps = [0.0, 0.3].map(|share| {
        let day = Policy::new("day", Quota::per_day(5)).key(Global);
        let builder = one_in_ten_seconds(&clock).policy(day).headers(headers());
        app(builder.retry_after_jitter(share))
    });
    for app in &mut apps {
        app.send(plain()).await;
    }
    let [plain_app, jittered] = &mut apps;
    let mut waits = Vec::new();
    for _ in 0..50 {
        let (mut expected, mut denial) =
            (plain_app.send(plain()).await, jittered.send(plain()).await);
        waits.push((expected.retry_after(), denial.retry_after()));
        for headers in [&mut expected.headers, &mut denial.headers] {
            headers.remove("retry-after");
        }
        assert!(expected.headers.contains_key("ratelimit"));
        assert_eq!(expected.headers, denial.headers);
    }
    assert!(
        waits
            .iter()
            .all(|(plain, jittered)| *plain == 10 && plain <= jittered),
        "{waits:?}"
    );
    assert!(
        waits.iter().any(|(plain, jittered)| plain < jittered),
        "{waits:?}"
    );
}

#[tokio::test]
async fn waits_are_exact_by_default() {
    let clock = stopped();
    for builder in [
        one_in_ten_seconds(&clock),
        one_in_ten_seconds(&clock).retry_after_jitter(0.0),
    ] {
        let mut app = app(builder);
        app.send(plain()).await;
        for _ in 0..100 {
            let denial = app.send(plain()).await;
            assert_eq!(denial.retry_after(), 10);
            assert!(denial.body.ends_with("\"retry_after\":10}"), "{denial:?}");
        }
    }
}

#[tokio::test]
async fn wait_for_a_slot_is_spread_from_a_second() {
    let slots = Policy::concurrency("slots", 1).key(Global);
    let builder = RateLimitLayer::builder().policy(slots).clock(stopped());
    let mut app = app(builder.retry_after_jitter(0.3));
    let held = app.respond(plain()).await;
    let mut waits: Vec<_> = Vec::new();
    for _ in 0..60 {
        waits.push(app.send(plain()).await.retry_after());
    }
    waits.sort_unstable();
    waits.dedup();
    assert_eq!(waits, [1, 2]);
    drop(held);
}

#[tokio::test]
async fn rejection_without_a_wait_gets_none() {
    let too_large = Policy::new("upload", Quota::per_minute(5))
        .key(Global)
        .cost_by(|_| 6);
    let keyless = Policy::new("tenant", Quota::per_minute(5)).key(Header::new("x-tenant"));
    for (rule, status) in [(too_large, 429), (keyless, 400)] {
        let builder = RateLimitLayer::builder().policy(rule);
        let denial = app(builder.retry_after_jitter(0.3)).send(plain()).await;
        assert_eq!(denial.status, status);
        assert!(!denial.headers.contains_key("retry-after"), "{denial:?}");
        assert_eq!(denial.rejection().retry_after_secs(), None);
    }
}

// === Requests ===

fn one_in_ten_seconds(clock: &Clock) -> RateLimitLayerBuilder {
    let quota = Quota::new(1, Duration::from_secs(10));
    let policy = Policy::new("slow", quota).key(Global);
    RateLimitLayer::builder()
        .policy(policy)
        .clock(clock.clone())
}

fn plain() -> Request<Body> {
    Request::default()
}

#[cfg(feature = "grpc")]
fn grpc() -> Request<Body> {
    let request = Request::post("/").header(CONTENT_TYPE, "application/grpc");
    request.body(Body::empty()).expect("it is well formed")
}

/// A limited service that admits with 200.
struct App<S>(S);

fn app(
    builder: RateLimitLayerBuilder,
) -> App<
    impl Service<
        Request<Body>,
        Response = Response<tollgate::middleware::ResponseBody<Body>>,
        Error = Infallible,
    >,
> {
    let layer = builder.build().expect("the settings are valid");
    App(layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    })))
}

impl<S> App<S>
where
    S: Service<
            Request<Body>,
            Response = Response<tollgate::middleware::ResponseBody<Body>>,
            Error = Infallible,
        >,
{
    async fn respond(&mut self, request: Request<Body>) -> S::Response {
        let ready = self.0.ready().await.expect("infallible");
        ready.call(request).await.expect("infallible")
    }

    /// Returns the response to a request, with the rejection of one that is denied.
    async fn send(&mut self, request: Request<Body>) -> Reply {
        let (mut head, body) = self.respond(request).await.into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await.expect("a body");
        Reply {
            status: head.status,
            headers: head.headers,
            rejection: head.extensions.remove::<Rejection>(),
            body: String::from_utf8(body.to_vec()).expect("text"),
        }
    }
}

#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    rejection: Option<Rejection>,
    body: String,
}

impl Reply {
    fn rejection(&self) -> &Rejection {
        self.rejection.as_ref().expect("it is denied")
    }

    fn retry_after(&self) -> u64 {
        let value = self.headers["retry-after"].to_str().expect("text");
        value.parse().expect("a number")
    }
}

fn stopped() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_250_000))
}
