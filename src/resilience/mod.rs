//! Decisions while the shared store is unavailable, slow, or overloaded.
//!
//! # When the breaker opens
//!
//! A circuit breaker judges the calls to the server. A call may carry many decisions, and only the time that the server and
//! the network took counts: dials and waits in this process do not. The breaker opens when
//!
//! | condition | cause, for example | with a deadline of 50 ms |
//! |---|---|---|
//! | 5 consecutive calls failed, over two deadlines (at least 100 ms, at most 1 s) | a server that is down or hangs | 150 ms after the server hung |
//! | the server refused 5 writes over the same time, with no successful write between them | a demoted primary, a server without memory | after 100 ms, however many denials it makes |
//! | 3 calls failed with a permanent error, each within 10 s of the one before | a cluster, a user without permission | at the third call |
//! | of the last 16 intervals of 250 ms with calls, 8 were bad and at most 60 s old: at least half of their calls failed or took more than half the deadline | a slow server, one bad connection of two | after 2 s |
//!
//! One stall ends many calls at once, so each condition but the third takes time: a single stall of 100 ms fails the decisions
//! that it delays and does not open the breaker. Decisions that fail while the breaker is closed are not retried, since the
//! charge may have been made: the [`OnOutage`](crate::OnOutage) setting of each policy applies.
//!
//! A custom [`Store`](crate::store::Store) that does not [report its calls](crate::store::Store::observe_calls) is
//! judged by its decisions. If no caller gets a reply for a deadline, callers who leave early count as failures.
//!
//! # While the breaker is open
//!
//! No request waits. One background task probes the store, at first every 50 to 100 ms, then at intervals that double up to 10
//! seconds. Each interval is shortened by up to half at random, so that a fleet does not probe in step. After a permanent
//! error, all intervals are long. If the breaker opens again within 10 s, the intervals continue where they were, so the
//! store may decide again up to 10 s late. A probe is a script call that does what decisions did before: it writes two keys in
//! different slots of a cluster, with every algorithm in use and its commands. So it fails on a read-only replica, on a
//! cluster, and for a user who lacks a command. After two consecutive probes that succeed within half of the deadline, the
//! breaker closes.
//!
//! The Redis store also calls and dials on its own, once or twice a second, while it has slots to release that no request
//! holds: those of decisions that got no reply or were dropped. That ends with their leases.
//!
//! # Overload
//!
//! A process may ask for more decisions than the server can make in time. Those that would come too late are not sent
//! ([`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded)): the `OnOutage` setting of each policy applies at once. They do
//! not count as failures of the store and do not open the breaker. [`Health`](crate::store::Health) counts them separately.
//!
//! A burst to a distant server can be too large even if the server is idle: 128 charges are sent at first, and up to twice as
//! many with each round trip. A decision that has waited for half of the deadline is shed. With the default deadline and
//! an optimized build, 300 decisions at once were all made over a round trip of 10 ms. A burst of 1,000 lost up to a fifth
//! over 5 ms, and up to 60 % over 10 ms. A longer deadline admits larger bursts.
//!
//! # Cost
//!
//! While the breaker is closed, a decision in Redis costs four atomic loads and one reference count more than without a
//! breaker: no lock, no timer and no allocation. The lock of the breaker is taken once per call to the server. A custom store
//! that does not report its calls costs an allocation, a timer and that lock per decision.
//!
//! # Limits during an outage
//!
//! The local limiter counts in this process with the same quota, apart from the count in Redis. Redis may have admitted a whole
//! quota just before an outage, and each instance admits another one. So `n` instances admit up to `n + 1` times the quota,
//! where Redis alone admits it once: one instance with 10 an hour admits up to 20. Further outages add nothing as long as Redis
//! keeps its counts, because each count continues where it was. Policies that must never be exceeded take
//! [`OnOutage::Deny`](crate::OnOutage::Deny).

mod breaker;
mod fallback;
mod monitor;
mod prober;
mod store;

pub use self::store::{ResilientStore, ResilientStoreBuilder};
