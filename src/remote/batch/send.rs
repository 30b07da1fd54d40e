//! Sends the requests of a call in as few commands as the server allows, and reads their results.
//!
//! ```text
//! server       connection   commands of a call with requests for the slots 1, 2 and 1
//! standalone   used         EVALSHA (all)
//! standalone   new          HELLO, EVAL (all)
//! cluster      used         EVALSHA (1, 1), EVALSHA (2)
//! cluster      new          HELLO, EVAL (1, 1), EVALSHA (2)
//! unknown      new          as for a cluster
//! ```
//!
//! In a cluster all keys of a command must be in one slot. The commands of a call are written at once, and each has its
//! own result: the cluster may redirect one of them and execute the others.
//!
//! The first command on a connection carries the text of the script, which the next ones find by its hash.
//!
//! # Why EVALSHA, then EVAL?
//!
//! The hash is short and the script is long. A server without the script returns an error before it runs anything. So it is safe
//! to send the text then, and the server keeps the script. Loading scripts at the start would make the start depend on the
//! server, and would have to be repeated after every restart, failover and `SCRIPT FLUSH`. Functions and shebangs would exclude
//! Redis 6.2 and compatible servers.
//!
//! # Why is the first call on a connection sent as text?
//!
//! Finding out that a new server lacks the script costs a round trip, and the first decisions of a process must fit a dial and
//! their call into one deadline. The same call asks whether the server runs in cluster mode.
//!
//! # Why one command per slot, and not one per node?
//!
//! Redis runs a script on keys that it did not declare, as long as they are on the same node, and that would halve the cost. But
//! it is documented as forbidden, several managed servers refuse it, and a slot that is being moved would fail in the middle of
//! the script. Commands with one slot each are written at once, so they cost the servers time and no round trip.

use redis::{Pipeline, RedisResult, Value};
use smallvec::SmallVec;

use crate::{
    clock::{Clock, Timestamp},
    error::Error,
    task::spawn::contain_panic,
};

use super::{
    super::{
        client::Client,
        connection::{LaneConnection, SendError, classify, server_check},
        protocol::{Request, RequestResult, Script, reply},
    },
    calls::CallId,
};

/// The failure of all requests of a call.
pub(super) enum CallFailure {
    /// The connection broke: the requests may have been executed.
    Lost(Error),
    /// The connection was closed before it took a command.
    NotSent,
    /// The server was replaced since the call began. Nothing was sent.
    Replaced,
    /// The server replied with an error, or with bytes that are not a reply of the script.
    Replied(Error),
}

/// Sends requests, and returns one result for each, in order. Sends the text of the script if the server lacks it.
///
/// # Errors
///
/// A failure of all requests. A failure after the first try is never [`CallFailure::NotSent`].
pub(super) async fn send(
    client: &Client,
    connection: &mut LaneConnection,
    call: CallId,
    requests: &[Box<Request>],
) -> Result<Vec<RequestResult>, CallFailure> {
    let now = client.clock.as_ref().map(Clock::now);
    let lane = &client.scheduler.lanes()[call.lane];
    // Before the first reply: it does not replace a state that the server may have lost.
    lane.note_run(connection, |run| {
        let waiting = client.note_run(run, || client.scheduler.note_replaced());
        for job in waiting.into_iter().flatten() {
            contain_panic(|| job.waiter.complete(Err(classify::replaced())));
        }
    });
    if is_for_predecessor(requests, client.scheduler.run_number()) {
        return Err(CallFailure::Replaced);
    }
    if connection.is_first_use || client.mode.is_cluster() != Some(false) {
        // Boxed: it would make the future of every decision larger.
        return Box::pin(send_by_slot(client, connection, requests, now)).await;
    }
    let command = |start| Request::command(requests.iter().map(Box::as_ref), start, now);
    let reply = match connection.send(&command(Script::by_hash)).await {
        // The server restarted or flushed its scripts. It did nothing, so a second try is safe.
        Err(SendError { error, .. }) if classify::is_unknown_script(&error) => {
            let reply = connection.send(&command(Script::by_text)).await;
            // Not on another connection if this one has closed: that would take more than the deadline.
            reply.map_err(|failed| SendError::after_sending(failed.error))
        }
        result => result,
    };
    let reply = reply.map_err(CallFailure::of)?;
    let lens = requests.iter().map(|request| request.reply_lens());
    reply::parse(&reply, lens).map_err(CallFailure::Replied)
}

/// Returns whether one of these requests is meant for an earlier run of the server. The present one would decide it before what
/// the earlier one had counted is back. Probes charge nothing, so any run may decide them.
fn is_for_predecessor(requests: &[Box<Request>], run_number: u64) -> bool {
    let mut charging = requests.iter().filter(|request| !request.is_probe());
    charging.any(|request| request.run_number() != Some(run_number))
}

/// Sends requests in one command per slot, or in one if the server is known to be standalone, with HELLO before them on a
/// new connection.
///
/// Commands that find no script are sent again, the first of them with its text. A node that redirects that one does
/// not keep the text, and then the others are sent once more: each round has fewer commands.
async fn send_by_slot(
    client: &Client,
    connection: &mut LaneConnection,
    requests: &[Box<Request>],
    now: Option<Timestamp>,
) -> Result<Vec<RequestResult>, CallFailure> {
    let mut results: Vec<Option<RequestResult>> = requests.iter().map(|_| None).collect();
    let mut commands = if client.mode.is_cluster() == Some(false) {
        vec![(0..requests.len()).collect()]
    } else {
        by_slot(requests)
    };
    let mut is_first_round = true;
    while !commands.is_empty() {
        let says_hello = is_first_round && connection.is_first_use;
        let sends_text = !is_first_round || connection.is_first_use;
        let pipeline = pipeline(&commands, requests, says_hello, sends_text, now);
        let replies = connection.send_all(&pipeline).await;
        let replies = replies.map_err(|failed| match CallFailure::of(failed) {
            CallFailure::NotSent if !is_first_round => CallFailure::Lost(classify::closed()),
            failure => failure,
        })?;
        let mut replies = replies.into_iter();
        if says_hello && let Some(hello) = replies.next() {
            match server_check::is_cluster(&hello) {
                Some(is_cluster) => client.note_mode(is_cluster),
                // A proxy may refuse HELLO. A mode that is known stays.
                None if client.mode.is_cluster().is_none() => client.note_mode(false),
                None => {}
            }
        }
        let mut without_script = Vec::new();
        for (index, members) in commands.into_iter().enumerate() {
            if requests[members[0]].is_asking() {
                let _ = replies.next();
            }
            let reply = replies.next().map(Value::extract_error);
            let reply = reply.ok_or_else(|| CallFailure::Replied(reply::malformed()))?;
            match reply {
                // One that was sent with the text does not find it a second time either.
                Err(error)
                    if classify::is_unknown_script(&error) && !(sends_text && index == 0) =>
                {
                    without_script.push(members);
                }
                Err(error) if members.len() == requests.len() => {
                    return Err(CallFailure::Replied(classify::classify(error)));
                }
                reply => distribute(reply, &members, requests, &mut results)?,
            }
        }
        commands = without_script;
        is_first_round = false;
    }
    let results = results.into_iter();
    let results = results.map(|result| result.expect("each request was in a command"));
    Ok(results.collect())
}

/// The indexes of the requests that one command carries.
type RequestIndexes = SmallVec<[usize; 4]>;

/// Distributes requests over commands, in order. Requests for one slot share a command, unless they must be sent alone.
fn by_slot(requests: &[Box<Request>]) -> Vec<RequestIndexes> {
    let slots = requests.iter().enumerate();
    let mut slots: Vec<_> = slots
        .map(|(index, request)| (request.shared_slot(), index))
        .collect();
    slots.sort_unstable();
    let may_share = |(one, _): &(Option<u16>, usize), (other, _): &(Option<u16>, usize)| {
        one.is_some() && one == other
    };
    slots
        .chunk_by(may_share)
        .map(|command| command.iter().map(|(_, index)| *index).collect())
        .collect()
}

/// Returns the commands of one round.
fn pipeline(
    commands: &[RequestIndexes],
    requests: &[Box<Request>],
    says_hello: bool,
    sends_text: bool,
    now: Option<Timestamp>,
) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands.len() + 1);
    if says_hello {
        pipeline.cmd("HELLO");
    }
    for (index, members) in commands.iter().enumerate() {
        if requests[members[0]].is_asking() {
            pipeline.cmd("ASKING");
        }
        let start = if sends_text && index == 0 {
            Script::by_text
        } else {
            Script::by_hash
        };
        let members = members.iter().map(|member| &*requests[*member]);
        pipeline.add_command(Request::command(members, start, now));
    }
    pipeline
}

/// Stores the result of each request of a command.
///
/// # Errors
///
/// [`CallFailure::Replied`] if the reply is not that of the script: the replies after it cannot be trusted.
fn distribute(
    reply: RedisResult<Value>,
    members: &[usize],
    requests: &[Box<Request>],
    results: &mut [Option<RequestResult>],
) -> Result<(), CallFailure> {
    match reply {
        Ok(reply) => {
            let lens = members.iter().map(|member| requests[*member].reply_lens());
            let parsed = reply::parse(&reply, lens).map_err(CallFailure::Replied)?;
            for (member, result) in members.iter().zip(parsed) {
                results[*member] = Some(result);
            }
        }
        Err(error) => {
            let error = classify::classify(error);
            for member in members {
                results[*member] = Some(Err(error.clone()));
            }
        }
    }
    Ok(())
}

impl CallFailure {
    /// Returns the failure for an error of the connection.
    fn of(failed: SendError) -> Self {
        if !failed.was_sent {
            return Self::NotSent;
        }
        let is_lost = failed.error.is_io_error();
        let error = classify::classify(failed.error);
        if is_lost {
            Self::Lost(error)
        } else {
            Self::Replied(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::simulation, *};
    use crate::remote::protocol::Keyspace;

    #[test]
    fn probe_does_not_take_other_requests_of_its_call_to_a_successor() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let probe = || Box::new(Request::probe(&keyspace, b"k"));
        let request = |run_number| {
            let mut request = simulation::request();
            request.set_run_number(run_number);
            request
        };
        assert!(!is_for_predecessor(&[probe()], 2));
        assert!(!is_for_predecessor(&[probe(), request(2)], 2));
        assert!(is_for_predecessor(&[probe(), request(1)], 2));
        assert!(is_for_predecessor(&[request(2), request(1), probe()], 2));
    }
}
