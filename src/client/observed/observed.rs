//! The result for one response.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Response, StatusCode};

use crate::clock::Clock;

use super::{
    collector,
    limit::ObservedLimit,
    numbers::count,
    refusal::{Refusal, forbids_retry, requested_wait, wait_for_units},
    values::texts,
    waits::SentAt,
};

/// The rate limits that an API shows in a response.
///
/// Read one from each response to a call: successful responses also contain limits. The body is not read. A response that comes
/// from a cache (`Age` above 0) and a redirect have nothing, because their headers describe an earlier call or another server.
///
/// At most 32 values are read, and a value above 1 KiB is ignored (error details of gRPC: 8 KiB). No span is longer than 10,000
/// years, so any clock can add it. Bound the waits on your side, for example by ten minutes: some APIs ask for years.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    refusal: Option<Refusal>,
    retry_after: Option<Duration>,
    wait_from: Option<&'static str>,
    limits: Vec<ObservedLimit>,
    must_not_retry: bool,
    bucket: Option<Box<str>>,
    scope: Option<Box<str>>,
}

impl Observed {
    /// Reads a response that has just arrived.
    #[must_use]
    pub fn from_response<B>(response: &Response<B>) -> Self {
        Self::from_parts(response.status(), response.headers())
    }

    /// Reads the status and the headers, or the trailers, of a response that has just arrived.
    #[must_use]
    pub fn from_parts(status: StatusCode, headers: &HeaderMap) -> Self {
        let now = Duration::from_micros(Clock::wall_now().as_micros());
        Self::read(status, headers, UNIX_EPOCH + now)
    }

    /// Reads the status and the headers of a response that arrived at the time `now`.
    #[must_use]
    pub fn read(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        let is_cached = texts(headers, "age").any(|age| count(age) > Some(0));
        if is_cached || status.is_redirection() {
            return Self::default();
        }
        let sent = SentAt::of(headers, now);
        let limits = collector::limits(headers, sent);
        let requested = requested_wait(headers, sent);
        let refusal = Refusal::of(status, headers, &limits, requested.is_some());
        let wait = requested.or_else(|| Some((wait_for_units(&limits)?, "exhausted limit")));
        let wait = wait.filter(|_| refusal.is_some());
        // Zero would make clients call again at once, for ever.
        let waits = |(wait, _): (Duration, _)| if wait.is_zero() { SHORTEST_WAIT } else { wait };
        let first = |names: &[&str]| {
            let mut values = names.iter().flat_map(|name| texts(headers, name));
            values.next().map(Into::into)
        };
        let is_global = || texts(headers, "x-ratelimit-global").any(|global| global == "true");
        Self {
            refusal,
            retry_after: wait.map(waits),
            wait_from: wait.map(|(_, from)| from),
            limits,
            must_not_retry: forbids_retry(headers),
            bucket: first(&BUCKETS),
            scope: first(&SCOPES).or_else(|| is_global().then(|| "global".into())),
        }
    }

    /// Returns why the API refused the call. `None` if it did not.
    #[must_use]
    pub const fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Returns the time to wait after a refusal. A wait of zero becomes 0.1 s.
    ///
    /// That is the wait which the response contains, such as `Retry-After`, and else the time until the exhausted limit has units.
    /// `None` if the response shows neither, or is not a refusal.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the source of [`retry_after`](Self::retry_after), for log lines.
    pub(in crate::client) const fn wait_from(&self) -> Option<&'static str> {
        self.wait_from
    }

    /// Returns the limits that the response shows, 32 at most.
    #[must_use]
    pub fn limits(&self) -> &[ObservedLimit] {
        &self.limits
    }

    /// Returns whether the API forbids to retry this call, by a negative pushback of gRPC or by `x-should-retry: false`.
    #[must_use]
    pub const fn must_not_retry(&self) -> bool {
        self.must_not_retry
    }

    /// Returns the API's name for the set of calls that share the limits.
    ///
    /// For example, the resource `search` of GitHub, the bucket of Discord, or the throttle of GitLab.
    #[must_use]
    pub fn bucket(&self) -> Option<&str> {
        self.bucket.as_deref()
    }

    /// Returns the limit that was exceeded, or its owner, by the API's name.
    ///
    /// For example, `user`, `global` or `shared` of Discord, or the reason of Stripe and Atlassian.
    #[must_use]
    pub fn scope(&self) -> Option<&str> {
        self.scope.as_deref()
    }
}

impl<B> From<&Response<B>> for Observed {
    fn from(response: &Response<B>) -> Self {
        Self::from_response(response)
    }
}

/// GitHub, Discord, GitLab.
const BUCKETS: [&str; 3] = [
    "x-ratelimit-resource",
    "x-ratelimit-bucket",
    "ratelimit-name",
];
/// Discord, Stripe, Atlassian.
const SCOPES: [&str; 4] = [
    "x-ratelimit-scope",
    "stripe-rate-limited-reason",
    "ratelimit-reason",
    "x-beta-ratelimit-reason",
];
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
