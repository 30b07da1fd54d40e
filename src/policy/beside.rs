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
//!
//! A bucket that lends its reserve is counted so nevertheless: only a twentieth is kept free, and what is lent comes back at the whole
//! rate. Slots that are lent are counted beside, too, since that shows how many of them the class needs: see [`Loan`].

use std::{sync::Arc, time::Duration};

use crate::{
    algorithm::{Counter, Quota},
    decision::PolicyName,
    error::{Error, ErrorKind},
    priority::priority::Priority,
};

use super::{
    consistency::Percent,
    loan::{Loan, LoanStep},
    policy::{NameHash, Outside, Policy},
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
    pub fn reserve(self, classes: impl Into<Vec<Priority>>, part: Percent) -> Self {
        let classes = classes.into();
        self.with_reserve(|reserve| (reserve.classes, reserve.part) = (classes, part))
    }

    /// Lends the [reserve](Self::reserve) to other classes while it is not needed. A twentieth of the limit, rounded up, always stays
    /// free.
    ///
    /// Default: nothing is lent. A class with the reserve that suddenly needs it finds a twentieth free, and the rest as it comes back.
    /// `within` is the longest time that this may take:
    ///
    /// - A token or leaky bucket gets what is lent back at its rate, and other classes get nothing until a twentieth is free again.
    ///   `build()` fails if what is lent takes longer than `within` to come back. No second policy is counted.
    /// - Slots come back when their requests end, so requests of the other classes must end within this time: put a time-out around
    ///   their handlers, and do not lend to streams or uploads. Half as many slots again as the class had in the last 10 to 20 s
    ///   are kept for it: under each key, as many as under the key that had the most. With 20 % of 1,000 slots, lent to requests of up
    ///   to a second, all of the class were served from its first second on; with requests of 30 s, 80 % in the first second, and all
    ///   after five (simulated).
    ///
    /// Callers that [wait](crate::acquire) for slots are lent none.
    ///
    /// A request of the class that costs more than the twentieth may never find so many free while other classes ask. `build()` fails
    /// if the [cost](Self::cost) of the policy is above it. Costs that charges or rules set are not checked.
    ///
    /// Windows lend nothing, since what is lent would come back only at their end. `build()` fails for them, without a reserve or for
    /// one of a twentieth or less, and with [`consistency`](Self::consistency) or several regions, which lease units in advance.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Percent, Policy, Quota, RateLimiter, overload::Priority};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let api = Policy::new("api", Quota::per_second(100))
    ///     .reserve(Priority::Critical, Percent::new(20.0))
    ///     .lend(Duration::from_millis(200));
    /// let limiter = RateLimiter::builder().policy(api.clone()).build()?;
    ///
    /// let ask = async |priority| limiter.check(&api.charges(Key::GLOBAL, priority)).await;
    /// for _ in 0..95 {
    ///     assert!(ask(Priority::Normal).await?.is_allowed());
    /// }
    /// assert!(!ask(Priority::Normal).await?.is_allowed());
    /// assert!(ask(Priority::Critical).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn lend(self, within: Duration) -> Self {
        self.with_reserve(|reserve| reserve.lent_within = Some(within))
    }

    fn with_reserve(mut self, change: impl FnOnce(&mut Reserve)) -> Self {
        change(Arc::make_mut(self.reserve.get_or_insert_default()));
        self.with_rest()
    }

    /// Derives what other classes may use again, after a setting has changed.
    pub(super) fn with_rest(mut self) -> Self {
        let Some(reserve) = self.reserve.as_deref() else {
            return self;
        };
        let lends = reserve.lent_within.is_some();
        let has_rest = !lends || self.is_concurrency();
        // `validate` returns the error.
        let rest = has_rest.then(|| self.rest_of(reserve)).and_then(Result::ok);
        let lent = lends.then(|| Loan::leaving(KEPT, self.counter()));
        let lent = lent.map(Arc::new);
        self.outside = Some(Arc::new(Outside { rest, lent }));
        self
    }

    /// Returns the policy that counts all requests without the reserve. If slots are lent, it admits those too, while they are not
    /// needed.
    fn rest_of(&self, reserve: &Reserve) -> Result<Self, Error> {
        let rest = |part: Percent| reserve.rest_of(self.quota, part);
        let quota = rest(reserve.part);
        if reserve.lent_within.is_none() {
            return self.beside("unreserved", quota, 28);
        }
        let most = rest(KEPT);
        let mut rest = self.beside("unreserved", most, 28)?;
        let loan = Loan::of_slots(most.count().saturating_sub(quota.count()), rest.counter());
        rest.outside = Some(Outside::lent(Arc::new(loan)));
        Ok(rest)
    }

    /// Returns the policy that counts all requests without the reserve. `None` if nothing is reserved, or a rate is lent.
    #[inline]
    pub(crate) fn rest(&self) -> Option<&Self> {
        self.outside.as_deref()?.rest.as_ref()
    }

    #[inline]
    pub(crate) fn has_reserve(&self) -> bool {
        self.reserve.is_some()
    }

    /// Returns whether requests of this class may not use what is reserved.
    #[inline]
    pub(crate) fn is_outside_of_reserve(&self, priority: Priority) -> bool {
        let reserve = self.reserve.as_deref();
        reserve.is_some_and(|reserve| !reserve.classes.contains(&priority))
    }

    /// Returns what requests without the reserve may use of this policy, if that is neither all nor nothing.
    #[inline]
    pub(crate) fn loan(&self) -> Option<&Arc<Loan>> {
        self.outside.as_deref()?.lent.as_ref()
    }

    /// Returns the counter of such requests.
    #[cold]
    pub(crate) fn lent_counter(&self, step: LoanStep) -> &Counter {
        self.loan()
            .map_or(self.counter(), |loan| loan.counter(step))
    }

    /// Returns the lowest limit of a charge of the policy.
    pub(crate) fn least_lent(&self) -> u64 {
        self.lent_counter(LoanStep::LAST).limit()
    }

    /// Returns the reserve in words: its part, its classes, and how many units of it are kept if the others are lent.
    #[cfg(feature = "explain")]
    pub(crate) fn reserve_in_words(&self) -> Option<String> {
        let reserve = self.reserve.as_deref()?;
        let classes = reserve.classes.iter().map(|class| class.name());
        let classes: Vec<&str> = classes.collect();
        let (part, classes) = (reserve.part.percent(), classes.join(", "));
        Some(match reserve.lent_within {
            Some(_) => {
                let kept = KEPT.of_up(self.counter().limit());
                format!("{part} % for {classes}, of which all but {kept} units are lent")
            }
            None => format!("{part} % for {classes}"),
        })
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
        } else if let Err(reason) = reserve.validate_loan(self.counter(), KEPT, self.default_cost())
        {
            return Err(self.error(ErrorKind::InvalidPolicy, &reason));
        } else if reserve.lent_within.is_some() && self.consistency.is_leased() {
            "the shared store must decide on what is lent: remove lend() or consistency()"
        } else if self.counter().is_queue() {
            "a queue serves in order and cannot have a reserve: use another algorithm"
        } else if self.counts_denied {
            "denied requests of other classes would use up the reserve: remove count_denied()"
        } else if self.penalty.is_some() {
            "a ban denies all classes of a key, also those with a reserve: remove penalty() and backoff()"
        } else if reserve.lent_within.is_some() && !self.is_concurrency() {
            return Ok(());
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
        (policy.reserve, policy.outside) = (None, None);
        #[cfg(feature = "metrics")]
        {
            policy.series = policy.series_under(self.tier.as_ref());
        }
        Ok(policy.algorithm(self.algorithm))
    }
}

/// The part of a limit that is kept free while the reserve is lent.
const KEPT: Percent = Percent::whole(5);
