//! Rows with an API that refuses, lies, lowers its limit or closes connections: what the callers of a fleet do then.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderValue, StatusCode, header::RETRY_AFTER};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::{self, Client},
    rt::{TokioExecutor, TokioIo},
};
use tokio::{net::TcpListener, task::JoinSet};
use tollgate::{
    Policy, Quota,
    client::{CallFailure, OutgoingError, OutgoingLayer},
    extract::HostHeader,
};
use tower::{Layer, ServiceExt};

use super::{fleet::Fleet, support::Arguments};

/// An answer of the API while it is at fault.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// A 429 with these values of `Retry-After`.
    Refused(&'static [&'static str]),
    /// None: the connection is closed.
    Closed,
    /// A 503 to every second call.
    HalfFailed,
    /// A quarter of the calls is served, and a 429 to all others. The limit and what remains of it are in headers.
    Lowered,
}

/// The names of the rows, and what the API does in the seconds that follow.
const ROWS: [(&str, Answer, u32); 10] = [
    ("Retry-After: 3", Answer::Refused(&["3"]), 3),
    ("no Retry-After", Answer::Refused(&[]), 1),
    ("Retry-After: 0", Answer::Refused(&["0"]), 1),
    ("Retry-After: -5", Answer::Refused(&["-5"]), 1),
    (
        "a date of 1994",
        Answer::Refused(&["Sun, 06 Nov 1994 08:49:37 GMT"]),
        1,
    ),
    ("Retry-After: 10^12", Answer::Refused(&["1000000000000"]), 1),
    ("two headers, 1 and 3", Answer::Refused(&["1", "3"]), 1),
    ("closed connections", Answer::Closed, 1),
    ("half fail", Answer::HalfFailed, 10),
    ("a quarter of the limit", Answer::Lowered, 5),
];

/// Prints a row for each fault of the API.
pub(crate) async fn answers(arguments: &Arguments) {
    println!(
        "| from 2 s on | for, s | calls meanwhile | of these not served | for each that was asked for | longest time without a call, s | calls after it, of the rate | tasks with an error | errors |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, answer, length) in ROWS {
        answer_row(arguments, name, answer, length).await;
    }
}

async fn answer_row(arguments: &Arguments, name: &str, answer: Answer, length: u32) {
    let rate: u64 = arguments.value("--rate", 100);
    let policy = Policy::new("api", Quota::per_second(rate).burst(1));
    let fleet = Fleet::start(3, &[&policy], Duration::ZERO).await;
    let api = Arc::new(Api::new(rate, answer, length));
    let address = api.serve().await;
    let (begun, end) = (api.begun, Duration::from_secs(2 + u64::from(length) + 6));
    let mut tasks = JoinSet::new();
    for limiter in &fleet.limiters {
        let layer = OutgoingLayer::builder(limiter)
            .policy(policy.clone().outgoing_key(HostHeader))
            .max_pause(Duration::from_secs(5))
            .classify_errors(|error: &legacy::Error| match error.is_connect() {
                true => CallFailure::NotSent,
                false => CallFailure::Transient,
            })
            .build()
            .expect("a usable layer");
        // As many connections as calls: one is closed with its call only.
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let client = layer.layer(client);
        for _ in 0..64 {
            let client = client.clone();
            tasks.spawn(async move {
                let (mut asked, mut errors) = (Vec::new(), Vec::new());
                while begun.elapsed() < end {
                    let request = Request::get(format!("http://{address}/"));
                    let request = request.body(Full::default()).expect("it is well formed");
                    let result = client.clone().oneshot(request).await;
                    asked.push(begun.elapsed());
                    match result {
                        Ok(response) if response.status().is_success() => {}
                        Ok(response) => errors.push(response.status().as_str().to_owned()),
                        Err(OutgoingError::Inner(_)) => errors.push("closed".to_owned()),
                        Err(OutgoingError::Limited(limited)) => {
                            errors.push(format!("no turn after {}", limited.attempts()));
                        }
                        Err(_) => unreachable!("these are all"),
                    }
                }
                (asked, errors)
            });
        }
    }
    let (mut asked, mut failed, mut errors) = (0, 0, BTreeMap::new());
    let fault = &api.fault;
    let whole = tokio::time::timeout_at((begun + end + Duration::from_secs(2)).into(), async {
        while let Some(done) = tasks.join_next().await {
            let (times, own) = done.expect("a task does not panic");
            asked += times.iter().filter(|at| fault.contains(*at)).count();
            failed += usize::from(!own.is_empty());
            for error in own {
                *errors.entry(error).or_insert(0) += 1;
            }
        }
    });
    let late = if whole.await.is_err() { tasks.len() } else { 0 };
    let calls = api.calls.lock().unwrap_or_else(PoisonError::into_inner);
    let meanwhile = calls.iter().filter(|call| fault.contains(&call.0));
    let (count, refused) = meanwhile.fold((0, 0), |(count, refused), (_, is_served)| {
        (count + 1, refused + u32::from(!is_served))
    });
    let longest = calls.windows(2).map(|pair| pair[1].0 - pair[0].0).max();
    let after = fault.end + Duration::from_secs(2)..fault.end + Duration::from_secs(6);
    let after = calls.iter().filter(|call| after.contains(&call.0)).count();
    println!(
        "| {name} | {length} | {count} | {refused} | {:.2} | {:.2} | {:.3} | {failed} of 192, {late} still waiting | {errors:?} |",
        f64::from(count) / asked.max(1) as f64,
        longest.unwrap_or_default().as_secs_f64(),
        after as f64 / (4 * rate) as f64,
    );
}

// === Api ===

struct Api {
    begun: Instant,
    rate: u64,
    answer: Answer,
    fault: std::ops::Range<Duration>,
    /// When each call came, and whether it was served.
    calls: Mutex<Vec<(Duration, bool)>>,
}

impl Api {
    fn new(rate: u64, answer: Answer, length: u32) -> Self {
        Self {
            begun: Instant::now(),
            rate,
            answer,
            fault: Duration::from_secs(2)..Duration::from_secs(2 + u64::from(length)),
            calls: Mutex::default(),
        }
    }

    async fn serve(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("some port is free");
        let address = listener.local_addr().expect("it is bound");
        let api = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let api = Arc::clone(&api);
                let service = service_fn(move |_: Request<Incoming>| {
                    let answered = api.answer();
                    async move { answered }
                });
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serving);
            }
        });
        address
    }

    /// Answers a call; an error closes its connection.
    fn answer(&self) -> io::Result<Response<Full<Bytes>>> {
        let at = self.begun.elapsed();
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let mut headers = HeaderMap::new();
        let is_at_fault = self.fault.contains(&at);
        let status = match self.answer {
            _ if !is_at_fault => StatusCode::OK,
            Answer::Closed => {
                calls.push((at, false));
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Answer::Refused(values) => {
                for value in values {
                    headers.append(RETRY_AFTER, HeaderValue::from_static(value));
                }
                StatusCode::TOO_MANY_REQUESTS
            }
            Answer::HalfFailed if calls.len().is_multiple_of(2) => StatusCode::SERVICE_UNAVAILABLE,
            Answer::HalfFailed => StatusCode::OK,
            Answer::Lowered => {
                let limit = usize::try_from(self.rate / 4).unwrap_or(usize::MAX);
                let second = at.as_secs();
                let in_second = calls.iter().rev();
                let in_second = in_second.take_while(|call| call.0.as_secs() == second);
                let served = in_second.filter(|call| call.1).count();
                let is_served = served < limit;
                let left = limit.saturating_sub(served + usize::from(is_served));
                headers.insert("x-ratelimit-limit", HeaderValue::from(limit));
                headers.insert("x-ratelimit-remaining", HeaderValue::from(left));
                headers.insert("x-ratelimit-reset", HeaderValue::from(1));
                match is_served {
                    true => StatusCode::OK,
                    false => StatusCode::TOO_MANY_REQUESTS,
                }
            }
        };
        calls.push((at, status.is_success()));
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}
