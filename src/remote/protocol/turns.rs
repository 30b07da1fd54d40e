//! Questions of queues, pauses, adaptive rates and failures: their commands and their replies. `lua/line_open.lua`,
//! `lua/pause.lua`, `lua/adapt.lua` and `lua/failure.lua` document them.

use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::{
    algorithm::{MicroRate, RateReport},
    charge::{Charge, OwnedCharge, Settlement, Turn, TurnRequest, Turns},
    clock::Timestamp,
    error::Error,
    key::Key,
    policy::{Penalty, Policy},
};

use super::{
    arguments::{Argument, Arguments, Tag},
    codec,
    keyspace::{Keyspace, RedisKey},
    reply::{malformed, parse, parse_line},
    script::Script,
};

/// A question of a queue, as Redis gets it.
pub(in crate::remote) struct TurnsCall {
    keys: SmallVec<[RedisKey; 4]>,
    arguments: Arguments,
    reply_lens: SmallVec<[u8; 4]>,
}

impl TurnsCall {
    /// Returns the call of a question.
    pub fn new(keyspace: &Keyspace, request: &TurnRequest) -> Self {
        let charges: Vec<Charge<'_>> = match request.callers.is_empty() {
            true => request.charges.iter().map(OwnedCharge::borrow).collect(),
            false => request.charges_of(0).into_vec(),
        };
        let number = |duration: std::time::Duration| {
            Argument::Number(
                u64::try_from(duration.as_micros())
                    .unwrap_or(u64::MAX)
                    .min(1 << 50),
            )
        };
        let mut arguments = Arguments::from_iter([
            Argument::Ticket(request.queue),
            Argument::Number(u64::from(request.priority.class())),
            number(request.ahead),
            number(request.poll),
            Argument::Number(u64::from(request.is_listed)),
            Argument::Number(request.callers.len() as u64),
        ]);
        arguments.extend(request.callers.iter().map(|caller| number(caller.age)));
        let tickets = request.callers.iter().map(|caller| caller.ticket.as_u64());
        arguments.extend(tickets.map(Argument::Ticket));
        arguments.extend([
            Argument::mark(Tag::Group),
            Argument::Number(charges.len() as u64),
        ]);
        for charge in &charges {
            codec::decide(&mut arguments, charge);
        }
        let mut keys: SmallVec<[RedisKey; 4]> = charges
            .iter()
            .map(|charge| keyspace.key_of(charge))
            .collect();
        let banned = charges
            .iter()
            .filter(|charge| codec::penalty_of(charge).is_some());
        keys.extend(banned.map(|charge| keyspace.ban_key(charge.policy(), charge.key())));
        let lines = charges
            .iter()
            .map(|charge| keyspace.line_key(charge.policy(), charge.key()));
        keys.extend(lines);
        Self {
            keys,
            arguments,
            reply_lens: charges.iter().map(codec::decided_len).collect(),
        }
    }

    /// Returns the command. Without `now`, the script takes the time of the server.
    pub fn command(&self, start: fn(&Script, usize) -> Cmd, now: Option<Timestamp>) -> Cmd {
        let mut command = start(Script::ACQUIRE, self.keys.len() + self.arguments.len());
        command.arg(self.keys.len());
        for key in &self.keys {
            command.arg(key.as_slice());
        }
        if let Some(now) = now {
            Argument::mark(Tag::CallerTime).write(&mut command);
            command.arg(now.as_micros());
        }
        for argument in &self.arguments {
            argument.write(&mut command);
        }
        command
    }

    /// Returns the turns in a reply. Those before a caller who could not be decided count all the same.
    ///
    /// # Errors
    ///
    /// That of the first caller, if it could not be decided, and [`ErrorKind::Protocol`](crate::ErrorKind::Protocol).
    pub fn parse(&self, reply: &Value, request: &TurnRequest) -> Result<Turns, Error> {
        let line = parse_line(reply, &self.reply_lens, request.callers.len())?;
        if let Some(error) = line.error
            && line.turns.is_empty()
        {
            return Err(error);
        }
        let turns = line.turns.into_iter().zip(&request.callers);
        let turns = turns.map(|((start, reply), caller)| {
            let decision = reply.into_decision(&request.charges)?;
            let decision = decision.with_ticket(caller.ticket);
            Ok(Turn { start, decision })
        });
        Ok(Turns {
            now: line.decided_at,
            turns: turns.collect::<Result<_, Error>>()?,
            is_unavailable: false,
            due: line.due,
            waits_for: line.waits_for,
        })
    }
}

/// Returns the command that pauses the key of a charge.
pub(in crate::remote) fn pause(
    keyspace: &Keyspace,
    charge: &Charge<'_>,
    micros: u64,
    start: fn(&Script, usize) -> Cmd,
    now: Option<Timestamp>,
) -> Cmd {
    let mut command = start(Script::PAUSE, 6);
    let bucket = charge.counter().bucket();
    command.arg(1 + usize::from(bucket.is_some()));
    command.arg(keyspace.line_key(charge.policy(), charge.key()).as_slice());
    if bucket.is_some() {
        command.arg(keyspace.key_of(charge).as_slice());
    }
    optional_time(&mut command, now);
    command.arg(micros);
    if let Some(bucket) = bucket {
        command.arg(bucket.quota_tag().to_be_bytes().as_slice());
        let span = bucket.without_queue().span();
        command.arg(span.saturating_sub(bucket.micros_up(1)));
    }
    command
}

/// Returns the command that counts a failure of a key under a policy with this penalty.
pub(in crate::remote) fn failure(
    keyspace: &Keyspace,
    (policy, key): (&Policy, &Key),
    penalty: &Penalty,
    start: fn(&Script, usize) -> Cmd,
    now: Option<Timestamp>,
) -> Cmd {
    let mut command = start(Script::FAILURE, 6);
    command.arg(1).arg(keyspace.ban_key(policy, key).as_slice());
    optional_time(&mut command, now);
    let [_, _, first, factor, longest, forgiven] = penalty.arguments();
    command.arg(&[first, factor, longest, forgiven]);
    command
}

/// Returns the command that releases the slots of a settlement, and wakes callers that wait for them.
pub(in crate::remote) fn release(
    keyspace: &Keyspace,
    settlement: &Settlement,
    start: fn(&Script, usize) -> Cmd,
    now: Option<Timestamp>,
) -> Cmd {
    let charge = settlement.charge();
    let arguments = codec::release(&[charge], settlement.is_acquire_pending());
    let mut command = start(Script::RELEASE, 8);
    command.arg(2).arg(keyspace.key_of(&charge).as_slice());
    command.arg(keyspace.line_key(charge.policy(), charge.key()).as_slice());
    if let Some(now) = now {
        Argument::mark(Tag::CallerTime).write(&mut command);
        command.arg(now.as_micros());
    }
    command.arg(keyspace.wake_channel()).arg(1);
    for argument in &arguments {
        argument.write(&mut command);
    }
    command
}

/// Checks the reply to [`release`].
///
/// # Errors
///
/// That of the server, [`ErrorKind::ForeignValue`](crate::ErrorKind::ForeignValue), and
/// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol).
pub(in crate::remote) fn check_release(
    reply: &Value,
    settlement: &Settlement,
) -> Result<(), Error> {
    let lens = [codec::reply_len(&settlement.charge())];
    let replies = parse(reply, std::iter::once(lens.as_slice()))?;
    replies.into_iter().try_for_each(|reply| reply?.check())
}

/// Returns the command that reports how the key of a charge was used.
pub(in crate::remote) fn adapt(
    keyspace: &Keyspace,
    charge: &Charge<'_>,
    report: &RateReport,
    start: fn(&Script, usize) -> Cmd,
    now: Option<Timestamp>,
) -> Cmd {
    let mut command = start(Script::ADAPT, 7);
    command.arg(1);
    command.arg(keyspace.rate_key(charge.policy(), charge.key()).as_slice());
    optional_time(&mut command, now);
    command.arg(report.floor.as_micros());
    command.arg(report.ceiling.as_micros());
    command.arg(report.used);
    optional_time(&mut command, report.refused_at);
    match report.shown {
        Some(rate) => command.arg(rate.as_micros()),
        None => command.arg(""),
    };
    command
}

/// Returns the rate in a reply.
///
/// # Errors
///
/// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol).
pub(in crate::remote) fn parse_rate(reply: &Value) -> Result<MicroRate, Error> {
    match reply {
        Value::Int(rate) => u64::try_from(*rate).ok().map(MicroRate::from_micros),
        _ => None,
    }
    .ok_or_else(malformed)
}

/// Adds a time, or nothing.
fn optional_time(command: &mut Cmd, time: Option<Timestamp>) {
    match time {
        Some(time) => command.arg(time.as_micros()),
        None => command.arg(""),
    };
}
