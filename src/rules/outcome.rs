//! Rules that count how requests end.
//!
//! # Why does a request take a unit before it has failed?
//!
//! If only failures were counted once they are known, 50 guesses at once would all be admitted by a limit of 5. So each request
//! takes its cost when it is admitted, in the same step as the decision, and gets it back at its end unless it counts. The limit then
//! bounds the failures and the requests that are still running together.
//!
//! # Why does a request without a response count?
//!
//! A client can hang up on every guess, and another connection shows whether it was right. Its outcome is not known, and an unknown
//! outcome that is free is a way around the limit. The same holds for an error of the inner service, and a panic, which a client may
//! be able to cause.

use std::sync::Arc;

use http::StatusCode;

use crate::{
    charge::{Actual, KeyEffect},
    error::{Error, ErrorKind},
};

use super::{
    completed::{CompletedRequest, RequestOutcome},
    price::{Condition, Price},
    rule::Rule,
};

impl Rule {
    /// Counts only requests that end in a certain way, such as failed logins. The closure gets each response.
    ///
    /// Default: all requests count. A request is admitted against what has counted before. While it runs, its cost is
    /// reserved, so that requests at once cannot exceed the limit, and it is refunded unless the closure returns `true`.
    /// A request without a response counts: a client can hang up on every guess. An
    /// [`ActualCost`](crate::middleware::ActualCost) that the handler sets takes precedence: 0 does not count.
    ///
    /// Requests that count begin the next delay of a [`backoff`](crate::Policy::backoff) as soon as the head of the response is known.
    /// The closure is then called twice, first as if the body were complete.
    ///
    /// It takes the place of [`settle`](Self::settle): the one that is set last applies. `build()` fails for a
    /// [concurrency](crate::Policy::concurrency) policy, and if the cost is 0.
    ///
    /// # Examples
    ///
    /// Count responses that a login handler marks:
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::PeerIp, rules::{CompletedRequest, RequestOutcome}};
    ///
    /// let rule = Policy::new("login", Quota::per_minute(5)).key(PeerIp).count_when(|request| {
    ///     matches!(request.outcome, RequestOutcome::Responded { headers, .. } if headers.contains_key("x-login-failed"))
    /// });
    /// ```
    #[must_use]
    pub fn count_when(
        mut self,
        counts: impl Fn(&CompletedRequest<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.price = Some(Price::Counted(Arc::new(move |request| {
            let has_response = matches!(request.outcome, RequestOutcome::Responded { .. });
            !has_response || counts(request)
        })));
        self
    }

    /// Counts only requests that fail: those with a status of 400 to 499, and those without a response.
    ///
    /// See [`count_when`](Self::count_when). A status of 500 or more is a failure of the service and does not count. A 429 of a limit
    /// inside of this one counts. If the handler responds to a wrong password with a redirect, or with 200 as gRPC does, use
    /// `count_when`: by the status it is a success.
    ///
    /// # Examples
    ///
    /// Five failed logins a minute for each name and address, with a delay that grows with each, and 100 for each name:
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::extract::{Header, KeyExtractor, PeerIp};
    /// use tollgate::{Policy, Quota, RateLimitLayer, policy::Backoff};
    ///
    /// let name = || Header::new("x-user");
    /// let delay = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(900));
    /// let login = Policy::new("login", Quota::per_minute(5)).backoff(delay);
    /// let limit = RateLimitLayer::builder()
    ///     .policy(login.key(name().and(PeerIp)).count_failures().clear_on_success())
    ///     .policy(Policy::new("name", Quota::per_minute(100)).key(name()).count_failures())
    ///     .policy(Policy::new("address", Quota::per_minute(20)).key(PeerIp).count_failures())
    ///     .build()?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn count_failures(self) -> Self {
        self.count_when(|request| status_of(request).is_some_and(|status| status.is_client_error()))
    }

    /// Clears what has counted for the key, and ends its delay, when a request ends in a certain way.
    ///
    /// Default: never. The closure gets each response that does not count. What is cleared includes the cost of requests
    /// that are still running.
    ///
    /// Only clear a key that a caller cannot share with the victim of an attack. For example, whoever has an account could log in
    /// after each fourth guess at other accounts, and clear the count of their address. `build()` fails without
    /// [`count_when`](Self::count_when) or [`count_failures`](Self::count_failures).
    #[must_use]
    pub fn clear_when(
        mut self,
        clears: impl Fn(&CompletedRequest<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.clears = Some(Arc::new(clears));
        self
    }

    /// Clears what has counted for the key, and ends its delay, after a success: a status of 200 to 399.
    ///
    /// See [`clear_when`](Self::clear_when) for the keys that may be cleared. Count only the login, by [`when`](Self::when): any other
    /// request of the key clears it too, such as one for a new password. A request that only reads (`GET`, `HEAD`, `OPTIONS`, `TRACE`)
    /// clears nothing, since anybody can fetch a login page. Where the credentials come with a `GET`, as in basic authentication, use
    /// `clear_when`.
    #[must_use]
    pub fn clear_on_success(self) -> Self {
        self.clear_when(|request| {
            let is_success = |status: StatusCode| status.is_success() || status.is_redirection();
            !request.method.is_safe() && status_of(request).is_some_and(is_success)
        })
    }

    /// Returns what a request really cost, and what its end does to its key. `set` is the cost that the handler has set.
    pub(crate) fn actual(&self, completed: &CompletedRequest<'_>, set: Option<u64>) -> Actual {
        let by_rule = || match &self.price {
            Some(Price::Counted(counts)) if counts(completed) => completed.charged,
            Some(Price::Counted(_)) => 0,
            Some(Price::Settled(price)) => price(completed),
            None => completed.charged,
        };
        let units = set.unwrap_or_else(by_rule);
        let is_counted = matches!(self.price, Some(Price::Counted(_)));
        let clears = |clears: &Condition| status_of(completed).is_some() && clears(completed);
        let effect = if is_counted && units > 0 {
            match self.policy.failure_penalty() {
                Some(_) => KeyEffect::Failed,
                None => KeyEffect::Nothing,
            }
        } else if self.clears.as_ref().is_some_and(clears) {
            KeyEffect::Cleared
        } else {
            KeyEffect::Nothing
        };
        Actual { units, effect }
    }

    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] for settings about outcomes that cannot work together.
    pub(super) fn validate_outcomes(&self) -> Result<(), Error> {
        let is_counted = matches!(self.price, Some(Price::Counted(_)));
        let has_delays = self.policy.failure_penalty().is_some();
        let has_outcomes = is_counted || has_delays || self.clears.is_some();
        let reason = if has_outcomes && self.policy.is_concurrency() {
            "the slots of a request are released when it ends, however it ends: remove what counts or clears outcomes, and backoff()"
        } else if self.clears.is_some() && !is_counted {
            "clear_when() and clear_on_success() need failures to clear: add count_failures() or count_when()"
        } else if has_delays && !is_counted {
            "a delay of its backoff begins with a failure, and the rule finds none: add count_failures() or count_when()"
        } else {
            return Ok(());
        };
        let message = format!("policy {:?}: {reason}", self.policy.name());
        Err(Error::new(ErrorKind::InvalidPolicy, message))
    }
}

fn status_of(request: &CompletedRequest<'_>) -> Option<StatusCode> {
    match request.outcome {
        RequestOutcome::Responded { status, .. } => Some(status),
        _ => None,
    }
}
