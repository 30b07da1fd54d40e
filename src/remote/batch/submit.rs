//! Requests from a caller's point of view: submitted, then awaited.
//!
//! ```text
//! submit --> Scheduler::submit --> SendNow: call in this future ------> result
//!    ^                         '-> Queued: wait for a worker to call -> result
//!    |                                                                   |
//!    |---- NotSent: the connection or the runtime of the worker ended ---|
//!    '---- Redirected: another node of the cluster has the keys ---------'
//! ```
//!
//! A request is submitted again at most once for each lane and once more, and for at most 16 redirects in a row. It always has
//! its first time, so its deadline does not move.
//!
//! # Redirects
//!
//! Two redirects in a row are usual: `MOVED` by a node that has given the slot away, then `ASK` while it moves on. Nodes that
//! disagree about a slot redirect in a circle, as one does that announces the address of another. So each further redirect
//! waits first, as after `TRYAGAIN`, and the error of a request that nobody decides names its hash slot. The fallback
//! collects these.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::runtime::Handle;

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, Phase},
    task::{backoff::jittered, home, timer::sleep},
};

use super::{
    super::{
        client::Client,
        connection::classify,
        protocol::{Delivery, Redirect, Request, RequestResult},
    },
    calls::{Alarm, CallHandle},
    queue::JobResult,
    scheduler::Submitted,
    watchdog,
    worker::Worker,
};

/// Sends a request, together with whatever else waits, and returns its reply. Needs a Tokio runtime, with or without
/// timers.
///
/// # Errors
///
/// Those of the connection and of the server, [`ErrorKind::Timeout`] at the deadline, and [`ErrorKind::Overloaded`] for
/// a request that was shed.
///
/// # Cancel safety
///
/// Nothing is charged if it is dropped before the request is sent. Afterwards the charge may have been made.
///
/// [`ErrorKind::Overloaded`]: crate::ErrorKind::Overloaded
/// [`ErrorKind::Timeout`]: crate::ErrorKind::Timeout
pub(in crate::remote) async fn submit(
    client: &Arc<Client>,
    request: Box<Request>,
) -> RequestResult {
    submit_since(client, request, now()).await
}

/// As [`submit`], for a request whose deadline began at `submitted_at`.
pub(in crate::remote) async fn submit_since(
    client: &Arc<Client>,
    mut request: Box<Request>,
    submitted_at: Timestamp,
) -> RequestResult {
    let mut tried_at = now();
    let own_current_call = client.scheduler.first_current_call();
    let mut first_current_call = own_current_call;
    let slot = request.slot();
    let in_slot = |error: Error| match slot {
        Some(slot) => error.with_slot(slot),
        None => error,
    };
    // The node that a redirect leads to.
    let mut redirected = None;
    let (mut unsent, mut redirects) = (0, Redirects::default());
    loop {
        let node = redirected.as_ref().unwrap_or(client);
        match submit_to(node, request, submitted_at, tried_at).await? {
            JobResult::Replied(result) => {
                let is_of_slot = result.as_ref().is_err_and(classify::is_of_one_slot);
                return if is_of_slot {
                    result.map_err(in_slot)
                } else {
                    result
                };
            }
            JobResult::NotSent(handed_back) => {
                // Each lane may find its connection closed once. Then another lane sends the request.
                unsent += 1;
                if unsent == node.scheduler.lanes().len() + 2 {
                    return Err(classify::runtime_ended());
                }
                if node.scheduler.first_current_call() > first_current_call {
                    return Err(classify::replaced());
                }
                request = handed_back;
            }
            JobResult::Redirected(handed_back, redirect) => {
                request = handed_back;
                let left = (submitted_at + client.deadline).since(now());
                if let Some(wait) = redirects.note(&redirect, left).map_err(in_slot)? {
                    sleep(wait).await;
                }
                redirected = follow(node, &mut request, &redirect).map_err(in_slot)?;
                if !request.is_probe()
                    && let Some(node) = &redirected
                    && node.was_promoted_since(submitted_at)
                {
                    return Err(classify::replaced());
                }
                // The same server may have been replaced meanwhile.
                first_current_call = redirected
                    .as_ref()
                    .map_or(own_current_call, |node| node.scheduler.first_current_call());
            }
        }
        tried_at = now();
    }
}

/// The redirects of one request.
#[derive(Default)]
struct Redirects {
    in_a_row: u32,
    /// Redirects that were followed after a wait.
    waits: u32,
}

impl Redirects {
    /// Counts a redirect. Returns the wait before it is followed, if any.
    ///
    /// # Errors
    ///
    /// That of too many redirects, or of a wait that is longer than the time that is left.
    fn note(&mut self, redirect: &Redirect, left: Duration) -> Result<Option<Duration>, Error> {
        let is_moving = *redirect == Redirect::TryAgain;
        self.in_a_row = if is_moving { 0 } else { self.in_a_row + 1 };
        let waits = is_moving || self.in_a_row > USUAL_REDIRECTS;
        self.waits += u32::from(waits);
        let wait = waits.then(|| moving_wait(self.waits));
        let is_late = left.is_zero() || wait.is_some_and(|wait| wait > left);
        if is_late || self.in_a_row > MAX_REDIRECTS {
            return Err(classify::unresolved(redirect, self.in_a_row));
        }
        Ok(wait)
    }
}

/// Prepares a request for its next try. Returns the node that the redirect of `client` leads to, or `None` for the node that
/// the request was first sent to.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the node cannot be found.
fn follow(
    client: &Client,
    request: &mut Request,
    redirect: &Redirect,
) -> Result<Option<Arc<Client>>, Error> {
    let delivery = match redirect {
        Redirect::Ask(_) => Delivery::Asking,
        Redirect::Moved { .. } | Redirect::Split => Delivery::Shared,
        Redirect::TryAgain => Delivery::Alone,
    };
    request.set_delivery(delivery);
    match redirect {
        Redirect::Ask(_) | Redirect::Moved { .. } => {
            let node = client.follow(redirect);
            let node = node.ok_or_else(|| {
                let finding = "the redis cluster has slots at nodes that a pool of the application cannot reach";
                client.check.warn_of_unreachable(finding);
                classify::unreachable(redirect)
            })?;
            Ok(Some(node))
        }
        Redirect::Split => {
            client.note_mode(true);
            Ok(None)
        }
        Redirect::TryAgain => Ok(None),
    }
}

/// Sends a request to one node, and waits for its end.
///
/// # Errors
///
/// That of a caller that cannot wait, and [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) at the deadline.
async fn submit_to(
    client: &Arc<Client>,
    request: Box<Request>,
    submitted_at: Timestamp,
    tried_at: Timestamp,
) -> Result<JobResult, Error> {
    let runtime = Handle::try_current().map_err(classify::no_runtime)?;
    ensure_watched(client)?;
    let submitted = client.scheduler.submit(request, submitted_at, tried_at);
    // Again: the watchdog may have found nothing under way meanwhile, and fallen asleep.
    ensure_watched(client)?;
    match submitted {
        Submitted::SendNow(call, request) => {
            let alarm = Arc::clone(&call.alarm);
            let own_call = OwnCall {
                // Boxed: most requests wait, and the call would make their futures ten times as large.
                calling: Some(Box::pin(call_alone(Arc::clone(client), call, request))),
                alarm,
                runtime: &runtime,
            };
            let result = own_call.await;
            result.ok_or_else(|| client.timeout_error(Phase::Reply))
        }
        Submitted::Queued {
            result,
            dispatcher,
            shed,
        } => {
            if let Some(shed) = shed {
                shed.complete(Err(client.scheduler.shedding.error()));
            }
            if let Some(dispatcher) = dispatcher {
                let runtime = client.callers.choose(runtime);
                Worker::dispatch_on(&runtime, client, dispatcher);
            }
            result.await.map_err(|_| classify::runtime_ended())
        }
    }
}

/// Makes sure that the watchdog keeps the deadline. It is asleep only in an idle process.
#[inline]
pub(super) fn ensure_watched(client: &Arc<Client>) -> Result<(), Error> {
    if client.watchdog.is_awake() {
        Ok(())
    } else {
        watchdog::wake(client)
    }
}

/// Makes a call for one request, and returns the request if it was not sent.
///
/// It owns all that it uses, so that it can go on as a task when its caller leaves.
async fn call_alone(client: Arc<Client>, call: CallHandle, request: Box<Request>) -> JobResult {
    let mut worker = Worker::calling(client, call.id);
    let requests = [request];
    let result = worker.call(&call, &requests).await;
    let mut end = None;
    result.distribute(requests.into_iter(), |result| end = Some(result));
    end.expect("one result per request")
}

/// Returns the wait before a slot that is being moved is tried again.
pub(super) fn moving_wait(tries: u32) -> Duration {
    jittered(FIRST_MOVING_WAIT * (1 << tries.min(4)))
}

/// Returns the present time of this process' clock, by which deadlines are kept.
fn now() -> Timestamp {
    Clock::system().now()
}

/// Redirects in a row that are followed at once.
pub(super) const USUAL_REDIRECTS: u32 = 2;
/// The most redirects that one request follows in a row.
pub(super) const MAX_REDIRECTS: u32 = 16;
/// Half of the first wait while a slot is being moved. The waits double four times, and are jittered.
const FIRST_MOVING_WAIT: Duration = Duration::from_millis(1);

// === OwnCall ===

/// A call for one request in the future of its caller. `None` at the deadline.
///
/// When it is dropped, the call goes on in the background: a reply shows that the connection is alive, and a missing
/// reply that it is not.
struct OwnCall<'a, F: Future<Output: Send> + Send + 'static> {
    /// `None` once it has ended.
    calling: Option<Pin<Box<F>>>,
    alarm: Arc<Alarm>,
    /// Where the call goes on if its caller leaves.
    runtime: &'a Handle,
}

impl<F: Future<Output: Send> + Send + 'static> Future for OwnCall<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { calling, alarm, .. } = &mut *self;
        let under_way = calling.as_mut();
        let under_way = under_way.expect("a future is not polled after it ended");
        let result = ready!(until_expired(under_way.as_mut(), alarm, context));
        if result.is_some() {
            *calling = None;
        }
        Poll::Ready(result)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for OwnCall<'_, F> {
    fn drop(&mut self) {
        if let Some(calling) = self.calling.take() {
            home::spawn_lasting_on(self.runtime, calling);
        }
    }
}

/// Polls a call; `None` if it is pending and its job has timed out.
pub(super) fn until_expired<F: Future>(
    calling: Pin<&mut F>,
    alarm: &Alarm,
    context: &mut Context<'_>,
) -> Poll<Option<F::Output>> {
    match calling.poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if alarm.is_expired() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    }
}
