//! Ways out of a bucket, as clients send them over a socket: a key that is there twice, that contradicts itself, or that
//! is written in another way.

use std::{future::IntoFuture, net::SocketAddr};

use axum::{Router, routing::get};
use http::{Request, Version};
use hyper::{client, server};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer,
    clock::{Clock, Timestamp},
    extract::{
        ApiKey, ClientIp, Cookie, Header, HostHeader, KeyExtractor, PathParam, PeerIp, QueryParam,
        SingleHeader,
    },
    rules::{OnMissingKey, Rule},
    tiers::{Tier, TierTable},
};

use crate::support::Client;

/// What a client does to get out of its bucket: heads of requests, without the empty line at their end.
struct Attack {
    name: &'static str,
    rule: Rule,
    /// What the client sends as it should, three times, before it attacks.
    honest: Option<&'static str>,
    /// Its attack, by number: it may make up another value each time.
    head: fn(usize) -> String,
    /// How many of the 100 the layer answers with 400.
    rejected: usize,
}

// Reproducer: each of these was a way out of the bucket, out of a forbidden tier, or into somebody else's bucket.
#[tokio::test]
async fn repeated_key_does_not_leave_its_bucket() {
    println!("| attack, 100 times at a quota of 3 | served | 400 | others |");
    println!("|---|---|---|---|");
    let mut wrong = Vec::new();
    for attack in attacks() {
        let Attack { name, rejected, .. } = attack;
        let (served, bad, others) = run(attack).await;
        println!("| {name} | {served} | {bad} | {others} |");
        if (served, bad) != (0, rejected) {
            wrong.push(format!(
                "{name}: {served} served, {bad} of {rejected} rejected"
            ));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

async fn run(attack: Attack) -> (usize, usize, usize) {
    let server = serve(app(attack.rule)).await;
    let mut client = Client::connect(server).await;
    for _ in 0..3 {
        if let Some(honest) = attack.honest {
            client.send(&format!("{honest}\r\n\r\n")).await;
            client.receive().await;
        }
    }
    let (mut served, mut bad, mut others) = (0, 0, 0);
    for number in 0..100 {
        client
            .send(&format!("{}\r\n\r\n", (attack.head)(number)))
            .await;
        match client.receive().await.status {
            200 => served += 1,
            400 => bad += 1,
            _ => others += 1,
        }
    }
    (served, bad, others)
}

fn attacks() -> Vec<Attack> {
    const GOOD: &str = "GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer good";
    let attack = |name, rule, honest, head| Attack {
        name,
        rule,
        honest,
        head,
        rejected: 100,
    };
    let skip = |rule: Rule| rule.on_missing_key(OnMissingKey::Skip);
    let bearer = || policy().key(ApiKey::bearer());
    let forbidden = || TierTable::new([(Key::secret("good"), Tier::forbidden())]);
    let single = || ClientIp::behind(["127.0.0.0/8"]).header(SingleHeader::CfConnectingIp);
    let mut attacks = vec![
        attack(
            "second, empty Authorization, key skipped when missing",
            skip(bearer()),
            None,
            |_| format!("{GOOD}\r\nauthorization:"),
        ),
        attack(
            "the same with an exhausted key",
            skip(bearer()),
            Some(GOOD),
            |_| format!("{GOOD}\r\nauthorization:"),
        ),
        attack(
            "the same, keys shared when missing",
            bearer().on_missing_key(OnMissingKey::Share),
            Some(GOOD),
            |_| format!("{GOOD}\r\nauthorization:"),
        ),
        attack(
            "the same, by address when missing",
            policy().key(ApiKey::bearer().or_else(PeerIp)),
            Some(GOOD),
            |_| format!("{GOOD}\r\nauthorization:"),
        ),
        attack(
            "forbidden tier and a second, empty Authorization",
            skip(bearer().tier_by(forbidden())),
            Some(GOOD),
            |_| format!("{GOOD}\r\nauthorization:"),
        ),
        attack(
            "forbidden tier and a second scheme, by address when missing",
            policy()
                .key(ApiKey::bearer().or_else(PeerIp))
                .tier_by(forbidden()),
            Some(GOOD),
            |_| format!("{GOOD}\r\nauthorization: Basic eA=="),
        ),
        attack(
            "Authorization in another case",
            skip(bearer()),
            Some(GOOD),
            |_| format!("{GOOD}\r\nAUTHORIZATION: bearer good"),
        ),
        attack(
            "made-up token beside the right one",
            skip(bearer()),
            Some(GOOD),
            |number| format!("{GOOD}\r\nauthorization: Bearer {number}"),
        ),
        attack(
            "X-API-Key twice",
            skip(policy().key(ApiKey::header("x-api-key"))),
            None,
            |_| "GET / HTTP/1.1\r\nhost: a\r\nx-api-key: good\r\nx-api-key: good".to_owned(),
        ),
        attack(
            "tenant header twice, beside the address",
            skip(policy().key(Header::new("x-tenant").and(PeerIp))),
            None,
            |number| format!("GET / HTTP/1.1\r\nhost: a\r\nx-tenant: a\r\nx-tenant: {number}"),
        ),
        attack(
            "two cookies of the name in one line",
            skip(policy().key(Cookie::new("sid"))),
            None,
            |number| format!("GET / HTTP/1.1\r\nhost: a\r\ncookie: sid=good; sid={number}"),
        ),
        attack(
            "two cookies in two lines, one encoded",
            skip(policy().key(Cookie::new("sid"))),
            None,
            |_| "GET / HTTP/1.1\r\nhost: a\r\ncookie: sid=good\r\ncookie: %73id=".to_owned(),
        ),
        attack(
            "query parameter twice",
            skip(policy().key(QueryParam::new("key"))),
            None,
            |number| format!("GET /?key=good&key={number} HTTP/1.1\r\nhost: a"),
        ),
        attack(
            "API key in the query twice, one encoded",
            skip(policy().key(ApiKey::query("key"))),
            None,
            |_| "GET /?key=good&%6Bey HTTP/1.1\r\nhost: a".to_owned(),
        ),
        attack(
            "address of a CDN twice",
            policy().key(single()),
            Some("GET / HTTP/1.1\r\nhost: a\r\ncf-connecting-ip: 203.0.113.9"),
            |_| {
                "GET / HTTP/1.1\r\nhost: a\r\ncf-connecting-ip: 203.0.113.9\r\ncf-connecting-ip: 203.0.113.9".to_owned()
            },
        ),
        attack("Host twice", skip(policy().key(HostHeader)), None, |_| {
            "GET / HTTP/1.1\r\nhost: a.example\r\nhost: a.example".to_owned()
        }),
        attack(
            "made-up authority before the right Host",
            policy().key(HostHeader),
            Some("GET / HTTP/1.1\r\nhost: a.example"),
            |number| format!("GET http://{number}.example/ HTTP/1.1\r\nhost: a.example"),
        ),
        attack(
            "right authority before a made-up Host",
            policy().key(HostHeader),
            Some("GET / HTTP/1.1\r\nhost: a.example"),
            |number| format!("GET http://a.example/ HTTP/1.1\r\nhost: {number}.example"),
        ),
        // written in another way
        attack(
            "something behind the token",
            bearer(),
            Some(GOOD),
            |number| format!("{GOOD} {number}"),
        ),
        attack(
            "lines joined by a comma",
            skip(bearer()),
            Some(GOOD),
            |number| format!("{GOOD},Bearer {number}"),
        ),
        attack(
            "another scheme before a comma",
            skip(bearer()),
            Some(GOOD),
            |_| "GET / HTTP/1.1\r\nhost: a\r\nauthorization: Basic eA==, Bearer good".to_owned(),
        ),
        attack(
            "addresses of a CDN joined by a comma",
            policy().key(single()),
            None,
            |number| {
                format!(
                    "GET / HTTP/1.1\r\nhost: a\r\ncf-connecting-ip: 203.0.113.9, 198.51.100.{number}"
                )
            },
        ),
        attack(
            "Host with a port that is not one",
            skip(policy().key(HostHeader)),
            None,
            |number| format!("GET / HTTP/1.1\r\nhost: a.example:{number}x"),
        ),
        attack(
            "Host with a user",
            skip(policy().key(HostHeader)),
            None,
            |number| format!("GET / HTTP/1.1\r\nhost: {number}@a.example"),
        ),
    ];
    // these are the same key, so they are over its limit
    let same = |name, rule, honest, head| Attack {
        rejected: 0,
        ..attack(name, rule, honest, head)
    };
    attacks.extend([
        same(
            "tabs and spaces around the token",
            skip(bearer()),
            Some(GOOD),
            |number| {
                let space = " \t".repeat(number % 9);
                format!(
                    "GET / HTTP/1.1\r\nhost: a\r\nauthorization:{space}bEARER\t{space}good{space}"
                )
            },
        ),
        same(
            "spaces around an API key",
            policy().key(ApiKey::header("x-api-key")),
            Some("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: good"),
            |number| {
                format!(
                    "GET / HTTP/1.1\r\nhost: a\r\nX-API-KEY:{0}good{0}",
                    " ".repeat(number)
                )
            },
        ),
        same(
            "cookie quoted and encoded",
            policy().key(Cookie::new("sid")),
            Some("GET / HTTP/1.1\r\nhost: a\r\ncookie: sid=good"),
            |number| {
                let value = ["\"good\"", "g%6Fod", "%67%6f%6f%64", "%22good%22"][number % 4];
                format!(
                    "GET / HTTP/1.1\r\nhost: a\r\ncookie: a=b;  sid ={value}{}; c=d",
                    " ".repeat(number % 5)
                )
            },
        ),
        same(
            "query encoded",
            policy().key(QueryParam::new("key")),
            Some("GET /?key=good HTTP/1.1\r\nhost: a"),
            |number| {
                let pair = ["k%65y=good", "key=g%6fod", "%6Bey=%67ood"][number % 3];
                format!("GET /?n={number}&{pair} HTTP/1.1\r\nhost: a")
            },
        ),
        same(
            "path encoded",
            policy().key(PathParam::new("user")),
            Some("GET /users/good HTTP/1.1\r\nhost: a"),
            |number| {
                let user = ["good", "g%6Fod", "%67ood?x=y"][number % 3];
                format!("GET /users/{user} HTTP/1.1\r\nhost: a")
            },
        ),
        same(
            "Host with a dot, a port and in capitals",
            policy().key(HostHeader),
            Some("GET / HTTP/1.1\r\nhost: a.example"),
            |number| {
                let host =
                    ["A.EXAMPLE", "a.example.", "a.example:1234", "a.example.:80"][number % 4];
                format!("GET / HTTP/1.1\r\nhost: {host}")
            },
        ),
        same(
            "authority that is the Host",
            policy().key(HostHeader),
            Some("GET / HTTP/1.1\r\nhost: a.example"),
            |_| "GET http://A.example:80/ HTTP/1.1\r\nhost: a.example.".to_owned(),
        ),
    ]);
    attacks
}

// What a server answers with 400 by itself never reaches the layer: no line is another's continuation, and no name has a
// space behind it.
#[tokio::test]
async fn folded_lines_and_spaced_names_are_refused_before_any_limit() {
    let rule = policy()
        .key(ApiKey::bearer())
        .on_missing_key(OnMissingKey::Skip);
    let server = serve(app(rule)).await;
    for lines in [
        "authorization: Bearer\r\n good",
        "authorization: Bearer good\r\n\tx",
        "authorization : Bearer good",
        "authorization\t: Bearer good",
    ] {
        let mut client = Client::connect(server).await;
        client
            .send(&format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\n"))
            .await;
        assert_eq!(client.receive().await.status, 400, "{lines:?}");
    }
}

// Trailers come after the decision, and are no way to say something else.
#[tokio::test]
async fn key_in_a_trailer_is_no_second_key() {
    let rule = policy()
        .key(ApiKey::bearer())
        .on_missing_key(OnMissingKey::Skip);
    let server = serve(app(rule)).await;
    let mut client = Client::connect(server).await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer good\r\ntransfer-encoding: chunked\r\n";
    for status in [200, 200, 200, 429] {
        client
            .send(&format!(
                "{head}trailer: authorization\r\n\r\n0\r\nauthorization:\r\n\r\n"
            ))
            .await;
        assert_eq!(client.receive().await.status, status);
        client = Client::connect(server).await;
    }
}

/// Over HTTP/2 the host is `:authority`, and nothing strips the space around a value.
#[tokio::test]
async fn repeated_key_does_not_leave_its_bucket_over_http_2() {
    let skip = |rule: Rule| rule.on_missing_key(OnMissingKey::Skip);
    let bearer = || skip(policy().key(ApiKey::bearer()));
    let request = |uri: &str, headers: &[(&str, &str)]| {
        let request = Request::get(uri).version(Version::HTTP_2);
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        request.body(String::new()).expect("a request")
    };
    const A: &str = "http://a.example/";
    for (rule, headers, expected) in [
        (
            bearer(),
            &[("authorization", "Bearer good"), ("authorization", "")][..],
            [400; 4],
        ),
        (
            bearer(),
            &[("authorization", " Bearer good\t ")],
            [200, 200, 200, 429],
        ),
        (
            skip(policy().key(HostHeader)),
            &[("host", "b.example")],
            [400; 4],
        ),
        (skip(policy().key(HostHeader)), &[("host", "")], [400; 4]),
        (
            skip(policy().key(HostHeader)),
            &[("host", "A.example:80")],
            [200, 200, 200, 429],
        ),
        (skip(policy().key(HostHeader)), &[], [200, 200, 200, 429]),
        // as browsers split them, and twice
        (
            skip(policy().key(Cookie::new("sid"))),
            &[("cookie", "a=b"), ("cookie", "sid=good")],
            [200, 200, 200, 429],
        ),
        (
            skip(policy().key(Cookie::new("sid"))),
            &[("cookie", "sid=good"), ("cookie", "sid=good")],
            [400; 4],
        ),
    ] {
        let server = serve_http_2(app(rule)).await;
        let mut client = connect_http_2(server).await;
        for status in expected {
            let response = client.send_request(request(A, headers)).await;
            assert_eq!(response.expect("an answer").status(), status, "{headers:?}");
        }
    }
}

// What a client is told, and what it is not.
#[tokio::test]
async fn response_to_an_ambiguous_key_names_it_and_has_no_challenge() {
    let server = serve(app(policy().key(ApiKey::bearer()))).await;
    let mut client = Client::connect(server).await;
    client
        .send("GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n")
        .await;
    let reply = client.receive().await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.header("www-authenticate"), None);
    assert_eq!(
        reply.body,
        r#"{"error":"key_ambiguous","message":"the request must contain bearer-token exactly once","retry_after":null}"#
    );
}

// === Servers ===

fn policy() -> Policy {
    Policy::new("keys", Quota::per_hour(3))
}

fn app(rule: Rule) -> Router {
    let layer = RateLimitLayer::builder()
        .policy(rule)
        .clock(Clock::manual(Timestamp::from_micros(1_700_000_000_000_000)))
        .build()
        .expect("it is well set up");
    Router::new()
        .route("/", get(async || "fine").post(async |body: String| body))
        .route("/users/{user}", get(async || "fine"))
        .layer(layer)
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind(LOOPBACK)
        .await
        .expect("some port is free");
    let server = listener.local_addr().expect("it is bound");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    // it ends with the test's runtime
    tokio::spawn(axum::serve(listener, app).into_future());
    server
}

async fn serve_http_2(app: Router) -> SocketAddr {
    let listener = TcpListener::bind(LOOPBACK)
        .await
        .expect("some port is free");
    let server = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a client comes");
        let service = TowerToHyperService::new(app);
        let server = server::conn::http2::Builder::new(TokioExecutor::new());
        server.serve_connection(TokioIo::new(stream), service).await
    });
    server
}

async fn connect_http_2(server: SocketAddr) -> client::conn::http2::SendRequest<String> {
    let stream = TcpStream::connect(server)
        .await
        .expect("the server listens");
    let handshake = client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (client, connection) = handshake.await.expect("they understand each other");
    tokio::spawn(connection);
    client
}

const LOOPBACK: (&str, u16) = ("127.0.0.1", 0);
