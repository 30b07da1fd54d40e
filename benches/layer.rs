//! What does the layer add to a request?
//!
//! `cargo bench --bench layer`. The inner service does nothing and the store is in process; each iteration makes a
//! request with a peer address, as a server would. The first row is the service alone: subtract it from the others.
//! Allocations are counted in `benches/peers`, whose lints allow an allocator. Calls that go out need a runtime, so they have a
//! group of their own, with the feature `client`.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{body::Body, extract::ConnectInfo};
use criterion::{Criterion, criterion_group, criterion_main};
use http::{Method, Request, Response};
use ipnet::{IpNet, Ipv4Net};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RequestHead,
    extract::{Global, KeyExtractor, PeerIp},
    headers::Headers,
    matching::{AddressList, Methods, PathPattern},
    rejection::RejectionFormat,
    tiers::{Tier, TierCache},
};
use tower::{Layer, Service, service_fn};

#[cfg(not(feature = "client"))]
criterion_group!(benches, layer);
#[cfg(feature = "client")]
criterion_group!(benches, layer, outgoing);
criterion_main!(benches);

fn layer(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("layer");
    let inner = service_fn(answer);

    let mut bare = inner;
    group.bench_function("bare service", |bencher| {
        bencher.iter(|| call(&mut bare));
    });

    let plenty = || Policy::new("peer", PLENTY).key(PeerIp);
    let tier = Tier::new("tier", PLENTY).expect("a usable tier");
    let found = tier.clone();
    let cache = TierCache::builder(move |_: &RequestHead, _: &Key| {
        ready(Ok::<_, Infallible>(Some(found.clone())))
    })
    .ttl(Duration::from_secs(86_400))
    .build()
    .expect("a usable cache");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let cases = [
        (
            "allowed, no headers",
            RateLimitLayer::builder()
                .policy(plenty())
                .headers(Headers::none()),
        ),
        (
            "allowed, headers",
            RateLimitLayer::builder().policy(plenty()),
        ),
        (
            "allowed, headers, three policies",
            RateLimitLayer::builder()
                .policy(plenty())
                .policy(Policy::new("day", PLENTY).key(PeerIp))
                .policy(Policy::new("everybody", PLENTY).key(Global)),
        ),
        (
            "allowed, draft 11",
            RateLimitLayer::builder()
                .policy(plenty())
                .headers(Headers::draft11()),
        ),
        (
            "allowed, draft 6",
            RateLimitLayer::builder()
                .policy(plenty())
                .headers(Headers::draft06()),
        ),
        (
            "allowed, Discord's headers",
            RateLimitLayer::builder()
                .policy(plenty())
                .headers(Headers::discord()),
        ),
        (
            "allowed, draft 11, three policies",
            RateLimitLayer::builder()
                .policy(plenty())
                .policy(Policy::new("day", PLENTY).key(PeerIp))
                .policy(Policy::new("everybody", PLENTY).key(Global))
                .headers(Headers::draft11()),
        ),
        (
            "denied, problem+json",
            RateLimitLayer::builder()
                .policy(Policy::new("peer", Quota::per_day(1)).key(PeerIp))
                .on_rejection(RejectionFormat::problem_json()),
        ),
        (
            "allowed, five matchers on method and path",
            RateLimitLayer::builder()
                .skip(PathPattern::new("/health"))
                .forbid(PathPattern::prefix("/internal"))
                .policy(
                    plenty()
                        .when(PathPattern::prefix("/"))
                        .unless(PathPattern::new("/static/{*rest}"))
                        .cost_when(Methods::new([Method::POST]), 5),
                ),
        ),
        (
            "allowed, not on a deny list of 10,000 networks",
            RateLimitLayer::builder()
                .forbid(AddressList::new(PeerIp, networks()))
                .policy(plenty()),
        ),
        (
            "allowed, under a tier",
            RateLimitLayer::builder()
                .policy(plenty().tier_by(move |_: &RequestHead, _: &Key| Some(tier.clone()))),
        ),
        (
            "allowed, under a tier that was looked up",
            RateLimitLayer::builder().policy(plenty().tier_cache(cache)),
        ),
        (
            "allowed, key awaited and there at once",
            RateLimitLayer::builder().policy(
                Policy::new("peer", PLENTY).key_async(|head: &RequestHead| {
                    ready(Ok::<_, Infallible>(PeerIp.extract(head)))
                }),
            ),
        ),
        (
            "passed over by the only rule",
            RateLimitLayer::builder().policy(plenty().when(PathPattern::new("/login"))),
        ),
        (
            "denied",
            RateLimitLayer::builder().policy(Policy::new("peer", Quota::per_day(1)).key(PeerIp)),
        ),
    ];
    for (name, builder) in cases {
        let layer = builder.build().expect("the policies are usable");
        let mut service = layer.layer(inner);
        warm(&runtime, &mut service);
        group.bench_function(name, |bencher| {
            bencher.iter(|| call(&mut service));
        });
    }
    #[cfg(feature = "reload")]
    {
        let mut service = replaceable().layer(inner);
        warm(&runtime, &mut service);
        group.bench_function("allowed, headers, rules that can be replaced", |bencher| {
            bencher.iter(|| call(&mut service));
        });
    }
    group.finish();
}

/// Calls that need not wait for their turn.
#[cfg(feature = "client")]
fn outgoing(criterion: &mut Criterion) {
    use tollgate::{RateLimiter, client::OutgoingLayer, extract::HostHeader};

    let mut group = criterion.benchmark_group("outgoing");
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let limiter = RateLimiter::builder().build().expect("a usable limiter");
    let rate = || Policy::new("rate", PLENTY).outgoing_key(HostHeader);
    let slots = Policy::concurrency("slots", 100).outgoing_key(HostHeader);
    let one = OutgoingLayer::builder(&limiter).policy(rate());
    let both = OutgoingLayer::builder(&limiter)
        .policy(rate())
        .policy(slots);
    let [one, both] = [one, both].map(|layer| layer.build().expect("a usable layer"));
    let call = || {
        let mut request = request();
        *request.uri_mut() = http::Uri::from_static("http://api.example.com/");
        request
    };
    let inner = service_fn(answer);
    let (one, both) = (one.layer(inner), both.layer(inner));
    macro_rules! row {
        ($name:literal, $service:expr) => {
            let once = || drop(black_box(runtime.block_on($service.clone().call(call()))));
            group.bench_function($name, |bencher| bencher.iter(once));
        };
    }
    row!("bare service", inner);
    row!("a rate", one);
    row!("a rate and slots", both);
    group.finish();
}

/// A layer whose rules are read anew for each request.
#[cfg(feature = "reload")]
fn replaceable() -> RateLimitLayer {
    use tollgate::config::{Format, RuleSet, reload::RuleSource};

    let rules = "rules: [{ id: peer, key: peer_ip, limit: 1000000/s, burst: 1000000000000 }]";
    let rules = RuleSet::parse(Format::Yaml, rules).expect("rules without a fault");
    let built = RateLimitLayer::builder().build_reloading(RuleSource::in_process(rules));
    built.expect("the rules fit").0
}

/// The first request, which may have to wait for what is looked up.
fn warm<S>(runtime: &tokio::runtime::Runtime, service: &mut S)
where
    S: Service<Request<Body>, Error = Infallible>,
{
    let answer = runtime.block_on(service.call(request()));
    drop(answer.expect("it answers"));
}

/// So many networks that none of them is the peer's.
fn networks() -> impl Iterator<Item = IpNet> {
    let network = |number: u32| Ipv4Net::new_assert((0x0A00_0000 | number << 8).into(), 25).into();
    (0..10_000).map(network)
}

fn answer(request: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    drop(black_box(request));
    ready(Ok(Response::new(Body::empty())))
}

/// One request from making it to its answer.
fn call<S>(service: &mut S) -> S::Response
where
    S: Service<Request<Body>, Error = Infallible>,
{
    let context = &mut Context::from_waker(Waker::noop());
    assert!(service.poll_ready(context).is_ready(), "always ready");
    match pin!(service.call(request())).poll(context) {
        Poll::Ready(Ok(response)) => response,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

fn request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(PEER));
    request
}

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);
/// More than any bench can use up.
const PLENTY: Quota = Quota::per_second(1_000_000).burst(1_000_000_000_000);
