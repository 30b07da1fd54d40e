//! The codes of misconfigurations, and a remedy for each.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $remedy:literal;)*) => {
        /// The code of a misconfiguration. The [module docs](super) list findings and remedies.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All codes, by number.
            pub const ALL: [Self; TEXTS.len()] = [$(Self::$name),*];
        }

        /// The text and the remedy of each code.
        const TEXTS: &[(&str, &str)] = &[$(($code, $remedy)),*];
    };
}

codes! {
    /// TG001: a request has no peer address.
    NoPeerAddress = "TG001",
    "with axum, serve into_make_service_with_connect_info::<SocketAddr>(); otherwise insert a SocketAddr \
         into the request's extensions";
    /// TG002: a request has no key.
    MissingKey = "TG002",
    "make clients or outer layers send it, exactly once, or set on_missing_key for such requests";
    /// TG003: a request has a header such as `X-Forwarded-For`, and its peer address is used.
    ForwardedIgnored = "TG003",
    "behind a proxy the peer is the proxy, so all clients share one count, and lists of networks do not find \
         them: use ClientIp with the trusted proxies, as in ClientIp::behind([\"10.0.0.0/8\"]), or client_ip in a \
         rule file";
    /// TG004: a request has a forwarding header, from a peer that is not trusted.
    ForwardedUntrusted = "TG004",
    "if the peer is your proxy, add its address to the trusted proxies; until then all its clients share one \
         count";
    /// TG005: many clients are counted under one key.
    SingleKey = "TG005",
    "check the key extractor; if one key is intended, use Global or silence TG005";
    /// TG006: two layers charge one request under the same policy name.
    ChargedTwice = "TG006",
    "remove one layer, or give the policies different names";
    /// TG007: the Redis server evicts keys.
    EvictingServer = "TG007",
    "set maxmemory-policy noeviction, or use a dedicated server: evicting a key resets a client in debt";
    /// TG008: the clocks of the Redis server and of this process differ.
    ClockSkew = "TG008",
    "synchronize both with NTP: reset times, calendar windows and counts during an outage depend on them";
    /// TG009: two policies of one request have keys in different slots of a cluster, though the keys have a part in common.
    SeveralSlots = "TG009",
    "put one key in the slot of the other with co_located_with, so that one script decides both";
    /// TG010: the policy's algorithm cannot count the quota of a tier.
    IncompatibleTier = "TG010",
    "give the tier a quota that fits the policy's algorithm and cost; until then the policy's own applies";
    /// TG011: a request has its key more than once, or in contradicting places.
    AmbiguousKey = "TG011",
    "such requests get 400: if a gateway adds the header, make it replace the client's";
    /// TG012: the matched route is read before a router has matched the request.
    NoRoute = "TG012",
    "add the layer to the router, with Router::layer or with route_layer after the routes, or use \
         Route.or_unmatched()";
    /// TG013: a path pattern begins with a prefix that nesting has stripped.
    NestedPath = "TG013",
    "remove the prefix of nest() from the pattern, or add the layer to the outer router";
    /// TG014: a handler set the cost of a policy that no layer around it settles.
    UnsettledPolicy = "TG014",
    "check the spelling of the policy's name; a rule needs .settle_by_handler() or an outcome that it counts; until then \
         the cost is that of the rule";
    /// TG015: a Redis cluster has slots that no node decides on, or that this store cannot reach.
    UnreachableSlots = "TG015",
    "redis-cli --cluster check names such slots, and --cluster fix mends those that are half moved; check the \
         addresses that nodes announce, and give a url in place of a pool; until then keys in these slots are \
         decided by on_outage";
    /// TG016: this instance cannot be registered in Redis.
    UnregisteredInstance = "TG016",
    "if a right is missing, grant the redis user those in the docs of tollgate::remote; until then each instance \
         admits the whole quota while redis is unavailable";
    /// TG017: the slot of a request was released when its connection was upgraded.
    UpgradedConnection = "TG017",
    "to limit open connections, move a RequestHold into the connection's task, as in the docs of \
         Policy::concurrency; if only handshakes are to be limited, silence TG017";
    /// TG018: the first ban of a penalty may end before the wait that a denied request has without it.
    ShortBan = "TG018",
    "make the first ban longer than the window of the quota, or than the time of one request; until then \
         clients notice no ban before it has grown";
    /// TG019: Redis has more blocks than an instance holds.
    TooManyBlocks = "TG019",
    "unblock some, or forbid a larger group by a rule; until then some blocks do not hold";
    /// TG020: the Redis server refuses every decision, and waiting does not help.
    RefusingServer = "TG020",
    "use a server that has EVALSHA, and grant the redis user the rights in the docs of tollgate::remote; until \
         then on_outage applies, and each instance that never was registered admits the whole quota";
    /// TG021: a key in Redis holds a value that tollgate did not write.
    ForeignValue = "TG021",
    "choose another prefix, or delete the key; until then on_outage applies to that key";
}

impl Code {
    /// Returns the code as text, such as `TG001`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        TEXTS[self as usize].0
    }

    /// Returns the remedy: what to do about it, in one sentence.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        TEXTS[self as usize].1
    }

    pub(super) const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
