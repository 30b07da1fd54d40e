//! The tasks that send requests to the server and complete their callers.
//!
//! ```text
//!                    the last batch
//!    dispatching ----------------------> calling ----------> end
//!      |     ^                              |
//!      |     '------------------------------'
//!      |       the call has ended, more may be sent, and no other worker dispatches
//!      '---> end
//!
//!    state        event                           action                                    next state
//!    dispatching  a batch, and more may be sent   another worker calls with it              dispatching
//!    dispatching  the last batch                  -                                         calling
//!    dispatching  no lane has a connection        connect                                   dispatching
//!    dispatching  that fails                      all waiting callers get the error         end
//!    dispatching  nothing may be sent             -                                         end
//!    calling      due                             its callers time out                      calling
//!    calling      reply                           its callers get their results             dispatching or end
//!    calling      error                           its callers get the error                 dispatching or end
//!    calling      closed before it was sent       its callers submit their requests again   dispatching or end
//!    calling      abandoned by the watchdog       its callers get a timeout                 dispatching or end
//!    any          dropped with its runtime        see below                                 end
//! ```
//!
//! At most one worker dispatches at a time. It first yields once, so that everybody who is ready to run can submit a
//! request for the same batch. A caller that is alone is a worker too, in its own future and without a task: it begins
//! with calling.
//!
//! # A worker that is dropped
//!
//! A task is dropped with its runtime. Its call fails, since the charges may have been made. The jobs that it was to
//! dispatch go back to their callers, which may be on other runtimes that go on.
//!
//! A caller's own future is dropped when its caller leaves. Then the call goes on as a task, see `OwnCall` in
//! `submit.rs`.
//!
//! # Reports
//!
//! The scheduler gets the round trip of each call with a reply. The breaker gets one report per call: how long the
//! server took, or the error. The lane gives up its connection after an error that ends it. A call that was not sent is
//! reported to nobody, since it shows nothing about the server.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use redis::{RedisError, Value};
use tokio::{runtime::Handle, task::yield_now};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
    spawn,
};

use super::{
    super::{
        client::Client,
        connection::{LaneConnection, SendError, classify, server_check},
        protocol::{Reply, Request, RequestResult, Script, reply},
    },
    calls::{CallHandle, CallId},
    queue::Waiter,
    scheduler::{Batch, Dispatch, Dispatcher, EndedCall},
};

/// A task that dispatches batches and makes calls, or a future that makes one call.
///
/// Its fields name everything that must be ended if it is dropped in between.
pub(super) struct Worker {
    client: Arc<Client>,
    /// The call under way.
    call: Option<CallId>,
    /// Set while it dispatches, or is about to.
    dispatcher: Option<Dispatcher>,
    /// The callers of the call that has ended.
    waiters: Vec<Waiter>,
    /// Whether another worker may dispatch in its place when it is dropped.
    has_successor: bool,
}

/// The result of a call.
pub(super) enum BatchResult {
    /// The error of all requests.
    Failed(Error),
    /// Nothing was sent, since the connection was closed.
    NotSent,
    /// One result per request, in order.
    Replied(Vec<RequestResult>),
}

impl Worker {
    /// Returns a worker that makes a call in the current future.
    pub(super) fn calling(client: Arc<Client>, call: CallId) -> Self {
        Self {
            client,
            call: Some(call),
            dispatcher: None,
            waiters: Vec::new(),
            has_successor: true,
        }
    }

    /// Starts a worker that dispatches, as a task of this runtime.
    pub(super) fn dispatch_on(runtime: &Handle, client: &Arc<Client>, dispatcher: Dispatcher) {
        let worker = Self {
            client: Arc::clone(client),
            call: None,
            dispatcher: Some(dispatcher),
            waiters: Vec::new(),
            has_successor: false,
        };
        runtime.spawn(worker.run(None));
    }

    /// Starts a worker that sends a batch, as a task of the current runtime.
    ///
    /// Not inlined into [`dispatch`](Self::dispatch), which is part of `run`: a future cannot contain itself.
    fn send_in_task(client: &Arc<Client>, batch: Batch) {
        let mut worker = Self::calling(Arc::clone(client), batch.call.id);
        worker.has_successor = false;
        tokio::spawn(worker.run(Some(batch)));
    }

    /// Sends the batch, then dispatches and sends in turn until nothing is left for this worker.
    async fn run(mut self, mut batch: Option<Batch>) {
        loop {
            if let Some(batch) = batch {
                self.send_batch(batch).await;
            }
            let Some(dispatcher) = self.dispatcher else {
                return;
            };
            batch = self.dispatch(dispatcher).await;
        }
    }

    /// ## Dispatching => (Calling | end)
    ///
    /// Returns the last batch, which this worker sends. Other workers send those before.
    async fn dispatch(&mut self, dispatcher: Dispatcher) -> Option<Batch> {
        yield_now().await;
        loop {
            let (next, shed) = self.client.scheduler.next_batch(dispatcher, now());
            for waiter in shed {
                waiter.complete(Err(classify::overloaded()));
            }
            match next {
                Dispatch::Send(batch) => {
                    if let Some(lane) = batch.lane_to_dial {
                        self.client.scheduler.lanes()[lane].start_dial();
                    }
                    if batch.is_last {
                        self.dispatcher = None;
                        return Some(batch);
                    }
                    Self::send_in_task(&self.client, batch);
                }
                Dispatch::NotConnected => {
                    let lane = Arc::clone(&self.client.scheduler.lanes()[0]);
                    let skip_backoff = self.client.take_backoff_skip();
                    if let Err(error) = lane.connect(skip_backoff).await {
                        self.dispatcher = None;
                        self.fail_all_waiting(dispatcher, error);
                        return None;
                    }
                }
                Dispatch::Nothing => {
                    self.dispatcher = None;
                    return None;
                }
            }
        }
    }

    /// Completes all waiting callers with the error of a connection that could not be made.
    fn fail_all_waiting(&self, dispatcher: Dispatcher, error: Error) {
        self.client.report_failure(&error);
        let error = error.into_not_executed();
        for job in self.client.scheduler.give_up(dispatcher) {
            job.waiter.complete(Err(error.clone()));
        }
    }

    /// ## Calling => (Dispatching | end)
    ///
    /// Sends a batch and completes its callers.
    async fn send_batch(&mut self, batch: Batch) {
        self.call = Some(batch.call.id);
        let requests = batch.requests;
        let result = self.call(&batch.call, &requests).await;
        let waiters = std::mem::take(&mut self.waiters).into_iter();
        match result {
            BatchResult::Failed(error) => {
                waiters.for_each(|waiter| waiter.complete(Err(error.clone())));
            }
            BatchResult::NotSent => {
                let jobs = waiters.zip(requests);
                jobs.for_each(|(waiter, request)| waiter.hand_back(request));
            }
            BatchResult::Replied(results) => {
                let jobs = waiters.zip(results);
                jobs.for_each(|(waiter, result)| waiter.complete(result));
            }
        }
    }

    /// Makes the call under way.
    pub(super) async fn call(
        &mut self,
        call: &CallHandle,
        requests: &[Box<Request>],
    ) -> BatchResult {
        let (result, ended) = exchange(&self.client, call, requests).await;
        self.note_end(ended);
        result
    }

    /// Takes over the callers to complete, and the role of the dispatcher if the scheduler assigns it.
    fn note_end(&mut self, ended: EndedCall) {
        self.call = None;
        self.waiters = ended.waiters;
        self.dispatcher = ended.dispatcher;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            let ended = self.client.scheduler.end_call(call, now(), false);
            self.note_end(ended);
            for waiter in std::mem::take(&mut self.waiters) {
                waiter.complete(Err(classify::runtime_ended()));
            }
        }
        let Some(dispatcher) = self.dispatcher.take() else {
            return;
        };
        // A task is dropped with its runtime, where no other worker would run either.
        if self.has_successor
            && let Ok(runtime) = Handle::try_current()
        {
            Self::dispatch_on(&runtime, &self.client, dispatcher);
            return;
        }
        for job in self.client.scheduler.give_up(dispatcher) {
            job.waiter.hand_back(job.request);
        }
    }
}

// === One call ===

/// Sends requests in one call, and ends it.
///
/// ```text
/// end of the call                      the lane's connection     report        result
/// the lane has lost its connection     -                         -             NotSent
/// closed before the command was sent   given up                  -             NotSent
/// reply                                kept                      the latency   Replied
/// error reply                          kept, unless it ends it   the error     Failed
/// the connection broke                 given up                  the error     Failed
/// abandoned by the watchdog            -                         -             Failed
/// ```
///
/// One request of a call may have failed alone: the most severe of these errors counts as that of the call. If the jobs
/// have timed out, [`watched`] has reported that, and the call is not reported again.
async fn exchange(
    client: &Arc<Client>,
    call: &CallHandle,
    requests: &[Box<Request>],
) -> (BatchResult, EndedCall) {
    let lane = &client.scheduler.lanes()[call.id.lane];
    let end = |replied| client.scheduler.end_call(call.id, now(), replied);
    // The lane may have lost the connection since the call was scheduled.
    let Some(mut connection) = lane.connection(call.id.generation) else {
        return (BatchResult::NotSent, end(false));
    };
    let called_at = now();
    let replied = {
        let sending = pin!(send(client, &mut connection, requests));
        watched(client, call, sending).await
    };
    let took = now().since(called_at);
    let replied = match replied {
        None if connection.has_lost_runtime() => {
            return (BatchResult::Failed(classify::runtime_ended()), end(false));
        }
        None => {
            let error = client.timeout_error(Phase::Reply);
            return (BatchResult::Failed(error), end(false));
        }
        Some(Err(SendError {
            was_sent: false, ..
        })) => {
            note_not_sent(client, call.id, &connection, requests);
            return (BatchResult::NotSent, end(false));
        }
        Some(replied) => replied.map_err(|failed| failed.error),
    };
    let is_lost = replied.as_ref().is_err_and(RedisError::is_io_error);
    let ended = end(!is_lost);
    let results = replied.map_err(classify::classify).and_then(|reply| {
        let reply_lens = requests.iter().map(|request| request.reply_lens());
        reply::parse(&reply, reply_lens)
    });
    let failure = match &results {
        Ok(results) => {
            check_server(client, call.id, called_at, results);
            most_severe(results)
        }
        Err(error) => Some(error),
    };
    if let Some(error) = failure.filter(|error| classify::ends_connection(error)) {
        lane.disconnect(call.id.generation, Some(error));
    }
    if ended.in_time {
        report(client, took, failure);
    }
    (
        results.map_or_else(BatchResult::Failed, BatchResult::Replied),
        ended,
    )
}

/// Notes that a call was not sent, since its connection was closed before.
fn note_not_sent(
    client: &Client,
    id: CallId,
    connection: &LaneConnection,
    requests: &[Box<Request>],
) {
    requests.iter().for_each(|request| request.note_not_sent());
    client.scheduler.lanes()[id.lane].disconnect(id.generation, None);
    if connection.has_lost_runtime() {
        // Commands that it took as its runtime ended may get neither a reply nor an error.
        client.scheduler.abandon_connection(id.lane, id.generation);
    }
}

/// Sends the script for all requests: by its hash, or by its text if the server may not have it.
///
/// # Errors
///
/// Those of [`LaneConnection::send`]. The error of a second try never allows another one.
async fn send(
    client: &Client,
    connection: &mut LaneConnection,
    requests: &[Box<Request>],
) -> Result<Value, SendError> {
    let now = client.clock.as_ref().map(Clock::now);
    if connection.is_first_use {
        // The server may not have the script, and finding out would take a round trip of the deadline.
        let command = Request::command(requests, Script::by_text, now);
        // Boxed: it is rare, and would make every decision's future larger.
        return Box::pin(server_check::send_with_mode_check(connection, &command)).await;
    }
    let by_hash = Request::command(requests, Script::by_hash, now);
    match connection.send(&by_hash).await {
        // The server restarted or flushed its scripts. It did nothing, so a second try is safe.
        Err(SendError { error, .. }) if classify::is_unknown_script(&error) => {
            let by_text = Request::command(requests, Script::by_text, now);
            let reply = connection.send(&by_text).await;
            // Not on another connection if this one has closed: that would take more than the deadline.
            reply.map_err(|failed| SendError::after_sending(failed.error))
        }
        result => result,
    }
}

/// Polls a call until it ends; `None` if it was abandoned.
///
/// When the call is due, its jobs time out. It is polled further: a late reply shows that the connection is alive.
pub(super) async fn watched<T>(
    client: &Client,
    call: &CallHandle,
    mut sending: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    poll_fn(|context| {
        call.alarm.register(context);
        if let Poll::Ready(result) = sending.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        if call.alarm.is_due()
            && let Some(waiters) = client.scheduler.expire(call.id, now())
        {
            let error = client.timeout_error(Phase::Reply);
            client.report_failure(&error);
            for waiter in waiters {
                waiter.complete(Err(error.clone()));
            }
        }
        if call.alarm.is_abandoned() {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Returns the most severe error among the results: one that ends the connection, else the first one. Errors that
/// concern only one key are left out.
fn most_severe(results: &[RequestResult]) -> Option<&Error> {
    let errors = results.iter().filter_map(|result| result.as_ref().err());
    let errors = errors.filter(|error| error.kind() != ErrorKind::ForeignValue);
    errors.min_by_key(|error| !classify::ends_connection(error))
}

/// Reports the end of a call to the breaker.
fn report(client: &Arc<Client>, took: Duration, failure: Option<&Error>) {
    if let Some(error) = failure {
        client.report_failure(error);
    } else if took <= client.deadline / 4 {
        client.report_reply(took);
    } else {
        report_slow(Arc::clone(client), took);
    }
}

/// Reports a slow call, less the time that this process needed to send it and to notice the reply.
///
/// That is three polls of its task, and a busy runtime checks its sockets only after every 61 polls of other tasks. So
/// the time of [`YIELDS`] yields is subtracted.
fn report_slow(client: Arc<Client>, took: Duration) {
    let began_at = now();
    let reporting = async move {
        for _ in 0..YIELDS {
            yield_now().await;
        }
        let delay = now().since(began_at);
        client.report_reply(took.saturating_sub(delay));
    };
    spawn::on_current(reporting);
}

/// Checks the server by a reply, see [`ServerCheck::check_reply`].
///
/// [`ServerCheck::check_reply`]: crate::remote::connection::ServerCheck::check_reply
fn check_server(client: &Client, id: CallId, called_at: Timestamp, results: &[RequestResult]) {
    let first = results.first().and_then(|result| result.as_ref().ok());
    // The caller's clock is not the server's.
    let first = first.filter(|_| client.clock.is_none());
    let lane = &client.scheduler.lanes()[id.lane];
    client
        .check
        .check_reply(called_at, first.map(Reply::decided_at), || {
            lane.connection(id.generation)
        });
}

/// Returns the present time of this process' clock, by which deadlines are kept.
fn now() -> Timestamp {
    Clock::system().now()
}

/// Yields to a busy runtime that take about as long as it delays a call.
const YIELDS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> Error {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        let reply = reply.and_then(Value::extract_error);
        classify::classify(reply.expect_err("an error reply"))
    }

    // Regression: the first error was reported, so a connection to a demoted primary was kept.
    #[test]
    fn error_that_ends_the_connection_goes_before_others() {
        let replies = ["NOPERM no permission", "READONLY a replica", "ERR other"];
        let replies = replies.map(|text| Err(error(text)));
        let severe = most_severe(&replies).expect("a failure");
        assert_eq!(severe.kind(), ErrorKind::Unavailable);
        let foreign = Error::new(ErrorKind::ForeignValue, "of one key");
        assert!(most_severe(&[Err(foreign)]).is_none());
    }
}
