//! The server, and the limits and services that it can have.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{BoxError, Router, error_handling::HandleErrorLayer, routing::get};
use http::{HeaderMap, StatusCode};
use tokio::{net::TcpListener, sync::Semaphore, time};
use tollgate::{RequestHead, extract::Header, overload::Overload};
use tollgate_peers::child::KillOnDrop;
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShedLayer};
use tower_resilience_adaptive::{AdaptiveLimiterLayer, Aimd, Gradient2, Vegas};

/// Requests a second that each service can serve.
pub const CAPACITY: f64 = 500.0;
const SPIN: Duration = Duration::from_millis(2);

pub struct Served {
    _process: KillOnDrop,
    pub address: SocketAddr,
}

impl Served {
    pub fn start(service: &str, limit: &str) -> Self {
        let program = env::current_exe().expect("a path");
        let mut process = Command::new(program)
            .args(["serve", service, limit])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("its address");
        Self {
            _process: KillOnDrop(process),
            address: line.trim().parse().expect("an address"),
        }
    }
}

pub fn serve(service: &str, limit: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("{}", listener.local_addr().expect("it is bound"));
        let app = limited(app(service), limit);
        let served = tokio::spawn(axum::serve(listener, app).into_future());
        served.await.expect("it serves").expect("it serves");
    });
}

fn limited(app: Router, limit: &str) -> Router {
    let overloaded = |_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE };
    let shed = || {
        ServiceBuilder::new()
            .layer(HandleErrorLayer::new(overloaded))
            .layer(LoadShedLayer::new())
    };
    let most = 10_000;
    match limit.split_once(':').unwrap_or((limit, "")) {
        ("nothing", _) => app,
        ("fixed", most) => {
            let most = most.parse().expect("a number");
            app.layer(shed().layer(GlobalConcurrencyLimitLayer::new(most)))
        }
        ("aimd", _) => {
            let aimd = Aimd::builder().max_limit(most).build().expect("usable");
            app.layer(shed().layer(AdaptiveLimiterLayer::new(aimd)))
        }
        ("vegas", _) => {
            let vegas = Vegas::builder().max_limit(most).build().expect("usable");
            app.layer(shed().layer(AdaptiveLimiterLayer::new(vegas)))
        }
        ("gradient2", _) => {
            let gradient = Gradient2::builder()
                .max_limit(most)
                .build()
                .expect("usable");
            app.layer(shed().layer(AdaptiveLimiterLayer::new(gradient)))
        }
        ("tollgate", _) => {
            let overload = Overload::adaptive()
                .key(Header::new("x-tenant"))
                .priority_header("x-class", |_: &RequestHead| true)
                .build();
            app.layer(overload.expect("usable settings"))
        }
        _ => panic!("no limit {limit}"),
    }
}

fn app(service: &str) -> Router {
    let pool = Arc::new(Semaphore::new(10));
    let downstream = Arc::new(AtomicU32::new(0));
    let handler = match service {
        "cpu" => get(async || spin(SPIN)),
        "await" => get(async || {
            spin(SPIN / 2);
            time::sleep(Duration::from_millis(10)).await;
            spin(SPIN / 2);
        }),
        "pool" => get(async move || {
            let _connection = pool.acquire().await;
            time::sleep(Duration::from_millis(19)).await;
        }),
        // Slows down with what it has to do.
        "shared" => get(async move || {
            let _asked = Asked::one(&downstream);
            let crowd = f64::from(downstream.load(Ordering::Relaxed)) / 10.0;
            let takes = 0.02 * crowd.max(1.0) * (1.0 + 0.05 * (crowd - 1.0).max(0.0));
            time::sleep(Duration::from_secs_f64(takes)).await;
        }),
        "mix" => get(async |headers: HeaderMap| {
            spin(SPIN);
            if headers.contains_key("x-slow") {
                time::sleep(Duration::from_secs(2)).await;
            }
        }),
        _ => panic!("no service {service}"),
    };
    Router::new().route("/", handler)
}

struct Asked(Arc<AtomicU32>);

impl Asked {
    fn one(downstream: &Arc<AtomicU32>) -> Self {
        downstream.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(downstream))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn spin(span: Duration) {
    let start = Instant::now();
    while start.elapsed() < span {
        std::hint::spin_loop();
    }
}
