//! Choice of the rate limit headers that responses carry.
//!
//! # Why does `Headers::none()` keep `Retry-After`?
//!
//! It is not a rate limit header, but part of HTTP's 429 and 503. The body contains the same number, and a client without it
//! comes back at once. `retry_after(false)` removes it.

use http::HeaderName;

/// The rate limit headers of a layer's responses: one family, several, or none.
///
/// Responses to admitted and to denied requests carry them. They are omitted when no count is available. During an outage they
/// contain the counts of this process alone, which are the ones that limit the client. Times run from the decision, and not from
/// the end of the handler.
///
/// `Retry-After` contains whole seconds, rounded up, at least 1. Every denial that ends with time has it, whichever families are
/// chosen, also with [`Headers::none`]. A client that comes back then, and alone, is admitted by all policies of the decision:
/// [`Decision::retry_after`](crate::Decision::retry_after) describes the wait, and what it cannot include.
/// [`retry_after_jitter`](crate::builder::RateLimitLayerBuilder::retry_after_jitter) prolongs it at random, so that clients that
/// are denied together do not come back together.
///
/// # Beside headers that are there already
///
/// The inner service may have set some of these headers, for example an upstream behind a proxy or another layer
/// inside.
///
/// - Limit, remaining and reset are written together or not at all. If the inner service has set one of them, none is added, since
///   its limit and our reset would describe different policies. If a layer inside has written them, those of the policy with the
///   fewest remaining units stay. Those of a denial always stay.
/// - `RateLimit` and `RateLimit-Policy` of draft 11 are lists. Our policies are added after those in the list, unless the list
///   contains one of the same name. A list of another format stays as it is.
///
/// # Longest reset and wait
///
/// Both are at most the policy's window, rounded up to the unit of the header: the time that an empty bucket takes to fill up, the
/// length of the fixed window, or the period of the log. The exceptions are real waits:
///
/// - A [sliding window](crate::algorithm::Algorithm::SlidingWindow) of limit `L` resets within two periods, and may have a wait of
///   a period and, per unit of cost, `1/L` of one.
/// - A [log](crate::algorithm::Algorithm::SlidingLog) of more than 35 minutes gives a unit back up to a tick late. When a request is denied
///   within a tick of the charge that it waits for, `Retry-After` may be a second longer than the period.
/// - A [settlement](crate::rules::Rule::settle) can charge a key more than the limit. Reset and wait then last until that debt is
///   paid off.
///
/// # Examples
///
/// ```
/// use http::HeaderName;
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp, headers::{Headers, ResetFormat}};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp))
///     .headers(Headers::draft11().with(Headers::legacy().reset(ResetFormat::DeltaSeconds)))
///     .build()?;
///
/// // the names that X uses
/// let renamed = Headers::legacy().names(
///     HeaderName::from_static("x-rate-limit-limit"),
///     HeaderName::from_static("x-rate-limit-remaining"),
///     HeaderName::from_static("x-rate-limit-reset"),
/// );
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Headers {
    pub(super) families: Vec<Family>,
    pub(super) sends_retry_after: bool,
    /// `None` if rejections carry no reason.
    pub(super) reason: Option<ReasonDetail>,
    pub(super) shown_limit: ShownLimit,
}

/// The content of `X-RateLimit-Reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReasonDetail {
    Code,
    CodeAndPolicy,
}

/// Headers that one service or draft defines.
///
/// The file `families.rs` has the header names and values of each.
#[derive(Clone, Debug)]
pub(super) enum Family {
    Discord(DiscordHeaders),
    Draft06,
    Draft11,
    Legacy(LegacyHeaders),
}

impl Headers {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the narrowest policy. This is the default.
    pub fn legacy() -> LegacyHeaders {
        LegacyHeaders::default()
    }

    /// `RateLimit-Policy` and `RateLimit` by draft-ietf-httpapi-ratelimit-headers-11.
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=20;w=12, "day";q=1000;w=86400
    /// RateLimit: "burst";r=19;t=12, "day";r=400;t=34560
    /// ```
    ///
    /// | parameter | value |
    /// |---|---|
    /// | `q` | units that come back in `w` seconds |
    /// | `w` | whole seconds in which everything that can be taken at once comes back; omitted for limits on concurrency |
    /// | `qu` | the [unit](crate::Policy::unit) if it is not requests; `concurrent-requests` for limits on concurrency |
    /// | `r` | units that can be taken now |
    /// | `t` | seconds over which to spread the remaining units; if none remain, seconds until the next one |
    ///
    /// [`limit`](Self::limit) chooses another `q` and `w` for buckets. For a bucket `t` follows from its rate, for windows it ends when everything is back, at most after `w`. On a denial by the
    /// policy it is the wait.
    ///
    /// Both headers list all policies that the request was checked against: `RateLimit` begins with the narrowest one,
    /// `RateLimit-Policy` keeps the order of the layer. A denial omits each `t` that ends after `Retry-After`, which takes
    /// precedence. Numbers have at most 15 digits. The partition key is omitted, since it would disclose the client's key.
    ///
    /// A later draft may change the format. It will get its own function.
    pub fn draft11() -> Self {
        Self::of(Family::Draft11)
    }

    /// `RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds from now) of the narrowest policy, and `RateLimit-Policy`
    /// with all of them, by draft-ietf-httpapi-ratelimit-headers-06.
    ///
    /// ```text
    /// RateLimit-Policy: 20;w=12, 1000;w=86400
    /// ```
    ///
    /// `RateLimit-Policy` omits policies without a window, which the draft requires.
    pub fn draft06() -> Self {
        Self::of(Family::Draft06)
    }

    /// The headers of Discord's API: `X-RateLimit-Limit`, `-Remaining`, `-Reset`, `-Reset-After` and `-Bucket` of the narrowest
    /// policy, and `-Scope` and `-Global` on 429.
    pub fn discord() -> DiscordHeaders {
        DiscordHeaders::default()
    }

    /// No headers except `Retry-After`.
    pub fn none() -> Self {
        Self {
            families: Vec::new(),
            sends_retry_after: true,
            reason: None,
            shown_limit: ShownLimit::AtOnce,
        }
    }

    /// `X-RateLimit-Reason` on rejections: why the request was rejected, as a short code. Off by default.
    ///
    /// Add it to other headers: `Headers::legacy().with(Headers::reason())`.
    ///
    /// ```text
    /// X-RateLimit-Reason: rate_limited
    /// ```
    ///
    /// The codes are those of [`Rejection::code`](crate::rejection::Rejection::code): `forbidden`, `internal_error`,
    /// `body_unreadable`, `key_ambiguous`, `key_missing`, `rate_limited` and `unavailable`. They show nothing of the configuration. A response
    /// that has the header already keeps it.
    pub fn reason() -> Self {
        Self {
            reason: Some(ReasonDetail::Code),
            ..Self::none()
        }
    }

    /// As [`reason`](Self::reason), with the name of the policy that rejects the request, if one does.
    ///
    /// ```text
    /// X-RateLimit-Reason: rate_limited;policy="per-ip"
    /// ```
    ///
    /// Clients see the name, and so which of the limits they exceed. The value is an item with a parameter by RFC 9651.
    pub fn reason_with_policy() -> Self {
        Self {
            reason: Some(ReasonDetail::CodeAndPolicy),
            ..Self::none()
        }
    }

    /// Adds other headers. If two families write one header, the first family does.
    pub fn with(mut self, others: impl Into<Self>) -> Self {
        let others = others.into();
        self.families.extend(others.families);
        self.sends_retry_after &= others.sends_retry_after;
        self.reason = self.reason.or(others.reason);
        self.shown_limit = self.shown_limit.max(others.shown_limit);
        self
    }

    /// Sets which limit of a bucket all of these headers show: its burst, or its sustained quota.
    ///
    /// Default: [`ShownLimit::AtOnce`], the burst. See [`ShownLimit`].
    pub fn limit(mut self, shown: ShownLimit) -> Self {
        self.shown_limit = shown;
        self
    }

    /// Sets whether denials carry `Retry-After`.
    ///
    /// Default: yes.
    pub fn retry_after(mut self, is_sent: bool) -> Self {
        self.sends_retry_after = is_sent;
        self
    }

    fn of(family: Family) -> Self {
        Self {
            families: vec![family],
            ..Self::none()
        }
    }
}

impl Default for Headers {
    fn default() -> Self {
        LegacyHeaders::default().into()
    }
}

impl From<LegacyHeaders> for Headers {
    fn from(family: LegacyHeaders) -> Self {
        let shown_limit = family.shown_limit;
        Self::of(Family::Legacy(family)).limit(shown_limit)
    }
}

impl From<DiscordHeaders> for Headers {
    fn from(family: DiscordHeaders) -> Self {
        Self::of(Family::Discord(family))
    }
}

// === ShownLimit ===

/// The limit of a bucket that headers show.
///
/// A bucket has two: the units of a period, and the burst that can be taken at once. A plan of 60 a minute with a burst of 10, after
/// its first request:
///
/// | | `AtOnce` | `PerPeriod` |
/// |---|---|---|
/// | `X-RateLimit-Limit`, `RateLimit-Limit` of draft 06 | 10 | 60 |
/// | `X-RateLimit-Remaining`, `RateLimit-Remaining`, `r` | 9 | 9 |
/// | `RateLimit-Policy` of draft 11 | `q=10;w=10` | `q=60;w=60` |
/// | `RateLimit-Policy` of draft 06 | `10;w=10` | `60;w=60` |
///
/// Remaining and reset are the same with both. Remaining is the number of units that can be taken now, so it is 0 if and only if a
/// request of one unit is denied, and it begins at the burst. Clients that pace themselves by it are never denied. The reset is the time
/// at which the whole burst is back.
///
/// A bucket whose burst is larger than the units of its period shows the burst with both, so remaining is never above the limit.
/// Windows, logs and concurrency have one limit, which both show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ShownLimit {
    /// The units that can be taken at once: the burst.
    #[default]
    AtOnce,
    /// The units of a period, as a price list shows them.
    PerPeriod,
}

// === LegacyHeaders ===

/// Limit, remaining and reset of the narrowest policy, each in a header. Made by [`Headers::legacy`].
///
/// The limit is the number of units that can be taken at once, so for a bucket its burst, unless [`limit`](Self::limit) chooses its
/// sustained quota. The reset is the time at which all of them are back.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LegacyHeaders {
    /// Names of limit, remaining and reset. `None` for the default ones.
    pub(super) names: Option<Box<[HeaderName; 3]>>,
    pub(super) reset: ResetFormat,
    shown_limit: ShownLimit,
}

impl LegacyHeaders {
    /// Sets which limit of a bucket the headers show: its burst, or its sustained quota. Applies to all headers of the layer.
    ///
    /// Default: [`ShownLimit::AtOnce`], the burst. See [`ShownLimit`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp, headers::{Headers, ShownLimit}};
    ///
    /// // x-ratelimit-limit: 60
    /// let layer = RateLimitLayer::builder()
    ///     .policy(Policy::new("plan", Quota::per_minute(60).burst(10)).key(PeerIp))
    ///     .headers(Headers::legacy().limit(ShownLimit::PerPeriod))
    ///     .build()?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn limit(mut self, shown: ShownLimit) -> Self {
        self.shown_limit = shown;
        self
    }

    /// Sets the format of the reset.
    ///
    /// Default: [`ResetFormat::EpochSeconds`].
    pub fn reset(mut self, format: ResetFormat) -> Self {
        self.reset = format;
        self
    }

    /// Sets the names of the three headers.
    ///
    /// Default: `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    pub fn names(mut self, limit: HeaderName, remaining: HeaderName, reset: HeaderName) -> Self {
        self.names = Some(Box::new([limit, remaining, reset]));
        self
    }

    /// Adds other headers. If two families write one header, the first family does.
    pub fn with(self, others: impl Into<Headers>) -> Headers {
        Headers::from(self).with(others)
    }
}

/// Format of the time at which all units are back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetFormat {
    /// Seconds from now, rounded up, as Envoy sends it. Clients need no clock that agrees with the server's.
    DeltaSeconds,
    /// Milliseconds since the Unix epoch, rounded up.
    EpochMillis,
    /// Seconds since the Unix epoch, rounded up, as GitHub sends it.
    #[default]
    EpochSeconds,
}

// === DiscordHeaders ===

/// The headers of Discord's API. Made by [`Headers::discord`].
///
/// The bucket is the policy's name. Times have three decimals, rounded up.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct DiscordHeaders {
    pub(super) scopes: Vec<(String, DiscordScope)>,
}

impl DiscordHeaders {
    /// Sets the scope of a policy of the layer. A 429 contains it.
    ///
    /// Default: [`DiscordScope::User`].
    pub fn scope(mut self, policy: impl Into<String>, scope: DiscordScope) -> Self {
        self.scopes.push((policy.into(), scope));
        self
    }

    /// Adds other headers. If two families write one header, the first family does.
    pub fn with(self, others: impl Into<Headers>) -> Headers {
        Headers::from(self).with(others)
    }
}

/// The clients and resources that a limit covers, as Discord's API names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DiscordScope {
    /// All requests of a client, for any resource. `X-RateLimit-Global` is then `true`.
    Global,
    /// All requests for a resource, of any client.
    Shared,
    /// The requests of one client.
    #[default]
    User,
}
