//! What was decided, and where every policy asked now stands.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    state::{CountedBy, Outcome, PolicyState, Retry},
    ticket::Ticket,
};

/// The answer about one request: go on or not, with the state of every policy that was asked.
///
/// All policies of a request are decided together: when one denies, none is charged. Two decisions are equal when they say
/// the same.
#[derive(Clone, Debug)]
pub struct Decision {
    outcome: Outcome,
    counted_by: CountedBy,
    decided_at: Timestamp,
    /// One inline: room for two would double what each decision moves about.
    states: SmallVec<[PolicyState; 1]>,
    /// Ticket of the slots this decision took, if it differs from the charges' own.
    ticket: Option<Ticket>,
    /// Whether any of its charges was a peek, which states do not tell.
    has_peeks: bool,
}

impl Decision {
    /// A decision from the states of its policies: the strictest of their outcomes is the outcome.
    ///
    /// Stores of your own build their decisions with it.
    #[must_use]
    pub fn new(
        counted_by: CountedBy,
        decided_at: Timestamp,
        states: impl IntoIterator<Item = PolicyState>,
    ) -> Self {
        let states: SmallVec<[PolicyState; 1]> = states.into_iter().collect();
        let outcome = states.iter().map(PolicyState::outcome).max();
        Self {
            outcome: outcome.unwrap_or(Outcome::Allowed),
            counted_by,
            decided_at,
            states,
            ticket: None,
            has_peeks: false,
        }
    }

    /// A decision about one policy, without the detour over an iterator.
    #[inline]
    pub(crate) fn of_one(counted_by: CountedBy, decided_at: Timestamp, state: PolicyState) -> Self {
        Self {
            outcome: state.outcome(),
            counted_by,
            decided_at,
            states: SmallVec::from_buf([state]),
            ticket: None,
            has_peeks: false,
        }
    }

    /// The same decision on charges that had this ticket.
    pub(crate) fn with_ticket(mut self, ticket: Ticket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    /// Notes that a charge was a peek.
    pub(crate) fn note_peeks(&mut self) {
        self.has_peeks = true;
    }

    pub(crate) fn has_peeks(&self) -> bool {
        self.has_peeks
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Whether the request may go on.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// What was decided.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Who kept the count: the store, or the local limiter while the store is away.
    #[must_use]
    pub fn counted_by(&self) -> CountedBy {
        self.counted_by
    }

    /// When it was decided, by the clock that counts (for Redis: the server's).
    #[must_use]
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// The state of every policy asked, in the order of the charges.
    #[must_use]
    pub fn states(&self) -> &[PolicyState] {
        &self.states
    }

    /// The state of the policy of this name, when it was asked.
    #[must_use]
    pub fn state(&self, policy: &str) -> Option<&PolicyState> {
        self.states
            .iter()
            .find(|state| state.policy().as_str() == policy)
    }

    /// The policy that matters most to the caller: the one that denies with the longest wait, else the one with
    /// the least remaining; of those on what is in flight only when there is no other. `None` when nothing was counted.
    #[must_use]
    pub fn narrowest(&self) -> Option<&PolicyState> {
        if self.is_allowed() {
            let counted = self.states.iter().filter(|state| state.usage().is_some());
            return counted.min_by_key(|state| state.room());
        }
        let denying = self
            .states
            .iter()
            .filter(|state| state.outcome() == self.outcome);
        denying.max_by_key(|state| state.retry())
    }

    /// How long an admitted request is to wait for its turn before it starts, when a policy puts it in a queue.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        let turn = self.states.iter().map(PolicyState::starts_at).max()?;
        let delay = turn.since(self.decided_at);
        (self.is_allowed() && !delay.is_zero()).then_some(delay)
    }

    /// How long to wait before the same request can succeed.
    ///
    /// `None` when it was allowed, when it never can succeed, or when nobody can tell.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.outcome != Outcome::Limited {
            return None;
        }
        match self.narrowest()?.retry() {
            Retry::At(at) => Some(at.since(self.decided_at)),
            Retry::Now | Retry::Never => None,
        }
    }
}

// By hand: decisions that differ only in their tickets are equal.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        self.outcome == other.outcome
            && self.counted_by == other.counted_by
            && self.decided_at == other.decided_at
            && self.states == other.states
    }
}

impl Eq for Decision {}
