//! What is done at one key, whichever way it is counted.

use crate::{
    algorithm::{Counter, Counting},
    clock::Timestamp,
    policy::Charge,
    settlement::{Correction, Settlement},
    state::{PolicyName, PolicyState, Retry, Usage},
};

use super::{
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
            Counter::Slots($counter) => $body,
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
        Counter::Bucket(counter) => take_by(counter, charge, shard, asked, now),
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
            counter.penalise(state, now, cost);
        }
        let changed = is_penalised || (has_room && cost > 0);
        (tell(counter, charge, state, has_room, now), changed)
    })
}

/// Looks whether a charge fits that is decided on together with others.
pub(super) fn look(
    charge: &Charge<'_>,
    (index, shard): (usize, &mut Shard),
    asked: &Asked<impl Fn() -> u64>,
    others: &[Look],
    now: Timestamp,
) -> Look {
    counted!(charge, counter => {
        let pool = counter.is_pooled(shard, asked, now).then(|| (index, *charge.policy().name()));
        let cost = match charge.units() {
            0 => 0,
            // Newcomers of one policy that share a state also share what this decision takes of it.
            units => others
                .iter()
                .filter(|other| pool.is_some() && other.pool == pool)
                .fold(units, |sum, other| sum.saturating_add(other.units)),
        };
        let (has_room, _) = counter.update(shard, asked, now, |state| {
            if cost > 0 {
                counter.adopt(state, now);
            }
            (counter.admits(state, now, cost), false)
        });
        Look { has_room, pool, units: charge.units() }
    })
}

/// Makes the charge when all were admitted, and tells the state.
pub(super) fn conclude(
    charge: &Charge<'_>,
    shard: &mut Shard,
    asked: &Asked<impl Fn() -> u64>,
    (all, has_room): (bool, bool),
    now: Timestamp,
) -> (Told, Kept) {
    let cost = charge.units();
    let is_penalised = !all && cost > 0 && charge.policy().counts_denied();
    counted!(charge, counter => {
        counter.update(shard, asked, now, |state| {
            if all && cost > 0 {
                counter.charge(state, now, cost);
            } else if is_penalised {
                counter.penalise(state, now, cost);
            }
            let changed = is_penalised || (all && cost > 0);
            (tell(counter, charge, state, has_room, now), changed)
        })
    })
}

/// Puts a charge right that was made earlier.
pub(super) fn settle(
    settlement: &Settlement,
    shard: &mut Shard,
    asked: &Asked<impl Fn() -> u64>,
    now: Timestamp,
) {
    let charge = settlement.charge();
    if settlement.correction() == Correction::Release {
        shard.flights.release(asked.fingerprint, asked.ticket);
        return;
    }
    counted!(charge, counter => {
        let ((), _) = counter.update(shard, asked, now, |state| match settlement.correction() {
            Correction::Charge(units) => {
                counter.adopt(state, now);
                counter.overcharge(state, now, units);
                ((), true)
            }
            // In a state that newcomers share nobody knows whose charge it was; a refund leaves that one alone.
            Correction::Refund(units) => {
                counter.refund(state, now, settlement.made(), units);
                ((), false)
            }
            Correction::Keep | Correction::Release => ((), false),
        });
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
        true if charge.units() > 0 => (Retry::Now, counter.turn(state, now)),
        true => (Retry::Now, now),
        false => (counter.retry(state, now, charge.units()), now),
    };
    Told {
        usage: counter.usage(state, now),
        retry,
        turn,
    }
}

// === Told ===

/// What is told of a charge: the state without the name, which would only be moved about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    usage: Usage,
    retry: Retry,
    turn: Timestamp,
}

impl Told {
    #[inline]
    pub(super) fn of(self, charge: &Charge<'_>) -> PolicyState {
        PolicyState::counted(*charge.policy().name(), self.usage, self.retry).turn(self.turn)
    }
}

// === Look ===

/// What was found out about one of several charges before it is known whether all are admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) has_room: bool,
    /// The shared state that the charge falls on, if it does: shard and policy.
    pool: Option<(usize, PolicyName)>,
    units: u64,
}
