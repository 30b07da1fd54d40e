//! Policies that are counted beside another one: a candidate, and the rest of a quota of which a part is reserved.
//!
//! # Why is the rest a policy of its own?
//!
//! Requests of the other classes may use what is not reserved, whatever those with the reserve have used. So they need room in two
//! limits: the whole, and the rest. Both are counted under the same key, so both lie in one slot of a cluster, and one call decides on
//! both, all or nothing. So every algorithm and every store can have a reserve, an outage keeps it, and the rest has numbers of its own
//! in headers, metrics and explanations.
//!
//! To deny these requests while less than the reserve is free would need no second count. But then what the classes with the reserve
//! use would be missing twice: of the whole, and of the rest.

use std::sync::Arc;

use crate::{
    algorithm::Quota,
    decision::PolicyName,
    error::{Error, ErrorKind},
    priority::priority::Priority,
};

use super::{
    consistency::Percent,
    policy::{NameHash, Policy},
    reserve::Reserve,
};

impl Policy {
    /// Reserves a part of the quota for requests of a class, or of several: `Priority::Critical`, or a list of classes.
    ///
    /// Default: none. All other requests together may use the rest of the quota, and no more. Those of the class may use all of it. So
    /// they always have their part, however many others come.
    ///
    /// The rest is counted under the policy's name and `.unreserved`, in the same call, all or nothing. A layer takes the class from
    /// the extensions of a request, where an [`Overload`](crate::overload::Overload) around the layer puts it; without one it is
    /// [`Normal`](Priority::Normal). Without a layer, [`charges`](Self::charges) makes the charges of a class, while
    /// [`charge`](Self::charge) alone charges the whole and not the rest.
    ///
    /// Rates and bursts are reserved alike: with 20 %, 1,000 a second leave 800 to the others. The rest is rounded down. `build()`
    /// fails for a part outside 0.1 to 99.9 %, one that leaves nothing, and a name of more than 28 characters; for a queue, which serves
    /// in order; for [`count_denied`](Self::count_denied), by which denied requests would use up the reserve; and for a
    /// [`penalty`](Self::penalty) or [`backoff`](Self::backoff), which bans all classes of a key. Layers for calls do not support it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Percent, Policy, extract::Global, overload::Priority};
    ///
    /// // Of 1,000 requests in flight in all instances, at most 800 are not critical.
    /// let fleet = Policy::concurrency("fleet", 1_000)
    ///     .reserve(Priority::Critical, Percent::new(20.0))
    ///     .key(Global);
    /// ```
    #[must_use]
    pub fn reserve(mut self, classes: impl Into<Vec<Priority>>, part: Percent) -> Self {
        let classes = classes.into();
        self.reserve = Some(Arc::new(Reserve { classes, part }));
        self.with_rest()
    }

    /// Derives the policy of the rest again, after a setting has changed.
    pub(super) fn with_rest(mut self) -> Self {
        let rest = self.reserve.as_deref().map(|reserve| self.rest_of(reserve));
        // `validate` returns the error.
        self.rest = rest.and_then(Result::ok).map(Arc::new);
        self
    }

    fn rest_of(&self, reserve: &Reserve) -> Result<Self, Error> {
        self.beside("unreserved", reserve.rest_of(self.quota), 28)
    }

    /// Returns the policy that counts all requests without the reserve. `None` if nothing is reserved.
    #[inline]
    pub(crate) fn rest(&self) -> Option<&Self> {
        self.rest.as_deref()
    }

    /// Returns the policy that counts requests of this class besides; `None` if they may use the whole quota.
    #[inline]
    pub(crate) fn rest_for(&self, priority: Priority) -> Option<&Self> {
        let reserve = self.reserve.as_deref()?;
        let may_use_it = reserve.classes.contains(&priority);
        self.rest().filter(|_| !may_use_it)
    }

    /// Checks that there is no reserve, for calls, which have no class.
    pub(crate) fn refuse_reserve(&self) -> Result<(), Error> {
        match self.reserve {
            None => Ok(()),
            Some(_) => Err(self.error(
                ErrorKind::InvalidPolicy,
                "calls have no class that could use a reserve: remove reserve(), or limit HTTP requests in a RateLimitLayer",
            )),
        }
    }

    /// Checks the reserve.
    pub(super) fn validate_reserve(&self) -> Result<(), Error> {
        let Some(reserve) = self.reserve.as_deref() else {
            return Ok(());
        };
        let fault = if let Err(reason) = reserve.validate(self.quota) {
            reason
        } else if self.counter().is_queue() {
            "a queue serves in order and cannot have a reserve: use another algorithm"
        } else if self.counts_denied {
            "denied requests of other classes would use up the reserve: remove count_denied()"
        } else if self.penalty.is_some() {
            "a ban denies all classes of a key, also those with a reserve: remove penalty() and backoff()"
        } else {
            return self.rest_of(reserve)?.validate();
        };
        Err(self.error(ErrorKind::InvalidPolicy, fault))
    }

    /// Returns a copy of the policy with another quota, and with `.candidate` appended to its name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] if the name becomes too long.
    pub(crate) fn candidate(&self, quota: Quota) -> Result<Self, Error> {
        self.beside("candidate", quota, 29)
    }

    /// Returns a copy that is counted beside the policy: with another quota, and with a dot and `suffix` appended to its name, which
    /// may have `most` characters before. It bans nobody, and reserves nothing.
    fn beside(&self, suffix: &str, quota: Quota, most: u32) -> Result<Self, Error> {
        let name = format!("{}.{suffix}", self.name);
        let name = PolicyName::new(&name).map_err(|_| {
            let message =
                format!("with .{suffix} its name would be too long: use at most {most} characters");
            self.error(ErrorKind::InvalidPolicy, &message)
        })?;
        let mut policy = self.clone();
        (policy.name, policy.name_hash, policy.quota) = (name, NameHash::of(&name), quota);
        (policy.penalty, policy.notes_denied) = (None, self.counts_denied);
        (policy.reserve, policy.rest) = (None, None);
        #[cfg(feature = "metrics")]
        {
            policy.series = policy.series_under(self.tier.as_ref());
        }
        Ok(policy.algorithm(self.algorithm))
    }
}
