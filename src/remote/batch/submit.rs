//! Requests from a caller's point of view: submitted, then awaited.
//!
//! ```text
//! submit --> Scheduler::submit --> SendNow: call in this future ------> result
//!    ^                         '-> Queued: wait for a worker to call -> result
//!    |                                                                   |
//!    '---- NotSent: the connection or the runtime of the worker ended ---'
//! ```
//!
//! A request is submitted again at most once for each lane and once more. It always has its first time, so its deadline does
//! not move.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, Phase},
    task::home,
};

use super::{
    super::{
        client::Client,
        connection::classify,
        protocol::{Redirect, Request, RequestResult},
    },
    calls::{Alarm, CallHandle},
    queue::JobResult,
    steps::Submitted,
    watchdog,
    worker::Worker,
};

/// The end of a request at one server.
pub(in crate::remote) enum Answer {
    /// A reply, or the error of its call.
    Replied(RequestResult),
    /// The server did not execute it.
    Redirected(Box<Request>, Redirect),
}

/// Sends a request to one server, together with whatever else waits, and returns its reply. Needs a Tokio runtime, with or
/// without timers.
///
/// The request must have a run number. A server that has replaced that run does not get it.
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
    mut request: Box<Request>,
    submitted_at: Timestamp,
) -> Result<Answer, Error> {
    let mut unsent = 0;
    loop {
        // A call fails as a whole if one of its requests is for a server that was replaced.
        let run_number = client.scheduler.run_number();
        if !request.is_probe() && request.run_number() != Some(run_number) {
            return Err(classify::replaced());
        }
        let tried_at = Clock::system().now();
        request = match submit_once(client, request, submitted_at, tried_at).await? {
            JobResult::Replied(result) => return Ok(Answer::Replied(result)),
            JobResult::Redirected(request, redirect) => {
                return Ok(Answer::Redirected(request, redirect));
            }
            JobResult::NotSent(request) => request,
        };
        // Each lane may find its connection closed once. Then another lane sends the request.
        unsent += 1;
        if unsent == client.scheduler.lanes().len() + 2 {
            return Err(classify::runtime_ended());
        }
    }
}

/// Sends a request, and waits for its end.
///
/// # Errors
///
/// That of a caller that cannot wait, and [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) at the deadline.
async fn submit_once(
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
            fills_call,
        } => {
            if let Some(shed) = shed {
                shed.complete(Err(client.scheduler.shedding.error()));
            }
            if let Some(dispatcher) = dispatcher {
                let runtime = client.callers.choose(runtime);
                Worker::dispatch_on(&runtime, client, dispatcher);
            }
            if fills_call
                && is_driven_here(client)
                && let Some(batch) = client.scheduler.full_batch(tried_at)
            {
                Worker::send_now(client, batch);
            }
            result.await.map_err(|_| classify::runtime_ended())
        }
    }
}

/// Returns whether a caller may send for others. If it leaves and nobody drives its runtime any more, their reply would not be
/// read, although the connection is driven elsewhere.
fn is_driven_here(client: &Client) -> bool {
    let lanes = client.scheduler.lanes().iter();
    let mut connected = lanes.filter(|lane| lane.connection_id().is_some());
    connected.all(|lane| lane.is_driven_here())
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
