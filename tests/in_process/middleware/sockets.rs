//! The layer in a real server, seen by clients over TCP.

use std::{
    convert::Infallible,
    future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::WebSocketUpgrade,
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;
use http::{Method, StatusCode, header};
use http_body::Frame;
use hyper::{client, ext::Protocol, server};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time,
};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter,
    charge::Receipt,
    clock::{Clock, Timestamp},
    decision::PolicyName,
    diagnosis::{Code, Warning},
    extract::{Global, PeerIp},
    middleware::ActualCost,
    rules::{CompletedRequest, RequestOutcome, RuleMode},
    testing::ScriptedStore,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{Client, Reply};

#[tokio::test]
async fn fifteen_requests_against_ten_a_minute_are_ten_responses_and_five_denials() {
    let server = serve(fine().layer(limit(10, &stopped()))).await;
    for taken in 1..=10 {
        // one connection each: the port does not make another client
        let reply = Client::connect(server).await.get("/").await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "fine"));
        let reset = 1_700_000_000 + 6 * taken + 1;
        assert_limits(&reply, 10, 10 - taken, reset);
        assert_eq!(reply.header("retry-after"), None);
    }
    for _ in 0..5 {
        let reply = Client::connect(server).await.get("/").await;
        assert_eq!(reply.status, 429);
        assert_limits(&reply, 10, 0, 1_700_000_061);
        assert_eq!(reply.header("retry-after"), Some("6"));
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.body, DENIED);
    }
}

#[tokio::test]
async fn requests_at_the_same_time_are_counted_to_the_last_one() {
    let server = serve(fine().layer(limit(10, &stopped()))).await;
    let mut asked = JoinSet::new();
    for _ in 0..40 {
        asked.spawn(async move { Client::connect(server).await.get("/").await.status });
    }
    let statuses = asked.join_all().await;
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!((count(200), count(429)), (10, 30));
}

// Linux answers on all of 127.0.0.0/8.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn clients_of_two_addresses_are_counted_apart() {
    let server = serve(fine().layer(limit(1, &stopped()))).await;
    for host in [1, 2] {
        let local = SocketAddr::from(([127, 0, 0, host], 0));
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(local).expect("an address of this machine");
        let stream = socket.connect(server).await;
        let mut client = Client::over(stream.expect("the server listens"));
        assert_eq!(client.get("/").await.status, 200);
        assert_eq!(client.get("/").await.status, 429);
    }
}

#[tokio::test]
async fn connection_stays_usable_after_a_denial() {
    let clock = stopped();
    let server = serve(fine().layer(limit(1, &clock))).await;
    let mut client = Client::connect(server).await;
    for _ in 0..3 {
        assert_eq!(client.get("/").await.status, 200);
        for _ in 0..3 {
            let reply = client.get("/").await;
            assert_eq!(reply.status, 429);
            assert_eq!(reply.header("connection"), None);
        }
        clock.advance(Duration::from_secs(60));
    }
}

#[tokio::test]
async fn denial_has_its_declared_length_also_when_requests_are_pipelined() {
    let server = serve(fine().layer(limit(1, &stopped()))).await;
    let mut client = Client::connect(server).await;
    client
        .send(&"GET / HTTP/1.1\r\nhost: test\r\n\r\n".repeat(3))
        .await;
    let mut replies = Vec::new();
    for _ in 0..3 {
        replies.push(client.receive().await);
    }
    let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    assert_eq!(statuses, [200, 429, 429]);
    for reply in &replies {
        let length = reply.body.len().to_string();
        assert_eq!(reply.header("content-length"), Some(length.as_str()));
        assert_eq!(reply.header("transfer-encoding"), None);
    }
}

async fn head(client: &mut Client) -> Reply {
    client.send("HEAD / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    client.receive_head().await
}

#[tokio::test]
async fn head_request_is_denied_without_a_body() {
    let server = serve(fine().layer(limit(1, &stopped()))).await;
    let mut client = Client::connect(server).await;
    let allowed = head(&mut client).await;
    assert_eq!(allowed.status, 200);
    let denied = head(&mut client).await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("60"));
    assert_limits(&denied, 1, 0, 1_700_000_061);
    // a body would be taken for the head of this answer
    let reply = client.get("/").await;
    assert_eq!(reply.status, 429);
    if let Some(length) = denied.header("content-length") {
        assert_eq!(reply.header("content-length"), Some(length));
    }
}

#[tokio::test]
async fn denied_upload_gets_its_response_before_its_body_is_sent() {
    let app = Router::new().route("/", post(async |body: String| body));
    let server = serve(app.layer(limit(1, &stopped()))).await;
    let head = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 5\r\n\r\n";
    let mut client = Client::connect(server).await;
    client.send(&format!("{head}first")).await;
    assert_eq!(client.receive().await.body, "first");
    let mut client = Client::connect(server).await;
    client.send(head).await;
    assert_eq!(client.receive().await.status, 429);
}

#[tokio::test]
async fn server_without_peer_addresses_responds_500_and_logs_the_reason() {
    let layer = limit(1, &stopped());
    let app = fine().layer(layer.clone());
    let listener = TcpListener::bind(LOOPBACK)
        .await
        .expect("some port is free");
    let server = listener.local_addr().expect("it is bound");
    tokio::spawn(axum::serve(listener, app).into_future());
    let mut client = Client::connect(server).await;
    for _ in 0..3 {
        let reply = client.get("/").await;
        assert_eq!(reply.status, 500);
        assert_eq!(reply.header("x-ratelimit-limit"), None);
        assert_eq!(
            reply.body,
            r#"{"error":"internal_error","message":"internal server error","retry_after":null}"#
        );
    }
    let warnings = layer.warnings();
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].code(), Code::NoPeerAddress);
    assert!(warnings[0].detail().contains("peer-ip"), "{warnings:?}");
}

// === Clients that leave ===

#[tokio::test]
async fn client_that_leaves_in_mid_request_costs_nothing() {
    let app = Router::new().route("/", get(async || "fine").post(async |body: String| body));
    let server = serve(app.layer(limit(1, &stopped()))).await;
    let mut in_head = Client::connect(server).await;
    in_head.send("GET / HTTP/1.1\r\nho").await;
    drop(in_head);
    assert_eq!(Client::connect(server).await.get("/").await.status, 200);
}

#[tokio::test]
async fn client_that_leaves_in_mid_body_is_charged_and_the_server_goes_on() {
    let (left, mut gone) = mpsc::unbounded_channel();
    let app = Router::new().route(
        "/",
        get(async || "fine").post(async move |body: Result<String, _>| {
            left.send(body.is_err()).expect("the test waits");
        }),
    );
    let server = serve(app.layer(limit(2, &stopped()))).await;
    let mut in_body = Client::connect(server).await;
    in_body
        .send("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nfour")
        .await;
    drop(in_body);
    assert_eq!(in_time(gone.recv()).await, Some(true));
    let reply = Client::connect(server).await.get("/").await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-ratelimit-remaining"), Some("0"));
}

#[tokio::test]
async fn client_that_leaves_ends_the_handler_and_the_server_goes_on() {
    let (starting, mut started) = mpsc::unbounded_channel();
    let app = fine().route(
        "/slow",
        get(async move || {
            let (_present, presence) = mpsc::channel::<()>(1);
            starting.send(presence).expect("the test waits");
            future::pending::<()>().await;
        }),
    );
    let server = serve(app.layer(limit(10, &stopped()))).await;
    let mut client = Client::connect(server).await;
    client
        .send("GET /slow HTTP/1.1\r\nhost: test\r\n\r\n")
        .await;
    let mut presence = in_time(started.recv()).await.expect("the handler runs");
    drop(client);
    // its sender lives in the handler's future: the channel ends with it
    assert_eq!(in_time(presence.recv()).await, None);
    assert_eq!(Client::connect(server).await.get("/").await.status, 200);
}

#[tokio::test]
async fn client_that_leaves_ends_the_wait_for_a_decision() {
    let store = ScriptedStore::pending();
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("per-ip", Quota::per_minute(10)).key(PeerIp))
        .store(store.clone())
        .build()
        .expect("it is well set up");
    let app = Router::new()
        .route("/limited", get(async || "fine").layer(layer))
        .route("/", get(async || "fine"));
    let server = serve(app).await;
    let mut client = Client::connect(server).await;
    client
        .send("GET /limited HTTP/1.1\r\nhost: test\r\n\r\n")
        .await;
    let mut decision = in_time(store.next_pending()).await;
    drop(client);
    in_time(decision.abandoned()).await;
    assert_eq!(Client::connect(server).await.get("/").await.status, 200);
}

// === Clients that hang up so as not to be charged ===

// Regression: the documented closure refunded it, and 200 of 200 handlers started.
#[tokio::test]
async fn client_that_hangs_up_before_each_response_starts_no_more_handlers_than_its_quota() {
    let (starting, mut started) = mpsc::unbounded_channel();
    let handler = async move || {
        let (_present, presence) = mpsc::channel::<()>(1);
        starting.send(presence).expect("the test waits");
        future::pending::<()>().await;
    };
    let server = serve(Router::new().route("/", get(handler)).layer(documented())).await;
    let (mut handlers, mut denied) = (0, 0);
    for _ in 0..200 {
        let mut client = Client::connect(server).await;
        client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
        tokio::select! {
            presence = started.recv() => {
                handlers += 1;
                drop(client);
                let mut presence = presence.expect("the handler runs");
                assert_eq!(in_time(presence.recv()).await, None);
            }
            reply = client.receive() => {
                assert_eq!(reply.status, 429);
                denied += 1;
            }
        }
    }
    println!("hung up before the response: {handlers} of 200 handlers started, quota 5");
    assert_eq!((handlers, denied), (5, 195));
}

#[tokio::test]
async fn client_that_hangs_up_in_each_body_starts_no_more_streams_than_its_quota() {
    let (starting, mut started) = mpsc::unbounded_channel();
    let handler = async move || {
        let (present, presence) = mpsc::channel::<()>(1);
        starting.send(presence).expect("the test waits");
        Body::new(Stream::of([Step::Text("some"), Step::Hang]).until(present))
    };
    let server = serve(Router::new().route("/", get(handler)).layer(documented())).await;
    let (mut streams, mut denied) = (0, 0);
    for _ in 0..200 {
        let mut client = TcpStream::connect(server).await.expect("it listens");
        send(&mut client, "GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
        let seen = read_until(&mut client, |seen| {
            seen.ends_with("some\r\n") || seen.contains(" 429 ")
        });
        if seen.await.contains(" 429 ") {
            denied += 1;
            continue;
        }
        streams += 1;
        drop(client);
        let mut presence = started.recv().await.expect("the handler ran");
        assert_eq!(in_time(presence.recv()).await, None);
    }
    println!("hung up in the body: {streams} of 200 streams started, quota 5");
    assert_eq!((streams, denied), (5, 195));
}

#[tokio::test]
async fn closure_distinguishes_a_client_that_left_from_a_handler_that_failed() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (hearing, mut settled) = mpsc::unbounded_channel();
    let rule = Policy::new("per-ip", Quota::per_hour(100)).key(PeerIp);
    let rule = rule.settle({
        let heard = Arc::clone(&heard);
        move |request: &CompletedRequest<'_>| {
            let mut heard = heard.lock().expect("nobody panics with it");
            heard.push(match request.outcome {
                RequestOutcome::ClientGone => "gone".to_owned(),
                RequestOutcome::Panicked => "panicked".to_owned(),
                RequestOutcome::Responded { status, body, .. } => {
                    format!("{} {body:?}", status.as_u16())
                }
                other => format!("{other:?}"),
            });
            hearing.send(()).expect("the test waits");
            request.charged
        }
    });
    let stream =
        |steps: &'static [Step]| async move || Body::new(Stream::of(steps.iter().copied()));
    let (starting, mut started) = mpsc::unbounded_channel();
    let hanging = async move || {
        starting.send(()).expect("the test waits");
        future::pending::<()>().await;
    };
    let app = Router::new()
        .route("/hangs", get(hanging))
        .route(
            "/panics",
            get(async || -> () { std::panic::resume_unwind(Box::new(())) }),
        )
        .route("/whole", get(async || "whole"))
        .route("/stream", get(stream(&[Step::Text("a"), Step::Text("b")])))
        .route(
            "/trailers",
            get(stream(&[Step::Text("a"), Step::Trailers, Step::Hang])),
        )
        .route("/half", get(stream(&[Step::Text("some"), Step::Hang])))
        .route("/breaks", get(stream(&[Step::Text("some"), Step::Fail])))
        .route("/bursts", get(stream(&[Step::Text("some"), Step::Panic])))
        .route(
            "/sized",
            get(async || {
                let body = Stream::of([Step::Text("some"), Step::Hang]);
                ([(header::CONTENT_LENGTH, "4")], Body::new(body))
            }),
        )
        .route("/nothing", get(async || StatusCode::NO_CONTENT))
        .route(
            "/upgrade",
            get(async || {
                let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "echo")];
                (StatusCode::SWITCHING_PROTOCOLS, headers)
            }),
        )
        .layer(limited_by(rule));
    let server = serve(app).await;
    for (request, until, said) in [
        ("GET /hangs", "", "gone"),
        ("GET /panics", "", "panicked"),
        ("GET /whole", "whole", "200 Complete"),
        ("HEAD /whole", "\r\n\r\n", "200 Complete"),
        ("GET /stream", "0\r\n\r\n", "200 Complete"),
        ("HEAD /stream", "\r\n\r\n", "200 Complete"),
        // their sender hangs behind the trailers and behind the length, where no server looks
        ("GET /trailers", "0\r\n", "200 Complete"),
        ("GET /sized", "some", "200 Complete"),
        ("GET /half", "some", "200 ClientGone"),
        ("GET /breaks", "", "200 Failed"),
        ("GET /bursts", "", "200 Panicked"),
        ("GET /nothing", "\r\n\r\n", "204 Complete"),
        ("GET /upgrade", "\r\n\r\n", "101 Complete"),
    ] {
        let mut client = TcpStream::connect(server).await.expect("it listens");
        let head = format!(
            "{request} HTTP/1.1\r\nhost: test\r\nte: trailers\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
        );
        send(&mut client, &head).await;
        if said == "gone" {
            in_time(started.recv()).await.expect("the handler runs");
        }
        read_until(&mut client, |seen| seen.contains(until)).await;
        if said == "200 ClientGone" || said == "gone" {
            drop(client);
        }
        in_time(settled.recv()).await.expect("it is settled");
        let heard = std::mem::take(&mut *heard.lock().expect("nobody panics with it"));
        assert_eq!(heard, [said], "{request}");
    }
}

// Regression: what a guard reports when the stream is dropped came after the settlement, and was lost.
#[tokio::test]
async fn usage_that_a_guard_reports_at_the_end_of_a_stream_is_charged() {
    let policy = Policy::new("tokens", Quota::per_hour(100_000)).cost(1_000);
    let layer = limited_by(policy.clone().key(PeerIp).settle(documented_closure));
    let limiter = layer.limiter().clone();
    let handler = async |cost: ActualCost| {
        let meter = Meter { cost, used: 3_000 };
        Body::new(Stream::of([Step::Text("some")]).until(meter))
    };
    let server = serve(Router::new().route("/", get(handler)).layer(layer)).await;
    let mut client = TcpStream::connect(server).await.expect("it listens");
    send(
        &mut client,
        "GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n",
    )
    .await;
    let mut seen = String::new();
    in_time(client.read_to_string(&mut seen))
        .await
        .expect("it answers");
    let key = Key::from(IpAddr::from([127, 0, 0, 1]));
    let now = limiter
        .peek(&[policy.charge(key)])
        .await
        .expect("it answers");
    let left = now.states()[0].usage().expect("it is counted").remaining;
    println!(
        "used 3000 at the end of the stream: {} charged",
        100_000 - left
    );
    assert_eq!(left, 97_000);
}

// === Upgraded connections ===

// Regression: four sockets were open under a limit of two, and nothing was reported.
#[tokio::test]
async fn open_sockets_that_hold_no_slot_are_reported_once() {
    let layer = limited_by(Policy::concurrency("sockets", 2).key(PeerIp));
    let echo = get(async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async |mut socket| while let Some(Ok(_)) = socket.recv().await {})
    });
    let app = Router::new().route("/", echo);
    let server = serve(app.layer(layer.clone())).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let (status, socket) = open_socket(server).await;
        assert_eq!(status, "101");
        open.push(socket);
    }
    let warnings = layer.warnings();
    let codes: Vec<_> = warnings
        .iter()
        .map(|warning| warning.code().as_str())
        .collect();
    assert_eq!(codes, ["TG017"], "{warnings:?}");
    let policy = warnings[0].policy().map(PolicyName::as_str);
    assert_eq!(policy, Some("sockets"));
}

#[tokio::test]
async fn slot_held_in_the_task_of_a_socket_limits_open_sockets() {
    let policy = Policy::concurrency("sockets", 2);
    let limiter = RateLimiter::builder().policy(policy.clone()).build();
    let limiter = limiter.expect("it is well set up");
    let handler = async move |upgrade: WebSocketUpgrade| {
        let charges = [policy.charge(Key::GLOBAL)];
        let decision = limiter.check(&charges).await.expect("it is in process");
        let Some(receipt) = Receipt::of(&charges, &decision) else {
            return StatusCode::TOO_MANY_REQUESTS.into_response();
        };
        let slot = limiter.hold(receipt);
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(_)) = socket.recv().await {}
            drop(slot);
        })
    };
    let server = serve(Router::new().route("/", get(handler))).await;
    let (first, socket) = open_socket(server).await;
    let (second, _open) = open_socket(server).await;
    assert_eq!([first.as_str(), &second], ["101", "101"]);
    assert_eq!(open_socket(server).await.0, "429");
    drop(socket);
    in_time(async { while open_socket(server).await.0 != "101" {} }).await;
}

#[tokio::test]
async fn only_a_response_that_upgrades_a_counted_connection_is_reported() {
    let slots = || Policy::concurrency("slots", 9).key(Global);
    let rate = || Policy::new("rate", Quota::per_minute(9)).key(Global);
    let free = |_: &CompletedRequest<'_>| 0;
    let both = || RateLimitLayer::builder().policy(rate()).policy(slots());
    let get = Method::GET;
    for (builder, method, status, reported) in [
        (both(), get.clone(), 101, Some("slots")),
        (both(), Method::CONNECT, 200, Some("slots")),
        (both(), Method::CONNECT, 403, None),
        (both(), get.clone(), 200, None),
        (
            both().silence(Code::UpgradedConnection),
            get.clone(),
            101,
            None,
        ),
        (
            RateLimitLayer::builder().policy(rate().settle(free)),
            get.clone(),
            101,
            None,
        ),
        (
            RateLimitLayer::builder().policy(slots().mode(RuleMode::Off)),
            get.clone(),
            101,
            None,
        ),
        (
            RateLimitLayer::builder().policy(slots().mode(RuleMode::Shadow)),
            get,
            101,
            Some("slots"),
        ),
    ] {
        let layer = builder.build().expect("it is well set up");
        let service = layer.layer(service_fn(async |_| {
            let response = http::Response::builder().status(status).body(Body::empty());
            Ok::<_, Infallible>(response.expect("a response"))
        }));
        let request = http::Request::builder().method(&method).body(Body::empty());
        let Ok(response) = service.oneshot(request.expect("a request")).await;
        assert_eq!(response.status(), status);
        let warnings = layer.warnings();
        let policies = warnings.iter().filter_map(Warning::policy);
        let policies: Vec<_> = policies.map(PolicyName::as_str).collect();
        assert_eq!(policies, Vec::from_iter(reported), "{method} {status}");
    }
}

#[tokio::test]
async fn websocket_over_http_2_is_reported() {
    let layer = limited_by(Policy::concurrency("sockets", 2).key(Global));
    let tunnel = layer.layer(service_fn(async |request: http::Request<_>| {
        assert!(request.extensions().get::<Protocol>().is_some());
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    }));
    let listener = TcpListener::bind(LOOPBACK)
        .await
        .expect("some port is free");
    let server = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a client");
        let mut http2 = server::conn::http2::Builder::new(TokioExecutor::new());
        http2.enable_connect_protocol();
        let service = TowerToHyperService::new(tunnel);
        http2.serve_connection(TokioIo::new(stream), service).await
    });
    let stream = TcpStream::connect(server).await.expect("it listens");
    let io = TokioIo::new(stream);
    let (mut client, connection) = client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .expect("it speaks HTTP/2");
    tokio::spawn(connection);
    let request = || {
        let request = http::Request::connect("http://test/");
        let request = request.extension(Protocol::from_static("websocket"));
        request.body(Body::empty()).expect("a request")
    };
    // its first settings say that it takes the protocol
    let response = in_time(async {
        loop {
            client.ready().await.expect("it is connected");
            if let Ok(response) = client.send_request(request()).await {
                break response;
            }
        }
    });
    assert_eq!(response.await.status(), StatusCode::OK);
    let codes: Vec<_> = layer
        .warnings()
        .iter()
        .map(|warning| warning.code().as_str())
        .collect();
    assert_eq!(codes, ["TG017"]);
}

/// Returns the status of a WebSocket's handshake, and its connection.
pub(super) async fn open_socket(server: SocketAddr) -> (String, TcpStream) {
    let mut socket = TcpStream::connect(server).await.expect("it listens");
    let handshake = "GET / HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    send(&mut socket, handshake).await;
    let seen = read_until(&mut socket, |seen| seen.contains("\r\n\r\n")).await;
    let status = seen.split(' ').nth(1).expect("a status line");
    (status.to_owned(), socket)
}

// === Clients that claim to be others ===

// Regression: a denied GET was answered 200, which a cache may keep.
#[cfg(feature = "grpc")]
#[tokio::test]
async fn only_a_post_gets_a_grpc_response_and_no_denial_may_be_stored() {
    let server = serve(
        Router::new()
            .route("/", axum::routing::any(async || "fine"))
            .layer(limit(1, &stopped())),
    )
    .await;
    assert_eq!(Client::connect(server).await.get("/").await.status, 200);
    for (method, status) in [
        ("GET", 429),
        ("HEAD", 429),
        ("PUT", 429),
        ("OPTIONS", 429),
        ("POST", 200),
    ] {
        let mut client = TcpStream::connect(server).await.expect("it listens");
        let head = format!(
            "{method} / HTTP/1.1\r\nhost: test\r\ncontent-type: application/grpc\r\ncontent-length: 0\r\n\
             connection: close\r\n\r\n"
        );
        send(&mut client, &head).await;
        let mut seen = String::new();
        in_time(client.read_to_string(&mut seen))
            .await
            .expect("it answers");
        println!(
            "denied {method} as application/grpc: {}",
            seen.lines().next().unwrap_or("")
        );
        assert!(seen.starts_with(&format!("HTTP/1.1 {status} ")), "{seen}");
        assert_eq!(
            seen.contains("\r\ngrpc-status: 8\r\n"),
            status == 200,
            "{seen}"
        );
        assert!(seen.contains("\r\ncache-control: no-store\r\n"), "{seen}");
    }
}

/// As the docs of `Rule::settle` have it.
fn documented_closure(request: &CompletedRequest<'_>) -> u64 {
    match request.outcome {
        RequestOutcome::Failed | RequestOutcome::Panicked => 0,
        RequestOutcome::Responded { status, .. } if status.is_server_error() => 0,
        _ => request.charged,
    }
}

/// Five an hour, settled by the documented closure.
fn documented() -> RateLimitLayer {
    let policy = Policy::new("per-ip", Quota::per_hour(5));
    limited_by(policy.key(PeerIp).settle(documented_closure))
}

fn limited_by(rule: tollgate::rules::Rule) -> RateLimitLayer {
    let layer = RateLimitLayer::builder().policy(rule).clock(stopped());
    layer.build().expect("it is well set up")
}

pub(super) async fn send(client: &mut TcpStream, text: &str) {
    client.write_all(text.as_bytes()).await.expect("it reads");
}

/// Reads until what came is enough.
async fn read_until(client: &mut TcpStream, is_enough: impl Fn(&str) -> bool) -> String {
    let mut seen = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&seen).into_owned();
        if is_enough(&text) {
            return text;
        }
        let read = in_time(client.read_buf(&mut seen)).await;
        assert!(read.expect("it writes") > 0, "{text}");
    }
}

// === Stream ===

/// What a stream does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Fail,
    Hang,
    Panic,
    Text(&'static str),
    Trailers,
}

/// A body of such steps, which owns something until it is dropped.
struct Stream<T> {
    steps: std::collections::VecDeque<Step>,
    _owned: T,
}

impl Stream<()> {
    fn of(steps: impl IntoIterator<Item = Step>) -> Self {
        Self {
            steps: steps.into_iter().collect(),
            _owned: (),
        }
    }

    fn until<T>(self, owned: T) -> Stream<T> {
        Stream {
            steps: self.steps,
            _owned: owned,
        }
    }
}

impl<T: Unpin> http_body::Body for Stream<T> {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(match self.steps.pop_front() {
            None => return Poll::Ready(None),
            Some(Step::Fail) => Err(std::io::Error::other("it was told to fail")),
            Some(Step::Hang) => {
                self.steps.push_front(Step::Hang);
                return Poll::Pending;
            }
            Some(Step::Panic) => std::panic::resume_unwind(Box::new(())),
            Some(Step::Text(text)) => Ok(Frame::data(Bytes::from(text))),
            Some(Step::Trailers) => {
                let value = header::HeaderValue::from_static("7");
                let name = header::HeaderName::from_static("x-tokens");
                Ok(Frame::trailers([(name, value)].into_iter().collect()))
            }
        }))
    }
}

/// Reports what was used when it is dropped.
struct Meter {
    cost: ActualCost,
    used: u64,
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.cost.set("tokens", self.used);
    }
}

// === Servers ===

pub(super) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind(LOOPBACK)
        .await
        .expect("some port is free");
    let server = listener.local_addr().expect("it is bound");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    // it ends with the test's runtime
    tokio::spawn(axum::serve(listener, app).into_future());
    server
}

fn fine() -> Router {
    Router::new().route("/", get(async || "fine"))
}

fn limit(count: u64, clock: &Clock) -> RateLimitLayer {
    RateLimitLayer::builder()
        .policy(Policy::new("per-ip", Quota::per_minute(count)).key(PeerIp))
        .clock(clock.clone())
        .build()
        .expect("it is well set up")
}

fn stopped() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_250_000))
}

#[track_caller]
fn assert_limits(reply: &Reply, limit: u64, remaining: u64, reset: u64) {
    for (name, number) in [
        ("x-ratelimit-limit", limit),
        ("x-ratelimit-remaining", remaining),
        ("x-ratelimit-reset", reset),
    ] {
        assert_eq!(reply.header(name), Some(number.to_string().as_str()));
    }
}

/// Fails the test instead of hanging it.
async fn in_time<T>(event: impl Future<Output = T>) -> T {
    let event = time::timeout(Duration::from_secs(10), event).await;
    event.expect("it happens in time")
}

const LOOPBACK: (&str, u16) = ("127.0.0.1", 0);
const DENIED: &str = r#"{"error":"rate_limited","message":"rate limit per-ip exceeded, retry in 6 seconds","retry_after":6}"#;
