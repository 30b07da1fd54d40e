//! A process of a client in Rust: tasks that wait for their turn and call.

use std::{
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, Request, StatusCode, header::RETRY_AFTER};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{runtime::Runtime, task::JoinSet, time::timeout};
use tollgate_peers::arguments::Arguments;

use super::{client::Client, limiter::Limiter, report::Report};

type Http = HttpClient<HttpConnector, Empty<&'static [u8]>>;

/// Calls until the time is over, and prints a report.
pub fn call(arguments: &Arguments) {
    let rate: f64 = arguments.value("--rate", 1.0);
    let processes: u32 = arguments.value("--processes", 1);
    let begins_at = Duration::from_secs(arguments.value("--begins-at", 0));
    let ends_at = begins_at + Duration::from_secs(arguments.value("--seconds", 10));
    let interval = Duration::from_secs_f64(f64::from(processes) / rate);
    // Processes that count apart have different phases, as they would in a fleet.
    let phase = (arguments.value("--number", 0.0) * GOLDEN_RATIO).fract();
    thread::sleep(interval.mul_f64(phase));
    let caller = Arc::new(Caller {
        limiter: Limiter::new(
            arguments.value("--client", Client::Governor),
            interval,
            (
                arguments.optional("--redis"),
                Duration::from_secs_f64(1.0 / rate),
            ),
        ),
        http: HttpClient::builder(TokioExecutor::new()).build_http(),
        url: format!("http://{}/", arguments.value("--address", String::new())),
        begins_at,
        ends_at,
    });
    let runtime = Runtime::new().expect("a runtime can be made");
    let report = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..arguments.value("--tasks", 1) {
            let caller = Arc::clone(&caller);
            tasks.spawn(async move { caller.run().await });
        }
        let mut all = Report::default();
        while let Some(report) = tasks.join_next().await {
            all.add(report.expect("a task does not panic"));
        }
        all
    });
    report.print();
}

struct Caller {
    limiter: Limiter,
    http: Http,
    url: String,
    begins_at: Duration,
    ends_at: Duration,
}

impl Caller {
    /// Takes turns until the time is over.
    async fn run(&self) -> Report {
        let mut report = Report::default();
        let mut starts = 0;
        loop {
            let asked = now();
            let left = self.ends_at.saturating_sub(asked);
            // A turn that comes after the end does not count. With no time left, one that is ready would still be taken.
            if left.is_zero() || timeout(left, self.limiter.turn()).await.is_err() {
                break;
            }
            let started = now();
            if self.is_counted(started) {
                report.waits.push(started - asked);
                starts += 1;
            }
            let outcome = self.call().await;
            if let Ok((StatusCode::TOO_MANY_REQUESTS, headers)) = &outcome {
                self.limiter.note_refusal(retry_after(headers)).await;
            }
            if self.is_counted(now()) {
                match outcome.map(|(status, _)| status) {
                    Ok(StatusCode::OK) => report.admitted += 1,
                    Ok(StatusCode::TOO_MANY_REQUESTS) => report.refused += 1,
                    Ok(_) | Err(_) => report.failed += 1,
                }
            }
        }
        report.starts.push(starts);
        report
    }

    fn is_counted(&self, time: Duration) -> bool {
        (self.begins_at..self.ends_at).contains(&time)
    }

    async fn call(&self) -> Result<(StatusCode, HeaderMap), hyper_util::client::legacy::Error> {
        let request = Request::get(&self.url).body(Empty::new());
        let response = self
            .http
            .request(request.expect("it is well formed"))
            .await?;
        let (head, body) = response.into_parts();
        // To the end, so that the connection serves the next call. A body that breaks off has no use here.
        let _ = body.collect().await;
        Ok((head.status, head.headers))
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The time of the wall clock, by which all processes begin and end.
fn now() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is right")
}

/// Its multiples have even fractions for any number of processes.
const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;
