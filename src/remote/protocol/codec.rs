//! Arguments and replies of the decision script, per algorithm.

use std::time::Duration;

use redis::Cmd;
use smallvec::SmallVec;

use crate::{
    algorithm::{ChargeMark, Counter, Counting, Form, WindowStart},
    charge::Charge,
    clock::{self, Timestamp},
    settlement::{Correction, Settlement},
    state::{PolicyState, Retry, Usage},
};

/// The arguments of a few charges.
pub(super) type Arguments = SmallVec<[Argument; 4]>;

/// One argument of the script.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    /// Members of a sorted set of slots: per ticket 8 bytes, and its slots in 3.
    Members(Box<[u8]>),
    /// More than the counter ever holds.
    Never,
    Number(u64),
    /// A tag, followed by the bytes of the quota that a state was made under.
    Tag {
        bytes: [u8; 5],
        length: usize,
    },
    Ticket(u64),
}

/// Bytes that name algorithms and marks to the script. `lua/decide.lua` defines a constant for each.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Tag {
    Bucket = b'w',
    CallerTime = b'@',
    ClockWindow = b'f',
    CountDenied = b'!',
    FirstHitWindow = b'o',
    Force = b'+',
    Group = b'*',
    MonthWindow = b'm',
    Probe = b'#',
    Refund = b'-',
    RefundQueue = b',',
    ReleaseSlots = b'e',
    RenewSlots = b'k',
    SlidingLog = b'g',
    SlidingWindow = b's',
    TakeSlots = b'c',
    UnevenBucket = b'l',
}

impl Argument {
    /// A tag without a quota.
    pub(super) fn mark(tag: Tag) -> Self {
        Self::tag(tag, [])
    }

    fn tag<const N: usize>(tag: Tag, shape: [u8; N]) -> Self {
        let mut bytes = [tag as u8; 5];
        bytes[1..=N].copy_from_slice(&shape);
        Self::Tag {
            bytes,
            length: N + 1,
        }
    }

    /// Appends the argument to a command.
    pub(super) fn write(&self, command: &mut Cmd) {
        match self {
            Self::Members(members) => command.arg(members.as_ref()),
            Self::Never => command.arg(b"-1"),
            Self::Number(number) => command.arg(number),
            Self::Tag { bytes, length } => command.arg(&bytes[..*length]),
            Self::Ticket(ticket) => command.arg(&ticket.to_be_bytes()),
        };
    }
}

/// Returns the arguments that put a charge right; `None` when it is right.
pub(super) fn correct(settlement: &Settlement) -> Option<Arguments> {
    let charge = settlement.charge();
    let mut arguments = Arguments::new();
    let (units, is_refund) = match settlement.correction() {
        Correction::Charge(units) => (units, false),
        Correction::Keep => return None,
        Correction::Refund(units) => (units, true),
        Correction::Release => return Some(release(&[charge], settlement.is_acquire_pending())),
    };
    if is_refund {
        let mark = settlement.mark();
        let made = Argument::Number(mark.reset_at.as_micros());
        let returned = Argument::Number(mark.refunded_before % ChargeMark::MODULUS);
        let is_queue =
            matches!(charge.policy().counter(), Counter::Bucket(bucket) if bucket.is_queue());
        arguments.extend([
            Argument::mark(if is_queue {
                Tag::RefundQueue
            } else {
                Tag::Refund
            }),
            made,
            returned,
        ]);
    } else {
        arguments.push(Argument::mark(Tag::Force));
    }
    match charge.policy().counter() {
        // By the time alone: a charge that need not fit need not lie on the lattice either.
        Counter::Bucket(bucket) => arguments.extend([
            Argument::tag(Tag::Bucket, bucket.quota_tag().to_be_bytes()),
            Argument::Number(match is_refund {
                true => bucket.micros_back(settlement.mark().reset_at, units),
                false => bucket.micros_up(units),
            }),
            Argument::Number(bucket.span()),
        ]),
        _ => push(&mut arguments, &charge.cost(units)),
    }
    Some(arguments)
}

/// The argument before the caller's time, which the script then decides by.
pub(in crate::remote) const CALLER_TIME: [u8; 1] = [Tag::CallerTime as u8];

/// The most tickets that one [`release`] or [`renew`] carries: the reply to a renewal has a bit for each.
pub(super) const MAX_TICKETS: usize = 50;

/// Returns the arguments that release the slots of charges to one key, at most [`MAX_TICKETS`].
///
/// When a take may still be `pending`, its ticket is barred from taking slots for a lease.
pub(super) fn release(charges: &[Charge<'_>], pending: bool) -> Arguments {
    upkeep(Tag::ReleaseSlots, charges, pending)
}

/// Returns the arguments that renew the leases of charges to one key, at most [`MAX_TICKETS`].
pub(super) fn renew(charges: &[Charge<'_>], take_again: bool) -> Arguments {
    upkeep(Tag::RenewSlots, charges, take_again)
}

/// Returns the start of a group of this many charges.
pub(super) fn group_of(charges: usize) -> Arguments {
    match charges {
        0 | 1 => Arguments::new(),
        _ => Arguments::from_iter([Argument::mark(Tag::Group), Argument::Number(charges as u64)]),
    }
}

/// Appends a charge that is made whether it fits or not. That of a log also tries the commands that only long logs need.
pub(super) fn probe(arguments: &mut Arguments, charge: &Charge<'_>) {
    let is_log = matches!(charge.policy().counter(), Counter::SlidingLog(_));
    arguments.push(Argument::mark(if is_log { Tag::Probe } else { Tag::Force }));
    push(arguments, charge);
}

fn upkeep(tag: Tag, charges: &[Charge<'_>], flag: bool) -> Arguments {
    let lease = |charge: &Charge<'_>| match charge.policy().counter() {
        Counter::Concurrency(slots) => slots.lease(),
        _ => Duration::ZERO,
    };
    let longest = charges.iter().map(lease).max().unwrap_or_default();
    let member = |charge: &Charge<'_>| {
        let (ticket, slots) = (ticket(charge).to_be_bytes(), charge.units().to_be_bytes());
        // No limit is so high that slots would not fit in three bytes.
        ticket.into_iter().chain(slots.into_iter().skip(5))
    };
    Arguments::from_iter([
        Argument::mark(tag),
        Argument::Number(clock::micros(longest) / 1_000),
        Argument::Number(u64::from(flag)),
        Argument::Members(charges.iter().flat_map(member).collect()),
    ])
}

/// Appends a charge to decide on.
pub(super) fn ask(arguments: &mut Arguments, charge: &Charge<'_>) {
    if charge.policy().counts_denied() {
        arguments.push(Argument::mark(Tag::CountDenied));
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
            let shape = bucket.quota_tag().to_be_bytes();
            let limit = |value: Option<u64>| value.map_or(Argument::Never, Number);
            match bucket.form(cost) {
                Form::Whole { increment } => arguments.extend([
                    Argument::tag(Tag::Bucket, shape),
                    limit(increment),
                    Number(bucket.span()),
                ]),
                Form::Lattice {
                    cost,
                    units,
                    micros,
                } => arguments.extend([
                    Argument::tag(Tag::UnevenBucket, shape),
                    limit(cost),
                    Number(bucket.span()),
                    Number(units),
                    Number(micros),
                ]),
            }
        }
        Counter::FixedWindow(window) => {
            let tag = match window.window_start() {
                WindowStart::Clock => Tag::ClockWindow,
                WindowStart::FirstHit => Tag::FirstHitWindow,
                WindowStart::Month => Tag::MonthWindow,
            };
            arguments.extend([
                Argument::tag(tag, window.quota_tag().to_be_bytes()),
                Number(cost),
                Number(window.limit()),
                Number(window.millis()),
            ]);
        }
        Counter::SlidingLog(log) => arguments.extend([
            Argument::mark(Tag::SlidingLog),
            Number(cost),
            Number(log.limit()),
            Number(log.millis()),
        ]),
        Counter::Concurrency(slots) => arguments.extend([
            Argument::mark(Tag::TakeSlots),
            Number(cost),
            Number(slots.limit()),
            Number(clock::micros(slots.lease()) / 1_000),
            Argument::Ticket(ticket(charge)),
        ]),
        Counter::SlidingWindow(window) => arguments.extend([
            Argument::mark(Tag::SlidingWindow),
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
        Counter::Bucket(_) | Counter::Concurrency(_) => 1,
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
                turn = bucket.start_time(&state, now);
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
        Counter::Concurrency(slots) => standing(slots, &slots.state(first), charge, now),
    };
    let retry = if reply.has_room { Retry::Now } else { retry };
    let state = PolicyState::counted(*charge.policy().name(), usage, retry)
        .with_start(turn)
        .with_refunded_before(reply.returned);
    charge.policy().counter().annotate(state)
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

/// Returns the ticket of a charge under a concurrency policy.
fn ticket(charge: &Charge<'_>) -> u64 {
    let ticket = charge.ticket();
    ticket
        .expect("a charge under a concurrency policy has a ticket")
        .as_u64()
}
