//! Turns of callers that wait, in this process: the order of the lines, and the charges.

use std::time::Duration;

use smallvec::SmallVec;

#[cfg(all(feature = "redis", feature = "test-util"))]
use crate::charge::Merge;
use crate::{
    algorithm::Admitted,
    charge::{Charge, Fingerprint, Turn, TurnRequest, Turns},
    clock::Timestamp,
    decision::{Decision, Retry},
};

use super::{keyed::KeyRef, line_book::Caller, store::MemoryStore};

impl MemoryStore {
    /// Gives turns to the callers of a request, up to the first one that must wait longer.
    pub(super) fn give_turns(&self, request: &TurnRequest) -> Turns {
        let mut book = self.shared.lines.lock();
        let now = self.shared.clock.read().now;
        let keys: SmallVec<[Fingerprint; 4]> = request
            .charges
            .iter()
            .map(|charge| KeyRef::of(&charge.borrow()).fingerprint)
            .collect();
        let steps = request.steps();
        let mut turns = Turns {
            now,
            ..Turns::default()
        };
        if !book.is_empty() {
            for key in &keys {
                book.drop_absent(*key, request.queue, now);
            }
        }
        let mut start = now;
        let mut waits_for = None;
        for index in 0..request.callers.len() {
            let charges = request.charges_of(index);
            let mut caller = Caller::of(request, index, now, start);
            let turn = loop {
                // Where others wait, or a key is paused, it is first seen whether the charges may be made.
                let is_dry = !book.is_empty();
                let decision = self.decide_waiting(&charges, caller.start, is_dry);
                let paused = |at: usize| book.paused_until(keys[at], caller.start);
                let later = latest(&charges, &decision, paused, (caller.start, request.poll));
                if let Some((at, later)) = later
                    && later > now + request.ahead
                {
                    break Err((at, later));
                }
                let fits = Caller {
                    start: later.map_or(caller.start, |(_, later)| later),
                    ..caller
                };
                if let Some(at) = book.blocked_at(&keys, &steps, &fits) {
                    break Err((at, fits.start));
                }
                caller = fits;
                if later.is_some() {
                    continue;
                }
                let decision = if is_dry {
                    self.decide_waiting(&charges, caller.start, false)
                } else {
                    decision
                };
                // There may be no memory for another request in flight.
                break if decision.is_allowed() {
                    Ok(decision)
                } else {
                    Err((0, caller.start + request.poll))
                };
            };
            start = caller.start;
            match turn {
                Ok(decision) => {
                    book.note_turn(&keys, &caller);
                    let decision = decision.with_ticket(request.callers[index].ticket);
                    turns.turns.push(Turn { start, decision });
                }
                Err((at, first)) => {
                    caller.start = first;
                    let due = book.due(keys[at], &caller, now);
                    (turns.due, turns.waits_for) = (Some(due), at);
                    waits_for = request.is_listed.then_some((at, due));
                    break;
                }
            }
        }
        if waits_for.is_some() || !book.is_empty() {
            book.list(&keys, &steps, request, (turns.turns.len(), waits_for), now);
        }
        turns
    }

    /// Pauses a key. A bucket is also emptied as of the end of the pause.
    pub(super) fn pause_key(&self, charge: &Charge<'_>, length: Duration) {
        let now = self.shared.clock.read().now;
        let key = KeyRef::of(charge).fingerprint;
        self.shared.lines.lock().pause(key, now + length, now);
        if let Some(bucket) = charge.counter().bucket() {
            let span = bucket.without_queue().span();
            let tat = (now + length).as_micros() + span.saturating_sub(bucket.micros_up(1));
            self.amend(charge, |shard, key, now| {
                if shard.has_room(charge, key, now) {
                    shard.raise(bucket, key, tat, now);
                }
            });
        }
    }

    /// Returns when the pause of a key ends, if it is paused now.
    pub(super) fn pause_of(&self, charge: &Charge<'_>) -> Option<Timestamp> {
        let now = self.shared.clock.read().now;
        let key = KeyRef::of(charge).fingerprint;
        self.shared.lines.lock().paused_until(key, now)
    }

    /// Charges units that were admitted without this store, as a server does.
    #[cfg(all(feature = "redis", feature = "test-util"))]
    pub(crate) fn merge(&self, merge: &Merge) {
        let charge = merge.charge();
        self.amend(&charge, |shard, key, now| {
            shard.merge(&charge, key, merge.admitted(), now);
        });
    }

    /// Lowers what is left of a key's quota.
    pub(super) fn lower_key(&self, charge: &Charge<'_>, remaining: u64) {
        let counter = charge.counter();
        let used = counter.limit().saturating_sub(remaining);
        let now = self.shared.clock.read().now;
        let from = match counter.bucket() {
            Some(bucket) => now.as_micros() + bucket.micros_down(used),
            None => used,
        };
        let admitted = Admitted::new(0, from, now + counter.longest_recovery());
        self.amend(charge, |shard, key, now| {
            if shard.has_room(charge, key, now) {
                shard.merge(charge, key, admitted, now);
            }
        });
    }
}

/// Returns the charge that can be made last, and when; `None` if all can be made at `start`.
fn latest(
    charges: &[Charge<'_>],
    decision: &Decision,
    paused: impl Fn(usize) -> Option<Timestamp>,
    (start, poll): (Timestamp, Duration),
) -> Option<(usize, Timestamp)> {
    let (mut latest, mut index) = (start, None);
    for (at, (charge, state)) in charges.iter().zip(decision.states()).enumerate() {
        let fits = match state.retry() {
            // Slots come back at a time that is not known.
            Retry::At(_) if charge.policy().is_concurrency() => start + poll,
            Retry::At(retry) if retry > start => retry,
            // Rounded, it may be now.
            Retry::At(_) => start + MILLISECOND,
            Retry::Never => start + FURTHEST,
            Retry::Now => start,
        };
        let fits = paused(at).map_or(fits, |paused| paused.max(fits));
        if !charge.is_shadow() && fits > latest {
            (latest, index) = (fits, Some(at));
        }
    }
    Some((index?, latest))
}

/// As in `lua/decide.lua`.
const FURTHEST: Duration = Duration::from_micros(1 << 50);
const MILLISECOND: Duration = Duration::from_millis(1);
