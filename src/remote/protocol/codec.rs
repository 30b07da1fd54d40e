//! The script's arguments and the integers of its reply, for each algorithm.
//!
//! A charge is its penalty if it has one, at most one other mark, then the tag of its algorithm, then the arguments of
//! that algorithm. The tag of a bucket or a fixed window also holds the tag of the quota, which the script stores with
//! the state. Units are leased by a mark and a report before a charge of no units; `lease.rs` has the reply.
//!
//! ```text
//! counter         tag and its arguments                          integers in the reply
//! bucket          w  increment, span                             TAT
//! uneven bucket   l  cost, span, units, micros                   TAT
//! queue           q  cost, span, units, micros                   TAT, and when a turn that was given up is over
//! fixed window    f  cost, limit, length                         end, used          (o: first hit, m: month)
//! sliding log     g  cost, limit, length                         used, retry at, all back at
//! sliding window  s  cost, limit, length, tick                   end, used before, used within
//! pot             p  cost, span, units, micros, share            TAT, what is to be done: see `pot.rs`
//!                 r  report                                      see `pot.rs`
//! concurrency     c  cost, limit, lease, ticket                  slots in flight
//!                 e  lease, may a take follow?, members          slots released
//!                 k  lease, take again?, members                 a bit per missing member
//! ```
//!
//! Times and increments are in microseconds, lengths and leases in milliseconds; `units` come back in each `micros`.
//! Example: 10 a minute, cost 1, `w` and four bytes, 6000000, 60000000. Reply: 1700000006000000.
//!
//! To add an algorithm, extend [`write_charge`], [`reply_len`] and [`KeyState`]: the compiler leads to each.
//!
//! # Why does a key outlive its state by a second?
//!
//! Before Redis 7.2, the clock moves while a script runs, so an expiry may be counted from a moment before `TIME` was read. A key
//! that expired early would be a fresh bucket too soon. A second later harms nobody, because a full bucket and a missing key are
//! the same.

use std::time::Duration;

use crate::{
    algorithm::{Admitted, Counter, Counting, RefundToken, TokenBucket, WindowStart},
    charge::{Away, Charge, Correction, Settlement, Site},
    clock::{self, Timestamp},
    decision::{PolicyState, Retry},
    policy::Penalty,
};

use super::{
    arguments::{Argument, Arguments, Tag},
    key_state::KeyState,
    lease::LeaseReport,
    pot::{PotNote, PotStep},
};

// === Arguments of a charge ===

/// Returns the arguments before the charges of a request. A single charge needs none.
pub(super) fn group_of(charges: usize) -> Arguments {
    match charges {
        0 | 1 => Arguments::new(),
        _ => Arguments::from_iter([Argument::mark(Tag::Group), Argument::Number(charges as u64)]),
    }
}

/// Appends a charge for the script to decide.
///
/// A mark before it is for a policy that counts denied requests, which the script then charges until nothing is left, or for
/// a charge that can deny nothing.
pub(super) fn decide(arguments: &mut Arguments, charge: &Charge<'_>) {
    let mark = match (charge.policy().counts_denied(), charge.is_shadow()) {
        (false, false) => None,
        (true, false) => Some(Tag::CountDenied),
        (false, true) if charge.is_candidate() => Some(Tag::Candidate),
        (true, true) if charge.is_candidate() => Some(Tag::CandidateCountDenied),
        (false, true) => Some(Tag::Shadow),
        (true, true) => Some(Tag::ShadowCountDenied),
    };
    if let Some(penalty) = penalty_of(charge) {
        arguments.push(Argument::mark(Tag::Penalty));
        arguments.extend(penalty.arguments().map(Argument::Number));
    }
    arguments.extend(mark.map(Argument::mark));
    write_charge(arguments, charge);
}

/// Returns the penalty that the script applies to a charge, which then has a key for the ban. A peek has none.
pub(super) fn penalty_of<'a>(charge: &Charge<'a>) -> Option<&'a Penalty> {
    let penalty = charge.policy().ban_penalty()?;
    (charge.units() > 0).then_some(penalty)
}

/// Appends a charge that the script makes whether it fits or not. For a sliding log the script also tries the commands
/// that only long logs need.
pub(super) fn probe(arguments: &mut Arguments, charge: &Charge<'_>) {
    let tag = match charge.counter() {
        Counter::SlidingLog(_) => Tag::Probe,
        Counter::Bucket(_)
        | Counter::Concurrency(_)
        | Counter::FixedWindow(_)
        | Counter::SlidingWindow(_) => Tag::Force,
    };
    arguments.push(Argument::mark(tag));
    write_charge(arguments, charge);
}

/// Appends the tag and the arguments of the charge's algorithm.
fn write_charge(arguments: &mut Arguments, charge: &Charge<'_>) {
    use Argument::Number;

    // Above every limit, and still exact in the script's doubles.
    let cost = charge.units().min(1 << 52);
    match charge.counter() {
        Counter::Bucket(bucket) => {
            // Where units may be leased, the script must know how long each of them takes.
            let is_whole = match charge.site() {
                Site::Only => cost == 1 || !charge.policy().is_leased(),
                Site::Home => false,
                Site::Away(away) => return write_pot_charge(arguments, bucket, cost, away),
            };
            write_bucket_charge(arguments, bucket, cost, is_whole);
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

/// Appends a charge of a bucket. If a unit takes whole microseconds and the charge may be one increment (`is_whole`), the
/// script only adds and compares; else it walks the lattice of the [`TokenBucket`].
fn write_bucket_charge(arguments: &mut Arguments, bucket: &TokenBucket, cost: u64, is_whole: bool) {
    use Argument::{Never, Number};

    let quota_tag = bucket.quota_tag().to_be_bytes();
    let (units, micros) = bucket.refill();
    let fits = cost <= bucket.capacity();
    if units == 1 && is_whole && !bucket.is_queue() {
        arguments.extend([
            Argument::tag(Tag::Bucket, quota_tag),
            if fits { Number(cost * micros) } else { Never },
            Number(bucket.span()),
        ]);
    } else {
        let tag = if bucket.is_queue() {
            Tag::Queue
        } else {
            Tag::UnevenBucket
        };
        arguments.extend([
            Argument::tag(tag, quota_tag),
            if fits { Number(cost) } else { Never },
            Number(bucket.span()),
            Number(units),
            Number(micros),
        ]);
    }
}

/// Appends a charge of units that another region has leased to this one.
fn write_pot_charge(arguments: &mut Arguments, bucket: &TokenBucket, cost: u64, away: Away) {
    let (units, micros) = bucket.refill();
    arguments.extend([
        Argument::mark(Tag::Pot),
        Argument::Number(cost),
        Argument::Number(bucket.span()),
        Argument::Number(units),
        Argument::Number(micros),
        Argument::Number(u64::from(away.share) + if away.is_again { AGAIN } else { 0 }),
    ]);
}

/// As in `lua/decide.lua`.
const AGAIN: u64 = 1 << 16;

/// Returns the arguments of a step in a report of the units that a region has leased.
pub(super) fn pot_report(bucket: &TokenBucket, step: &PotStep) -> Arguments {
    // What is owed is known for a minute after it would have come back.
    let life = Duration::from_micros(bucket.span()) + Duration::from_secs(60);
    Arguments::from_iter([
        Argument::mark(Tag::PotReport),
        Argument::Bytes(step.to_bytes(life).into()),
    ])
}

/// Returns the arguments that report leased units of a key, and lease more.
pub(super) fn lease(charge: &Charge<'_>, report: LeaseReport) -> Arguments {
    let report = report.to_bytes(charge.policy().overshoot());
    let mut arguments =
        Arguments::from_iter([Argument::mark(Tag::Lease), Argument::Bytes(report.into())]);
    // The rate of a bucket must be known, whatever its policy.
    write_charge(&mut arguments, &charge.cost(0).at(Site::Home));
    arguments
}

// === Arguments of a settlement ===

/// Returns the arguments that correct a charge; `None` if it needs no correction.
///
/// ```text
/// it cost more    +                                   then a charge of the rest, made whether it fits or not
/// it cost less    -  all back at, refunded before     then a refund of the rest
/// slots           e                                   see `release`
/// ```
pub(super) fn correct(settlement: &Settlement) -> Option<Arguments> {
    let charge = settlement.charge();
    let (units, is_refund) = match settlement.correction() {
        Correction::Charge(units) => (units, false),
        Correction::Keep => return None,
        Correction::Refund(units) => (units, true),
        Correction::Release => return Some(release(&[charge], settlement.is_acquire_pending())),
    };
    let counter = charge.counter();
    let mut arguments = Arguments::new();
    if is_refund {
        let mark = settlement.mark();
        arguments.extend([
            Argument::mark(Tag::Refund),
            Argument::Number(mark.reset_at.as_micros()),
            Argument::Number(mark.refunded_before % RefundToken::MODULUS),
        ]);
    } else {
        arguments.push(Argument::mark(Tag::Force));
    }
    match counter {
        Counter::Bucket(_) if charge.is_away() => {
            write_charge(&mut arguments, &charge.cost(units));
        }
        Counter::Bucket(bucket) => {
            let micros = if is_refund {
                bucket.micros_back(settlement.mark().reset_at, units)
            } else {
                bucket.micros_up(units)
            };
            // As a bucket of whole microseconds, whatever its rate: a correction need not fit, so it need not be on the
            // lattice.
            let quota_tag = bucket.quota_tag().to_be_bytes();
            let is_turn = is_refund && bucket.is_queue();
            let tag = if is_turn { Tag::Queue } else { Tag::Bucket };
            arguments.extend([
                Argument::tag(tag, quota_tag),
                Argument::Number(micros),
                Argument::Number(bucket.span()),
            ]);
            if is_turn {
                let (units, micros) = bucket.refill();
                arguments.extend([Argument::Number(units), Argument::Number(micros)]);
            }
        }
        Counter::Concurrency(_)
        | Counter::FixedWindow(_)
        | Counter::SlidingLog(_)
        | Counter::SlidingWindow(_) => write_charge(&mut arguments, &charge.cost(units)),
    }
    Some(arguments)
}

/// Returns the arguments that make a merge, after a charge to the key that only this merge has. `None` for slots.
pub(super) fn merge(charge: &Charge<'_>, admitted: Admitted) -> Option<Arguments> {
    let mut arguments = group_of(2);
    arguments.extend([
        Argument::tag(Tag::FirstHitWindow, [0, 0]),
        Argument::Number(1),
        Argument::Number(1),
        Argument::Number(MERGE_MARK_MILLIS),
        Argument::mark(Tag::Merge),
        Argument::Number(admitted.from),
        Argument::Number(admitted.until.as_micros()),
    ]);
    let amount = admitted.amount.min(1 << 50);
    match charge.counter() {
        Counter::Bucket(bucket) if charge.is_away() => {
            let (units, micros) = bucket.refill();
            let cost = u128::from(amount) * u128::from(units) / u128::from(micros);
            let cost = cost.try_into().unwrap_or(u64::MAX);
            write_charge(&mut arguments, &charge.cost(cost));
        }
        Counter::Bucket(bucket) => arguments.extend([
            Argument::tag(Tag::Bucket, bucket.quota_tag().to_be_bytes()),
            Argument::Number(amount),
            Argument::Number(bucket.span()),
        ]),
        Counter::Concurrency(_) => return None,
        Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => {
            write_charge(&mut arguments, &charge.cost(amount));
        }
    }
    Some(arguments)
}

/// Returns the arguments that lower what is left of a key's quota; `None` for slots.
pub(super) fn lower(charge: &Charge<'_>, remaining: u64, now: Timestamp) -> Option<Arguments> {
    let counter = charge.counter();
    let used = counter.limit().saturating_sub(remaining);
    let from = match counter {
        Counter::Bucket(bucket) => now.as_micros() + bucket.micros_down(used),
        Counter::Concurrency(_) => return None,
        Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => used,
    };
    let mut arguments = Arguments::from_iter([
        Argument::mark(Tag::Merge),
        Argument::Number(from),
        // The end of a window that begins with its first hit, if it has not begun.
        Argument::Number((now + counter.longest_recovery()).as_micros()),
    ]);
    match counter {
        Counter::Bucket(bucket) => arguments.extend([
            Argument::tag(Tag::Bucket, bucket.quota_tag().to_be_bytes()),
            Argument::Number(0),
            Argument::Number(bucket.span()),
        ]),
        _ => write_charge(&mut arguments, &charge.cost(0)),
    }
    Some(arguments)
}

/// How long a server knows that a merge was made. Without a reply, a merge is sent again for half of this time.
const MERGE_MARK_MILLIS: u64 = 60_000;
/// As [`reply_len`] for the key of a merge.
pub(super) const MERGE_MARK_LEN: u8 = 2;

/// The most tickets in one [`release`] or [`renew`]: the reply to a renewal has a bit for each.
pub(super) const MAX_TICKETS: usize = 50;

/// Returns the arguments that release the slots of charges to one key, at most [`MAX_TICKETS`].
///
/// If the command that takes the slots may still be on its way (`pending`), the script bars these tickets for one
/// lease.
pub(super) fn release(charges: &[Charge<'_>], pending: bool) -> Arguments {
    slot_upkeep(Tag::ReleaseSlots, charges, pending)
}

/// Returns the arguments that renew the leases of charges to one key, at most [`MAX_TICKETS`].
pub(super) fn renew(charges: &[Charge<'_>], take_again: bool) -> Arguments {
    slot_upkeep(Tag::RenewSlots, charges, take_again)
}

/// Returns the arguments of a job on slots of one key. The lease is the longest of all charges.
fn slot_upkeep(tag: Tag, charges: &[Charge<'_>], flag: bool) -> Arguments {
    let lease = |charge: &Charge<'_>| match charge.counter() {
        Counter::Concurrency(slots) => slots.lease(),
        Counter::Bucket(_)
        | Counter::FixedWindow(_)
        | Counter::SlidingLog(_)
        | Counter::SlidingWindow(_) => Duration::ZERO,
    };
    let longest = charges.iter().map(lease).max().unwrap_or_default();
    let member = |charge: &Charge<'_>| {
        let (ticket, slots) = (ticket(charge).to_be_bytes(), charge.units().to_be_bytes());
        // Every limit of a concurrency policy fits in three bytes.
        ticket.into_iter().chain(slots.into_iter().skip(5))
    };
    Arguments::from_iter([
        Argument::mark(tag),
        Argument::Number(clock::micros(longest) / 1_000),
        Argument::Number(u64::from(flag)),
        Argument::Bytes(charges.iter().flat_map(member).collect()),
    ])
}

/// Returns the ticket of a charge under a concurrency policy.
fn ticket(charge: &Charge<'_>) -> u64 {
    let ticket = charge.ticket();
    ticket
        .expect("a charge under a concurrency policy has a ticket")
        .as_u64()
}

// === ChargeReply ===

/// The part of the reply for one charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeReply {
    /// Whether the charge fits on its own.
    pub has_room: bool,
    /// The integers that describe the state. The first ones are set, by [`reply_len`].
    pub numbers: [u64; 3],
    /// Microseconds by which refunds have moved the TAT of the key's bucket so far; for a charge of a queue, when the turn is over
    /// that was given up and is now its own; for a denied charge, the microseconds of leased units in its TAT, or the number of these
    /// in a window.
    pub refunded_or_leased: u64,
    /// When the ban of the key ends in microseconds; 0 without one.
    pub banned_until: u64,
}

/// Returns the number of integers in the reply that describe the state after this charge, plus [`IN_SHADOW`] for a charge
/// that denies nothing.
pub(in crate::remote) fn reply_len(charge: &Charge<'_>) -> u8 {
    let len = match charge.counter() {
        Counter::Bucket(_) if charge.is_away() => 3,
        Counter::Bucket(_) | Counter::Concurrency(_) => 1,
        Counter::FixedWindow(_) => 2,
        Counter::SlidingLog(_) | Counter::SlidingWindow(_) => 3,
    };
    let in_shadow = if charge.is_shadow() { IN_SHADOW } else { 0 };
    len | in_shadow
}

/// As [`reply_len`], for a charge to decide.
pub(super) fn decided_len(charge: &Charge<'_>) -> u8 {
    let with_penalty = penalty_of(charge).map_or(0, |_| WITH_PENALTY);
    reply_len(charge) | with_penalty
}

/// Added to the [`reply_len`] of a charge that denies nothing.
pub(super) const IN_SHADOW: u8 = 4;
/// Added to the [`reply_len`] of a charge with a penalty.
pub(super) const WITH_PENALTY: u8 = 8;
/// In place of a [`reply_len`]: the reply is a [`LeaseReply`](super::lease::LeaseReply).
pub(super) const OF_LEASE: u8 = 16;
/// In place of a [`reply_len`]: the reply is a [`PotReply`](super::pot::PotReply).
pub(super) const OF_POT: u8 = 32;

/// Returns the state of a policy from the reply to its charge. `now` is the time that the script decided by, and `is_made`
/// whether the request was admitted.
pub(super) fn decode(
    charge: &Charge<'_>,
    reply: &ChargeReply,
    (now, is_made): (Timestamp, bool),
) -> PolicyState {
    let counter = charge.counter();
    let (usage, retry) = KeyState(reply.numbers).usage_and_retry(counter, charge.units(), now);
    let starts_at = match counter.bucket() {
        Some(bucket) if reply.has_room && charge.units() > 0 => {
            let ends = match reply.refunded_or_leased {
                ends if bucket.is_queue() && ends > 0 => ends,
                _ => reply.numbers[0],
            };
            bucket.start_time(&bucket.state(ends), now)
        }
        _ => now,
    };
    let own = if reply.has_room { Retry::Now } else { retry };
    let more = match counter {
        _ if charge.is_away() => PotNote::of(reply.numbers[1], reply.numbers[2]).0,
        Counter::FixedWindow(_) | Counter::SlidingWindow(_) if reply.refunded_or_leased > 0 => {
            wait_for_leased(charge, reply, retry, now)
        }
        _ => reply.refunded_or_leased,
    };
    let mut state = PolicyState::counted(*charge.policy().name(), usage, own)
        .with_start(starts_at)
        .with_refunded_before(more)
        .with_shadow(charge.is_shadow());
    let counts = !is_made && charge.policy().counts_denied() && !charge.is_shadow();
    if counts && !state.has_room_for(charge.units()) {
        // It fits, but another policy denies the request, and the attempt was counted.
        state = state.with_retry(retry);
    }
    let state = counter.annotate(state);
    if reply.banned_until > 0 {
        return state.banned(Timestamp::from_micros(reply.banned_until));
    }
    state
}

/// Returns by how many microseconds leased units prolong the wait of a charge that a window denies.
fn wait_for_leased(charge: &Charge<'_>, reply: &ChargeReply, retry: Retry, now: Timestamp) -> u64 {
    let counter = charge.counter();
    let leased = reply.refunded_or_leased.cast_signed();
    let without = KeyState(reply.numbers).after(-leased, counter, now);
    let (usage, certain) = without.usage_and_retry(counter, charge.units(), now);
    match (retry, certain) {
        (Retry::At(at), _) if usage.remaining >= charge.units() => clock::micros(at.since(now)),
        (Retry::At(at), Retry::At(certain)) => clock::micros(at.since(certain)),
        _ => 0,
    }
}
