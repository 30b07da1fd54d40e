//! A policy: a named quota with its algorithm, cost and outage setting.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
    time::Duration,
};

use siphasher::sip128::SipHasher13;

#[cfg(feature = "client")]
use super::present_rate::PresentRate;
use super::{
    consistency::Consistency, loan::Loan, on_outage::OnOutage, penalty::Penalty, reserve::Reserve,
};
use crate::{
    algorithm::{Algorithm, Counter, Quota},
    decision::PolicyName,
    error::{Error, ErrorKind},
};

/// A named quota, with its algorithm, its cost per request and its outage setting.
///
/// The name is part of the key under which counts are stored: two limiters with the same policy name, key and store
/// share the count. Two different policies need different names.
///
/// Mistakes are reported when the limiter or layer is built, or by [`validate`](Self::validate).
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
#[derive(Clone)]
pub struct Policy {
    pub(super) name: PolicyName,
    pub(super) name_hash: NameHash,
    pub(super) quota: Quota,
    pub(super) algorithm: Algorithm,
    /// An invalid name or quota is kept as an error until `build()` reports it.
    pub(super) counter: Result<Counter, Error>,
    cost: u64,
    pub(super) counts_denied: bool,
    /// Whether it counts denied requests or has a penalty.
    pub(super) notes_denied: bool,
    /// Behind a pointer: most policies have none, and policies are copied.
    pub(super) penalty: Option<Arc<Penalty>>,
    on_outage: OnOutage,
    pub(super) consistency: Consistency,
    /// `None` for requests.
    unit: Option<Arc<str>>,
    pub(super) reserve: Option<Arc<Reserve>>,
    /// The limits of requests of classes without the reserve.
    pub(super) outside: Option<Arc<Outside>>,
    /// The tier whose quota this is.
    #[cfg(any(feature = "explain", feature = "metrics"))]
    pub(super) tier: Option<PolicyName>,
    /// Identifies the policy and the tier among the metrics.
    #[cfg(feature = "metrics")]
    pub(super) series: u64,
    /// The rate of the key, for charges that follow it.
    #[cfg(feature = "client")]
    pub(super) present_rate: Option<PresentRate>,
}

impl Policy {
    /// Creates a policy that counts `quota` as a token bucket.
    ///
    /// A name has 1 to 39 characters of `A-Z a-z 0-9 . _ -`.
    #[must_use]
    pub fn new(name: impl AsRef<str>, quota: Quota) -> Self {
        let algorithm = Algorithm::default();
        let (name, counter) = match PolicyName::new(name.as_ref()) {
            Ok(name) => (name, Counter::new(quota, algorithm)),
            Err(error) => (PolicyName::INVALID, Err(error)),
        };
        let name_hash = NameHash::of(&name);
        Self {
            name,
            name_hash,
            quota,
            algorithm,
            counter,
            cost: 1,
            counts_denied: false,
            notes_denied: false,
            penalty: None,
            on_outage: OnOutage::default(),
            consistency: Consistency::default(),
            unit: None,
            reserve: None,
            outside: None,
            #[cfg(any(feature = "explain", feature = "metrics"))]
            tier: None,
            #[cfg(feature = "metrics")]
            series: name_hash.low,
            #[cfg(feature = "client")]
            present_rate: None,
        }
    }

    /// Creates a policy that limits how many requests are in flight at once.
    ///
    /// A request holds a slot until its response body ends. In Redis a slot has a lease of 30 s, which its holder renews. Set
    /// another lease with [`algorithm`](Self::algorithm) and [`Algorithm::Concurrency`].
    ///
    /// A client that reads its response slowly holds the slot meanwhile, so put a policy per caller beside one that all
    /// callers share. A client that hangs up releases it at once, also if a backend goes on with the request. The
    /// [guide](crate::algorithm::guide) shows what a server can do about both.
    ///
    /// # WebSockets
    ///
    /// The response of a WebSocket ends with the handshake, and so does the slot of the request. Take a
    /// [`RequestHold`](crate::middleware::RequestHold) in the handler, and move it into the task of the connection. The slot is then
    /// held until the task ends, or panics. Other upgraded connections, such as `CONNECT` tunnels, need it too. The first one without
    /// it is reported as [`Code::UpgradedConnection`](crate::diagnosis::Code::UpgradedConnection).
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # mod example {
    /// use axum::{extract::WebSocketUpgrade, response::Response};
    /// use tollgate::middleware::RequestHold;
    ///
    /// async fn connect(upgrade: WebSocketUpgrade, hold: RequestHold) -> Response {
    ///     upgrade.on_upgrade(async move |mut socket| {
    ///         while let Some(Ok(_message)) = socket.recv().await { /* .. */ }
    ///         drop(hold);
    ///     })
    /// }
    /// # }
    /// ```
    ///
    /// Where the layer does not know the key, such as a user who signs in over the socket, the task of the connection keeps the
    /// permit of [`RateLimiter::enforce`](crate::RateLimiter::enforce) instead.
    #[must_use]
    pub fn concurrency(name: impl AsRef<str>, limit: u64) -> Self {
        let lease = Duration::from_secs(30);
        Self::new(name, Quota::in_flight(limit)).algorithm(Algorithm::Concurrency { lease })
    }

    /// Sets the algorithm that counts the quota.
    ///
    /// Default: [`Algorithm::TokenBucket`]. The [guide](crate::algorithm::guide) helps to choose.
    #[must_use]
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        if self.has_valid_name() {
            self.counter = Counter::new(self.quota, algorithm);
        }
        self.with_rest()
    }

    /// Sets whether denied requests consume quota as well.
    ///
    /// Default: `false`. With `true`, clients that keep retrying stay blocked. A request denied by any policy of its
    /// decision is counted, at most until no quota is left. In a sliding window it is counted until the current window
    /// alone is full. A denied request never creates more debt than an admitted one can. Not available for
    /// [concurrency](Self::concurrency).
    #[must_use]
    pub fn count_denied(mut self, count: bool) -> Self {
        self.counts_denied = count;
        self.notes_denied = count || self.penalty.is_some();
        self
    }

    /// Sets when a key is banned that is denied again and again.
    ///
    /// Default: never. The [module docs](crate::policy) describe how bans grow and end, and what they cost. In shadow mode,
    /// bans are counted and deny nothing. [`RateLimiter::reset`](crate::RateLimiter::reset) ends a ban.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Policy, Quota, policy::Penalty};
    ///
    /// // Banned for a minute after 10 denials within a minute, then for 2, 4 and so on up to an hour.
    /// let login = Policy::new("login", Quota::per_minute(5))
    ///     .penalty(Penalty::after(10, Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub fn penalty(mut self, penalty: impl Into<Option<Penalty>>) -> Self {
        self.penalty = penalty.into().map(Arc::new);
        self.notes_denied = self.counts_denied || self.penalty.is_some();
        self
    }

    /// Sets the units that a request takes.
    ///
    /// Default: 1. A cost of 0 is a peek: it reads the state and takes nothing. A cost above the policy's limit is an
    /// error at `build()`.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self.with_rest()
    }

    /// Sets the unit of the quota, which `RateLimit-Policy` (draft 11) contains as `qu`.
    ///
    /// Default: requests, which is not sent. Set it if [costs](Self::cost) are not numbers of requests: for example
    /// `tokens`, or the registered `content-bytes`. Without it clients read the quota as a number of requests. The unit
    /// of a [`concurrency`](Self::concurrency) policy is always `concurrent-requests`.
    ///
    /// A unit has 1 to 39 characters of `A-Z a-z 0-9 . _ -`; others are an error at `build()`.
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
        self.with_rest()
    }

    /// Sets the behaviour while the shared store is unavailable.
    ///
    /// Default: [`OnOutage::Local`].
    #[must_use]
    pub fn on_outage(mut self, choice: OnOutage) -> Self {
        self.on_outage = choice;
        self.with_rest()
    }

    /// Sets whether each decision asks the shared store.
    ///
    /// Default: [`Consistency::Strict`]. A policy that cannot be [leased](Consistency::Leased) is an error at `build()`. Call
    /// [`RateLimiter::drain`](crate::RateLimiter::drain) at shutdown, unless all policies are strict.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Consistency, Policy, Quota};
    ///
    /// let all = Policy::new("all", Quota::per_second(100_000)).consistency(Consistency::Leased);
    /// ```
    #[must_use]
    pub fn consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self.with_rest()
    }

    /// Returns the name; empty if the given name is invalid.
    #[must_use]
    pub fn name(&self) -> &PolicyName {
        &self.name
    }

    /// Returns the hash of the name: the key under which the in-process store hashes the keys of this policy.
    #[inline]
    pub(crate) fn name_hash(&self) -> NameHash {
        self.name_hash
    }

    /// Returns the quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the unit of the quota; `None` for requests.
    #[must_use]
    pub(crate) fn quota_unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    /// Returns the behaviour while the shared store is unavailable.
    #[must_use]
    #[doc(hidden)]
    pub fn outage_choice(&self) -> OnOutage {
        self.on_outage
    }

    /// Returns the validated quota; a counter that admits nothing if the policy is invalid.
    #[must_use]
    #[inline]
    #[doc(hidden)]
    pub fn counter(&self) -> &Counter {
        self.counter.as_ref().unwrap_or(&Counter::CLOSED)
    }

    /// Returns the [`consistency`](Self::consistency) that was chosen.
    #[cfg(feature = "dashboard")]
    pub(crate) fn consistency_choice(&self) -> Consistency {
        self.consistency
    }

    /// Returns whether instances lease units in advance.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn is_leased(&self) -> bool {
        self.consistency.is_leased()
    }

    /// Returns by how much leased units may exceed the limit, in 1/1000 of the burst.
    #[cfg(feature = "redis")]
    pub(crate) fn overshoot(&self) -> u16 {
        self.consistency.overshoot()
    }

    /// Returns the [name](Algorithm::name) of the algorithm, such as `token_bucket`.
    #[must_use]
    #[doc(hidden)]
    pub fn algorithm_name(&self) -> &'static str {
        self.algorithm.name()
    }

    /// Returns whether denied requests consume quota as well.
    #[must_use]
    #[inline]
    #[doc(hidden)]
    pub fn counts_denied(&self) -> bool {
        self.counts_denied
    }

    /// Returns when a key is banned; `None` for never.
    #[must_use]
    #[inline]
    #[doc(hidden)]
    pub fn ban_penalty(&self) -> Option<&Penalty> {
        self.penalty.as_deref()
    }

    /// Returns whether a denied charge may change something: it is counted, or leads to a ban.
    #[inline]
    pub(crate) fn notes_denied(&self) -> bool {
        self.notes_denied
    }

    /// Returns the cost of a charge that does not set one.
    #[inline]
    pub(crate) fn default_cost(&self) -> u64 {
        self.cost
    }

    /// Returns whether charges take slots, and so have a ticket.
    #[inline]
    pub(crate) fn is_concurrency(&self) -> bool {
        self.counter().concurrency().is_some()
    }

    /// Returns whether the policy can be counted; cheaper than [`validate`](Self::validate).
    #[inline]
    pub(crate) fn is_countable(&self) -> bool {
        self.counter.is_ok() && !self.counts_denied_in_flight()
    }

    /// Returns whether charges must be settled: they are in flight, or wait in a queue.
    pub(crate) fn must_be_settled(&self) -> bool {
        self.is_concurrency() || self.counter().is_queue()
    }

    /// Returns the policy with the quota of a tier, and another algorithm if one is given.
    #[cfg_attr(
        not(any(feature = "explain", feature = "metrics")),
        expect(unused_variables, reason = "only metrics and explanations name tiers")
    )]
    pub(crate) fn of_tier(
        &self,
        tier: &PolicyName,
        quota: Quota,
        algorithm: Option<Algorithm>,
    ) -> Self {
        let policy = Self {
            quota,
            #[cfg(any(feature = "explain", feature = "metrics"))]
            tier: Some(*tier),
            #[cfg(feature = "metrics")]
            series: self.series_under(Some(tier)),
            ..self.clone()
        };
        policy.algorithm(algorithm.unwrap_or(self.algorithm))
    }

    /// Returns the tier whose quota this is; `None` for the policy's own.
    #[cfg(any(feature = "explain", feature = "metrics"))]
    pub(crate) fn tier(&self) -> Option<&PolicyName> {
        self.tier.as_ref()
    }

    #[cfg(feature = "metrics")]
    pub(super) fn series_under(&self, tier: Option<&PolicyName>) -> u64 {
        let tier = tier.map_or(0, |tier| NameHash::of(tier).low.rotate_left(32));
        self.name_hash.low ^ tier
    }

    /// Returns a hash of the name and the tier, different in each process.
    #[cfg(feature = "metrics")]
    #[inline]
    pub(crate) fn series(&self) -> u64 {
        self.series
    }

    /// Returns the policy of an instance that grants this many units of the limit, with the same name.
    #[cfg(feature = "redis")]
    pub(crate) fn part(&self, units: u64) -> Self {
        let counter = self.counter().part(units);
        let lent = |loan: &Arc<Loan>| loan.part(&counter, (units, self.counter().limit()));
        let lent = self.loan().map(lent).map(Arc::new);
        Self {
            outside: lent.map(Outside::lent),
            counter: Ok(counter),
            ..self.clone()
        }
    }

    /// Returns the policy for turns that are given back: one that others are behind is kept until they are given back, too.
    pub(crate) fn for_giving_back(&self) -> Self {
        let mut policy = self.clone();
        if let Ok(Counter::Bucket(bucket)) = &mut policy.counter {
            *bucket = bucket.with_turns();
        }
        policy
    }

    /// Returns the policy for callers that wait: their denials do not count, and they wait here and not in a queue of the policy.
    pub(crate) fn for_waiting(&self) -> Self {
        let mut policy = self.clone().count_denied(false);
        if let Ok(Counter::Bucket(bucket)) = &mut policy.counter {
            *bucket = bucket.without_queue();
        }
        policy
    }

    /// Returns whether both policies are equal, apart from their quotas.
    pub(crate) fn equals_except_quota(&self, other: &Self) -> bool {
        self.name == other.name
            && self.algorithm == other.algorithm
            && self.cost == other.cost
            && self.counts_denied == other.counts_denied
            && self.penalty == other.penalty
            && self.on_outage == other.on_outage
            && self.consistency == other.consistency
            && self.unit == other.unit
            && self.reserve == other.reserve
    }

    /// Returns whether both policies count the same quota with the same algorithm.
    pub(crate) fn counts_same_as(&self, other: &Self) -> bool {
        self.quota == other.quota && self.algorithm == other.algorithm
    }

    /// Checks the name, the quota and all settings.
    ///
    /// `build()` calls it for every policy.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidQuota`] if the algorithm cannot count the quota.
    /// - [`ErrorKind::InvalidPolicy`] for an invalid name or unit, a cost above the limit, a penalty whose bans can have no
    ///   effect, or a setting that is not available for concurrency.
    ///
    /// The message contains what to change.
    pub fn validate(&self) -> Result<(), Error> {
        let counter = match &self.counter {
            Ok(counter) => counter,
            // The error about an invalid name contains that name.
            Err(error) if !self.has_valid_name() => return Err(error.clone()),
            Err(error) => return Err(self.error(error.kind(), &error.to_string())),
        };
        if self.counts_denied_in_flight() {
            return Err(self.error(
                ErrorKind::InvalidPolicy,
                "denied requests are not in flight and cannot be counted: remove count_denied()",
            ));
        }
        if let Some(penalty) = self.ban_penalty() {
            self.validate_penalty(penalty, counter)?;
        }
        if let Some(unit) = &self.unit {
            PolicyName::checked("quota unit", unit)?;
            if self.is_concurrency() {
                return Err(self.error(
                    ErrorKind::InvalidPolicy,
                    "the unit of a concurrency policy is always concurrent-requests: remove unit()",
                ));
            }
        }
        let consistency = self.consistency.validate(counter, self.notes_denied);
        consistency.map_err(|reason| self.error(ErrorKind::InvalidPolicy, &reason))?;
        self.validate_cost(counter)?;
        self.validate_reserve()
    }

    /// Checks a penalty, and that a ban can outlast the wait of the denial that it begins with.
    fn validate_penalty(&self, penalty: &Penalty, counter: &Counter) -> Result<(), Error> {
        let valid = penalty.validate();
        valid.map_err(|error| self.error(error.kind(), &error.to_string()))?;
        let wait = counter.shortest_wait_if_counted();
        let is_by_denials = self.counts_denied && !penalty.is_backoff();
        let wait = wait.filter(|wait| is_by_denials && penalty.longest_ban() <= *wait);
        let Some(wait) = wait else {
            return Ok(());
        };
        let message = format!(
            "the longest ban lasts {:?}, but a denied request that counts has a wait of {wait:?} or more, so no ban has an effect: \
             lengthen the bans or remove the penalty",
            penalty.longest_ban()
        );
        Err(self.error(ErrorKind::InvalidPolicy, &message))
    }

    /// Returns the finding if the first ban may end before the wait of the denial that it begins with.
    pub(crate) fn short_ban(&self) -> Option<String> {
        let penalty = self.ban_penalty();
        let first = penalty.filter(|penalty| !penalty.is_backoff())?.first_ban();
        let wait = self.counter().longest_wait(self.cost);
        (first < wait).then(|| {
            format!("the first ban lasts {first:?}, but a denied request may have a wait of {wait:?} without it")
        })
    }

    fn validate_cost(&self, counter: &Counter) -> Result<(), Error> {
        let (cost, limit) = (self.cost, counter.limit());
        if cost <= limit {
            return Ok(());
        }
        let (bound, setting) = match counter {
            Counter::Bucket(_) => (format!("the burst is {limit}"), "burst"),
            Counter::Concurrency(_) => (format!("there are {limit} slots"), "limit"),
            Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => {
                (format!("the count is {limit}"), "count")
            }
        };
        let message = format!(
            "a request costs {cost} but {bound}, so every request would be denied: raise the {setting} or lower the cost"
        );
        Err(self.error(ErrorKind::InvalidPolicy, &message))
    }

    pub(super) fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, format!("policy {:?}: {message}", self.name))
    }

    #[inline]
    fn counts_denied_in_flight(&self) -> bool {
        self.counts_denied && self.is_concurrency()
    }

    fn has_valid_name(&self) -> bool {
        self.name != PolicyName::INVALID
    }
}

// Not derived: the counter repeats the quota and the algorithm in other numbers.
impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name)
            .field("quota", &self.quota)
            .field("algorithm", &self.algorithm)
            .field("cost", &self.cost)
            .field("counts_denied", &self.counts_denied)
            .field("penalty", &self.penalty)
            .field("on_outage", &self.on_outage)
            .field("consistency", &self.consistency)
            .field("unit", &self.unit)
            .field("reserve", &self.reserve)
            .finish_non_exhaustive()
    }
}

// === Outside ===

/// The limits of requests of classes without a reserve.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    /// Counts them, besides the policy.
    pub rest: Option<Policy>,
    /// How much of the policy they may use, together with the others that it counts.
    pub lent: Option<Arc<Loan>>,
}

impl Outside {
    /// Lends a part of a policy, without another one that counts besides.
    pub fn lent(loan: Arc<Loan>) -> Arc<Self> {
        Arc::new(Self {
            rest: None,
            lent: Some(loan),
        })
    }
}

// === NameHash ===

/// 128-bit hash of a policy name under a key that only this process has.
///
/// Policies compute it once and use it as the key that hashes what they count. Debug output omits it: it is a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameHash {
    pub low: u64,
    pub high: u64,
}

impl NameHash {
    pub fn of(name: &PolicyName) -> Self {
        let hash = PROCESS_KEY.hash(name.as_bytes());
        Self {
            low: hash.h1,
            high: hash.h2,
        }
    }
}

impl fmt::Debug for NameHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameHash(..)")
    }
}

/// Two draws from the standard library's per-process entropy.
static PROCESS_KEY: LazyLock<SipHasher13> = LazyLock::new(|| {
    let (first, second) = (RandomState::new(), RandomState::new());
    SipHasher13::new_with_keys(first.hash_one(1_u64), second.hash_one(2_u64))
});
