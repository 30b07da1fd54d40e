//! What does a rate limit layer add to a request, beside other layers?
//!
//! `cargo run --release --ignore-rust-version --bin layer -- [--rounds 9] [--seconds 0.3] [--only denied]`
//!
//! Every layer is put before the same service, which does nothing, and counts by the peer's address, which is in the
//! request's extensions as axum puts it there. The store is in process. A request is made, answered and dropped.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hint::black_box,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{body::Body, extract::ConnectInfo};
use http::{Request, Response, StatusCode};
use tollgate::{
    Policy, Quota, RateLimitLayer,
    builder::RateLimitLayerBuilder,
    extract::{Global, PeerIp},
    middleware::{Denial, Headers},
};
use tollgate_peers::{
    allocations::{self, Counting},
    arguments::Arguments,
    rounds::{Contender, interleave, nanos_per_call},
    table::{self, Summary},
};
use tower::{Layer, Service, service_fn, util::ServiceFn};
use tower_governor::{
    GovernorLayer,
    governor::{GovernorConfig, GovernorConfigBuilder},
    key_extractor::PeerIpKeyExtractor,
};
use tower_rate_limiter::{IpKeyExtractor, MemoryStore, RateLimitFields};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let arguments = Arguments::of_process();
    let span = arguments.seconds("--seconds", 0.3);
    let mut contenders = contenders(span);
    contenders.retain(|contender| contender.name == BARE || arguments.picks(&contender.name));
    let samples = interleave(&mut contenders, arguments.value("--rounds", 9));
    print(&contenders, &samples);
}

/// Nanoseconds and allocations per request.
#[derive(Clone, Copy)]
struct Sample {
    nanos: f64,
    allocations: f64,
}

fn contenders(span: Duration) -> Vec<Contender<'static, Sample>> {
    let ours = |builder: RateLimitLayerBuilder| {
        builder
            .build()
            .expect("the policies are usable")
            .layer(inner())
    };
    let plenty = || Policy::new("peer", PLENTY).key(PeerIp);
    let three = || {
        RateLimitLayer::builder()
            .policy(plenty())
            .policy(Policy::new("day", PLENTY).key(PeerIp))
            .policy(Policy::new("everybody", PLENTY).key(Global))
    };
    let once = || Policy::new("peer", Quota::per_day(1)).key(PeerIp);
    let told = |headers: Headers| RateLimitLayer::builder().policy(plenty()).headers(headers);
    let answered = |denial: Denial| {
        ours(
            RateLimitLayer::builder()
                .policy(once())
                .on_rejection(denial),
        )
    };
    let theirs = |limit, fields| {
        tower_rate_limiter::RateLimitLayer::builder(IpKeyExtractor::new())
            .limit(limit)
            .window(Duration::from_secs(86_400))
            .rate_limit_fields(fields)
            .with_store(MemoryStore::new())
            .build()
            .expect("a usable policy")
            .layer(inner())
    };
    vec![
        contender(BARE, span, inner(), 200),
        contender(
            "tollgate: allowed, no headers",
            span,
            ours(
                RateLimitLayer::builder()
                    .policy(plenty())
                    .headers(Headers::none()),
            ),
            200,
        ),
        contender(
            "tower_governor: allowed, no headers",
            span,
            GovernorLayer::new(governor(false)).layer(inner()),
            200,
        ),
        contender(
            "tower-rate-limiter: allowed, no headers",
            span,
            theirs(u64::MAX, RateLimitFields::Disabled),
            200,
        ),
        contender(
            "tollgate: allowed, 3 headers",
            span,
            ours(RateLimitLayer::builder().policy(plenty())),
            200,
        ),
        contender(
            "tower_governor: allowed, 2 headers",
            span,
            GovernorLayer::new(governor_with_headers(false)).layer(inner()),
            200,
        ),
        contender(
            "tower-rate-limiter: allowed, 2 headers",
            span,
            theirs(u64::MAX, RateLimitFields::Draft11),
            200,
        ),
        contender(
            "tollgate: allowed, draft 11, 2 headers",
            span,
            ours(told(Headers::draft11())),
            200,
        ),
        contender(
            "tollgate: allowed, draft 6, 4 headers",
            span,
            ours(told(Headers::draft06())),
            200,
        ),
        contender(
            "tollgate: allowed, Discord's, 5 headers",
            span,
            ours(told(Headers::discord().into())),
            200,
        ),
        contender(
            "tollgate: allowed, draft 11 and legacy, 5 headers",
            span,
            ours(told(Headers::draft11().and(Headers::legacy()))),
            200,
        ),
        contender(
            "tollgate: three policies, allowed, no headers",
            span,
            ours(three().headers(Headers::none())),
            200,
        ),
        contender(
            "tollgate: three policies, allowed, 3 headers",
            span,
            ours(three()),
            200,
        ),
        contender(
            "tollgate: three policies, allowed, draft 11, 2 headers",
            span,
            ours(three().headers(Headers::draft11())),
            200,
        ),
        contender(
            "tollgate: denied, JSON, 4 headers",
            span,
            ours(RateLimitLayer::builder().policy(once())),
            429,
        ),
        contender(
            "tollgate: denied, empty body of one's own, no headers",
            span,
            ours(
                RateLimitLayer::builder()
                    .policy(once())
                    .headers(Headers::none().retry_after(false))
                    .on_rejection(|_: &_| {
                        let mut response = Response::new("");
                        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                        response
                    }),
            ),
            429,
        ),
        contender(
            "tollgate: denied, JSON, draft 11, 3 headers",
            span,
            ours(
                RateLimitLayer::builder()
                    .policy(once())
                    .headers(Headers::draft11()),
            ),
            429,
        ),
        contender(
            "tollgate: denied, text, 4 headers",
            span,
            answered(Denial::text()),
            429,
        ),
        contender(
            "tollgate: denied, problem+json, 4 headers",
            span,
            answered(Denial::problem_json()),
            429,
        ),
        contender(
            "tollgate: denied, JSON by Accept, 5 headers",
            span,
            answered(Denial::negotiated()),
            429,
        ),
        contender(
            "tower_governor: denied, text, 2 headers",
            span,
            GovernorLayer::new(governor(true)).layer(inner()),
            429,
        ),
        contender(
            "tower_governor: denied, text, 4 headers",
            span,
            GovernorLayer::new(governor_with_headers(true)).layer(inner()),
            429,
        ),
        contender(
            "tower-rate-limiter: denied, no body, 3 headers",
            span,
            theirs(1, RateLimitFields::Draft11),
            429,
        ),
    ]
}

type Plain = governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>;
type WithHeaders = governor::middleware::StateInformationMiddleware;

fn governor(once: bool) -> GovernorConfig<PeerIpKeyExtractor, Plain> {
    let mut builder = GovernorConfigBuilder::default();
    set_quota(&mut builder, once);
    builder.finish().expect("a usable quota")
}

fn governor_with_headers(once: bool) -> GovernorConfig<PeerIpKeyExtractor, WithHeaders> {
    let mut builder = GovernorConfigBuilder::default().use_headers();
    set_quota(&mut builder, once);
    builder.finish().expect("a usable quota")
}

fn set_quota<M>(builder: &mut GovernorConfigBuilder<PeerIpKeyExtractor, M>, once: bool)
where
    M: governor::middleware::RateLimitingMiddleware<governor::clock::QuantaInstant>,
{
    if once {
        builder.period(Duration::from_secs(86_400)).burst_size(1);
    } else {
        builder
            .period(Duration::from_micros(1))
            .burst_size(u32::MAX);
    }
}

type Inner = ServiceFn<fn(Request<Body>) -> Answer>;
type Answer = Ready<Result<Response<Body>, Infallible>>;

fn inner() -> Inner {
    service_fn(answer)
}

fn answer(request: Request<Body>) -> Answer {
    drop(black_box(request));
    ready(Ok(Response::new(Body::empty())))
}

fn contender<S, B>(
    name: &str,
    span: Duration,
    mut service: S,
    status: u16,
) -> Contender<'static, Sample>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Send + Clone + 'static,
    S: Sync,
{
    // The first request makes the key, and in the denied rows it is the one that passes.
    drop(call(&mut service));
    assert_eq!(call(&mut service).status(), status, "{name}");
    Contender::new(name, move || Sample {
        nanos: nanos_per_call(1, span, |_| {
            let mut service = service.clone();
            move || drop(black_box(call(&mut service)))
        }),
        allocations: {
            let before = allocations::count();
            for _ in 0..1_000 {
                drop(black_box(call(&mut service)));
            }
            (allocations::count() - before) as f64 / 1_000.0
        },
    })
}

/// One request from making it to its answer.
fn call<S: Service<Request<Body>, Error = Infallible>>(service: &mut S) -> S::Response {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(PEER));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(service.poll_ready(context).is_ready(), "always ready");
    match pin!(service.call(request)).poll(context) {
        Poll::Ready(Ok(response)) => response,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

fn print(contenders: &[Contender<'_, Sample>], samples: &[Vec<Sample>]) {
    let nanos: Vec<Summary> = samples
        .iter()
        .map(|samples| Summary::of(samples.iter().map(|sample| sample.nanos)))
        .collect();
    let allocations: Vec<f64> = samples
        .iter()
        .map(|samples| Summary::of(samples.iter().map(|sample| sample.allocations)).median)
        .collect();
    let rows: Vec<Vec<String>> = contenders
        .iter()
        .enumerate()
        .map(|(index, contender)| {
            vec![
                contender.name.clone(),
                nanos[index].show(0),
                format!("{:+.0}", nanos[index].median - nanos[0].median),
                format!("{:+.1}", allocations[index] - allocations[0]),
            ]
        })
        .collect();
    let columns = [
        "layer",
        "ns a request, median (min..max)",
        "over the bare service",
        "allocations over it",
    ];
    table::print("layers over a service that does nothing", &columns, &rows);
}

const BARE: &str = "bare service";
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);
const PLENTY: Quota = Quota::per_second(1_000_000).burst(1_000_000_000_000);
