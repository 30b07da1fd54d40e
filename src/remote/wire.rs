//! What goes to the decision script, and what comes back.

use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    decision::Decision,
    error::{Error, ErrorKind},
    policy::{Charge, OwnedCharge},
    settlement::Settlement,
    state::CountedBy,
};

use super::{
    form::{self, Argument, Arguments, Told},
    keyspace::{Keyspace, WireKey},
};

/// The charges of one request, as the script takes them.
#[derive(Debug)]
pub(super) struct Group {
    keys: SmallVec<[WireKey; 1]>,
    arguments: Arguments,
    /// How many numbers the script tells of each charge.
    tells: SmallVec<[usize; 1]>,
}

impl Group {
    /// Charges to decide together.
    pub(super) fn decide(keyspace: &Keyspace, charges: &[Charge<'_>]) -> Self {
        let mut arguments = Arguments::new();
        if charges.len() > 1 {
            arguments.extend([Argument::mark(b'*'), Argument::Number(charges.len() as u64)]);
        }
        for charge in charges {
            form::ask(&mut arguments, charge);
        }
        Self {
            keys: charges.iter().map(|charge| keyspace.of(charge)).collect(),
            arguments,
            tells: charges.iter().map(form::tells).collect(),
        }
    }

    /// What puts a charge right; `None` when it is right.
    pub(super) fn settle(keyspace: &Keyspace, settlement: &Settlement) -> Option<Self> {
        let charge = settlement.charge();
        Some(Self {
            keys: SmallVec::from_iter([keyspace.of(&charge)]),
            arguments: form::correct(settlement)?,
            tells: SmallVec::from_iter([form::tells(&charge)]),
        })
    }

    /// What gives the slots of a charge back; `None` when it takes none.
    pub(super) fn release(keyspace: &Keyspace, charge: &Charge<'_>) -> Option<Self> {
        Some(Self {
            keys: SmallVec::from_iter([keyspace.of(charge)]),
            arguments: form::release(charge)?,
            tells: SmallVec::from_iter([form::tells(charge)]),
        })
    }

    /// What makes the lease of a charge's slots begin anew; `None` when it has none.
    pub(super) fn renew(keyspace: &Keyspace, charge: &Charge<'_>) -> Option<Self> {
        Some(Self {
            keys: SmallVec::from_iter([keyspace.of(charge)]),
            arguments: form::renew(charge)?,
            tells: SmallVec::from_iter([form::tells(charge)]),
        })
    }

    /// A charge that is always admitted and writes a key of our own: it succeeds only where decisions would.
    pub(super) fn probe(keyspace: &Keyspace) -> Self {
        Self {
            keys: SmallVec::from_iter([keyspace.probe()]),
            arguments: form::always(),
            tells: SmallVec::from_iter([1]),
        }
    }

    /// How many charges it has.
    pub(super) fn charges(&self) -> usize {
        self.keys.len()
    }

    /// How many numbers the script tells of each charge.
    pub(super) fn tells(&self) -> &[usize] {
        &self.tells
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
            argument.write(command);
        }
    }
}

// === Verdict ===

/// What the script says about one group.
#[derive(Debug)]
pub(super) struct Verdict {
    decided_at: Timestamp,
    outcome: u64,
    /// Per charge whether it had room by itself, and what was told of its state.
    charges: SmallVec<[Told; 1]>,
}

impl Verdict {
    /// Whether all charges were made.
    pub(super) fn is_admitted(&self) -> bool {
        self.outcome == ADMITTED
    }

    /// The time by which it was decided.
    pub(super) fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Whether it was decided at all.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.outcome == FOREIGN {
            return Err(Error::new(
                ErrorKind::ForeignValue,
                "a redis key of tollgate's holds a value that tollgate did not write: choose another prefix",
            ));
        }
        Ok(())
    }

    /// The decision on the charges that were asked about.
    pub(super) fn into_decision(self, charges: &[OwnedCharge]) -> Result<Decision, Error> {
        self.check()?;
        let states = charges
            .iter()
            .zip(self.charges)
            .map(|(charge, told)| form::read(&charge.borrow(), &told, self.decided_at));
        Ok(Decision::new(CountedBy::Shared, self.decided_at, states))
    }
}

/// Reads the reply to a call with groups that are told of in so many numbers per charge, in the order of the groups.
pub(super) fn verdicts<'a>(
    reply: &Value,
    groups: impl Iterator<Item = &'a [usize]>,
) -> Result<Vec<Verdict>, Error> {
    let Value::Array(items) = reply else {
        return Err(malformed());
    };
    let mut numbers = items.iter().map(number);
    let mut next = || numbers.next().flatten().ok_or_else(malformed);
    let decided_at = Timestamp::from_micros(next()?);
    let verdicts = groups
        .map(|tells| verdict(decided_at, tells, &mut next))
        .collect::<Result<Vec<_>, _>>()?;
    match numbers.next() {
        None => Ok(verdicts),
        Some(_) => Err(malformed()),
    }
}

fn verdict(
    decided_at: Timestamp,
    tells: &[usize],
    next: &mut impl FnMut() -> Result<u64, Error>,
) -> Result<Verdict, Error> {
    let outcome = next()?;
    let charges = tells
        .iter()
        .map(|tells| told(*tells, next))
        .collect::<Result<SmallVec<[Told; 1]>, Error>>()?;
    let all_have_room = charges.iter().all(|told| told.has_room);
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

fn told(tells: usize, next: &mut impl FnMut() -> Result<u64, Error>) -> Result<Told, Error> {
    let word = next()?;
    if word > ROOM + RETURNED {
        return Err(malformed());
    }
    let mut numbers = [0; 3];
    for number in &mut numbers[..tells] {
        *number = next()?;
    }
    let returned = if word < RETURNED { 0 } else { next()? };
    Ok(Told {
        has_room: word & ROOM > 0,
        numbers,
        returned,
    })
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

/// What the word about a charge is made of: it had room; a number more follows, what was taken back.
const ROOM: u64 = 1;
const RETURNED: u64 = 2;

const DENIED: u64 = 0;
const ADMITTED: u64 = 1;
const FOREIGN: u64 = 2;
