//! One call to the server: sent, watched, and judged by its reply.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::task::yield_now;

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
    spawn,
};

use super::{
    super::{
        connection::{Held, classify, server_check},
        node::Node,
        protocol::{CALLER_TIME, Reply, Request, Script, reply},
    },
    alarm::Alarm,
    calls::Call,
    queue::answer,
    step::Ended,
    worker::runtime_ended,
};

/// What became of a call.
pub(super) enum Exchanged {
    Failed(Error),
    NotSent,
    Replied(Vec<Result<Reply, Error>>),
}

/// Makes one call for all requests, and ends it. Gives the connection up if it is to blame for a failure.
pub(super) async fn exchange(
    node: &Arc<Node>,
    (call, alarm): (Call, &Alarm),
    requests: &[Box<Request>],
) -> (Exchanged, Ended) {
    let lane = &node.traffic.lanes()[call.lane];
    let end = |replied| node.traffic.end(call, now(), replied);
    // It went down since the call was noted, or another took its place.
    let Some(mut held) = lane.held(call.generation) else {
        return (Exchanged::NotSent, end(false));
    };
    let called = now();
    let replied = {
        let sending = pin!(send(node, &mut held, requests));
        watched(node, call, alarm, sending).await
    };
    let took = now().since(called);
    let Some(replied) = replied else {
        let error = match held.is_orphan() {
            true => runtime_ended(),
            false => node.late(Phase::Reply),
        };
        return (Exchanged::Failed(error), end(false));
    };
    if held.is_closed {
        requests.iter().for_each(|request| request.note_not_sent());
        lane.disconnect(call.generation, None);
        if held.is_orphan() {
            // Commands that it took as its runtime ended may never be answered, nor dropped.
            node.traffic.end_connection(call.lane, call.generation);
        }
        return (Exchanged::NotSent, end(false));
    }
    let is_lost = replied.as_ref().is_err_and(RedisError::is_io_error);
    let ended = end(!is_lost);
    let parsed = match replied {
        Ok(reply) => reply::parse(&reply, requests.iter().map(|request| request.reply_lens()))
            // Another reply than the one asked for: requests and replies may have got out of step.
            .map_err(|error| (error, true)),
        Err(error) => Err(classify::judge(error)),
    };
    let exchanged = match parsed {
        Ok(replies) => {
            check_server(node, call, called, &replies);
            let failed = failure(&replies);
            if let Some(error) = failed.filter(|error| classify::ends_connection(error)) {
                lane.disconnect(call.generation, Some(error));
            }
            if ended.in_time {
                report(node, took, failed);
            }
            Exchanged::Replied(replies)
        }
        Err((error, is_broken)) => {
            if is_broken {
                lane.disconnect(call.generation, Some(&error));
            }
            if ended.in_time {
                node.report_failure(&error);
            }
            Exchanged::Failed(error)
        }
    };
    (exchanged, ended)
}

/// Polls a call until it ends. `None` if it was given up.
///
/// A call whose time is up is awaited further: a late reply shows that the connection lives.
pub(super) async fn watched<T>(
    node: &Node,
    call: Call,
    alarm: &Alarm,
    mut sending: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    poll_fn(|context| {
        alarm.register(context);
        if let Poll::Ready(result) = sending.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        if alarm.is_due()
            && let Some(answers) = node.traffic.expire(call, now())
        {
            let late = node.late(Phase::Reply);
            node.report_failure(&late);
            for job in answers {
                answer(job, Err(late.clone()));
            }
        }
        match alarm.is_given_up() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    })
    .await
}

/// Returns why the server did not decide a request, unless the value of its key is to blame. An error that ends the
/// connection goes before others.
fn failure(replies: &[Result<Reply, Error>]) -> Option<&Error> {
    let errors = replies.iter().filter_map(|reply| reply.as_ref().err());
    let errors = errors.filter(|error| error.kind() != ErrorKind::ForeignValue);
    errors.min_by_key(|error| !classify::ends_connection(error))
}

/// Reports a call that was answered.
fn report(node: &Arc<Node>, took: Duration, failed: Option<&Error>) {
    if let Some(error) = failed {
        node.report_failure(error);
    } else if took <= node.deadline / 4 {
        node.report_answer(took);
    } else {
        report_slow(Arc::clone(node), took);
    }
}

/// Reports a slow call, less the time that this process took to notice its parts.
///
/// A call takes three turns of the runtime: one to write it, one to read the reply, and one to run its task. Besides, a
/// busy runtime looks at its sockets only once in 61 polls, which may be several turns.
fn report_slow(node: Arc<Node>, took: Duration) {
    let yielded = now();
    let reporting = async move {
        for _ in 0..TURNS {
            yield_now().await;
        }
        let turns = now().since(yielded);
        node.report_answer(took.saturating_sub(turns));
    };
    spawn::on_current(reporting);
}

/// Compares clocks by the reply, and looks at the server's settings once.
fn check_server(node: &Node, call: Call, called: Timestamp, replies: &[Result<Reply, Error>]) {
    if node.clock.is_none()
        && let Some(Ok(reply)) = replies.first()
    {
        node.check.compare(called, reply.decided_at());
    }
    let lane = &node.traffic.lanes()[call.lane];
    node.check.ask(|| lane.held(call.generation));
}

/// Sends the script for all requests.
async fn send(node: &Node, held: &mut Held, requests: &[Box<Request>]) -> RedisResult<Value> {
    let now = node.clock.as_ref().map(Clock::now);
    if held.is_first {
        // The server may not know the script yet, and the round trip to find out would count against the deadline.
        let command = script(Script::by_text, now, requests);
        // Boxed: it is rare, and would make every decision's future larger.
        return Box::pin(server_check::with_mode(held, &command)).await;
    }
    match held.send(&script(Script::by_hash, now, requests)).await {
        // A restarted or flushed server: nothing was done, so it is safe to ask again.
        Err(error) if classify::is_unknown_script(&error) => {
            let reply = held.send(&script(Script::by_text, now, requests)).await;
            // Time has passed, and another connection would be given a deadline of its own.
            held.is_closed = false;
            reply
        }
        result => result,
    }
}

fn script(
    start: fn(&Script, usize) -> Cmd,
    now: Option<Timestamp>,
    requests: &[Box<Request>],
) -> Cmd {
    let arguments = requests.iter().map(|request| request.arguments()).sum();
    let mut command = start(Script::DECIDE, arguments);
    command.arg(
        requests
            .iter()
            .map(|request| request.charges())
            .sum::<usize>(),
    );
    for request in requests {
        request.write_keys(&mut command);
    }
    if let Some(now) = now {
        command.arg(&CALLER_TIME).arg(now.as_micros());
    }
    for request in requests {
        request.write_arguments(&mut command);
    }
    command
}

fn now() -> Timestamp {
    Clock::system().now()
}

/// Turns of a busy runtime that a call may take.
const TURNS: u32 = 6;

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
        let told = failure(&replies).expect("a failure");
        assert_eq!(told.kind(), ErrorKind::Unavailable);
        let foreign = Error::new(ErrorKind::ForeignValue, "the key's own");
        assert!(failure(&[Err(foreign)]).is_none());
    }
}
