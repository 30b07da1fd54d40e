//! Answers in time of a service to which more requests come than it can serve: without a limit, with tower's fixed one, with the adaptive
//! ones of tower-resilience, and with tollgate's.
//!
//! A server with one worker on core 0, and clients in this process on core 1: open loop, Poisson arrivals, over HTTP/1.1. A client that
//! waits longer than its patience hangs up. Three classes by thirds, and 20 tenants, of whom one sends nine requests in ten.

use std::{
    cell::RefCell,
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Command, Stdio},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{BoxError, Router, error_handling::HandleErrorLayer, routing::get};
use http::{HeaderMap, StatusCode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time,
};
use tollgate::{RequestHead, extract::Header, overload::Overload};
use tollgate_peers::{
    arguments::Arguments,
    child::KillOnDrop,
    cpu,
    table::{self, Summary},
};
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShedLayer};
use tower_resilience_adaptive::{AdaptiveLimiterLayer, Aimd, Gradient2, Vegas};

const TENANTS: usize = 20;
const CLASSES: [&str; 3] = ["critical", "normal", "sheddable"];
const SERVICES: [&str; 5] = ["cpu", "await", "pool", "shared", "mix"];

fn main() {
    let arguments = Arguments::of_process();
    if let Some([service, limit]) = arguments.subcommand("serve") {
        cpu::pin_to(0);
        return serve(service, limit);
    }
    cpu::pin_to(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let seconds = arguments.seconds("--seconds", 8.0);
    let rounds = arguments.value("--rounds", 1_usize);
    let loads: String = arguments.value("--loads", "0.5,1,2,5,10".to_owned());
    let limits: String = arguments.value(
        "--limits",
        "nothing,fixed:16,aimd,vegas,gradient2,tollgate".to_owned(),
    );
    for service in SERVICES
        .into_iter()
        .filter(|service| arguments.picks(service))
    {
        let mut rows = Vec::new();
        for load in loads.split(',') {
            let load: f64 = load.parse().expect("a number");
            for limit in limits.split(',') {
                let runs = (0..rounds).map(|round| {
                    let setup = Setup {
                        service,
                        load,
                        seconds,
                        seed: round as u64 + 1,
                    };
                    let server = Served::start(service, limit);
                    runtime.block_on(run(setup, server.address))
                });
                rows.push(row(load, limit, &runs.collect::<Vec<_>>()));
            }
        }
        let columns = [
            "load",
            "limit",
            "in time a second",
            "p50 ms",
            "p99 ms",
            "critical",
            "normal",
            "sheddable",
            "Jain",
            "quiet p99 ms",
        ];
        let heading = format!("{service}: {CAPACITY} a second are possible");
        table::print(&heading, &columns, &rows);
    }
}

fn row(load: f64, limit: &str, runs: &[Outcome]) -> Vec<String> {
    let show = |digits, field: fn(&Outcome) -> f64| {
        let summary = Summary::of(runs.iter().map(field));
        match runs.len() {
            1 => format!("{:.digits$}", summary.median),
            _ => summary.show(digits),
        }
    };
    vec![
        load.to_string(),
        limit.to_owned(),
        show(0, |run| run.in_time),
        show(1, |run| run.p50),
        show(1, |run| run.p99),
        show(3, |run| run.classes[0]),
        show(3, |run| run.classes[1]),
        show(3, |run| run.classes[2]),
        show(2, |run| run.jain),
        show(1, |run| run.quiet_p99),
    ]
}

// === Server ===

/// Requests a second that each service can serve.
const CAPACITY: f64 = 500.0;
const SPIN: Duration = Duration::from_millis(2);

struct Served {
    _process: KillOnDrop,
    address: SocketAddr,
}

impl Served {
    fn start(service: &str, limit: &str) -> Self {
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

fn serve(service: &str, limit: &str) {
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

// === Clients ===

#[derive(Clone, Copy)]
struct Setup {
    service: &'static str,
    load: f64,
    seconds: Duration,
    seed: u64,
}

struct Outcome {
    in_time: f64,
    p50: f64,
    p99: f64,
    classes: [f64; 3],
    jain: f64,
    quiet_p99: f64,
}

#[derive(Default)]
struct Seen {
    /// Came and answered in time, by tenant and class.
    counts: [[(f64, f64); 3]; TENANTS],
    times: Vec<(usize, f64)>,
}

/// Connections that wait for a request.
type Idle = Rc<RefCell<Vec<TcpStream>>>;

async fn run(setup: Setup, address: SocketAddr) -> Outcome {
    let (seen, idle) = (Rc::new(RefCell::new(Seen::default())), Idle::default());
    let mut random = Random(setup.seed);
    let local = tokio::task::LocalSet::new();
    // The first quarter is not measured.
    let warm_up = setup.seconds / 3;
    local
        .run_until(async {
            let start = Instant::now();
            let end = warm_up + setup.seconds;
            let mut due = Duration::ZERO;
            let mut running = tokio::task::JoinSet::new();
            while due < end {
                let ahead = due.saturating_sub(start.elapsed());
                if ahead > Duration::from_millis(1) {
                    time::sleep(ahead).await;
                }
                while running.try_join_next().is_some() {}
                let request = Sent::draw(setup.service, &mut random);
                let (seen, idle) = (Rc::clone(&seen), Rc::clone(&idle));
                let (sent_at, is_measured) = (start + due, due > warm_up);
                running.spawn_local(async move {
                    let answer = time::timeout(request.patience, ask(address, &idle, &request));
                    let is_served = answer.await == Ok(Some(200));
                    if is_measured {
                        seen.borrow_mut()
                            .note(&request, is_served.then(|| sent_at.elapsed()));
                    }
                });
                due += random.exponential(1.0 / (setup.load * CAPACITY));
                tokio::task::yield_now().await;
            }
            running.join_all().await;
        })
        .await;
    let seen = seen.borrow();
    seen.outcome(setup.seconds)
}

struct Sent {
    tenant: usize,
    class: usize,
    patience: Duration,
    text: String,
}

impl Sent {
    fn draw(service: &str, random: &mut Random) -> Self {
        let tenant = match random.unit() < 0.9 {
            true => 0,
            false => 1 + (random.unit() * (TENANTS - 1) as f64) as usize,
        };
        let class = (random.unit() * 3.0) as usize;
        let is_slow = service == "mix" && random.unit() < 0.05;
        let slow = if is_slow { "x-slow: 1\r\n" } else { "" };
        Self {
            tenant,
            class,
            patience: Duration::from_secs(if is_slow { 5 } else { 1 }),
            text: format!(
                "GET / HTTP/1.1\r\nhost: x\r\nx-tenant: t{tenant}\r\nx-class: {}\r\n{slow}\r\n",
                CLASSES[class]
            ),
        }
    }
}

/// Returns the status of the answer.
async fn ask(address: SocketAddr, idle: &Idle, request: &Sent) -> Option<u16> {
    let free = idle.borrow_mut().pop();
    let mut stream = match free {
        Some(stream) => stream,
        None => TcpStream::connect(address).await.ok()?,
    };
    let _ = stream.set_nodelay(true);
    stream.write_all(request.text.as_bytes()).await.ok()?;
    let mut read = Vec::with_capacity(1_024);
    loop {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        if read.len() >= end + 4 + length.unwrap_or(0) {
            idle.borrow_mut().push(stream);
            return head.get(9..12)?.parse().ok();
        }
    }
}

impl Seen {
    fn note(&mut self, request: &Sent, took: Option<Duration>) {
        let count = &mut self.counts[request.tenant][request.class];
        count.0 += 1.0;
        if let Some(took) = took {
            count.1 += 1.0;
            self.times.push((request.tenant, took.as_secs_f64() * 1e3));
        }
    }

    fn outcome(&self, span: Duration) -> Outcome {
        let total = |class: usize| {
            let of_class = self.counts.iter().map(|tenant| tenant[class]);
            of_class.fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1))
        };
        let totals = [0, 1, 2].map(total);
        // Of a class that gets next to nothing, and so of its tenants, only the noise would be seen.
        let contended = (0..3).filter(|class| totals[*class].1 > 0.05 * totals[*class].0);
        let indices = contended.map(|class| jain(&self.counts.map(|tenant| tenant[class])));
        let quantile = |share: f64, picks: fn(usize) -> bool| {
            let mut times: Vec<f64> = self
                .times
                .iter()
                .filter(|(tenant, _)| picks(*tenant))
                .map(|(_, took)| *took)
                .collect();
            times.sort_by(f64::total_cmp);
            let place = (times.len().saturating_sub(1) as f64 * share) as usize;
            times.get(place).copied().unwrap_or(f64::NAN)
        };
        Outcome {
            in_time: self.times.len() as f64 / span.as_secs_f64(),
            p50: quantile(0.5, |_| true),
            p99: quantile(0.99, |_| true),
            classes: totals.map(|(came, served)| served / f64::max(came, 1.0)),
            jain: indices.fold(1.0, f64::min),
            quiet_p99: quantile(0.99, |tenant| tenant > 0),
        }
    }
}

/// Jain's index of what tenants got, as a part of what each would get if all were served equally (max-min).
fn jain(tenants: &[(f64, f64)]) -> f64 {
    let mut fair = vec![0.0; tenants.len()];
    let mut left: f64 = tenants.iter().map(|(_, served)| served).sum();
    let mut open: Vec<usize> = (0..fair.len()).collect();
    while !open.is_empty() {
        let level = left / open.len() as f64;
        let (small, large): (Vec<usize>, Vec<usize>) = open
            .into_iter()
            .partition(|tenant| tenants[*tenant].0 <= level);
        if small.is_empty() {
            large.iter().for_each(|tenant| fair[*tenant] = level);
            break;
        }
        for tenant in small {
            fair[tenant] = tenants[tenant].0;
            left -= fair[tenant];
        }
        open = large;
    }
    let parts = fair.iter().zip(tenants).filter(|(fair, _)| **fair > 0.0);
    let parts: Vec<f64> = parts.map(|(fair, (_, served))| served / fair).collect();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    parts.iter().sum::<f64>().powi(2) / (parts.len() as f64 * squares)
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> Duration {
        Duration::from_secs_f64(-mean * (1.0 - self.unit()).ln())
    }
}
