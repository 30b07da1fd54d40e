//! Clients of all plans, for the demo: they call the gateway over sockets, as others do.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

/// Header, its value, and requests per second of each client.
///
/// The demo is a load balancer, too: it names the address of clients without an API key.
const CLIENTS: [(&str, &str, f64); 8] = [
    ("x-api-key", "demo-free-ada", 3.0),
    ("x-api-key", "demo-free-bob", 8.0),
    ("x-api-key", "demo-pro-carol", 12.0),
    ("x-api-key", "demo-pro-dave", 16.0),
    ("x-api-key", "demo-internal-jobs", 10.0),
    ("x-forwarded-for", "203.0.113.7", 0.5),
    ("x-forwarded-for", "203.0.113.20", 0.8),
    ("x-forwarded-for", "198.51.100.99", 3.0), // reads all pages, one after the other
];

/// Sends requests until it is dropped, and prints a line about them every five seconds.
pub(crate) async fn run(gateway: SocketAddr) {
    let load = Load {
        client: Client::builder(TokioExecutor::new()).build(HttpConnector::new()),
        gateway,
        counts: Arc::default(),
        start: Instant::now(),
    };
    let mut clients = JoinSet::new();
    for (number, client) in CLIENTS.into_iter().enumerate() {
        clients.spawn(load.clone().send_as(client, number));
    }
    let mut ticks = interval(REPORT_INTERVAL);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        load.counts.print_and_reset();
    }
}

#[derive(Clone)]
struct Load {
    client: Client<HttpConnector, Body>,
    gateway: SocketAddr,
    counts: Arc<Counts>,
    start: Instant,
}

impl Load {
    async fn send_as(self, (header, value, rate): (&str, &str, f64), number: usize) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let (mut due, mut sent) = (0.0, number);
        loop {
            ticks.tick().await;
            let seconds = self.start.elapsed().as_secs_f64();
            // All are busier at some times than at others.
            let haste = 1.0 + 0.7 * (seconds / 8.0).sin();
            due += rate * haste * TICK.as_secs_f64();
            while due >= 1.0 {
                due -= 1.0;
                sent += 1;
                let path = PATHS[sent % PATHS.len()];
                self.counts.note(self.status(path, header, value).await);
            }
        }
    }

    /// Returns the status of the response; `None` without a whole response.
    async fn status(&self, path: &str, header: &str, value: &str) -> Option<StatusCode> {
        let request = Request::get(format!("http://{}{path}", self.gateway)).header(header, value);
        let request = request.body(Body::empty()).expect("a valid request");
        let response = self.client.request(request).await.ok()?;
        let status = response.status();
        response.into_body().collect().await.ok()?;
        Some(status)
    }
}

/// Responses since the last report.
#[derive(Default)]
struct Counts {
    ok: AtomicU64,
    limited: AtomicU64,
    failed: AtomicU64,
}

impl Counts {
    fn note(&self, status: Option<StatusCode>) {
        let count = match status {
            Some(StatusCode::OK) => &self.ok,
            Some(StatusCode::TOO_MANY_REQUESTS) => &self.limited,
            _ => &self.failed,
        };
        count.fetch_add(1, Relaxed);
    }

    fn print_and_reset(&self) {
        let [ok, limited, failed] =
            [&self.ok, &self.limited, &self.failed].map(|count| count.swap(0, Relaxed));
        println!(
            "demo load, the last {} s: {ok} ok, {limited} limited (429), {failed} failed",
            REPORT_INTERVAL.as_secs()
        );
    }
}

const PATHS: [&str; 8] = [
    "/items/1",
    "/items/2",
    "/search?q=shoes",
    "/items/3",
    "/items/1",
    "/reports/7",
    "/items/5",
    "/items/8",
];
const TICK: Duration = Duration::from_millis(50);
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
