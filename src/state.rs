//! What a decision says about each policy asked.

use crate::clock::Timestamp;

pub use crate::policy_name::PolicyName;

/// Where one policy stands after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyState {
    policy: PolicyName,
    outcome: Outcome,
    /// Apart, since `Option<Usage>` would be a word larger.
    is_counted: bool,
    is_in_flight: bool,
    /// Microseconds by which the counter may have rounded `usage.reset_at` up.
    rounding: u16,
    usage: Usage,
    wait: Wait,
    /// Of one that was admitted when it starts, of another when it may come again: both in one word, since every decision
    /// is copied about several times, and up to 128 bytes that takes no call.
    at: Timestamp,
    returned: u64,
}

/// A [`Retry`] without its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Now,
    At,
    Never,
}

impl PolicyState {
    /// The state of a policy that was counted.
    #[must_use]
    #[inline]
    pub fn counted(policy: PolicyName, usage: Usage, retry: Retry) -> Self {
        let (outcome, wait, at) = match retry {
            Retry::Now => (Outcome::Allowed, Wait::Now, NO_TIME),
            Retry::At(time) => (Outcome::Limited, Wait::At, time),
            Retry::Never => (Outcome::Limited, Wait::Never, NO_TIME),
        };
        Self {
            policy,
            outcome,
            is_counted: true,
            is_in_flight: false,
            rounding: 0,
            usage,
            wait,
            at,
            returned: 0,
        }
    }

    /// Sets when the charge may be used, unless there is none.
    #[must_use]
    #[inline]
    pub fn turn(mut self, at: Timestamp) -> Self {
        if self.wait == Wait::Now {
            self.at = at;
        }
        self
    }

    /// Sets what had been taken back of the key's charges until now, which a charge is known by when it is put right.
    #[must_use]
    #[inline]
    pub fn returned(mut self, sum: u64) -> Self {
        self.returned = sum;
        self
    }

    /// Notes that units come back when requests end, and not with time: what remains does not say how often one may come.
    #[must_use]
    #[inline]
    pub fn in_flight(mut self) -> Self {
        self.is_in_flight = true;
        self
    }

    /// Notes by how many microseconds the counter may have rounded the reset up.
    #[inline]
    pub(crate) fn rounded(mut self, micros: u16) -> Self {
        self.rounding = micros;
        self
    }

    /// The state of a policy that nobody could count: its usage is unknown, and none is invented.
    #[must_use]
    pub fn uncounted(policy: PolicyName, outcome: Outcome) -> Self {
        Self {
            policy,
            outcome,
            is_counted: false,
            is_in_flight: false,
            rounding: 0,
            usage: Usage::new(0, 0, NO_TIME),
            wait: Wait::Now,
            at: NO_TIME,
            returned: 0,
        }
    }

    /// The state once a charge that led to it is given back. The reset stays as it was, so it may be later than it is.
    pub(crate) fn given_back(mut self, units: u64) -> Self {
        let usage = &mut self.usage;
        usage.remaining = usage.remaining.saturating_add(units).min(usage.limit);
        self
    }

    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &PolicyName {
        &self.policy
    }

    /// What this policy alone says.
    #[must_use]
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// What is used and left, or `None` when nobody could count.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.is_counted.then_some(self.usage)
    }

    /// Returns the usage as headers send it: with a reset that lies at most the policy's window ahead.
    ///
    /// A log keeps times in ticks, and a bucket of an odd rate has a microsecond in hand, so all may be back a moment after
    /// the window. Rounded up to seconds, that moment would be a whole one.
    #[inline]
    pub(crate) fn sent_usage(&self) -> Option<Usage> {
        let mut usage = self.usage()?;
        let reset_at = usage.reset_at.as_micros();
        usage.reset_at = Timestamp::from_micros(reset_at.saturating_sub(self.rounding.into()));
        Some(usage)
    }

    /// The sum of what had been taken back of the key's charges: 0 unless the store tells.
    #[must_use]
    pub fn returned_before(&self) -> u64 {
        self.returned
    }

    /// From when on a request that was admitted may start under this policy: later than the decision when it waits in a
    /// queue.
    #[must_use]
    pub fn starts_at(&self) -> Timestamp {
        match self.wait {
            Wait::Now => self.at,
            Wait::At | Wait::Never => NO_TIME,
        }
    }

    /// Whether units come back when requests end, as under [`Policy::concurrency`](crate::Policy::concurrency).
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        self.is_in_flight
    }

    /// What makes this policy narrower than another that admits too, the narrower the less: of those that come back with
    /// time, what remains; the others are behind them, however few remain.
    ///
    /// One number, since it is compared at every request. Of a policy that was counted.
    #[inline]
    pub(crate) fn room(&self) -> u128 {
        room(self.usage.remaining, self.is_in_flight)
    }

    /// When a request of the same cost can succeed under this policy.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.wait {
            Wait::Now => Retry::Now,
            Wait::At => Retry::At(self.at),
            Wait::Never => Retry::Never,
        }
    }
}

/// As [`PolicyState::room`].
#[inline]
pub(crate) fn room(remaining: u64, is_in_flight: bool) -> u128 {
    u128::from(is_in_flight) << u64::BITS | u128::from(remaining)
}

const NO_TIME: Timestamp = Timestamp::from_micros(0);

// === Usage ===

/// What a policy has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The most that can be taken at once.
    pub limit: u64,
    /// What can be taken at once now.
    pub remaining: u64,
    /// When everything is back if nothing more is taken: the time of the decision when it is all there already. While
    /// something is out it depends on what was charged only, so two answers without a charge between them agree on it;
    /// but for peeks after the limit was changed, which agree once somebody asked with a cost.
    pub reset_at: Timestamp,
}

impl Usage {
    /// The usage of a policy with this limit, as a store of your own tells it.
    #[must_use]
    #[inline]
    pub const fn new(limit: u64, remaining: u64, reset_at: Timestamp) -> Self {
        Self {
            limit,
            remaining,
            reset_at,
        }
    }
}

// === Retry ===

/// When a request of the same cost can succeed, from soonest to latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Retry {
    /// It did succeed.
    Now,
    /// From this time on, unless others charge the key in between.
    At(Timestamp),
    /// Never: it costs more than the policy ever holds.
    Never,
}

// === CountedBy ===

/// Who kept the count of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CountedBy {
    /// This process alone, because the shared store is away.
    Fallback,
    /// This process, by configuration: the embedded default.
    InProcess,
    /// Nobody: the shared store is away and the policies chose to allow or to refuse without counting.
    Nobody,
    /// The shared store, for the whole fleet.
    Shared,
}

// === Outcome ===

/// What was decided, from mildest to strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Go on: within every limit, and charged.
    Allowed,
    /// Over a limit: 429, and nothing was charged.
    Limited,
    /// Nobody could decide, and the policy says to refuse then: 503.
    Unavailable,
}
