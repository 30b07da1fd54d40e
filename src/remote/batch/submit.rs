//! Requests and commands, from a caller's point of view: submitted, then awaited.
//!
//! ```text
//! submit --> Scheduler::submit --> SendNow: call in this future ------> result
//!    ^                         '-> Queued: wait for a worker to call -> result
//!    |                                                                   |
//!    '---- NotSent: the connection or the runtime of the worker ended ---'
//! ```
//!
//! A request is submitted again at most once for each lane and once more, always with its first time: so its
//! deadline does not move.
//!
//! Commands that are not decisions (`DEL`) need no queue: they are rare. They use a lane directly, under the same
//! deadline.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use redis::{Cmd, Value};
use tokio::runtime::Handle;

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, Phase},
};

use super::{
    super::{
        client::Client,
        connection::{LaneConnection, classify},
        protocol::{Request, RequestResult},
    },
    calls::{Alarm, CallHandle},
    queue::JobResult,
    scheduler::Submitted,
    watchdog,
    worker::{BatchResult, Worker, watched},
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
    mut request: Box<Request>,
) -> RequestResult {
    let runtime = Handle::try_current().map_err(classify::no_runtime)?;
    ensure_watched(client)?;
    let submitted_at = now();
    let mut tried_at = submitted_at;
    // Each lane may find its connection closed once. Then another lane sends the request.
    for _ in 0..client.scheduler.lanes().len() + 2 {
        let submitted = client.scheduler.submit(request, submitted_at, tried_at);
        // Again: the watchdog may have found nothing under way meanwhile, and fallen asleep.
        ensure_watched(client)?;
        let result = match submitted {
            Submitted::SendNow(call, request) => {
                let alarm = Arc::clone(&call.alarm);
                let own_call = OwnCall {
                    // Boxed: most requests wait, and the call would make their futures ten times as large.
                    calling: Some(Box::pin(call_alone(Arc::clone(client), call, request))),
                    alarm,
                    runtime: &runtime,
                };
                let Some(result) = own_call.await else {
                    return Err(client.timeout_error(Phase::Reply));
                };
                result
            }
            Submitted::Queued {
                result,
                dispatcher,
                shed,
            } => {
                if let Some(shed) = shed {
                    shed.complete(Err(classify::overloaded()));
                }
                if let Some(dispatcher) = dispatcher {
                    Worker::dispatch_on(&runtime, client, dispatcher);
                }
                let Ok(result) = result.await else { break };
                result
            }
        };
        match result {
            JobResult::Replied(result) => return result,
            JobResult::NotSent(unsent) => request = unsent,
        }
        tried_at = now();
    }
    Err(classify::runtime_ended())
}

/// Sends a command that is not a decision, and returns its reply.
///
/// # Errors
///
/// Those of the connection and of the server, and [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) at the deadline.
pub(in crate::remote) async fn run_command(
    client: &Arc<Client>,
    command: &Cmd,
) -> Result<Value, Error> {
    Handle::try_current().map_err(classify::no_runtime)?;
    ensure_watched(client)?;
    let call = client.scheduler.begin_command(now());
    // Ends the call when it is dropped.
    let _worker = Worker::calling(Arc::clone(client), call.id);
    ensure_watched(client)?;
    let sending = pin!(send_command(client, command));
    let mut watched = pin!(watched(client, &call, sending));
    match poll_fn(|context| until_expired(watched.as_mut(), &call.alarm, context)).await {
        Some(Some(result)) => result,
        None | Some(None) => Err(client.timeout_error(if client.scheduler.is_up() {
            Phase::Reply
        } else {
            Phase::Connect
        })),
    }
}

/// Sends a command on a lane that is up, or on the first one. If it finds its connection closed, it tries another once.
async fn send_command(client: &Client, command: &Cmd) -> Result<Value, Error> {
    let lanes = client.scheduler.lanes();
    let up = lanes.iter().position(|lane| lane.generation().is_some());
    let lane = &lanes[up.unwrap_or(0)];
    let mut connection: LaneConnection = lane.connect(false).await?;
    let mut reply = connection.send(command).await;
    if reply.as_ref().is_err_and(|failed| !failed.was_sent) {
        lane.disconnect(connection.generation, None);
        connection = lane.connect(false).await?;
        reply = connection.send(command).await;
    }
    reply.map_err(|failed| {
        let error = classify::classify(failed.error);
        if classify::ends_connection(&error) {
            lane.disconnect(connection.generation, Some(&error));
        }
        error
    })
}

/// Makes sure that the watchdog keeps the deadline. It is asleep only in an idle process.
#[inline]
fn ensure_watched(client: &Arc<Client>) -> Result<(), Error> {
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
    let requests = std::slice::from_ref(&request);
    match worker.call(&call, requests).await {
        BatchResult::Failed(error) => JobResult::Replied(Err(error)),
        BatchResult::NotSent => JobResult::NotSent(request),
        BatchResult::Replied(results) => {
            let result = results.into_iter().next();
            JobResult::Replied(result.expect("one result per request"))
        }
    }
}

/// Returns the present time of this process' clock, by which deadlines are kept.
fn now() -> Timestamp {
    Clock::system().now()
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
            self.runtime.spawn(calling);
        }
    }
}

/// Polls a call; `None` if it is pending and its job has timed out.
fn until_expired<F: Future>(
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
