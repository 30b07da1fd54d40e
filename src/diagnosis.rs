//! Mistakes of set-up that can only be seen at work, each with a code and what to do.
//!
//! What is wrong in itself fails at `build()`. What is wrong only where it stands (behind a proxy, inside another layer,
//! over this Redis server) works, counts the wrong people and says nothing, so it is looked for: in the first
//! 1,000 requests of each rule and list, in the first answers of a server. What is found is logged once, as a warning that
//! begins with its code, and kept: see [`RateLimitLayer::warnings`](crate::RateLimitLayer::warnings).
//!
//! | code | [`Code`] | what was seen | what to do |
//! |---|---|---|---|
//! | TG001 | [`NoPeerAddress`](Code::NoPeerAddress) | a request does not tell the address of its peer | with axum, serve `into_make_service_with_connect_info::<SocketAddr>()`; elsewhere put a `SocketAddr` into the request's extensions |
//! | TG002 | [`MissingKey`](Code::MissingKey) | a request does not tell whom to count | see that clients or outer layers send what the extractor looks at, once, or choose `on_missing_key` for such requests |
//! | TG003 | [`ForwardedIgnored`](Code::ForwardedIgnored) | a request bears `X-Forwarded-For` or `Forwarded`, and is counted by its peer | behind a proxy, count by [`ClientIp`](crate::extract::ClientIp) and name the proxies that are trusted |
//! | TG004 | [`ForwardedUntrusted`](Code::ForwardedUntrusted) | the peer that sent such a header is not trusted | add the proxy's address to the trusted ones, if it is yours |
//! | TG005 | [`OneBucket`](Code::OneBucket) | the first 1,000 requests had one key, though they came from many clients | look at what the extractor finds; if one key is meant, take `Global` or mute the code |
//! | TG006 | [`ChargedTwice`](Code::ChargedTwice) | two layers charged one request under one policy's name | take one layer away, or give the policies names of their own |
//! | TG007 | [`EvictingServer`](Code::EvictingServer) | the Redis server evicts keys when its memory is full, which forgives who is in debt | `CONFIG SET maxmemory-policy noeviction`, or a server of its own |
//! | TG008 | [`ClockOff`](Code::ClockOff) | the clocks of this process and of the Redis server differ by more than 5 seconds | let NTP set both |
//! | TG009 | | reserved for Redis Cluster | |
//! | TG010 | [`UnfitTier`](Code::UnfitTier) | a caller's tier cannot be counted in the way of the policy, whose own quota holds then | give the tier a quota that the policy's algorithm and cost allow |
//! | TG011 | [`AmbiguousKey`](Code::AmbiguousKey) | a request has its key more than once, or in places that contradict each other | such requests get 400; where a gateway adds the header, let it replace the client's |
//! | TG012 | [`NoRoute`](Code::NoRoute) | [`Route`](crate::extract::Route) is asked where no router has been yet | put the layer on the router, with `Router::layer` or `route_layer` after the routes |
//! | TG013 | [`NestedPath`](Code::NestedPath) | a path pattern begins with the prefix of `Router::nest`, which the path does not have where the layer is | write the pattern without the prefix, or put the layer on the outer router |
//! | TG014 | [`UnsettledPolicy`](Code::UnsettledPolicy) | a handler set the cost of a policy that no layer around it settles | spell the name as the policy does, and give its rule a [`settle`](crate::rules::Rule::settle) closure |
//!
//! Codes keep their meaning; new ones get new numbers.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Policy, Quota, RateLimitLayer, diagnosis::Code, extract::Header};
//!
//! let layer = RateLimitLayer::builder()
//!     .policy(Policy::new("host", Quota::per_second(100)).key(Header::new("host")))
//!     .mute(Code::OneBucket) // there is one host, and more are to come
//!     .build()?;
//! for warning in layer.warnings() {
//!     println!("{}: {warning}", warning.code());
//! }
//! # Ok::<(), tollgate::Error>(())
//! ```

use std::fmt;

use crate::{log, policy_name::PolicyName, sync::Mutex};

/// What was seen. The [module docs](self) have a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Code {
    /// TG001: a request does not tell the address of its peer.
    NoPeerAddress,
    /// TG002: a request does not tell whom to count.
    MissingKey,
    /// TG003: a forwarding header is there, and nobody looks at it.
    ForwardedIgnored,
    /// TG004: a forwarding header is there, from a peer that is not trusted.
    ForwardedUntrusted,
    /// TG005: many clients are counted under one key.
    OneBucket,
    /// TG006: two layers charge one request under one policy's name.
    ChargedTwice,
    /// TG007: the Redis server evicts keys.
    EvictingServer,
    /// TG008: the Redis server's clock is far from this process'.
    ClockOff,
    /// TG010: a tier cannot be counted in the way of its policy.
    UnfitTier,
    /// TG011: a request has its key more than once, or in places that contradict each other.
    AmbiguousKey,
    /// TG012: the matched route is asked for where no router has been yet.
    NoRoute,
    /// TG013: a path pattern begins with a prefix that nesting has taken off the path.
    NestedPath,
    /// TG014: a handler set the cost of a policy that no layer around it settles.
    UnsettledPolicy,
}

impl Code {
    /// All of them, by number.
    pub const ALL: [Self; 13] = [
        Self::NoPeerAddress,
        Self::MissingKey,
        Self::ForwardedIgnored,
        Self::ForwardedUntrusted,
        Self::OneBucket,
        Self::ChargedTwice,
        Self::EvictingServer,
        Self::ClockOff,
        Self::UnfitTier,
        Self::AmbiguousKey,
        Self::NoRoute,
        Self::NestedPath,
        Self::UnsettledPolicy,
    ];

    /// The code itself, such as `TG001`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.entry().0
    }

    /// What to do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        self.entry().1
    }

    const fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::NoPeerAddress => (
                "TG001",
                "with axum, serve into_make_service_with_connect_info::<SocketAddr>(); elsewhere put a SocketAddr into \
                 the request's extensions",
            ),
            Self::MissingKey => (
                "TG002",
                "see that clients or outer layers send it, once, or choose on_missing_key for such requests",
            ),
            Self::ForwardedIgnored => (
                "TG003",
                "behind a proxy all clients share one count so: count by ClientIp, and name the proxies that are \
                 trusted, as in ClientIp::behind([\"10.0.0.0/8\"])",
            ),
            Self::ForwardedUntrusted => (
                "TG004",
                "if the peer is your proxy, add its address to the trusted ones; all its clients share one count until \
                 then",
            ),
            Self::OneBucket => (
                "TG005",
                "look at what the extractor finds; if one key is meant, take Global or mute TG005",
            ),
            Self::ChargedTwice => (
                "TG006",
                "take one layer away, or give the policies names of their own",
            ),
            Self::EvictingServer => (
                "TG007",
                "set maxmemory-policy noeviction, or count on a server of its own: an evicted key forgives who is in \
                 debt",
            ),
            Self::ClockOff => (
                "TG008",
                "let NTP set both: reset times, calendar windows and counting in an outage go by them",
            ),
            Self::UnfitTier => (
                "TG010",
                "give the tier a quota that the policy's algorithm and cost allow; the policy's own holds until then",
            ),
            Self::AmbiguousKey => (
                "TG011",
                "such requests get 400: where a gateway adds the header, let it replace the client's",
            ),
            Self::NoRoute => (
                "TG012",
                "put the layer on the router, with Router::layer or route_layer after the routes, or take \
                 Route.or_unmatched()",
            ),
            Self::NestedPath => (
                "TG013",
                "write the pattern without the prefix of nest(), or put the layer on the outer router",
            ),
            Self::UnsettledPolicy => (
                "TG014",
                "spell the name as the policy does, and give its rule a settle closure; the charge stands until then",
            ),
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

// === Warning ===

/// Something that was seen, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    code: Code,
    policy: Option<PolicyName>,
    detail: String,
}

impl Warning {
    /// A warning with what was seen. Stores of your own make theirs with it.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            policy: None,
            detail: detail.into(),
        }
    }

    /// Sets the policy that it is about.
    #[must_use]
    pub fn about(mut self, policy: PolicyName) -> Self {
        self.policy = Some(policy);
        self
    }

    /// What was seen, to match on.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The policy that it is about, if it is about one.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicyName> {
        self.policy.as_ref()
    }

    /// What was seen, in words. It never holds a key or an address.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl fmt::Display for Warning {
    /// The policy, what was seen, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = &self.policy {
            write!(f, "policy {policy}: ")?;
        }
        write!(f, "{}; {}", self.detail, self.code.remedy())
    }
}

// === Ledger ===

/// The warnings of one layer or store: each code once per policy.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    muted: Muted,
    warnings: Mutex<Vec<Warning>>,
}

impl Ledger {
    pub(crate) fn new(muted: Muted) -> Self {
        Self {
            muted,
            warnings: Mutex::default(),
        }
    }

    /// Logs and keeps a warning, the first time.
    #[cold]
    pub(crate) fn report(&self, warning: Warning) {
        if self.mutes(warning.code) {
            return;
        }
        let mut warnings = self.warnings.lock();
        let same = |other: &Warning| other.code == warning.code && other.policy == warning.policy;
        if warnings.iter().any(same) {
            return;
        }
        warnings.push(warning.clone());
        drop(warnings);
        let (code, detail, remedy) = (warning.code, &warning.detail, warning.code.remedy());
        match warning.policy {
            Some(policy) => log::event!(
                WARN,
                "possible misconfiguration",
                code = code,
                policy = policy,
                detail = detail,
                remedy = remedy,
            ),
            None => log::event!(
                WARN,
                "possible misconfiguration",
                code = code,
                detail = detail,
                remedy = remedy,
            ),
        }
    }

    /// Whether a code is not to be reported.
    pub(crate) fn mutes(&self, code: Code) -> bool {
        self.muted.has(code)
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        self.warnings.lock().clone()
    }
}

/// Codes that are not reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Muted(u32);

impl Muted {
    pub(crate) fn with(self, code: Code) -> Self {
        Self(self.0 | code.bit())
    }

    fn has(self, code: Code) -> bool {
        self.0 & code.bit() > 0
    }
}
