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

/// The charges of one request, as the script takes them.
#[derive(Debug)]
pub(super) struct Group {
    keys: SmallVec<[WireKey; 1]>,
    arguments: SmallVec<[Argument; 4]>,
}

#[derive(Clone, Copy, Debug)]
enum Argument {
    Number(u64),
    Never,
    Tag(&'static str),
}

impl Group {
    /// Charges to decide together.
    pub(super) fn decide(keyspace: &Keyspace, charges: &[Charge<'_>]) -> Self {
        let mut arguments = SmallVec::new();
        if charges.len() > 1 {
            arguments.extend([Argument::Tag("*"), Argument::Number(charges.len() as u64)]);
        }
        for charge in charges {
            push_form(
                &mut arguments,
                charge.policy().bucket().form(charge.units()),
            );
        }
        let key = |charge: &Charge<'_>| keyspace.of(charge.policy().name(), charge.key());
        Self {
            keys: charges.iter().map(key).collect(),
            arguments,
        }
    }

    /// A charge that is always admitted and writes a key of our own: it succeeds only where decisions would.
    pub(super) fn probe(keyspace: &Keyspace) -> Self {
        let mut arguments = SmallVec::new();
        let always = Form::Whole {
            increment: 1,
            tolerance: Some(1 << 49),
        };
        push_form(&mut arguments, always);
        Self {
            keys: SmallVec::from_iter([keyspace.probe()]),
            arguments,
        }
    }

    /// How many charges it has.
    pub(super) fn charges(&self) -> usize {
        self.keys.len()
    }

    /// Writes the keys, which come before all arguments.
    pub(super) fn write_keys(&self, command: &mut Cmd) {
        for key in &self.keys {
            command.arg(key.as_slice());
        }
    }

    /// Writes the arguments.
    pub(super) fn write_arguments(&self, command: &mut Cmd) {
        for argument in &self.arguments {
            match argument {
                Argument::Number(number) => command.arg(number),
                Argument::Never => command.arg(b"-1"),
                Argument::Tag(tag) => command.arg(*tag),
            };
        }
    }
}

fn push_form(arguments: &mut SmallVec<[Argument; 4]>, form: Form) {
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

// === Verdict ===

/// What the script says about one group.
#[derive(Debug)]
pub(super) struct Verdict {
    decided_at: Timestamp,
    outcome: u64,
    /// Per charge whether it had room by itself, and its state.
    charges: SmallVec<[(bool, u64); 1]>,
}

impl Verdict {
    /// Whether all charges were made.
    pub(super) fn is_admitted(&self) -> bool {
        self.outcome == ADMITTED
    }

    /// The decision on the charges that were asked about.
    pub(super) fn into_decision(self, charges: &[OwnedCharge]) -> Result<Decision, Error> {
        if self.outcome == FOREIGN {
            return Err(Error::new(
                ErrorKind::ForeignValue,
                "a redis key of tollgate's holds a value that tollgate did not write: choose another prefix",
            ));
        }
        let states = charges
            .iter()
            .zip(self.charges)
            .map(|(charge, (has_room, state))| {
                charge.borrow().state(has_room, state, self.decided_at)
            });
        Ok(Decision::new(CountedBy::Shared, self.decided_at, states))
    }
}

/// Reads the reply to a call with groups of so many charges, in the order of the groups.
pub(super) fn verdicts(
    reply: &Value,
    groups: impl Iterator<Item = usize>,
) -> Result<Vec<Verdict>, Error> {
    let Value::Array(items) = reply else {
        return Err(malformed());
    };
    let mut numbers = items.iter().map(number);
    let mut next = || numbers.next().flatten().ok_or_else(malformed);
    let decided_at = Timestamp::from_micros(next()?);
    let verdicts = groups
        .map(|charges| verdict(decided_at, charges, &mut next))
        .collect::<Result<Vec<_>, _>>()?;
    match numbers.next() {
        None => Ok(verdicts),
        Some(_) => Err(malformed()),
    }
}

fn verdict(
    decided_at: Timestamp,
    charges: usize,
    next: &mut impl FnMut() -> Result<u64, Error>,
) -> Result<Verdict, Error> {
    let outcome = next()?;
    let charges = (0..charges)
        .map(|_| match next()? {
            word @ 0..=1 => Ok((word == 1, next()?)),
            _ => Err(malformed()),
        })
        .collect::<Result<SmallVec<[(bool, u64); 1]>, Error>>()?;
    let all_have_room = charges.iter().all(|(has_room, _)| *has_room);
    let fits = match outcome {
        ADMITTED => all_have_room,
        DENIED | FOREIGN => !all_have_room,
        _ => false,
    };
    let verdict = Verdict {
        decided_at,
        outcome,
        charges,
    };
    if fits { Ok(verdict) } else { Err(malformed()) }
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

const DENIED: u64 = 0;
const ADMITTED: u64 = 1;
const FOREIGN: u64 = 2;
