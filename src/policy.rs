//! A named quota with all that a store must know to count it.

use std::{sync::Arc, time::Duration};

use crate::{
    algorithm::{Algorithm, Counter},
    error::{Error, ErrorKind},
    policy_name::PolicyName,
    quota::Quota,
};

/// A named quota, with what a request costs and what to do when nobody can count.
///
/// The name is part of where the count is kept: two limiters that use one name, one key and one store share the
/// count. It is counted as a token bucket (the burst at once, then the sustained rate) unless it names another
/// [`Algorithm`].
///
/// # Examples
///
/// ```
/// use tollgate::{OnOutage, Policy, Quota};
///
/// let uploads = Policy::new("uploads", Quota::per_hour(100).burst(20))
///     .cost(5)
///     .on_outage(OnOutage::Deny);
/// assert_eq!(uploads.name().as_str(), "uploads");
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    name: PolicyName,
    quota: Quota,
    algorithm: Algorithm,
    /// The reason why the policy cannot be counted, if it cannot: `build()` reports it.
    counter: Result<Counter, Error>,
    cost: u64,
    counts_denied: bool,
    on_outage: OnOutage,
    /// `None` for requests.
    unit: Option<Arc<str>>,
}

impl Policy {
    /// A policy of this name and quota.
    ///
    /// A name or quota that cannot work is reported when the limiter or layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>, quota: Quota) -> Self {
        let algorithm = Algorithm::default();
        let (name, counter) = match PolicyName::new(name.as_ref()) {
            Ok(name) => (name, Counter::new(quota, algorithm)),
            Err(error) => (PolicyName::UNUSABLE, Err(error)),
        };
        Self {
            name,
            quota,
            algorithm,
            counter,
            cost: 1,
            counts_denied: false,
            on_outage: OnOutage::default(),
            unit: None,
        }
    }

    /// A policy on how many requests are in flight: a slot is taken until the body of the answer has ended.
    ///
    /// The answer to a request that upgrades its connection (a WebSocket) ends at once, and its slot with it: hold a slot
    /// for as long as the connection lasts with [`RateLimiter::hold`](crate::RateLimiter::hold).
    ///
    /// In Redis a slot has a lease of 30 seconds, which its holder renews; [`algorithm`](Self::algorithm) with
    /// [`Algorithm::Concurrency`] sets another.
    #[must_use]
    pub fn concurrency(name: impl AsRef<str>, limit: u64) -> Self {
        let lease = Duration::from_secs(30);
        Self::new(name, Quota::in_flight(limit)).algorithm(Algorithm::Concurrency { lease })
    }

    /// Sets how the quota is counted.
    ///
    /// Default: [`Algorithm::TokenBucket`].
    #[must_use]
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        if self.is_named() {
            self.counter = Counter::new(self.quota, algorithm);
        }
        self
    }

    /// Sets whether a denied request is counted too, so that who keeps knocking stays out.
    ///
    /// Default: no. It is counted when the request is denied by any policy of its decision, and at most until nothing
    /// is left; in a sliding window, until the younger of its two windows is full by itself. A denied request never makes
    /// a debt that an admitted one could not.
    #[must_use]
    pub fn count_denied(mut self, count: bool) -> Self {
        self.counts_denied = count;
        self
    }

    /// Sets how many units a request takes.
    ///
    /// Default: 1. A cost of 0 is a peek: it tells the state and takes nothing.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// Sets the unit of the quota, which `RateLimit-Policy` of draft 11 sends as `qu`: `tokens`, for example, or the registered
    /// `content-bytes`.
    ///
    /// Default: requests, which is not sent. Set it when [costs](Self::cost) are not numbers of requests, or clients take the
    /// quota for one. The unit of a [`concurrency`](Self::concurrency) policy is always `concurrent-requests`. A unit has 1 to 39
    /// characters of `A-Z a-z 0-9 . _ -`; others are reported when the limiter or layer is built.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota};
    ///
    /// // RateLimit-Policy: "tokens";q=50000;qu="tokens";w=60
    /// let tokens = Policy::new("tokens", Quota::per_minute(50_000)).cost(1_000).unit("tokens");
    /// ```
    #[must_use]
    pub fn unit(mut self, unit: impl AsRef<str>) -> Self {
        self.unit = Some(unit.as_ref().into());
        self
    }

    /// Sets what happens while the shared store is away.
    ///
    /// Default: [`OnOutage::Local`].
    #[must_use]
    pub fn on_outage(mut self, choice: OnOutage) -> Self {
        self.on_outage = choice;
        self
    }

    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &PolicyName {
        &self.name
    }

    /// The policy's quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the unit of the quota; `None` for requests.
    #[must_use]
    pub fn quota_unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    /// What happens while the shared store is away.
    #[must_use]
    pub fn outage_choice(&self) -> OnOutage {
        self.on_outage
    }

    /// The quota made ready for counting.
    #[must_use]
    #[inline]
    pub fn counter(&self) -> &Counter {
        self.counter.as_ref().unwrap_or(&Counter::CLOSED)
    }

    /// How the quota is counted, as configuration files and metrics write it.
    #[must_use]
    pub fn algorithm_name(&self) -> &'static str {
        self.algorithm.name()
    }

    /// Whether a denied request is counted too.
    #[must_use]
    #[inline]
    pub fn counts_denied(&self) -> bool {
        self.counts_denied
    }

    /// Returns the units that a charge takes unless it sets its own.
    #[inline]
    pub(crate) fn default_cost(&self) -> u64 {
        self.cost
    }

    /// Whether a charge takes slots, which are known by a ticket.
    #[inline]
    pub(crate) fn takes_slots(&self) -> bool {
        matches!(self.counter, Ok(Counter::Concurrency(_)))
    }

    /// Whether it can be counted at all.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.counter.is_ok() && !self.counts_denied_in_flight()
    }

    #[inline]
    fn counts_denied_in_flight(&self) -> bool {
        self.counts_denied && self.takes_slots()
    }

    fn is_named(&self) -> bool {
        self.name != PolicyName::UNUSABLE
    }

    /// The same policy with another quota, and with another algorithm if one is given.
    pub(crate) fn with_quota(&self, quota: Quota, algorithm: Option<Algorithm>) -> Self {
        let policy = Self {
            quota,
            ..self.clone()
        };
        policy.algorithm(algorithm.unwrap_or(self.algorithm))
    }

    /// Whether another policy is the same but for its quota.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.name == other.name
            && self.algorithm == other.algorithm
            && self.cost == other.cost
            && self.counts_denied == other.counts_denied
            && self.on_outage == other.on_outage
            && self.unit == other.unit
    }

    /// Whether its charges must be ended by whoever holds them: they are in flight, or wait in a queue.
    pub(crate) fn must_end(&self) -> bool {
        match self.counter() {
            Counter::Bucket(bucket) => bucket.is_queue(),
            Counter::Concurrency(_) => true,
            Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => false,
        }
    }

    /// Whether another policy counts the same in the same way.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        self.quota == other.quota && self.algorithm == other.algorithm
    }

    /// Says what keeps the policy from working.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] or [`ErrorKind::InvalidQuota`], with what to do.
    pub fn validate(&self) -> Result<(), Error> {
        let counter = match &self.counter {
            Ok(counter) => counter,
            // The error about an unusable name contains that name.
            Err(fault) if !self.is_named() => return Err(fault.clone()),
            Err(fault) => {
                return Err(Error::new(
                    fault.kind(),
                    format!("policy {:?}: {fault}", self.name),
                ));
            }
        };
        if self.counts_denied_in_flight() {
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "policy {:?}: a denied request is not in flight, so it cannot be counted: take count_denied() away",
                    self.name
                ),
            ));
        }
        if let Some(unit) = &self.unit {
            PolicyName::of("quota unit", unit)?;
            if self.takes_slots() {
                return Err(Error::new(
                    ErrorKind::InvalidPolicy,
                    format!(
                        "policy {:?}: its unit is concurrent-requests and cannot be changed: remove unit()",
                        self.name
                    ),
                ));
            }
        }
        let limit = counter.limit();
        if self.cost > limit {
            let (has, raise) = match counter {
                Counter::Bucket(_) => (format!("the burst is {limit}"), "burst"),
                Counter::Concurrency(_) => (format!("there are {limit} slots"), "limit"),
                Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => {
                    (format!("the count is {limit}"), "count")
                }
            };
            let (name, cost) = (&self.name, self.cost);
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "policy {name:?}: a request costs {cost} and {has}, so none could ever pass: raise the {raise}, or \
                     lower the cost"
                ),
            ));
        }
        Ok(())
    }
}

// === OnOutage ===

/// What a policy does while the shared store is unavailable, or asked for more than it can decide in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnOutage {
    /// Let everything pass uncounted: for limits that only smooth traffic.
    Allow,
    /// Count in this process alone: each instance enforces the whole quota on its own.
    ///
    /// With `n` instances, up to `n + 1` times the quota is admitted: once by Redis just before the outage, and once by
    /// each instance.
    #[default]
    Local,
    /// Refuse everything with 503: for limits that protect something which must not be exceeded.
    Deny,
}
