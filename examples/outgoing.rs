//! Run with
//!
//! ```sh
//! cargo run --example outgoing --features client
//! # with REDIS_URL, several processes wait in one line: start this in two terminals
//! REDIS_URL=redis://127.0.0.1/ cargo run --example outgoing --features client
//! ```
//!
//! How do calls to an API with a limit wait for their turn? Password mails go first, webhooks as usual, an export last.
//!
//! It runs until you stop it. The first process also serves the API, at port 3005 or `PORT`. The API admits 20 calls a second,
//! and refuses the rest with 429.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, routing::post};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper_util::{
    client::legacy::{self, Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpListener, time};
use tollgate::{
    Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    acquire::Priority,
    client::{CallFailure, Outgoing, OutgoingLayer},
    extract::{Global, HostHeader},
};
use tower::{Layer, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = env::var("PORT").map_or(Ok(3005), |port| port.parse())?;
    let port = serve_api(port).await?;
    let client = limited_client()?;
    let senders = [
        ("password mails", "/mails", 2, Duration::from_millis(500)),
        ("webhooks", "/hooks", 20, Duration::ZERO),
        ("export", "/export", 4, Duration::ZERO),
    ];
    let counts = senders.map(|(name, path, tasks, rest)| {
        let counts = Arc::new(Counts::default());
        for _ in 0..tasks {
            let uri = format!("http://127.0.0.1:{port}{path}");
            tokio::spawn(call_on(client.clone(), uri, rest, Arc::clone(&counts)));
        }
        (name, counts)
    });
    let mut second = 0;
    loop {
        second += 1;
        time::sleep(Duration::from_secs(1)).await;
        let line = counts.each_ref().map(|(name, counts)| counts.take(name));
        println!("{second:>2} s: {}", line.join(", "));
    }
}

/// A client whose calls wait for their turn.
fn limited_client() -> Result<Outgoing<HyperClient>, tollgate::Error> {
    let mut limiter = RateLimiter::builder();
    if let Ok(url) = env::var("REDIS_URL") {
        limiter = limiter.redis(url);
    }
    let outgoing = OutgoingLayer::builder(&limiter.build()?)
        .policy(Policy::new("api-rate", Quota::per_second(20).burst(1)).outgoing_key(HostHeader))
        .policy(Policy::concurrency("api-parallel", 8).outgoing_key(HostHeader))
        .priority_by(|head: &RequestHead<'_>| match head.uri.path() {
            "/mails" => Priority::High,
            "/export" => Priority::Low,
            _ => Priority::Normal,
        })
        .classify_errors(|error: &legacy::Error| match error.is_connect() {
            true => CallFailure::NotSent,
            false => CallFailure::Transient,
        })
        .build()?;
    Ok(outgoing.layer(Client::builder(TokioExecutor::new()).build_http()))
}

type HyperClient = Client<HttpConnector, Full<Bytes>>;

/// Calls a URI again and again, and rests after each call.
async fn call_on(
    client: Outgoing<HyperClient>,
    uri: String,
    rest: Duration,
    counts: Arc<Counts>,
) -> Result<(), http::Error> {
    loop {
        let request = Request::post(&uri).body(Full::from("{}"))?;
        match client.clone().oneshot(request).await {
            Ok(response) if response.status().is_success() => counts.sent.fetch_add(1, Relaxed),
            Ok(_) => counts.refused.fetch_add(1, Relaxed),
            Err(error) => {
                println!("{uri}: {error}");
                counts.failed.fetch_add(1, Relaxed)
            }
        };
        time::sleep(rest).await;
    }
}

/// Serves the API, unless another process does.
async fn serve_api(port: u16) -> Result<u16, Box<dyn Error>> {
    let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await else {
        println!("calling the API of another process at port {port}");
        return Ok(port);
    };
    let port = listener.local_addr()?.port();
    println!("serving an API with 20 calls a second at port {port}");
    let limit = RateLimitLayer::builder()
        .policy(Policy::new("api", Quota::per_second(20).burst(2)).key(Global))
        .build()?;
    let app = Router::new().route("/{kind}", post(work)).layer(limit);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(port)
}

async fn work() -> &'static str {
    time::sleep(Duration::from_millis(30)).await;
    "done"
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl Counts {
    fn take(&self, name: &str) -> String {
        let [sent, refused, failed] =
            [&self.sent, &self.refused, &self.failed].map(|count| count.swap(0, Relaxed));
        match refused + failed {
            0 => format!("{name} {sent}"),
            _ => format!("{name} {sent} ({refused} refused, {failed} failed)"),
        }
    }
}
