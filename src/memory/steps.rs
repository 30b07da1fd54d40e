//! What is done at one key, whichever way it is counted.

use crate::{
    algorithm::{ChargeMark, Counter, Counting},
    charge::Charge,
    clock::Timestamp,
    settlement::{Correction, Settlement},
    state::{PolicyName, PolicyState, Retry, Usage},
};

use super::{
    fingerprint::Fingerprint,
    shard::{Shard, Shelved},
    shelf::{Asked, Kept},
};

/// Runs an expression for the counter of a charge, with that counter's own type.
macro_rules! counted {
    ($charge:expr, $counter:ident => $body:expr) => {
        match $charge.policy().counter() {
            Counter::Bucket($counter) => $body,
            Counter::FixedWindow($counter) => $body,
            Counter::SlidingLog($counter) => $body,
            Counter::SlidingWindow($counter) => $body,
            Counter::Concurrency($counter) => $body,
        }
    };
}

/// Decides on a charge that comes alone.
#[inline]
pub(super) fn take(
    charge: &Charge<'_>,
    shard: &mut Shard,
    asked: &Asked<impl Fn() -> u64>,
    now: Timestamp,
) -> (Told, Kept) {
    match charge.policy().counter() {
        // The usual one is not to pay for the size of the others.
        Counter::Bucket(counter) => {
            let (mut told, kept) = take_by(counter, charge, shard, asked, now);
            told.mark(shard, asked.fingerprint);
            (told, kept)
        }
        _ => take_otherwise(charge, shard, asked, now),
    }
}

#[inline(never)]
fn take_otherwise(
    charge: &Charge<'_>,
    shard: &mut Shard,
    asked: &Asked<impl Fn() -> u64>,
    now: Timestamp,
) -> (Told, Kept) {
    counted!(charge, counter => take_by(counter, charge, shard, asked, now))
}

#[inline]
fn take_by<C: Shelved>(
    counter: &C,
    charge: &Charge<'_>,
    shard: &mut Shard,
    asked: &Asked<impl Fn() -> u64>,
    now: Timestamp,
) -> (Told, Kept) {
    let cost = charge.units();
    counter.update(shard, asked, now, |state| {
        if cost > 0 {
            counter.adopt(state, now);
        }
        let has_room = counter.take(state, now, cost);
        let is_penalised = !has_room && charge.policy().counts_denied();
        if is_penalised {
            counter.charge_denied(state, now, cost);
        }
        let changed = is_penalised || (has_room && cost > 0);
        (tell(counter, charge, state, has_room, now), changed)
    })
}

/// Looks whether a charge fits that is decided on together with others.
pub(super) fn look<'a>(
    charge: &Charge<'a>,
    (index, shard): (usize, &mut Shard),
    asked: &mut Asked<impl Fn() -> u64>,
    others: &[Look<'a>],
    now: Timestamp,
) -> Look<'a> {
    let units = charge.units();
    let is_in_flight = matches!(charge.policy().counter(), Counter::Concurrency(_)) && units > 0;
    // For all that may need memory here, since there must be some for each when all are admitted.
    let before = others
        .iter()
        .filter(|other| other.is_in_flight && other.shard == index);
    let has_memory = !is_in_flight
        || shard
            .in_flight
            .reserve(asked.fingerprint, before.count() + 1, now);
    asked.adds = false;
    counted!(charge, counter => {
        let pool = counter.may_be_pooled(shard, asked, now).then(|| charge.policy().name());
        let cost = match units {
            0 => 0,
            // Newcomers of one policy that may share a state also share what this decision takes of it.
            units => others
                .iter()
                .filter(|other| pool.is_some() && other.shard == index && other.pool == pool)
                .fold(units, |sum, other| sum.saturating_add(other.units)),
        };
        let (has_room, _) = counter.update(shard, asked, now, |state| {
            if cost > 0 {
                counter.adopt(state, now);
            }
            (has_memory && counter.admits(state, now, cost), false)
        });
        Look { has_room, has_memory, is_in_flight, shard: index, pool, units }
    })
}

/// Makes the charge when all were admitted, and tells the state.
pub(super) fn conclude(
    charge: &Charge<'_>,
    shard: &mut Shard,
    asked: &mut Asked<impl Fn() -> u64>,
    (all, look): (bool, &Look<'_>),
    now: Timestamp,
) -> (Told, Kept) {
    let cost = charge.units();
    let is_penalised = !all && cost > 0 && charge.policy().counts_denied();
    let changed = is_penalised || (all && cost > 0);
    asked.adds = changed;
    let (mut told, kept) = counted!(charge, counter => {
        counter.update(shard, asked, now, |state| {
            if all && cost > 0 {
                counter.charge(state, now, cost);
            } else if is_penalised {
                counter.charge_denied(state, now, cost);
            }
            (tell(counter, charge, state, look.has_room, now), changed)
        })
    });
    told.mark(shard, asked.fingerprint);
    match look.has_memory {
        true => (told, kept),
        false => (told, Kept::TurnedAway),
    }
}

/// Puts a charge right that was made earlier.
pub(super) fn settle(
    settlement: &Settlement,
    shard: &mut Shard,
    asked: &Asked<impl Fn() -> u64>,
    now: Timestamp,
) {
    let charge = settlement.charge();
    let units = match settlement.correction() {
        Correction::Charge(units) => {
            return counted!(charge, counter => {
                let ((), _) = counter.update(shard, asked, now, |state| {
                    counter.adopt(state, now);
                    counter.force_charge(state, now, units);
                    ((), true)
                });
            });
        }
        Correction::Refund(units) => units,
        Correction::Release => return shard.in_flight.release(asked.fingerprint, asked.slots()),
        Correction::Keep => return,
    };
    let (fingerprint, refund) = (asked.fingerprint, (settlement.mark(), units));
    match charge.policy().counter() {
        Counter::Bucket(bucket) => shard.refund_bucket(bucket, fingerprint, refund, now),
        _ => counted!(charge, counter => refund_window(counter, shard, fingerprint, refund, now)),
    }
}

/// Refunds units of a window, whose state is enough to find out what the charge still weighs.
fn refund_window<C: Shelved>(
    counter: &C,
    shard: &mut Shard,
    fingerprint: Fingerprint,
    (mark, units): (ChargeMark, u64),
    now: Timestamp,
) {
    C::amend(shard, fingerprint, now, |state| {
        counter.refund(state, &mut 0, now, mark, units);
    });
}

#[inline]
fn tell<C: Counting>(
    counter: &C,
    charge: &Charge<'_>,
    state: &C::State,
    has_room: bool,
    now: Timestamp,
) -> Told {
    let (retry, turn) = match has_room {
        true if charge.units() > 0 => (Retry::Now, counter.start_time(state, now)),
        true => (Retry::Now, now),
        false => (counter.retry(state, now, charge.units()), now),
    };
    Told {
        usage: counter.usage(state, now),
        retry,
        turn,
        returned: 0,
    }
}

// === Told ===

/// What is told of a charge: the state without the name, which would only be moved about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    usage: Usage,
    retry: Retry,
    turn: Timestamp,
    returned: u64,
}

impl Told {
    /// Notes what had been refunded to the key.
    #[inline]
    fn mark(&mut self, shard: &mut Shard, fingerprint: Fingerprint) {
        self.returned = shard.refunded(fingerprint, self.usage.reset_at);
    }

    #[inline]
    pub(super) fn of(self, charge: &Charge<'_>) -> PolicyState {
        let state = PolicyState::counted(*charge.policy().name(), self.usage, self.retry)
            .with_start(self.turn)
            .with_refunded_before(self.returned);
        charge.policy().counter().annotate(state)
    }
}

// === Look ===

/// What was found out about one of several charges before it is known whether all are admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    pub(super) has_room: bool,
    /// Whether there is memory for another request in flight, if it needs some.
    has_memory: bool,
    /// Whether it may take slots.
    is_in_flight: bool,
    shard: usize,
    /// The policy in whose shared state the charge may be counted.
    pool: Option<&'a PolicyName>,
    units: u64,
}
