//! Which headers answers carry.

use http::HeaderName;

use super::merge::Names;

/// The rate limit headers of a layer's answers: one family, several, or none.
///
/// All are written on success and on denial. They are omitted when no count is available. During an outage they contain the counts
/// of this process alone, which are those that limit the client. Spans run from the decision, and not from the end of the handler.
///
/// `Retry-After` is whole seconds, rounded up, at least 1, and never early. It comes with every denial that waiting cures,
/// whichever family is chosen, and with none.
///
/// # Beside headers that are there already
///
/// The inner service may have set some of these headers: an upstream behind a proxy, or another layer inside.
///
/// - Limit, remaining and reset are written together or not at all. If the inner service has set one of them, none is added, since
///   its limit and our reset would describe different policies. If a layer inside has written them, those of the policy with the
///   fewest remaining units stay. Those of a denial always stay.
/// - `RateLimit` and `RateLimit-Policy` of draft 11 are lists. Our policies are added after those in the list, unless the list
///   contains one of the same name. A list of another format stays as it is.
///
/// # How long a reset or a wait is
///
/// At most the policy's window, rounded up to the unit of the header: the time in which the burst comes back, the fixed
/// window, or the period of the log. The exceptions are true waits:
///
/// - A [sliding window](crate::algorithm::Algorithm::SlidingWindow) of limit `L` resets within two periods, and may have a wait of
///   a period and, per unit of cost, `1/L` of one.
/// - A [log](crate::algorithm::SlidingLog) of more than 35 minutes gives a unit back up to a tick late. When a request is denied
///   within a tick of the charge that it waits for, `Retry-After` may be a second longer than the period.
/// - A debt beyond the limit, which a [settlement](crate::rules::Rule::settle) can make, takes as long as it takes.
///
/// # Examples
///
/// ```
/// use http::HeaderName;
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp, headers::{Headers, ResetFormat}};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("per-ip", Quota::per_minute(100)).key(PeerIp))
///     .headers(Headers::draft11().and(Headers::legacy().reset(ResetFormat::DeltaSeconds)))
///     .build()?;
///
/// // as X says it
/// let named = Headers::legacy().names(
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
    pub(super) tells_wait: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Family {
    Discord(DiscordHeaders),
    Draft06,
    Draft11,
    Legacy(LegacyHeaders),
}

impl Family {
    /// The names of the headers on the narrowest policy, which only make sense together.
    pub(super) fn names(&self) -> Names {
        match self {
            Self::Discord(_) => {
                let names = [LIMIT, REMAINING, RESET, RESET_AFTER, BUCKET, GLOBAL, SCOPE];
                names.into_iter().collect()
            }
            Self::Draft06 => Names::from_iter([DRAFT_LIMIT, DRAFT_REMAINING, DRAFT_RESET]),
            Self::Draft11 => Names::new(),
            Self::Legacy(legacy) => legacy.own_names(),
        }
    }
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
    /// `q` units come back in `w` seconds, the whole seconds in which all that can be taken at once comes back. `qu` is the
    /// [unit](crate::Policy::unit) if it is not requests; a limit on what is in flight has no window, and the unit
    /// `concurrent-requests`. `r` units can be had now, and are to be spread over the next `t` seconds: for a bucket that is its rate; when nothing is left, `t` is when there will be some; for
    /// windows it is when all is back, and at most `w`. On a denial by the policy, `t` is the wait.
    ///
    /// All policies asked are listed: in `RateLimit` the narrowest first, in `RateLimit-Policy` in the layer's order. On a
    /// denial a `t` behind `Retry-After` is left out, since that goes before it. Numbers end at 15 digits. There is no
    /// partition key: it would tell whom you count.
    ///
    /// A draft: what it says may change with a later one, which will then be another function.
    pub fn draft11() -> Self {
        Self::of(Family::Draft11)
    }

    /// `RateLimit-Limit`, `-Remaining` and `-Reset` (in so many seconds) of the narrowest policy, and `RateLimit-Policy`
    /// with all of them, by draft-ietf-httpapi-ratelimit-headers-06.
    ///
    /// ```text
    /// RateLimit-Policy: 20;w=12, 1000;w=86400
    /// ```
    ///
    /// Policies without a window are not in `RateLimit-Policy`, where it is required.
    pub fn draft06() -> Self {
        Self::of(Family::Draft06)
    }

    /// Discord's: `X-RateLimit-Limit`, `-Remaining`, `-Reset`, `-Reset-After` and `-Bucket` of the narrowest policy, and
    /// `-Scope` and `-Global` on 429.
    pub fn discord() -> DiscordHeaders {
        DiscordHeaders::default()
    }

    /// None but `Retry-After`.
    pub fn none() -> Self {
        Self {
            families: Vec::new(),
            tells_wait: true,
        }
    }

    /// These and those. Where two write one header, the first does.
    pub fn and(mut self, others: impl Into<Self>) -> Self {
        let others = others.into();
        self.families.extend(others.families);
        self.tells_wait &= others.tells_wait;
        self
    }

    /// Sets whether denials carry `Retry-After`.
    ///
    /// Default: yes.
    pub fn retry_after(mut self, tell: bool) -> Self {
        self.tells_wait = tell;
        self
    }

    fn of(family: Family) -> Self {
        Self {
            families: vec![family],
            tells_wait: true,
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
        Self::of(Family::Legacy(family))
    }
}

impl From<DiscordHeaders> for Headers {
    fn from(family: DiscordHeaders) -> Self {
        Self::of(Family::Discord(family))
    }
}

// === LegacyHeaders ===

/// Limit, remaining and reset of the narrowest policy, each in a header. Made by [`Headers::legacy`].
///
/// The limit is what can be taken at once, so for a bucket its burst. The reset is when all of it is back.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LegacyHeaders {
    /// Of limit, remaining and reset. `None` for the usual ones: constants are written faster than clones of names.
    pub(super) names: Option<Box<[HeaderName; 3]>>,
    pub(super) unit: ResetFormat,
}

impl LegacyHeaders {
    /// Sets how the reset is told.
    ///
    /// Default: [`ResetFormat::EpochSeconds`].
    pub fn reset(mut self, unit: ResetFormat) -> Self {
        self.unit = unit;
        self
    }

    pub(super) fn own_names(&self) -> Names {
        match self.names.as_deref() {
            Some(names) => names.iter().cloned().collect(),
            None => Names::from_iter([LIMIT, REMAINING, RESET]),
        }
    }

    /// Sets the names of the three headers.
    ///
    /// Default: `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    pub fn names(mut self, limit: HeaderName, remaining: HeaderName, reset: HeaderName) -> Self {
        self.names = Some(Box::new([limit, remaining, reset]));
        self
    }

    /// These and those. Where two write one header, the first does.
    pub fn and(self, others: impl Into<Headers>) -> Headers {
        Headers::from(self).and(others)
    }
}

/// How the time is told at which all is back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetFormat {
    /// In so many seconds, rounded up: as Envoy says it. Needs no clock that agrees with the server's.
    DeltaSeconds,
    /// Milliseconds since the Unix epoch, rounded up.
    EpochMillis,
    /// Seconds since the Unix epoch, rounded up: as GitHub says it.
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
    /// Sets whom a policy of the layer limits, which a 429 then tells.
    ///
    /// Default: [`DiscordScope::User`].
    pub fn scope(mut self, policy: impl Into<String>, scope: DiscordScope) -> Self {
        self.scopes.push((policy.into(), scope));
        self
    }

    /// These and those. Where two write one header, the first does.
    pub fn and(self, others: impl Into<Headers>) -> Headers {
        Headers::from(self).and(others)
    }

    pub(super) fn scope_of(&self, policy: &str) -> DiscordScope {
        let mut scopes = self.scopes.iter();
        let found = scopes.find(|(name, _)| name == policy);
        found.map_or(DiscordScope::User, |(_, scope)| *scope)
    }
}

/// Whom a limit is for, in Discord's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DiscordScope {
    /// All requests of the caller, whatever they are for; `X-RateLimit-Global` is true then.
    Global,
    /// A resource, whoever asks for it.
    Shared,
    /// The caller.
    #[default]
    User,
}

impl DiscordScope {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Shared => "shared",
            Self::User => "user",
        }
    }
}

pub(super) const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
pub(super) const DRAFT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(super) const DRAFT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(super) const DRAFT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
pub(super) const GLOBAL: HeaderName = HeaderName::from_static("x-ratelimit-global");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");
pub(super) const SCOPE: HeaderName = HeaderName::from_static("x-ratelimit-scope");
