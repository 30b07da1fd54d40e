//! What goes to the decision script, and what comes back.

use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::{
    algorithm::Form,
    clock::Timestamp,
    decision::Decision,
    error::{Error, ErrorKind},
    policy::{Charge, OwnedCharge},
    state::CountedBy,
};

use super::keyspace::{Keyspace, WireKey};

/// One request to the decision script; it can be sent by hash and, if need be, by text.
#[derive(Debug)]
pub(super) struct Request {
    keys: SmallVec<[WireKey; 1]>,
    arguments: SmallVec<[Argument; 8]>,
}

#[derive(Clone, Copy, Debug)]
enum Argument {
    Number(u64),
    Never,
    Tag(&'static str),
}

impl Request {
    /// A request to decide these charges as one group, by the caller's time or the server's.
    pub(super) fn decide(
        keyspace: &Keyspace,
        charges: &[Charge<'_>],
        now: Option<Timestamp>,
    ) -> Self {
        let mut arguments = SmallVec::new();
        arguments.push(Argument::Number(now.map_or(0, Timestamp::as_micros)));
        arguments.push(Argument::Number(charges.len() as u64));
        for charge in charges {
            push_form(
                &mut arguments,
                charge.policy().bucket().form(charge.units()),
            );
        }
        Self {
            keys: charges
                .iter()
                .map(|charge| keyspace.of(charge.policy().name(), charge.key()))
                .collect(),
            arguments,
        }
    }

    /// A request that is always admitted and writes a key of our own: it succeeds only where decisions would.
    pub(super) fn probe(keyspace: &Keyspace, now: Option<Timestamp>) -> Self {
        let mut arguments = SmallVec::new();
        arguments.push(Argument::Number(now.map_or(0, Timestamp::as_micros)));
        arguments.push(Argument::Number(1));
        let always = Form::Whole {
            increment: 1,
            tolerance: Some(1 << 50),
        };
        push_form(&mut arguments, always);
        Self {
            keys: SmallVec::from_iter([keyspace.probe()]),
            arguments,
        }
    }

    /// Writes the request behind the start of a command.
    pub(super) fn complete(&self, mut command: Cmd) -> Cmd {
        command.arg(self.keys.len());
        for key in &self.keys {
            command.arg(key.as_slice());
        }
        for argument in &self.arguments {
            match argument {
                Argument::Number(number) => command.arg(number),
                Argument::Never => command.arg(b"-1"),
                Argument::Tag(tag) => command.arg(*tag),
            };
        }
        command
    }
}

fn push_form(arguments: &mut SmallVec<[Argument; 8]>, form: Form) {
    let limit = |micros: Option<u64>| micros.map_or(Argument::Never, Argument::Number);
    match form {
        Form::Whole {
            increment,
            tolerance,
        } => arguments.extend([
            Argument::Tag("w"),
            Argument::Number(increment),
            limit(tolerance),
        ]),
        Form::Lattice {
            cost,
            units,
            micros,
            span,
        } => arguments.extend([
            Argument::Tag("l"),
            Argument::Number(cost),
            Argument::Number(units),
            Argument::Number(micros),
            limit(span),
        ]),
    }
}

/// Reads the reply to a request with these charges.
pub(super) fn decision(charges: &[OwnedCharge], reply: &Value) -> Result<Decision, Error> {
    let Value::Array(items) = reply else {
        return Err(malformed());
    };
    let numbers: SmallVec<[u64; 8]> = items.iter().map_while(number).collect();
    if items.len() != numbers.len() || numbers.len() != 2 + 2 * charges.len() {
        return Err(malformed());
    }
    let now = Timestamp::from_micros(numbers[0]);
    let all_admitted = numbers[1] == 1;
    let verdicts = numbers[2..].chunks_exact(2);
    if all_admitted != verdicts.clone().all(|verdict| verdict[0] == 1) {
        return Err(malformed());
    }
    let states = charges
        .iter()
        .zip(verdicts)
        .map(|(charge, verdict)| charge.borrow().state(verdict[0] == 1, verdict[1], now));
    Ok(Decision::new(CountedBy::Shared, now, states))
}

/// Reads the reply to a probe, which is always admitted.
pub(super) fn probed(reply: &Value) -> Result<(), Error> {
    match reply {
        Value::Array(items) if items.get(1) == Some(&Value::Int(1)) => Ok(()),
        _ => Err(malformed()),
    }
}

fn malformed() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "the decision script answered in a shape that tollgate does not know: is something between it and the server?",
    )
}

/// A whole number within what the script can count with.
fn number(item: &Value) -> Option<u64> {
    match item {
        Value::Int(number) => u64::try_from(*number)
            .ok()
            .filter(|number| *number < 1 << 53),
        _ => None,
    }
}
