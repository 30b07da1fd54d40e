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
//! | TG009 | [`SeveralSlots`](Code::SeveralSlots) | in a Redis cluster, two policies of one request have keys in different slots, though the keys have a part in common | put one key in the slot of the other by [`co_located_with`](crate::extract::KeyExtractor::co_located_with) |
//! | TG010 | [`IncompatibleTier`](Code::IncompatibleTier) | the policy's algorithm cannot count the quota of a tier; the policy's own quota applies | give the tier a quota that fits the policy's algorithm and cost |
//! | TG011 | [`AmbiguousKey`](Code::AmbiguousKey) | the request has its key more than once, or in contradicting places | such requests get 400; if a gateway adds the header, make it replace the client's |
//! | TG012 | [`NoRoute`](Code::NoRoute) | [`Route`](crate::extract::Route) runs before a router has matched the request | add the layer to the router, with `Router::layer` or with `route_layer` after the routes |
//! | TG013 | [`NestedPath`](Code::NestedPath) | a path pattern begins with the prefix of `Router::nest`, which is stripped where the layer runs | remove the prefix from the pattern, or add the layer to the outer router |
//! | TG014 | [`UnsettledPolicy`](Code::UnsettledPolicy) | a handler set the cost of a policy that no layer around it settles | check the spelling of the policy's name. Its rule needs [`settle_by_handler`](crate::rules::Rule::settle_by_handler), `settle`, or an outcome that it [counts](crate::rules::Rule::count_when) |
//! | TG015 | [`UnreachableSlots`](Code::UnreachableSlots) | a Redis cluster has slots that no node decides on, since no node has them, they are half moved, or nodes redirect in a circle; or at a node that cannot be reached at the address that the cluster gives | `redis-cli --cluster check` names such slots, and `--cluster fix` mends those that are half moved; check the addresses that nodes announce, and give a URL in place of a pool; until then keys in these slots are decided by `on_outage` |
//! | TG016 | [`UnregisteredInstance`](Code::UnregisteredInstance) | this instance cannot be registered in Redis | grant the user the [rights](crate::remote#permissions) if it lacks one; until then each instance admits the whole quota while Redis is unavailable |
//! | TG017 | [`UpgradedConnection`](Code::UpgradedConnection) | a concurrency policy counted a request whose connection was upgraded, such as to a WebSocket: the slot was released at the upgrade | move a [`RequestHold`](crate::middleware::RequestHold) into the connection's task: see [`Policy::concurrency`](crate::Policy#websockets) |
//! | TG018 | [`ShortBan`](Code::ShortBan) | the first ban of a [`Penalty`](crate::policy::Penalty) may end before the wait that a denied request has without it | make the first ban longer than the window of the quota, or than the time of one request |
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

mod code;
mod error_chain;
pub(crate) mod log;
pub(crate) mod outside_text;
mod warning;

pub use self::code::Code;
pub(crate) use self::error_chain::ErrorChain;
pub use self::warning::Warning;
pub(crate) use self::warning::{SilencedCodes, WarningLog};
