//! One call: sends its requests, ends it, and reports it.
//!
//! ```text
//! end of the call                      the lane's connection     report        result
//! the lane has lost its connection     -                         -             NotSent
//! closed before the command was sent   given up                  -             NotSent
//! replies                              kept                      the latency   Replied
//! error reply                          kept, unless it ends it   the error     Failed
//! redirect                             kept                      the latency   Replied or Failed
//! the connection broke                 given up                  the error     Failed
//! so did its runtime, with a pool      given up                  -             Failed
//! abandoned by the watchdog            -                         -             Failed
//! ```
//!
//! One request of a call may have failed alone: the most severe of these errors counts as that of the call. If the jobs
//! have timed out, [`watched`] has reported that, and the call is not reported again.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use tokio::task::yield_now;

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
    task::home,
};

use super::{
    super::{
        client::Client,
        connection::{LaneConnection, classify},
        protocol::{Keyspace, Redirect, Reply, Request, RequestResult},
        registration::Turn,
    },
    calls::{CallHandle, CallId},
    queue::JobResult,
    send::{CallFailure, send},
    steps::EndedCall,
};

/// The result of a call.
pub(super) enum BatchResult {
    /// The error of all requests.
    Failed(Error),
    /// Nothing was sent, since the connection was closed.
    NotSent,
    /// One result per request, in order.
    Replied(Vec<RequestResult>),
}

impl BatchResult {
    /// Passes the result of each request to `end`, in the order of the requests.
    pub fn distribute(
        self,
        requests: impl ExactSizeIterator<Item = Box<Request>>,
        mut end: impl FnMut(JobResult),
    ) {
        match self {
            Self::Failed(error) => {
                let count = requests.len();
                requests.for_each(|request| end(job_result(request, Err(error.clone()), count)));
            }
            Self::NotSent => requests.for_each(|request| end(JobResult::NotSent(request))),
            Self::Replied(results) => requests
                .zip(results)
                .for_each(|(request, result)| end(job_result(request, result, 1))),
        }
    }
}

/// Returns the end of a job: its result, or its request if a cluster redirects it. `count` is the number of requests
/// that the result is for.
fn job_result(request: Box<Request>, result: RequestResult, count: usize) -> JobResult {
    let redirect = result.as_ref().err();
    match redirect.and_then(|error| Redirect::of(error, count)) {
        Some(redirect) => {
            request.note_not_sent();
            JobResult::Redirected(request, redirect)
        }
        None => JobResult::Replied(result),
    }
}

/// Sends requests in one call, and ends it.
pub(super) async fn exchange(
    client: &Arc<Client>,
    call: &CallHandle,
    requests: &[Box<Request>],
) -> (BatchResult, EndedCall) {
    let lane = &client.scheduler.lanes()[call.id.lane];
    let end = |replied| client.scheduler.end_call(call.id, now(), replied);
    // The lane may have lost the connection since the call was scheduled.
    let Some(mut connection) = lane.connection(call.id.connection_id) else {
        return (BatchResult::NotSent, end(false));
    };
    connection.writes_at_once = call.is_urgent;
    let called_at = now();
    let replied = {
        let sending = pin!(send(client, &mut connection, call.id, requests));
        watched(client, call, sending).await
    };
    let took = now().since(called_at);
    let (results, ended) = match replied {
        Some(Ok(results)) => (Ok(results), end(true)),
        Some(Err(CallFailure::Replied(error))) => (Err(error), end(true)),
        Some(Err(CallFailure::Lost(error))) if !connection.is_losing_runtime() => {
            (Err(error), end(false))
        }
        unreported => {
            let failure = unreported.and_then(Result::err);
            let result = unreported_end(client, call.id, (&connection, failure), requests);
            return (result, end(false));
        }
    };
    #[cfg(feature = "metrics")]
    if results.is_ok() {
        let charges = requests.iter().map(|request| request.charges()).sum();
        client.metrics.replied(call.waited, took, charges);
    }
    let failure = match &results {
        Ok(results) => {
            check_server(client, call.id, called_at, results);
            most_severe(results)
        }
        Err(error) => {
            warn_of_unserved_slot(client, error);
            Some(error).filter(|error| concerns_server(error))
        }
    };
    if let Some(error) = failure.filter(|error| classify::ends_connection(error)) {
        lane.disconnect(call.id.connection_id, Some(error));
    }
    if ended.in_time {
        let decided_at = results.as_ref().ok();
        let decided_at = decided_at.and_then(|results| decided_at_of(results));
        report(client, took, failure, decided_at);
    }
    (
        results.map_or_else(BatchResult::Failed, BatchResult::Replied),
        ended,
    )
}

/// Returns the result of a call that is not reported to the breaker, since it shows nothing about the present server.
#[cold]
fn unreported_end(
    client: &Client,
    id: CallId,
    (connection, failure): (&LaneConnection, Option<CallFailure>),
    requests: &[Box<Request>],
) -> BatchResult {
    match failure {
        None if connection.has_lost_runtime() => BatchResult::Failed(classify::runtime_ended()),
        // The watchdog has reported it.
        None => BatchResult::Failed(client.timeout_error(Phase::Reply)),
        Some(CallFailure::NotSent) => {
            note_not_sent(client, id, connection, requests);
            BatchResult::NotSent
        }
        Some(CallFailure::Replaced) => BatchResult::Failed(classify::replaced()),
        Some(CallFailure::Lost(_) | CallFailure::Replied(_)) => {
            // A pool's connection ends with its runtime.
            client.scheduler.lanes()[id.lane].disconnect(id.connection_id, None);
            BatchResult::Failed(classify::runtime_ended())
        }
    }
}

/// Notes that a call was not sent, since its connection was closed before.
fn note_not_sent(
    client: &Client,
    id: CallId,
    connection: &LaneConnection,
    requests: &[Box<Request>],
) {
    requests.iter().for_each(|request| request.note_not_sent());
    client.scheduler.lanes()[id.lane].disconnect(id.connection_id, None);
    if connection.has_lost_runtime() {
        // Commands that it took as its runtime ended may get neither a reply nor an error.
        client
            .scheduler
            .abandon_connection(id.lane, id.connection_id);
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
/// concern only one key or slot are left out.
fn most_severe(results: &[RequestResult]) -> Option<&Error> {
    let errors = results.iter().filter_map(|result| result.as_ref().err());
    let errors = errors.filter(|error| concerns_server(error));
    errors.min_by_key(|error| !classify::ends_connection(error))
}

/// Returns whether an error is one of the server, and not of a key, a slot, or the place of a slot.
fn concerns_server(error: &Error) -> bool {
    // A request with keys in several slots is split, which shows nothing about the server either.
    let is_redirect = Redirect::of(error, usize::MAX).is_some();
    error.kind() != ErrorKind::ForeignValue && !classify::is_of_one_slot(error) && !is_redirect
}

/// Reports the end of a call to the breaker.
fn report(
    client: &Arc<Client>,
    took: Duration,
    failure: Option<&Error>,
    decided_at: Option<Timestamp>,
) {
    if let Some(error) = failure {
        client.report_failure(error);
    } else if took <= client.deadline / 4 {
        client.report_reply(took, decided_at);
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
        client.report_reply(took.saturating_sub(delay), None);
    };
    home::spawn_lasting(Box::pin(reporting));
}

/// Checks the server by a reply: its clock each time, its eviction policy once, and whether it serves the slots.
fn check_server(client: &Arc<Client>, id: CallId, called_at: Timestamp, results: &[RequestResult]) {
    // The caller's clock is not the server's.
    let decided_at = decided_at_of(results).filter(|_| client.clock.is_none());
    let lane = &client.scheduler.lanes()[id.lane];
    let connection = || lane.connection(id.connection_id);
    if let Some(decided_at) = decided_at {
        client.check.compare_clocks(called_at, decided_at);
    }
    let errors = results.iter().filter_map(|result| result.as_ref().err());
    errors.for_each(|error| warn_of_unserved_slot(client, error));
    after_reply(client, called_at, connection);
}

/// Looks at the server after a reply: its eviction policy once, and the other instances each two seconds.
pub(in crate::remote) fn after_reply(
    client: &Arc<Client>,
    called_at: Timestamp,
    connection: impl Fn() -> Option<LaneConnection>,
) {
    if !client.has_checked_eviction.load(Ordering::Relaxed)
        && let Some(connection) = connection()
        && !client.has_checked_eviction.swap(true, Ordering::Relaxed)
    {
        client.check.check_eviction(connection);
    }
    client.registration.renew_if_due(called_at, || {
        let connection = client.connection_for(Keyspace::MEMBERS_IDENTITY, connection)?;
        let follower = Arc::clone(client);
        Some(Turn {
            connection,
            check: Arc::clone(&client.check),
            follow: Box::new(move |redirect| follower.follow(redirect).is_some()),
        })
    });
}

/// Warns if the error is that of a slot that no node serves. Redirects are followed instead.
#[cold]
fn warn_of_unserved_slot(client: &Client, error: &Error) {
    if Redirect::of(error, usize::MAX).is_none()
        && let Some(finding) = classify::unserved(error)
    {
        client.check.warn_of_unreachable(finding);
    }
}

/// Returns the time by which the script decided the requests of a call.
fn decided_at_of(results: &[RequestResult]) -> Option<Timestamp> {
    let first = results.iter().find_map(|result| result.as_ref().ok());
    first.map(Reply::decided_at)
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
        let reply = reply.and_then(redis::Value::extract_error);
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
