//! Misconfigurations that only show at run time, each with a code and a remedy.
//!
//! A setting that is wrong on its own fails at `build()`. A setting that is wrong in its surroundings (behind a proxy,
//! inside another layer, with this Redis server) works, but limits the wrong clients without an error. Such settings
//! are detected when a layer is built, in the first 1,000 requests of each rule and list, and in the first replies of a
//! server. Each is logged once, with its code, and kept in
//! [`RateLimitLayer::warnings`](crate::RateLimitLayer::warnings).
//!
//! | code | [`Code`] | finding | remedy |
//! |---|---|---|---|
//! | TG001 | [`NoPeerAddress`](Code::NoPeerAddress) | the request has no peer address | with axum, serve `into_make_service_with_connect_info::<SocketAddr>()`; otherwise insert a `SocketAddr` into the request's extensions |
//! | TG002 | [`MissingKey`](Code::MissingKey) | the request has no key | make clients or outer layers send the key, exactly once, or set `on_missing_key` |
//! | TG003 | [`ForwardedIgnored`](Code::ForwardedIgnored) | the request has a header such as `X-Forwarded-For`, but is counted by its peer address, or compared by it with a list of networks | behind a proxy, use [`ClientIp`](crate::extract::ClientIp) with the trusted proxies, or `client_ip` in a rule file |
//! | TG004 | [`ForwardedUntrusted`](Code::ForwardedUntrusted) | the peer that sent such a header is not trusted | add the address to the trusted proxies if it is yours |
//! | TG005 | [`SingleKey`](Code::SingleKey) | the first 1,000 requests came from many clients but had the same key | check the key extractor; if one key is intended, use `Global` or silence the code |
//! | TG006 | [`ChargedTwice`](Code::ChargedTwice) | two layers charged one request under the same policy name | remove one layer, or give the policies different names |
//! | TG007 | [`EvictingServer`](Code::EvictingServer) | the Redis server evicts keys when its memory is full, which resets clients in debt | `CONFIG SET maxmemory-policy noeviction`, or use a dedicated server |
//! | TG008 | [`ClockSkew`](Code::ClockSkew) | the clocks of this process and of the Redis server differ by more than 5 seconds | synchronize both with NTP |
//! | TG009 | [`SeveralSlots`](Code::SeveralSlots) | in a Redis cluster, two policies of one request have keys in different slots, though the keys have a part in common | put one key in the slot of the other by [`in_slot_of`](crate::extract::KeyExtractor::in_slot_of) |
//! | TG010 | [`IncompatibleTier`](Code::IncompatibleTier) | the policy's algorithm cannot count the quota of a tier; the policy's own quota applies | give the tier a quota that fits the policy's algorithm and cost |
//! | TG011 | [`AmbiguousKey`](Code::AmbiguousKey) | the request has its key more than once, or in contradicting places | such requests get 400; if a gateway adds the header, make it replace the client's |
//! | TG012 | [`NoRoute`](Code::NoRoute) | [`Route`](crate::extract::Route) runs before a router has matched the request | add the layer to the router, with `Router::layer` or with `route_layer` after the routes |
//! | TG013 | [`NestedPath`](Code::NestedPath) | a path pattern begins with the prefix of `Router::nest`, which is stripped where the layer runs | remove the prefix from the pattern, or add the layer to the outer router |
//! | TG014 | [`UnsettledPolicy`](Code::UnsettledPolicy) | a handler set the cost of a policy that no layer around it settles | check the spelling of the policy's name, and give its rule a [`settle`](crate::rules::Rule::settle) closure |
//! | TG015 | [`UnreachableSlots`](Code::UnreachableSlots) | a Redis cluster has slots that no node decides on, since no node has them, they are half moved, or nodes redirect in a circle; or at a node that cannot be reached at the address that the cluster gives | `redis-cli --cluster check` names such slots, and `--cluster fix` mends those that are half moved; check the addresses that nodes announce, and give a URL in place of a pool; until then keys in these slots are decided by `on_outage` |
//! | TG016 | [`UnregisteredInstance`](Code::UnregisteredInstance) | this instance cannot be registered in Redis | grant the user the [rights](crate::remote#permissions) if it lacks one; until then each instance admits the whole quota while Redis is unavailable |
//! | TG017 | [`UpgradedConnection`](Code::UpgradedConnection) | a concurrency policy counted a request whose connection was upgraded, such as to a WebSocket: the slot was released at the upgrade | hold a slot in the connection's task instead: see [`Policy::concurrency`](crate::Policy#websockets) |
//! | TG018 | [`ShortBan`](Code::ShortBan) | the first ban of a [`Penalty`](crate::penalty::Penalty) may end before the wait that a denied request has without it | make the first ban longer than the window of the quota, or than the time of one request |
//! | TG019 | [`TooManyBlocks`](Code::TooManyBlocks) | Redis has more blocks than the 100,000 that an instance holds | unblock some, or forbid a larger group by a rule; until then some blocks do not hold |
//! | TG020 | [`RefusingServer`](Code::RefusingServer) | the Redis server refuses every decision: it lacks a command, or the user a right | use a server with `EVALSHA` and grant the user the [rights](crate::remote#permissions); until then `on_outage` applies, and with `Local` each instance admits the whole quota if it never was registered |
//! | TG021 | [`ForeignValue`](Code::ForeignValue) | a key of tollgate in Redis holds a value that tollgate did not write | choose another prefix, or delete the key; until then `on_outage` applies to that key |
//!
//! Codes keep their meaning; new codes get new numbers.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Policy, Quota, RateLimitLayer, diagnosis::Code, extract::Header};
//!
//! let layer = RateLimitLayer::builder()
//!     .policy(Policy::new("host", Quota::per_second(100)).key(Header::new("host")))
//!     .silence(Code::SingleKey) // there is only one host so far
//!     .build()?;
//! for warning in layer.warnings() {
//!     println!("{}: {warning}", warning.code());
//! }
//! # Ok::<(), tollgate::Error>(())
//! ```

use std::fmt;

use crate::{log, outside_text::shown, state::PolicyName, sync::Mutex};

/// The code of a misconfiguration. The [module docs](self) list findings and remedies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Code {
    /// TG001: a request has no peer address.
    NoPeerAddress,
    /// TG002: a request has no key.
    MissingKey,
    /// TG003: a request has a header such as `X-Forwarded-For`, and its peer address is used.
    ForwardedIgnored,
    /// TG004: a request has a forwarding header, from a peer that is not trusted.
    ForwardedUntrusted,
    /// TG005: many clients are counted under one key.
    SingleKey,
    /// TG006: two layers charge one request under the same policy name.
    ChargedTwice,
    /// TG007: the Redis server evicts keys.
    EvictingServer,
    /// TG008: the clocks of the Redis server and of this process differ.
    ClockSkew,
    /// TG009: two policies of one request have keys in different slots of a cluster, though the keys have a part in common.
    SeveralSlots,
    /// TG010: the policy's algorithm cannot count the quota of a tier.
    IncompatibleTier,
    /// TG011: a request has its key more than once, or in contradicting places.
    AmbiguousKey,
    /// TG012: the matched route is read before a router has matched the request.
    NoRoute,
    /// TG013: a path pattern begins with a prefix that nesting has stripped.
    NestedPath,
    /// TG014: a handler set the cost of a policy that no layer around it settles.
    UnsettledPolicy,
    /// TG015: a Redis cluster has slots that no node decides on, or that this store cannot reach.
    UnreachableSlots,
    /// TG016: this instance cannot be registered in Redis.
    UnregisteredInstance,
    /// TG017: the slot of a request was released when its connection was upgraded.
    UpgradedConnection,
    /// TG018: the first ban of a penalty may end before the wait that a denied request has without it.
    ShortBan,
    /// TG019: Redis has more blocks than an instance holds.
    TooManyBlocks,
    /// TG020: the Redis server refuses every decision, and waiting does not help.
    RefusingServer,
    /// TG021: a key in Redis holds a value that tollgate did not write.
    ForeignValue,
}

impl Code {
    /// All codes, by number.
    pub const ALL: [Self; 21] = [
        Self::NoPeerAddress,
        Self::MissingKey,
        Self::ForwardedIgnored,
        Self::ForwardedUntrusted,
        Self::SingleKey,
        Self::ChargedTwice,
        Self::EvictingServer,
        Self::ClockSkew,
        Self::SeveralSlots,
        Self::IncompatibleTier,
        Self::AmbiguousKey,
        Self::NoRoute,
        Self::NestedPath,
        Self::UnsettledPolicy,
        Self::UnreachableSlots,
        Self::UnregisteredInstance,
        Self::UpgradedConnection,
        Self::ShortBan,
        Self::TooManyBlocks,
        Self::RefusingServer,
        Self::ForeignValue,
    ];

    /// Returns the code as text, such as `TG001`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.entry().0
    }

    /// Returns the remedy: what to do about it, in one sentence.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        self.entry().1
    }

    const fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::NoPeerAddress => (
                "TG001",
                "with axum, serve into_make_service_with_connect_info::<SocketAddr>(); otherwise insert a SocketAddr \
                 into the request's extensions",
            ),
            Self::MissingKey => (
                "TG002",
                "make clients or outer layers send it, exactly once, or set on_missing_key for such requests",
            ),
            Self::ForwardedIgnored => (
                "TG003",
                "behind a proxy the peer is the proxy, so all clients share one count, and lists of networks do not find \
                 them: use ClientIp with the trusted proxies, as in ClientIp::behind([\"10.0.0.0/8\"]), or client_ip in a \
                 rule file",
            ),
            Self::ForwardedUntrusted => (
                "TG004",
                "if the peer is your proxy, add its address to the trusted proxies; until then all its clients share one \
                 count",
            ),
            Self::SingleKey => (
                "TG005",
                "check the key extractor; if one key is intended, use Global or silence TG005",
            ),
            Self::ChargedTwice => (
                "TG006",
                "remove one layer, or give the policies different names",
            ),
            Self::EvictingServer => (
                "TG007",
                "set maxmemory-policy noeviction, or use a dedicated server: evicting a key resets a client in debt",
            ),
            Self::ClockSkew => (
                "TG008",
                "synchronize both with NTP: reset times, calendar windows and counts during an outage depend on them",
            ),
            Self::SeveralSlots => (
                "TG009",
                "put one key in the slot of the other with in_slot_of, so that one script decides both",
            ),
            Self::IncompatibleTier => (
                "TG010",
                "give the tier a quota that fits the policy's algorithm and cost; until then the policy's own applies",
            ),
            Self::AmbiguousKey => (
                "TG011",
                "such requests get 400: if a gateway adds the header, make it replace the client's",
            ),
            Self::NoRoute => (
                "TG012",
                "add the layer to the router, with Router::layer or with route_layer after the routes, or use \
                 Route.or_unmatched()",
            ),
            Self::NestedPath => (
                "TG013",
                "remove the prefix of nest() from the pattern, or add the layer to the outer router",
            ),
            Self::UnsettledPolicy => (
                "TG014",
                "check the spelling of the policy's name, and give its rule a settle closure; until then the charge stands",
            ),
            Self::UnreachableSlots => (
                "TG015",
                "redis-cli --cluster check names such slots, and --cluster fix mends those that are half moved; check the \
                 addresses that nodes announce, and give a url in place of a pool; until then keys in these slots are \
                 decided by on_outage",
            ),
            Self::UnregisteredInstance => (
                "TG016",
                "if a right is missing, grant the redis user those in the docs of tollgate::remote; until then each instance \
                 admits the whole quota while redis is unavailable",
            ),
            Self::UpgradedConnection => (
                "TG017",
                "to limit open connections, hold a slot in the connection's task, as in the docs of Policy::concurrency; if \
                 only handshakes are to be limited, silence TG017",
            ),
            Self::ShortBan => (
                "TG018",
                "make the first ban longer than the window of the quota, or than the time of one request; until then \
                 clients notice no ban before it has grown",
            ),
            Self::TooManyBlocks => (
                "TG019",
                "unblock some, or forbid a larger group by a rule; until then some blocks do not hold",
            ),
            Self::RefusingServer => (
                "TG020",
                "use a server that has EVALSHA, and grant the redis user the rights in the docs of tollgate::remote; until \
                 then on_outage applies, and each instance that never was registered admits the whole quota",
            ),
            Self::ForeignValue => (
                "TG021",
                "choose another prefix, or delete the key; until then on_outage applies to that key",
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

/// A misconfiguration that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    code: Code,
    policy: Option<PolicyName>,
    detail: String,
}

impl Warning {
    /// Creates a warning, for a custom [`Store`](crate::store::Store).
    ///
    /// `detail` describes the finding. It must not contain a key or an address. It is kept on one line, and without its
    /// middle above 1,024 bytes.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            policy: None,
            detail: shown(&detail.into(), MAX_DETAIL),
        }
    }

    /// Sets the policy that the warning is about.
    ///
    /// Default: none.
    #[must_use]
    pub fn with_policy(mut self, policy: PolicyName) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the policy that the warning is about, if it is a single one.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicyName> {
        self.policy.as_ref()
    }

    /// Returns the description of the finding. It never contains a key or an address.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl fmt::Display for Warning {
    /// Writes the policy, the finding and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = &self.policy {
            write!(f, "policy {policy}: ")?;
        }
        write!(f, "{}; {}", self.detail, self.code.remedy())
    }
}

const MAX_DETAIL: usize = 1_024;

// === WarningLog ===

/// The warnings of one layer or store: each code at most once per policy.
#[derive(Debug, Default)]
pub(crate) struct WarningLog {
    silenced: SilencedCodes,
    warnings: Mutex<Vec<Warning>>,
}

impl WarningLog {
    pub(crate) fn new(silenced: SilencedCodes) -> Self {
        Self {
            silenced,
            warnings: Mutex::default(),
        }
    }

    /// Logs and keeps a warning, unless it is a repetition or silenced.
    #[cold]
    pub(crate) fn report(&self, warning: Warning) {
        if self.is_silenced(warning.code) {
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

    /// Returns whether a code is silenced.
    pub(crate) fn is_silenced(&self, code: Code) -> bool {
        self.silenced.contains(code)
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        self.warnings.lock().clone()
    }
}

/// A set of codes that are not reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SilencedCodes(u32);

impl SilencedCodes {
    pub(crate) fn with(self, code: Code) -> Self {
        Self(self.0 | code.bit())
    }

    fn contains(self, code: Code) -> bool {
        self.0 & code.bit() > 0
    }
}
