//! Turns: what callers that wait ask a store for, and what they get.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::charge::{Charge, Charges, OwnedCharge};
use crate::{
    clock::Timestamp,
    decision::{Decision, Outcome, Retry, Ticket},
};

/// How soon a caller that waits gets its turn, compared with other callers.
///
/// Callers of a higher priority go first. While they take all units, callers of a lower one get one unit in eleven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the line has these three, in this order"
)]
pub enum Priority {
    /// Before all others.
    High,
    /// Before callers of low priority.
    #[default]
    Normal,
    /// After all others.
    Low,
}

impl Priority {
    /// Returns 0 for the highest priority, up to 2.
    #[must_use]
    pub const fn class(self) -> u8 {
        match self {
            Self::High => 0,
            Self::Normal => 1,
            Self::Low => 2,
        }
    }
}

// === TurnRequest ===

/// A question for the oldest callers of a queue, which all wait for the same charges.
#[derive(Clone, Debug)]
pub struct TurnRequest {
    pub(crate) queue: u64,
    pub(crate) priority: Priority,
    pub(crate) charges: Arc<[OwnedCharge]>,
    /// The oldest callers, at most [`MAX_CALLERS`](Self::MAX_CALLERS).
    pub(crate) callers: SmallVec<[WaitingCaller; 2]>,
    /// How far a start may lie ahead of the decision.
    pub(crate) ahead: Duration,
    /// After what time the queue asks again for slots.
    pub(crate) poll: Duration,
    /// Whether callers that are left have a place in the line.
    pub(crate) is_listed: bool,
    /// Whether callers can wait, also for a store that has no time.
    pub(crate) may_wait: bool,
    /// How long this process has paused one of the charges, and its index. For stores that do not ask the line.
    pub(crate) pause: Option<(Duration, usize)>,
}

/// A caller that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingCaller {
    /// How long it has waited.
    pub age: Duration,
    /// The ticket of its slots.
    pub ticket: Ticket,
}

impl TurnRequest {
    /// The most callers of one question.
    pub(crate) const MAX_CALLERS: usize = 64;

    /// Returns the charges of the caller with this index.
    ///
    /// # Panics
    ///
    /// If there are not that many callers.
    #[must_use]
    pub fn charges(&self, caller: usize) -> Vec<Charge<'_>> {
        self.charges_of(caller).into_vec()
    }

    pub(crate) fn charges_of(&self, caller: usize) -> Charges<'_> {
        let ticket = self.callers[caller].ticket;
        let charges = self.charges.iter();
        charges
            .map(|charge| charge.borrow().with_ticket(ticket))
            .collect()
    }

    /// Returns a question for callers that have waited for so long.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn for_test(
        (queue, priority): (u64, Priority),
        charges: &[Charge<'_>],
        ages: &[Duration],
        ahead: Duration,
    ) -> Self {
        let callers = ages.iter().map(|age| WaitingCaller {
            age: *age,
            ticket: Ticket::random(),
        });
        Self {
            queue,
            priority,
            charges: charges.iter().map(OwnedCharge::for_waiting).collect(),
            callers: callers.collect(),
            ahead,
            poll: Duration::from_millis(7),
            is_listed: !ages.is_empty(),
            may_wait: true,
            pause: None,
        }
    }

    /// Returns the number of callers.
    #[must_use]
    pub fn callers(&self) -> usize {
        self.callers.len()
    }

    /// Returns whether the callers can wait: a store that has no time for them may return an error, and is asked again.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Returns the time that a caller takes of each bucket, in microseconds; 0 for other algorithms.
    pub(crate) fn steps(&self) -> SmallVec<[u64; 4]> {
        let step = |charge: &OwnedCharge| {
            let charge = charge.borrow();
            let bucket = charge.policy().counter().bucket();
            bucket.map_or(0, |bucket| bucket.micros_up(charge.units()))
        };
        self.charges.iter().map(step).collect()
    }
}

// === Turns ===

/// The turns of the first callers of a queue, and when to ask for the others.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// When the store decided, by its clock.
    pub(crate) now: Timestamp,
    /// In the order of the callers.
    pub(crate) turns: SmallVec<[Turn; 1]>,
    /// Whether nobody could decide on the first caller.
    pub(crate) is_unavailable: bool,
    /// When to ask for the callers that are left, by the clock of the store.
    pub(crate) due: Option<Timestamp>,
    /// The index of the charge that they wait for.
    pub(crate) waits_for: usize,
}

/// The turn of one caller: its charges were made.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// When it may begin, by the clock of the store.
    pub start: Timestamp,
    pub decision: Decision,
}

impl Turns {
    /// Returns when each caller that has its turn may begin, by the clock of the store.
    #[must_use]
    pub fn starts(&self) -> Vec<Timestamp> {
        self.turns.iter().map(|turn| turn.start).collect()
    }

    /// Returns the decisions that made the charges of these callers.
    #[must_use]
    pub fn decisions(&self) -> Vec<&Decision> {
        self.turns.iter().map(|turn| &turn.decision).collect()
    }

    /// Returns when to ask again, by the clock of the store; `None` if no caller is left.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// Returns that a pause keeps the callers from their turns, if there is one.
    pub(crate) fn in_pause(request: &TurnRequest, now: Timestamp) -> Option<Self> {
        let (length, waits_for) = request.pause?;
        Some(Self {
            now,
            due: Some(now + length),
            waits_for,
            ..Self::default()
        })
    }

    /// Returns the turns from a decision on the first caller alone. Stores without a line use it: their callers wait in the
    /// order of this process.
    #[must_use]
    pub fn from_decision(decision: Decision, request: &TurnRequest) -> Self {
        let now = decision.decided_at();
        let mut turns = Self {
            now,
            turns: SmallVec::new(),
            is_unavailable: decision.outcome() == Outcome::Unavailable,
            due: None,
            waits_for: 0,
        };
        if decision.is_allowed() {
            let start = decision.delay().map_or(now, |delay| now + delay);
            let decision = match request.callers.first() {
                Some(caller) => decision.with_ticket(caller.ticket),
                None => decision,
            };
            turns.turns.push(Turn { start, decision });
            turns.due = (request.callers.len() > 1).then_some(now);
        } else {
            let (due, waits_for) = retry_of(&decision, request.poll);
            (turns.due, turns.waits_for) = (Some(due), waits_for);
        }
        turns
    }
}

/// Returns when a denied request can succeed, by the clock of its decision, and the index of the charge that it waits for.
fn retry_of(decision: &Decision, poll: Duration) -> (Timestamp, usize) {
    let now = decision.decided_at();
    let (mut latest, mut index) = (now, 0);
    for (at, state) in decision.states().iter().enumerate() {
        let retry = match state.retry() {
            // Slots come back at a time that is not known.
            Retry::At(retry) if retry <= now => now + poll,
            Retry::At(retry) => retry,
            Retry::Never | Retry::Now => continue,
        };
        if !state.is_shadow() && retry > latest {
            (latest, index) = (retry, at);
        }
    }
    // Without a reason to wait, the store could not decide.
    let due = if latest > now { latest } else { now + poll };
    (due, index)
}
