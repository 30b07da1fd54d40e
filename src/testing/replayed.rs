//! The results of a replay.

use std::{fmt, ops::Index, time::Duration};

use http::Response;

use crate::{
    decision::{PolicyName, PolicyState, Usage},
    key::Key,
    rejection::Rejection,
};

use super::{
    asked::AskedCharge,
    findings::{Checked, Findings},
};

/// The results of [`replay`](super::replay), one for each request. They display as a table with a line for each.
#[derive(Debug)]
pub struct Replay {
    pub(super) results: Vec<Replayed>,
}

impl Replay {
    /// Returns whether each request was allowed, in order.
    #[must_use]
    pub fn allowed(&self) -> Vec<bool> {
        self.results.iter().map(Replayed::is_allowed).collect()
    }

    /// Returns the results, in the order of the requests.
    #[must_use]
    pub fn results(&self) -> &[Replayed] {
        &self.results
    }
}

impl Index<usize> for Replay {
    type Output = Replayed;

    fn index(&self, index: usize) -> &Replayed {
        &self.results[index]
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut results = self.results.iter();
        results.try_for_each(|result| writeln!(f, "{result}"))
    }
}

// === Replayed ===

/// The result of a replayed request. It displays as a line.
///
/// Assertions such as [`assert_limited!`](crate::assert_limited) take it.
#[derive(Debug)]
pub struct Replayed {
    /// The method and the path.
    pub(super) name: String,
    pub(super) at: Duration,
    pub(super) counts: Vec<Count>,
    pub(super) response: Response<()>,
    pub(super) delay: Option<Duration>,
}

impl Replayed {
    /// Returns the time since the first request.
    #[must_use]
    pub fn at(&self) -> Duration {
        self.at
    }

    /// Returns whether the request reached the handler, if need be after a [delay](Self::delay).
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.rejection().is_none()
    }

    /// Returns the policies that decided on the request. If one of them denied it, none has charged it, except under
    /// [`Policy::count_denied`](crate::Policy::count_denied).
    #[must_use]
    pub fn counts(&self) -> &[Count] {
        &self.counts
    }

    /// Returns what the policy with this name decided; `None` if it did not count the request.
    #[must_use]
    pub fn count(&self, policy: &str) -> Option<&Count> {
        let mut counts = self.counts.iter();
        counts.find(|count| count.policy().as_str() == policy)
    }

    /// Returns the rejection, with its reason and its wait; `None` if the request was allowed.
    #[must_use]
    pub fn rejection(&self) -> Option<&Rejection> {
        self.response.extensions().get()
    }

    /// Returns how long the request waits in a [queue](crate::algorithm::Algorithm::LeakyQueue) before it starts; `None` if it
    /// does not.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.delay
    }

    /// Returns the head of the response, with its headers. Of a request that waits in a queue, it is an empty one.
    #[must_use]
    pub fn response(&self) -> &Response<()> {
        &self.response
    }
}

impl Checked for Replayed {
    fn findings(&self) -> Findings<'_> {
        self.response
            .findings()
            .with_states(self.counts.iter().map(Count::state))
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s {}: ", self.at.as_secs_f64(), self.name)?;
        match (self.rejection(), self.delay) {
            (Some(rejection), _) => write!(f, "{}, {}", rejection.status(), rejection.message())?,
            (None, Some(delay)) => write!(f, "allowed in {} s", delay.as_secs_f64())?,
            (None, None) => f.write_str("allowed")?,
        }
        let mut counts = self.counts.iter();
        counts.try_for_each(|count| write!(f, "; {count}"))
    }
}

// === Count ===

/// The decision of one policy on a replayed request. It displays as the name, the key and the units left.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    pub(super) charge: AskedCharge,
    pub(super) state: PolicyState,
}

impl Count {
    /// Returns the name of the policy.
    #[must_use]
    pub fn policy(&self) -> &PolicyName {
        self.charge.policy()
    }

    /// Returns the key under which the request was counted.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.charge.key()
    }

    /// Returns the cost in units.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.charge.units()
    }

    /// Returns the state of the policy: its outcome, the units left, and whether it is in shadow mode.
    #[must_use]
    pub fn state(&self) -> &PolicyState {
        &self.state
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.policy(), self.key().as_str())?;
        if let Some(Usage {
            remaining, limit, ..
        }) = self.state.usage()
        {
            write!(f, " {remaining}/{limit}")?;
        }
        Ok(())
    }
}
