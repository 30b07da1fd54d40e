//! Requests against limits, by time that nobody waits for.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, Service};

use crate::{
    builder::RateLimitLayerBuilder,
    charge::Charge,
    clock::{Clock, START},
    decision::Decision,
    error::{Error, ErrorKind},
    middleware::{ResponseBody, ResponseFuture, layer::RateLimitLayer},
    task::Mutex,
};

use super::{
    replayed::{Count, Replay, Replayed},
    test_request::{TestBody, TestRequest},
};

/// Sends requests through limits, each at its time, and returns what became of each.
///
/// Nothing waits, and nothing is asked of a server: the limits count in this process by a clock that moves from request to
/// request, and begins at 2024-01-01T00:00:00Z. A store or a limiter that the builder has is left out, so that the builder of
/// your service can be tested as it is.
///
/// # Examples
///
/// A table test of a rule file (feature `rules`). Use `RuleSet::from_file` for yours:
///
/// ```
/// # #[cfg(feature = "rules")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tollgate::config::{Format, RuleSet};
/// use tollgate::{RateLimitLayer, assert_limited, testing::{TestRequest, replay}};
///
/// let rules = RuleSet::parse(Format::Yaml, "
/// rules: [{ id: login, path: /login, key: peer_ip, limit: 2/min }]
/// ")?;
/// let login = || TestRequest::post("/login").peer("203.0.113.7");
/// let replayed = replay(RateLimitLayer::builder().rules(rules), [
///     login(),
///     login(),
///     login().after(Duration::from_secs(10)),
///     login().after(Duration::from_secs(20)),
///     TestRequest::get("/").peer("203.0.113.7"),
/// ])?;
/// assert_eq!(replayed.allowed(), [true, true, false, true, true]);
/// assert_limited!(replayed[2], "login", 20);
/// assert_eq!(replayed.to_string(), "\
/// 0 s POST /login: allowed; login 203.0.113.7 1/2
/// 0 s POST /login: allowed; login 203.0.113.7 0/2
/// 10 s POST /login: 429 Too Many Requests, rate limit login exceeded, retry in 20 seconds; login 203.0.113.7 0/2
/// 30 s POST /login: allowed; login 203.0.113.7 0/2
/// 30 s GET /: allowed
/// ");
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "rules"))]
/// # fn main() {}
/// ```
///
/// # Errors
///
/// As [`build`](RateLimitLayerBuilder::build), and [`ErrorKind::InvalidConfig`] if a key or a tier has a lookup that is not
/// ready at once, since a replay awaits nothing.
pub fn replay(
    limits: RateLimitLayerBuilder,
    requests: impl IntoIterator<Item = TestRequest>,
) -> Result<Replay, Error> {
    let mut replaying = Replaying::new(limits)?;
    let requests = requests.into_iter();
    let results = requests.map(|request| replaying.send(request));
    let results = results.collect::<Result<_, _>>()?;
    Ok(Replay { results })
}

/// A replay under way.
struct Replaying {
    layer: RateLimitLayer,
    clock: Clock,
    /// The decisions on the current request.
    decided: Arc<Mutex<Vec<Decided>>>,
    /// The bodies of responses that have not ended, with the time of their ends since the start.
    open: Vec<(Duration, ResponseBody<()>)>,
    /// Requests in queues. They keep their turns.
    queued: Vec<Pin<Box<Sending>>>,
    now: Duration,
    /// For timers of queues, which nobody awaits.
    runtime: Option<Runtime>,
}

type Sending = ResponseFuture<Handler, TestBody>;

/// Decision of each policy, and how long the request has to wait in a queue.
struct Decided {
    counts: Vec<Count>,
    delay: Option<Duration>,
}

impl Replaying {
    fn new(limits: RateLimitLayerBuilder) -> Result<Self, Error> {
        let clock = Clock::manual(START);
        let decided: Arc<Mutex<Vec<Decided>>> = Arc::default();
        let record = Arc::clone(&decided);
        let layer = limits
            .in_process_by(clock.clone())
            .on_decision(move |charges, decision| {
                if let Ok(decision) = decision {
                    record.lock().push(Decided {
                        counts: counts(charges, decision),
                        delay: decision.delay(),
                    });
                }
            })
            .build()?;
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "no runtime for timers").with_source(error)
        })?;
        Ok(Self {
            layer,
            clock,
            decided,
            open: Vec::new(),
            queued: Vec::new(),
            now: Duration::ZERO,
            runtime: Some(runtime),
        })
    }

    fn send(&mut self, request: TestRequest) -> Result<Replayed, Error> {
        self.now += request.after;
        self.end_until(self.now);
        let head = &request.request;
        let name = format!("{} {}", head.method(), head.uri());
        let (handler, lasting) = (Handler(request.status), request.lasting);
        let entered = self.runtime.as_ref().map(Runtime::enter);
        let mut sending = Box::pin(self.layer.layer(handler).call(request.into_request()));
        let context = &mut Context::from_waker(Waker::noop());
        let polled = sending.as_mut().poll(context);
        drop(entered);
        let decided = std::mem::take(&mut *self.decided.lock());
        let delay = decided.iter().find_map(|decided| decided.delay);
        let counts = decided.into_iter().flat_map(|decided| decided.counts);
        let counts = counts.collect();
        let response = match (polled, delay) {
            (Poll::Ready(Ok(response)), _) => {
                let (head, body) = response.into_parts();
                self.open.push((self.now + lasting, body));
                self.end_until(self.now);
                Response::from_parts(head, ())
            }
            (Poll::Ready(Err(never)), _) => match never {},
            (Poll::Pending, Some(_)) => {
                self.queued.push(sending);
                Response::new(())
            }
            (Poll::Pending, None) => {
                let message = format!(
                    "{name} waits for a lookup of a key or a tier, which a replay does not await"
                );
                return Err(Error::new(ErrorKind::InvalidConfig, message));
            }
        };
        Ok(Replayed {
            name,
            at: self.now,
            counts,
            response,
            delay,
        })
    }

    /// Ends the responses that are over by then, each at its time, and sets the clock.
    fn end_until(&mut self, now: Duration) {
        self.open.sort_by_key(|(end, _)| *end);
        let over = self.open.partition_point(|(end, _)| *end <= now);
        for (end, body) in self.open.drain(..over) {
            self.clock.set(START + end);
            drop(body);
        }
        self.clock.set(START + now);
    }
}

impl Drop for Replaying {
    fn drop(&mut self) {
        // Another runtime may run this one's caller.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn counts(charges: &[Charge<'_>], decision: &Decision) -> Vec<Count> {
    let counts = charges.iter().zip(decision.states());
    let counts = counts.map(|(charge, state)| Count {
        charge: charge.into(),
        state: *state,
    });
    counts.collect()
}

// === Handler ===

/// The service behind the limits.
#[derive(Clone, Copy, Debug)]
struct Handler(StatusCode);

impl Service<Request<TestBody>> for Handler {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<TestBody>) -> Self::Future {
        let mut response = Response::new(());
        *response.status_mut() = self.0;
        ready(Ok(response))
    }
}
