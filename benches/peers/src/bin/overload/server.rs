//! The server, and the limits and services that it can have.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use axum::{BoxError, Router, error_handling::HandleErrorLayer, routing::get};
use http::{HeaderMap, StatusCode};
use tokio::{net::TcpListener, sync::Semaphore, time};
use tollgate::{RequestHead, extract::Header, overload::Overload};
use tollgate_peers::child::KillOnDrop;
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShedLayer};
use tower_resilience_adaptive::{AdaptiveLimiterLayer, Aimd, Gradient2, Vegas};

use super::scenario::Scenario;

/// Requests a second that each service can serve.
pub const CAPACITY: f64 = 500.0;
const SPIN: Duration = Duration::from_millis(2);
const QUICK: Duration = Duration::from_millis(19);
const SLOW: Duration = Duration::from_secs(2);

/// A server process. It is killed when this is dropped.
pub struct Served {
    process: KillOnDrop,
    output: BufReader<ChildStdout>,
    pub address: SocketAddr,
}

impl Served {
    /// Starts a server, whose events count from now.
    pub fn start(scenario: &Scenario, limit: &str, pace: f64) -> Self {
        let program = env::current_exe().expect("a path");
        let mut process = Command::new(program)
            .args(["serve", limit, scenario.service, scenario.name])
            .args(["--pace", &pace.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
        output.read_line(&mut line).expect("its address");
        Self {
            process: KillOnDrop(process),
            output,
            address: line.trim().parse().expect("an address"),
        }
    }

    /// Ends the server, and returns its limit at the end of each second; none if it does not print one.
    pub fn limits(self) -> Vec<f64> {
        let Self {
            process, output, ..
        } = self;
        drop(process);
        // They wait in the pipe, which has room for hours of them.
        let lines = output.lines().map_while(Result::ok);
        lines.filter_map(|line| line.parse().ok()).collect()
    }
}

pub fn serve(limit: &str, scenario: &Scenario) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let app = limited(app(scenario), limit);
        println!("{address}");
        let served = tokio::spawn(axum::serve(listener, app).into_future());
        served.await.expect("it serves").expect("it serves");
    });
}

/// Prints the limit at the end of each second, from a thread: the runtime may be busy.
fn print_each_second(overload: Overload) {
    let start = Instant::now();
    thread::spawn(move || {
        for second in 1_u64.. {
            let at = start + Duration::from_secs(second);
            thread::sleep(at.saturating_duration_since(Instant::now()));
            println!("{}", overload.limit());
        }
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
                .build()
                .expect("usable settings");
            print_each_second(overload.clone());
            app.layer(overload)
        }
        _ => panic!("no limit {limit}"),
    }
}

fn app(scenario: &Scenario) -> Router {
    let asked = Arc::new(AtomicU32::new(0));
    let handler = match scenario.service {
        "cpu" => get(async || spin(SPIN)),
        "await" => get(async || {
            spin(SPIN / 2);
            time::sleep(Duration::from_millis(10)).await;
            spin(SPIN / 2);
        }),
        "pool" => {
            let downstream = Downstream::new(*scenario);
            get(async move |headers: HeaderMap| {
                downstream.ask(headers.contains_key("x-slow")).await
            })
        }
        // Slows down with what it has to do.
        "shared" => get(async move || {
            let _asked = Asked::one(&asked);
            let crowd = f64::from(asked.load(Ordering::Relaxed)) / 10.0;
            let takes = 0.02 * crowd.max(1.0) * (1.0 + 0.05 * (crowd - 1.0).max(0.0));
            time::sleep(Duration::from_secs_f64(takes)).await;
        }),
        "mix" => get(async |headers: HeaderMap| {
            spin(SPIN);
            if headers.contains_key("x-slow") {
                time::sleep(SLOW).await;
            }
        }),
        service => panic!("no service {service}"),
    };
    Router::new().route("/", handler)
}

/// The downstream of a pool of ten connections.
#[derive(Clone)]
struct Downstream {
    pool: Arc<Semaphore>,
    scenario: Scenario,
    start: Instant,
}

impl Downstream {
    fn new(scenario: Scenario) -> Self {
        Self {
            pool: Arc::new(Semaphore::new(10)),
            scenario,
            start: Instant::now(),
        }
    }

    /// Asks it on one of the connections, and gives up in time.
    async fn ask(&self, is_slow: bool) -> StatusCode {
        let response = async {
            let _connection = self.pool.acquire().await;
            let slowness = self.scenario.slowness(self.start.elapsed().as_secs_f64());
            let takes = if is_slow { SLOW } else { QUICK };
            time::sleep(takes.mul_f64(slowness)).await;
        };
        let time_out = Duration::from_secs_f64(self.scenario.time_out);
        match time::timeout(time_out, response).await {
            Ok(()) => StatusCode::OK,
            Err(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }
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
