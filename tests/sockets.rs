//! The layer in a real server, seen by clients over TCP.

use std::{future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    routing::{get, post},
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet, time};
use tollgate::{
    Decision, Key, Policy, Quota, RateLimitLayer,
    clock::{Clock, Timestamp},
    extract::PeerIp,
    store::{Answer, Charge, Store},
};

use crate::support::{Client, Reply};

#[tokio::test]
async fn fifteen_requests_against_ten_a_minute_are_ten_answers_and_five_denials() {
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
        let mut client = Client::connect_from(local, server).await;
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
async fn denial_is_of_the_length_it_says_also_when_requests_are_pipelined() {
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

#[tokio::test]
async fn head_request_is_denied_without_a_body() {
    let server = serve(fine().layer(limit(1, &stopped()))).await;
    let mut client = Client::connect(server).await;
    let allowed = client.head("/").await;
    assert_eq!(allowed.status, 200);
    let denied = client.head("/").await;
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
async fn denied_upload_is_answered_before_its_body_is_sent() {
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
async fn server_that_tells_no_addresses_answers_500_and_says_why() {
    let app = fine().layer(limit(1, &stopped()));
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
            r#"{"error":"key_missing","message":"the request cannot be counted: peer-ip is missing","retry_after":null}"#
        );
    }
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
    let store = Silent::default();
    let asked = Arc::clone(&store.asked);
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("per-ip", Quota::per_minute(10)).key(PeerIp))
        .store(store)
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
    let mut presence = in_time(asked.lock().await.recv())
        .await
        .expect("the store is asked");
    drop(client);
    assert_eq!(in_time(presence.recv()).await, None);
    assert_eq!(Client::connect(server).await.get("/").await.status, 200);
}

// === Silent ===

/// A store that never answers, and tells of each question with a channel that ends when nobody waits any more.
#[derive(Debug)]
struct Silent {
    asking: mpsc::UnboundedSender<mpsc::Receiver<()>>,
    asked: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<mpsc::Receiver<()>>>>,
}

impl Default for Silent {
    fn default() -> Self {
        let (asking, asked) = mpsc::unbounded_channel();
        Self {
            asking,
            asked: Arc::new(tokio::sync::Mutex::new(asked)),
        }
    }
}

impl Store for Silent {
    fn decide(&self, _: &[Charge<'_>]) -> Answer<Decision> {
        let (present, presence) = mpsc::channel(1);
        self.asking.send(presence).expect("the test waits");
        Answer::later(async move {
            let _present = present;
            future::pending().await
        })
    }

    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        Answer::ready(Ok(()))
    }
}

// === Servers ===

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
