//! Nanoseconds and allocations of each key extractor.
//!
//! `cargo run --release --ignore-rust-version --bin extract -- [--rounds 9] [--seconds 0.1] [--only cookie]`
//!
//! Each extractor reads the same request head, as sent by a browser behind a proxy: 12 headers, 3 cookies, 3 query
//! parameters, and the extensions that axum adds. Only the extractor runs in the loop.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    middleware::{Next, from_fn},
    routing::get,
};
use http::request::Parts;
use tollgate::{
    Key, RequestHead,
    extract::{
        ApiKey, Claim, ClientIp, Cookie, ExtensionKey, Global, Header, HostHeader, KeyExtractor,
        PathParam, PeerIp, QueryParam, Route,
    },
};
use tollgate_peers::{
    allocations::{self, Counting},
    arguments::Arguments,
    rounds::{Contender, interleave, nanos_per_call},
    table::{self, Summary},
};
use tower::ServiceExt;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let arguments = Arguments::of_process();
    let span = arguments.seconds("--seconds", 0.1);
    let mut contenders = contenders(span);
    contenders.retain(|contender| arguments.picks(&contender.name));
    let samples = interleave(&mut contenders, arguments.value("--rounds", 9));
    print(&contenders, &samples);
}

/// Nanoseconds and allocations per request.
#[derive(Clone, Copy)]
struct Sample {
    nanos: f64,
    allocations: f64,
}

/// A row per extractor, and more for inputs that make it slower.
fn contenders(span: Duration) -> Vec<Contender<'static, Sample>> {
    let plain = head(
        "/orgs/acme/users/42?page=3&tenant=acme&sort=name",
        "session=1b2e7f",
    );
    let encoded = head(
        "/orgs/ac%6De/users/%34%32?page=3&tenant=ac%6De&sort=name",
        "session=%31b2e7f",
    );
    let long = head(
        &format!("/orgs/acme/users/{LONG}?page=3&tenant={LONG}&sort=name"),
        &format!("session={LONG}"),
    );
    let ipv6 = |mut parts: Parts| {
        let address = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6));
        parts
            .extensions
            .insert(ConnectInfo(SocketAddr::new(address, 40_000)));
        parts
    };
    let by_hand = |head: &RequestHead| head.headers.get("x-tenant").map(Key::new);
    let row = |name: &str, parts: &Parts, extractor: Box<dyn KeyExtractor>| {
        contender(name, span, parts.clone(), extractor)
    };
    vec![
        row("Global", &plain, Box::new(Global)),
        row("PeerIp, IPv4", &plain, Box::new(PeerIp)),
        row("PeerIp, IPv6", &ipv6(plain.clone()), Box::new(PeerIp)),
        row(
            "ClientIp, IPv4, no proxy",
            &plain,
            Box::new(ClientIp::peer()),
        ),
        row(
            "ClientIp, IPv6, no proxy",
            &ipv6(plain.clone()),
            Box::new(ClientIp::peer()),
        ),
        row(
            "ClientIp, X-Forwarded-For past 2 networks",
            &plain,
            Box::new(ClientIp::behind(["192.0.2.0/24", "203.0.113.0/24"]).forwarded_for()),
        ),
        row(
            "ClientIp, X-Forwarded-For past 2 hops",
            &plain,
            Box::new(ClientIp::behind_hops(2).forwarded_for()),
        ),
        row("Header", &plain, Box::new(Header::new("x-tenant"))),
        row("closure on a header", &plain, Box::new(by_hand)),
        row(
            "ApiKey, header",
            &plain,
            Box::new(ApiKey::header("x-api-key")),
        ),
        row("ApiKey, bearer", &plain, Box::new(ApiKey::bearer())),
        row("ApiKey, query", &plain, Box::new(ApiKey::query("tenant"))),
        row("Cookie", &plain, Box::new(Cookie::new("session"))),
        row(
            "Cookie, encoded",
            &encoded,
            Box::new(Cookie::new("session")),
        ),
        row("Cookie, 400 bytes", &long, Box::new(Cookie::new("session"))),
        row(
            "Cookie, in clear",
            &plain,
            Box::new(Cookie::new("session").plaintext()),
        ),
        row("Query", &plain, Box::new(QueryParam::new("tenant"))),
        row(
            "Query, encoded",
            &encoded,
            Box::new(QueryParam::new("tenant")),
        ),
        row(
            "Query, 400 bytes",
            &long,
            Box::new(QueryParam::new("tenant")),
        ),
        row("Host", &plain, Box::new(HostHeader)),
        row("PathParam", &plain, Box::new(PathParam::new("user"))),
        row(
            "PathParam, encoded",
            &encoded,
            Box::new(PathParam::new("user")),
        ),
        row(
            "PathParam, 400 bytes",
            &long,
            Box::new(PathParam::new("user")),
        ),
        row("Route", &plain, Box::new(Route)),
        row(
            "Route, or unmatched",
            &plain,
            Box::new(Route.or_unmatched()),
        ),
        row(
            "Extension",
            &plain,
            Box::new(ExtensionKey::new(|user: &User| Key::from(user.id))),
        ),
        row(
            "Claim",
            &plain,
            Box::new(Claim::new("sub", |user: &User| Key::new(&user.name))),
        ),
        row(
            "Claim, hashed by map",
            &plain,
            Box::new(
                Claim::new("sub", |user: &User| Key::new(&user.name))
                    .map(|key| Key::secret(key.as_bytes())),
            ),
        ),
        row(
            "Header and PeerIp",
            &plain,
            Box::new(Header::new("x-tenant").and(PeerIp)),
        ),
        row(
            "Header or else PeerIp, first",
            &plain,
            Box::new(Header::new("x-tenant").or_else(PeerIp)),
        ),
        row(
            "Header or else PeerIp, second",
            &plain,
            Box::new(Header::new("x-none").or_else(PeerIp)),
        ),
        row(
            "three or else, last",
            &plain,
            Box::new(
                ApiKey::header("x-none")
                    .or_else(Cookie::new("none"))
                    .or_else(PeerIp),
            ),
        ),
        row(
            "three or else, middle",
            &plain,
            Box::new(
                ApiKey::header("x-none")
                    .or_else(Header::new("x-tenant"))
                    .or_else(PeerIp),
            ),
        ),
    ]
}

#[derive(Clone)]
struct User {
    id: u64,
    name: String,
}

/// A request head as a layer in a nested router sees it.
fn head(uri: &str, session: &str) -> Parts {
    let (sender, receiver) = std::sync::mpsc::channel();
    let keep = from_fn(move |request: Request, next: Next| {
        let (parts, body) = request.into_parts();
        sender.send(parts.clone()).expect("the receiver is there");
        next.run(Request::from_parts(parts, body))
    });
    let users = Router::new()
        .route("/users/{user}", get(|| async {}))
        .layer(keep);
    let app = Router::new().nest("/orgs/{org}", users);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let response = runtime.block_on(app.oneshot(request(uri, session)));
    assert_eq!(response.expect("infallible").status(), 200);
    receiver.recv().expect("the layer was passed")
}

fn request(uri: &str, session: &str) -> Request {
    let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);
    let user = User {
        id: 42,
        name: "ada@example.org".into(),
    };
    Request::get(uri)
        .header("host", "api.example.com:8443")
        .header(
            "user-agent",
            "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
        )
        .header("accept", "application/json, text/plain, */*")
        .header("accept-language", "en-US,en;q=0.5")
        .header("accept-encoding", "gzip, deflate, br, zstd")
        .header("referer", "https://example.com/orgs/acme")
        .header("cookie", format!("theme=dark; {session}; language=cs"))
        .header("x-forwarded-for", "198.51.100.7, 203.0.113.9")
        .header("x-forwarded-proto", "https")
        .header("x-tenant", "acme")
        .header("x-api-key", "sk-live-0123456789abcdef")
        .header("authorization", "Bearer 0123456789abcdef0123456789abcdef")
        .extension(ConnectInfo(peer))
        .extension(user)
        .body(Body::empty())
        .expect("it is well formed")
}

fn contender(
    name: &str,
    span: Duration,
    parts: Parts,
    extractor: Box<dyn KeyExtractor>,
) -> Contender<'static, Sample> {
    assert!(
        extractor
            .extract(&RequestHead::from(&parts))
            .found()
            .is_some(),
        "{name}"
    );
    Contender::new(name, move || Sample {
        nanos: nanos_per_call(1, span, |_| {
            || {
                let _ = black_box(extractor.extract(black_box(&RequestHead::from(&parts))));
            }
        }),
        allocations: {
            let before = allocations::count();
            for _ in 0..1_000 {
                let _ = black_box(extractor.extract(black_box(&RequestHead::from(&parts))));
            }
            (allocations::count() - before) as f64 / 1_000.0
        },
    })
}

fn print(contenders: &[Contender<'_, Sample>], samples: &[Vec<Sample>]) {
    let summary = |samples: &[Sample], of: fn(&Sample) -> f64| Summary::of(samples.iter().map(of));
    let rows: Vec<Vec<String>> = contenders
        .iter()
        .zip(samples)
        .map(|(contender, samples)| {
            vec![
                contender.name.clone(),
                summary(samples, |sample| sample.nanos).show(0),
                format!(
                    "{:.1}",
                    summary(samples, |sample| sample.allocations).median
                ),
            ]
        })
        .collect();
    let columns = [
        "extractor",
        "ns a request, median (min..max)",
        "allocations",
    ];
    table::print("extractors on one request head", &columns, &rows);
}

/// Too long to be stored in a key verbatim, so it is hashed.
const LONG: &str = match std::str::from_utf8(&[b'a'; 400]) {
    Ok(text) => text,
    Err(_) => unreachable!(),
};
