//! Arguments and replies of the decision script, per algorithm.

use redis::Cmd;
use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Counting, Form, Mark, Opening},
    clock::{self, Timestamp},
    policy::Charge,
    settlement::{Correction, Settlement},
    state::{PolicyState, Retry, Usage},
};

/// The arguments of a few charges.
pub(super) type Arguments = SmallVec<[Argument; 4]>;

/// One argument of the script.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    /// More than the counter ever holds.
    Never,
    Number(u64),
    Ticket(u64),
    /// The letter of an algorithm or mark, followed by the bytes of the quota that a state was made under.
    Tag {
        bytes: [u8; 5],
        length: usize,
    },
}

impl Argument {
    /// A letter alone.
    pub(super) fn mark(letter: u8) -> Self {
        Self::tag(letter, [])
    }

    fn tag<const N: usize>(letter: u8, shape: [u8; N]) -> Self {
        let mut bytes = [letter; 5];
        bytes[1..=N].copy_from_slice(&shape);
        Self::Tag {
            bytes,
            length: N + 1,
        }
    }

    /// Writes it.
    pub(super) fn write(&self, command: &mut Cmd) {
        match self {
            Self::Never => command.arg(b"-1"),
            Self::Number(number) => command.arg(number),
            Self::Ticket(ticket) => command.arg(&ticket.to_be_bytes()),
            Self::Tag { bytes, length } => command.arg(&bytes[..*length]),
        };
    }
}

/// What puts a charge right, as the script takes it. `None` when it is right.
pub(super) fn correct(settlement: &Settlement) -> Option<Arguments> {
    let charge = settlement.charge();
    let mut arguments = Arguments::new();
    let (units, is_refund) = match settlement.correction() {
        Correction::Charge(units) => (units, false),
        Correction::Keep => return None,
        Correction::Refund(units) => (units, true),
        Correction::Release => (charge.units(), true),
    };
    if is_refund {
        let mark = settlement.mark();
        let made = Argument::Number(mark.made.as_micros());
        let returned = Argument::Number(mark.returned % Mark::MODULUS);
        let is_queue =
            matches!(charge.policy().counter(), Counter::Bucket(bucket) if bucket.is_queue());
        arguments.extend([
            Argument::mark(if is_queue { b',' } else { b'-' }),
            made,
            returned,
        ]);
    } else {
        arguments.push(Argument::mark(b'+'));
    }
    match charge.policy().counter() {
        // By the time alone: a charge that need not fit need not lie on the lattice either.
        Counter::Bucket(bucket) => arguments.extend([
            Argument::tag(b'w', bucket.shape().to_be_bytes()),
            Argument::Number(match is_refund {
                true => bucket.micros_back(settlement.mark().made, units),
                false => bucket.micros_up(units),
            }),
            Argument::Number(bucket.span()),
        ]),
        _ => push(&mut arguments, &charge.cost(units)),
    }
    Some(arguments)
}

/// What gives the slots of a charge back. `None` when it takes none.
pub(super) fn release(charge: &Charge<'_>) -> Option<Arguments> {
    let Counter::Slots(_) = charge.policy().counter() else {
        return None;
    };
    let zero = Argument::Number(0);
    let mut arguments = Arguments::from_iter([Argument::mark(b'-'), zero, zero]);
    push(&mut arguments, charge);
    (charge.units() > 0).then_some(arguments)
}

/// What makes the lease of a charge's slots begin anew. `None` when it has none.
pub(super) fn renew(charge: &Charge<'_>) -> Option<Arguments> {
    let Counter::Slots(_) = charge.policy().counter() else {
        return None;
    };
    let mut arguments = Arguments::from_iter([Argument::mark(b'/')]);
    push(&mut arguments, charge);
    Some(arguments)
}

/// The start of a group of so many charges.
pub(super) fn group_of(charges: usize) -> Arguments {
    match charges {
        0 | 1 => Arguments::new(),
        _ => Arguments::from_iter([Argument::mark(b'*'), Argument::Number(charges as u64)]),
    }
}

/// Adds a charge that is made whether it fits or not. That of a log tries what only long logs need, too.
pub(super) fn probe(arguments: &mut Arguments, charge: &Charge<'_>) {
    let is_log = matches!(charge.policy().counter(), Counter::SlidingLog(_));
    arguments.push(Argument::mark(if is_log { b'#' } else { b'+' }));
    push(arguments, charge);
}

/// Adds a charge that is to be decided on.
pub(super) fn ask(arguments: &mut Arguments, charge: &Charge<'_>) {
    if charge.policy().counts_denied() {
        arguments.push(Argument::mark(b'!'));
    }
    push(arguments, charge);
}

/// Adds a charge as its branch of the script takes it.
fn push(arguments: &mut Arguments, charge: &Charge<'_>) {
    use Argument::Number;

    // More than any limit, and still a whole number to the script.
    let cost = charge.units().min(1 << 52);
    match charge.policy().counter() {
        Counter::Bucket(bucket) => {
            let shape = bucket.shape().to_be_bytes();
            let limit = |value: Option<u64>| value.map_or(Argument::Never, Number);
            match bucket.form(cost) {
                Form::Whole { increment } => arguments.extend([
                    Argument::tag(b'w', shape),
                    limit(increment),
                    Number(bucket.span()),
                ]),
                Form::Lattice {
                    cost,
                    units,
                    micros,
                } => arguments.extend([
                    Argument::tag(b'l', shape),
                    limit(cost),
                    Number(bucket.span()),
                    Number(units),
                    Number(micros),
                ]),
            }
        }
        Counter::FixedWindow(window) => {
            let letter = match window.opening() {
                Opening::Clock => b'f',
                Opening::FirstHit => b'o',
                Opening::Month => b'm',
            };
            arguments.extend([
                Argument::tag(letter, window.shape().to_be_bytes()),
                Number(cost),
                Number(window.limit()),
                Number(window.millis()),
            ]);
        }
        Counter::SlidingLog(log) => arguments.extend([
            Argument::mark(b'g'),
            Number(cost),
            Number(log.limit()),
            Number(log.millis()),
        ]),
        Counter::Slots(slots) => arguments.extend([
            Argument::mark(b'c'),
            Number(cost),
            Number(slots.limit()),
            Number(clock::micros(slots.lease()) / 1_000),
            Argument::Ticket(charge.ticket()),
        ]),
        Counter::SlidingWindow(window) => arguments.extend([
            Argument::mark(b's'),
            Number(cost),
            Number(window.limit()),
            Number(window.millis()),
            Number(window.tick()),
        ]),
    }
}

/// Returns the number of integers that the reply holds about a charge's state.
pub(in crate::remote) fn reply_len(charge: &Charge<'_>) -> u8 {
    match charge.policy().counter() {
        Counter::Bucket(_) | Counter::Slots(_) => 1,
        Counter::FixedWindow(_) => 2,
        Counter::SlidingLog(_) | Counter::SlidingWindow(_) => 3,
    }
}

// === ChargeReply ===

/// The part of the reply that belongs to one charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeReply {
    pub(super) has_room: bool,
    pub(super) numbers: [u64; 3],
    /// Total units refunded on this key so far.
    pub(super) returned: u64,
}

/// Returns the state of a policy by the reply to its charge.
pub(super) fn read(charge: &Charge<'_>, reply: &ChargeReply, now: Timestamp) -> PolicyState {
    let [first, second, third] = reply.numbers;
    let mut turn = now;
    let (usage, retry) = match charge.policy().counter() {
        Counter::Bucket(bucket) => {
            let state = bucket.state(first);
            if reply.has_room && charge.units() > 0 {
                turn = bucket.turn(&state, now);
            }
            standing(bucket, &state, charge, now)
        }
        Counter::FixedWindow(window) => {
            let closes = Timestamp::from_micros(first);
            standing(window, &window.state(closes, second), charge, now)
        }
        Counter::SlidingLog(log) => {
            let retry = match charge.units() > log.limit() {
                true => Retry::Never,
                false => Retry::At(Timestamp::from_micros(second)),
            };
            let reset_at = Timestamp::from_micros(third).max(now);
            let remaining = log.limit().saturating_sub(first);
            (Usage::new(log.limit(), remaining, reset_at), retry)
        }
        Counter::SlidingWindow(window) => {
            let state = window.state(first / 1_000, second, third);
            standing(window, &state, charge, now)
        }
        Counter::Slots(slots) => standing(slots, &slots.state(first), charge, now),
    };
    let retry = if reply.has_room { Retry::Now } else { retry };
    let state = PolicyState::counted(*charge.policy().name(), usage, retry)
        .turn(turn)
        .returned(reply.returned);
    charge.policy().counter().describe(state)
}

fn standing<C: Counting>(
    counter: &C,
    state: &C::State,
    charge: &Charge<'_>,
    now: Timestamp,
) -> (Usage, Retry) {
    (
        counter.usage(state, now),
        counter.retry(state, now, charge.units()),
    )
}
