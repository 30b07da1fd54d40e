//! Nanoseconds and allocations that a rate limit layer adds to a request.
//!
//! `cargo run --release --ignore-rust-version --bin layer -- [--rounds 9] [--seconds 0.3] [--only denied] [--before PATH]`
//!
//! Every layer wraps the same service, which does nothing, and counts in process by the peer's address. The address is
//! in the request's extensions, where axum puts it. Each call makes a request, runs it and drops the response.

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
    headers::Headers,
    middleware::RateLimit,
    rejection::RejectionFormat,
};
use tollgate_peers::{
    allocations::{self, Counting},
    arguments::Arguments,
    builds::{Entrant, add_ratio_to_before, entrants},
    rounds::{Contender, interleave, nanos_per_call},
    table::{Summary, Table},
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
    if let Some(words) = arguments.subcommand("run") {
        run(words.first().map_or("", String::as_str), &arguments);
    } else {
        compare(&arguments);
    }
}

/// Prints one sample: nanoseconds and allocations per request.
fn run(name: &str, arguments: &Arguments) {
    let row = rows().into_iter().find(|row| row.name == name);
    let row = row.unwrap_or_else(|| panic!("there is no row {name:?}"));
    let sample = (row.measure)(arguments.seconds("--seconds", 0.3));
    println!("{} {}", sample.nanos, sample.allocations);
}

fn compare(arguments: &Arguments) {
    let seconds = arguments.value("--seconds", 0.3).to_string();
    let rows = rows();
    let names = rows.iter().map(|row| row.name);
    let picked = names.filter(|name| *name == BARE || arguments.picks(name));
    let entrants = entrants(picked, arguments);
    let mut contenders: Vec<_> = entrants
        .iter()
        .map(|entrant| {
            let words = ["run", &entrant.name, "--seconds", &seconds];
            Contender::new(&entrant.label, move || {
                let [nanos, allocations] = entrant.sample(&words);
                Sample { nanos, allocations }
            })
        })
        .collect();
    let samples = interleave(&mut contenders, arguments.value("--rounds", 9));
    print(&entrants, &samples);
}

fn print(entrants: &[Entrant], samples: &[Vec<Sample>]) {
    let bare = &samples[0];
    let labels = entrants.iter().map(|entrant| entrant.label.clone());
    let mut table = Table::new("layer", labels);
    table.add_column(
        "ns a request, median (min..max)",
        samples
            .iter()
            .map(|samples| Summary::of(samples.iter().map(|sample| sample.nanos)).show(0)),
    );
    table.add_column(
        "ns over the bare service",
        samples
            .iter()
            .map(|samples| Summary::of_differences(samples, bare, |sample| sample.nanos).show(0)),
    );
    add_ratio_to_before(&mut table, entrants, samples, |sample| sample.nanos);
    table.add_column(
        "allocations over it",
        samples.iter().map(|samples| {
            let over = Summary::of_differences(samples, bare, |sample| sample.allocations);
            format!("{:+.1}", over.median)
        }),
    );
    table.print("layers over a service that does nothing");
}

// === Rows ===

/// Nanoseconds and allocations per request.
#[derive(Clone, Copy)]
struct Sample {
    nanos: f64,
    allocations: f64,
}

/// A layer over the service.
struct Row {
    name: &'static str,
    measure: Box<dyn Fn(Duration) -> Sample>,
}

/// A row whose responses, after the first, have this status. The service is made in the process that measures it.
fn row<S, B>(name: &'static str, status: u16, service: impl Fn() -> S + 'static) -> Row
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Sync,
{
    let measure = move |span| measure(name, status, service(), span);
    Row {
        name,
        measure: Box::new(measure),
    }
}

fn measure<S, B>(name: &str, status: u16, mut service: S, span: Duration) -> Sample
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Sync,
{
    // The first request creates the key; in the denied rows it is the one that passes.
    drop(call(&mut service));
    assert_eq!(call(&mut service).status(), status, "{name}");
    Sample {
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
    }
}

/// One request, from its making to its response.
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

fn rows() -> Vec<Row> {
    let mut rows = vec![row(BARE, 200, bare)];
    rows.extend(without_headers());
    rows.extend(with_headers());
    rows.extend(with_three_policies());
    rows.extend(denied());
    rows
}

fn without_headers() -> [Row; 4] {
    [
        row("tollgate: allowed, no headers", 200, || {
            tollgate(plenty().headers(Headers::none()))
        }),
        row("tollgate: allowed, decision not exposed", 200, || {
            tollgate(plenty().headers(Headers::none()).expose_decision(false))
        }),
        row("tower_governor: allowed, no headers", 200, || {
            GovernorLayer::new(governor(false)).layer(bare())
        }),
        row("tower-rate-limiter: allowed, no headers", 200, || {
            tower_rate_limiter(u64::MAX, RateLimitFields::Disabled)
        }),
    ]
}

fn with_headers() -> [Row; 7] {
    [
        row("tollgate: allowed, 3 headers", 200, || tollgate(plenty())),
        row("tower_governor: allowed, 2 headers", 200, || {
            GovernorLayer::new(governor_with_headers(false)).layer(bare())
        }),
        row("tower-rate-limiter: allowed, 2 headers", 200, || {
            tower_rate_limiter(u64::MAX, RateLimitFields::Draft11)
        }),
        row("tollgate: allowed, draft 11, 2 headers", 200, || {
            tollgate(plenty().headers(Headers::draft11()))
        }),
        row("tollgate: allowed, draft 6, 4 headers", 200, || {
            tollgate(plenty().headers(Headers::draft06()))
        }),
        row("tollgate: allowed, Discord, 5 headers", 200, || {
            tollgate(plenty().headers(Headers::discord()))
        }),
        row(
            "tollgate: allowed, draft 11 and legacy, 5 headers",
            200,
            || tollgate(plenty().headers(Headers::draft11().with(Headers::legacy()))),
        ),
    ]
}

fn with_three_policies() -> [Row; 3] {
    [
        row("tollgate: three policies, allowed, no headers", 200, || {
            tollgate(three_policies().headers(Headers::none()))
        }),
        row("tollgate: three policies, allowed, 3 headers", 200, || {
            tollgate(three_policies())
        }),
        row(
            "tollgate: three policies, allowed, draft 11, 2 headers",
            200,
            || tollgate(three_policies().headers(Headers::draft11())),
        ),
    ]
}

fn denied() -> [Row; 9] {
    [
        row(
            "tollgate: denied, JSON, 4 headers",
            429,
            || tollgate(once()),
        ),
        row(
            "tollgate: denied, custom empty body, no headers",
            429,
            || {
                let no_headers = Headers::none().retry_after(false);
                tollgate(once().headers(no_headers).on_rejection(|_: &_| {
                    let mut response = Response::new("");
                    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                    response
                }))
            },
        ),
        row("tollgate: denied, JSON, draft 11, 3 headers", 429, || {
            tollgate(once().headers(Headers::draft11()))
        }),
        row("tollgate: denied, text, 4 headers", 429, || {
            tollgate(once().on_rejection(RejectionFormat::text()))
        }),
        row("tollgate: denied, problem+json, 4 headers", 429, || {
            tollgate(once().on_rejection(RejectionFormat::problem_json()))
        }),
        row("tollgate: denied, JSON by Accept, 5 headers", 429, || {
            tollgate(once().on_rejection(RejectionFormat::negotiated()))
        }),
        row("tower_governor: denied, text, 2 headers", 429, || {
            GovernorLayer::new(governor(true)).layer(bare())
        }),
        row("tower_governor: denied, text, 4 headers", 429, || {
            GovernorLayer::new(governor_with_headers(true)).layer(bare())
        }),
        row(
            "tower-rate-limiter: denied, no body, 3 headers",
            429,
            || tower_rate_limiter(1, RateLimitFields::Draft11),
        ),
    ]
}

// === The bare service ===

type Bare = ServiceFn<fn(Request<Body>) -> BareFuture>;
type BareFuture = Ready<Result<Response<Body>, Infallible>>;

fn bare() -> Bare {
    service_fn(respond)
}

fn respond(request: Request<Body>) -> BareFuture {
    drop(black_box(request));
    ready(Ok(Response::new(Body::empty())))
}

// === tollgate ===

fn plenty() -> RateLimitLayerBuilder {
    RateLimitLayer::builder().policy(Policy::new("peer", PLENTY).key(PeerIp))
}

fn three_policies() -> RateLimitLayerBuilder {
    plenty()
        .policy(Policy::new("day", PLENTY).key(PeerIp))
        .policy(Policy::new("everybody", PLENTY).key(Global))
}

fn once() -> RateLimitLayerBuilder {
    RateLimitLayer::builder().policy(Policy::new("peer", Quota::per_day(1)).key(PeerIp))
}

fn tollgate(builder: RateLimitLayerBuilder) -> RateLimit<Bare> {
    let layer = builder.build().expect("the policies are valid");
    layer.layer(bare())
}

// === Peers ===

type Plain = governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>;
type WithHeaders = governor::middleware::StateInformationMiddleware;

fn governor(once: bool) -> GovernorConfig<PeerIpKeyExtractor, Plain> {
    let mut builder = GovernorConfigBuilder::default();
    set_quota(&mut builder, once);
    builder.finish().expect("the quota is valid")
}

fn governor_with_headers(once: bool) -> GovernorConfig<PeerIpKeyExtractor, WithHeaders> {
    let mut builder = GovernorConfigBuilder::default().use_headers();
    set_quota(&mut builder, once);
    builder.finish().expect("the quota is valid")
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

fn tower_rate_limiter(
    limit: u64,
    fields: RateLimitFields,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Sync {
    tower_rate_limiter::RateLimitLayer::builder(IpKeyExtractor::new())
        .limit(limit)
        .window(Duration::from_secs(86_400))
        .rate_limit_fields(fields)
        .with_store(MemoryStore::new())
        .build()
        .expect("the limit is valid")
        .layer(bare())
}

const BARE: &str = "bare service";
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);
const PLENTY: Quota = Quota::per_second(1_000_000).burst(1_000_000_000_000);
