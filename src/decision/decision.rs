//! The decision on a request, with the state of every policy that was charged.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    policy_state::PolicyState,
    ticket::Ticket,
    usage::{CountedBy, Outcome, Retry, Usage},
};
use crate::clock::{Clock, Timestamp};

/// The decision on one request: its outcome, and the state of every policy.
///
/// All policies of a request are decided together: if one denies, none is charged. The layer puts the decision into the
/// extensions of the request.
#[derive(Clone, Debug)]
pub struct Decision {
    outcome: Outcome,
    counted_by: CountedBy,
    decided_at: Timestamp,
    /// One inline: room for two would double the bytes that each decision moves.
    states: SmallVec<[PolicyState; 1]>,
    /// Ticket of the slots this decision took, if it differs from the charges' own.
    ticket: Option<Ticket>,
    /// Whether any charge was a peek, which the states do not show.
    has_peeks: bool,
    /// Whether the times are by the system's clock of this process, which may differ from the wall clock.
    is_anchored: bool,
}

impl Decision {
    /// Creates a decision from the states of its policies, for a custom [`Store`](crate::store::Store).
    ///
    /// `states` are in the order of the charges. The strictest of their outcomes becomes the decision's, without those in
    /// [shadow mode](PolicyState::is_shadow); without states it is [`Outcome::Allowed`].
    #[must_use]
    pub fn new(
        counted_by: CountedBy,
        decided_at: Timestamp,
        states: impl IntoIterator<Item = PolicyState>,
    ) -> Self {
        let states: SmallVec<[PolicyState; 1]> = states.into_iter().collect();
        Self::of_states(counted_by, decided_at, states)
    }

    /// As [`new`](Self::new), without an iterator. Several states are best in a [`Vec`], which moves none of them.
    #[inline]
    pub(crate) fn of_states(
        counted_by: CountedBy,
        decided_at: Timestamp,
        states: impl Into<SmallVec<[PolicyState; 1]>>,
    ) -> Self {
        let states = states.into();
        let outcome = states.iter().map(PolicyState::enforced_outcome).max();
        Self {
            outcome: outcome.unwrap_or(Outcome::Allowed),
            counted_by,
            decided_at,
            states,
            ticket: None,
            has_peeks: false,
            is_anchored: false,
        }
    }

    /// As [`new`](Self::new) for one policy, without an iterator.
    #[inline]
    pub(crate) fn of_one(counted_by: CountedBy, decided_at: Timestamp, state: PolicyState) -> Self {
        Self {
            outcome: state.enforced_outcome(),
            counted_by,
            decided_at,
            states: SmallVec::from_buf([state]),
            ticket: None,
            has_peeks: false,
            is_anchored: false,
        }
    }

    /// Sets the clock by which the times are. Default: one that shows the wall clock's time, as that of Redis.
    #[inline]
    pub(crate) fn timed_by(mut self, clock: &Clock) -> Self {
        self.is_anchored = clock.is_anchored();
        self
    }

    /// As [`timed_by`](Self::timed_by), with the clock of another decision.
    pub(crate) fn timed_as(mut self, other: &Self) -> Self {
        self.is_anchored = other.is_anchored;
        self
    }

    /// Sets where the count is kept, for a store that stands in for another one.
    #[cfg(feature = "test-util")]
    pub(crate) fn counted_in(mut self, counted_by: CountedBy) -> Self {
        self.counted_by = counted_by;
        self
    }

    /// Sets the ticket that the charges were decided under.
    pub(crate) fn with_ticket(mut self, ticket: Ticket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    /// Replaces the state of a policy by one that does not change the outcome.
    pub(crate) fn replace_state(&mut self, index: usize, state: PolicyState) {
        if let Some(old) = self.states.get_mut(index) {
            *old = state;
        }
    }

    /// Marks a decision that contains a peek.
    pub(crate) fn set_has_peeks(&mut self) {
        self.has_peeks = true;
    }

    pub(crate) fn has_peeks(&self) -> bool {
        self.has_peeks
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Returns whether the request may proceed.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }

    /// Returns the outcome: the strictest of all policies that are not in shadow mode.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns where the count is kept: in the shared store or in this process.
    #[must_use]
    pub fn counted_by(&self) -> CountedBy {
        self.counted_by
    }

    /// Returns the time of the decision, by the clock of the store, as are the times of the states.
    ///
    /// For Redis, that is the server's clock. In process it is [`Clock::system`], which does not follow steps of the wall
    /// clock: [`wall_time`](Self::wall_time) converts what is shown to others.
    #[must_use]
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns a time of this decision, such as [`reset_at`](crate::decision::Usage::reset_at), as the wall clock shows it.
    ///
    /// Headers with absolute times have it. A difference of times needs no conversion.
    #[must_use]
    #[inline]
    pub fn wall_time(&self, at: Timestamp) -> Timestamp {
        if self.is_anchored {
            // Enough, because a decision begins with a reading.
            Clock::known_wall_time(at)
        } else {
            at
        }
    }

    /// Returns the usage of a policy as headers show it; `None` if it was not counted.
    #[inline]
    pub(crate) fn header_usage(&self, state: &PolicyState) -> Option<Usage> {
        let mut usage = state.header_usage()?;
        usage.reset_at = self.wall_time(usage.reset_at);
        Some(usage)
    }

    /// Returns the state of every policy, in the order of the charges.
    #[must_use]
    pub fn states(&self) -> &[PolicyState] {
        &self.states
    }

    /// Returns the states of the policies that can deny the request.
    pub(crate) fn enforced_states(&self) -> impl Iterator<Item = &PolicyState> {
        self.states.iter().filter(|state| !state.is_shadow())
    }

    /// Returns the states of the policies in shadow mode, and of candidates, that would have denied the request.
    pub fn would_deny(&self) -> impl Iterator<Item = &PolicyState> {
        let would_deny =
            |state: &&PolicyState| state.is_shadow() && state.outcome() != Outcome::Allowed;
        self.states.iter().filter(would_deny)
    }

    /// Returns the state of the policy with this name; `None` if it was not charged.
    #[must_use]
    pub fn state(&self, policy: &str) -> Option<&PolicyState> {
        self.states
            .iter()
            .find(|state| state.policy().as_str() == policy)
    }

    /// Returns the state of the narrowest policy.
    ///
    /// It is the most useful one to report to the client. If the request was denied, it is the policy with the longest wait:
    /// one that denies, or one that counted the denial and has too little left now. Otherwise it is the policy with the least
    /// quota left; a concurrency policy only if all are. `None` if no policy was counted.
    #[must_use]
    pub fn narrowest(&self) -> Option<&PolicyState> {
        if self.is_allowed() {
            let counted = self
                .enforced_states()
                .filter(|state| state.usage().is_some());
            return counted.min_by_key(|state| state.headroom());
        }
        if self.outcome == Outcome::Limited {
            // Of equal waits, that of a policy that denies.
            let wait = |state: &&PolicyState| (state.retry(), state.outcome());
            return self.enforced_states().max_by_key(wait);
        }
        self.denying()
    }

    /// Returns the limit of the [narrowest](Self::narrowest) policy: the units that can be taken at once. `None` if it was not
    /// counted.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.narrowest()?.usage()?.limit)
    }

    /// Returns the units that the [narrowest](Self::narrowest) policy has left. `None` if it was not counted.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        Some(self.narrowest()?.usage()?.remaining)
    }

    /// Returns the time until the [narrowest](Self::narrowest) policy is at full quota again, without further charges. `None`
    /// if it was not counted.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        Some(self.narrowest()?.usage()?.reset_at.since(self.decided_at))
    }

    /// Returns the state of the policy that denies the request: of several, the one with the longest wait. `None` if the
    /// request was allowed.
    #[must_use]
    pub fn denying(&self) -> Option<&PolicyState> {
        let is_denying = |state: &&PolicyState| {
            state.outcome() == self.outcome && self.outcome != Outcome::Allowed
        };
        let denying = self.enforced_states().filter(is_denying);
        denying.max_by_key(|state| state.retry())
    }

    /// Returns how long an admitted request must wait in a queue before it starts.
    ///
    /// `None` if it may start at once or was denied. The layer waits on its own, and shorter if others leave before their turns; other
    /// callers of [`RateLimiter::check`](crate::RateLimiter::check) must wait for so long.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        let start = self.enforced_states().map(PolicyState::starts_at).max()?;
        let delay = start.since(self.decided_at);
        (self.is_allowed() && !delay.is_zero()).then_some(delay)
    }

    /// Returns how long to wait before the same request can succeed, if no other request charges its keys meanwhile.
    ///
    /// It is the longest wait of all policies that can deny the request, after everything that the decision itself charged:
    /// [counted denials](crate::Policy::count_denied) and a ban that begins with this denial. For example, a request that an
    /// hourly quota denies in 3,599 s, and a quota of one a second in 1 s, has a wait of 3,599 s.
    ///
    /// It is exact: a microsecond earlier the request is denied. The exceptions are later than necessary, and never too early:
    ///
    /// - A [sliding log](crate::algorithm::Algorithm::SlidingLog) of more than 35 minutes returns units up to a tick late.
    /// - A sliding window or log that counted the denial by a policy on another node of a cluster, or by one whose key or
    ///   tier needed a lookup, or whose quota is not back when a [block](crate::RateLimiter::block) ends, may report
    ///   when everything is back.
    ///
    /// A wait for slots of a [concurrency](crate::Policy::concurrency) policy cannot be known, and is zero. Policies that were
    /// not decided are not included: those of other layers, and those whose key or tier would have needed a lookup.
    ///
    /// `None` if it was allowed, can never succeed, or if the time is unknown.
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

// Tickets, peeks and the clock are not compared: none is visible to a client.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        self.outcome == other.outcome
            && self.counted_by == other.counted_by
            && self.decided_at == other.decided_at
            && self.states == other.states
    }
}

impl Eq for Decision {}
