//! What happens while the shared store is away.
//!
//! # When a store is given up
//!
//! A circuit breaker watches every decision. It opens after 5 failures in a row that last for a deadline, or when half of
//! at least 20 decisions of the last 10 seconds failed or took longer than half the deadline. Callers who leave early
//! count as failures when nobody has had an answer for a deadline. While it is open no request waits at all: each policy
//! does what its [`OnOutage`](crate::OnOutage) says. One background task probes the store (with a script call that
//! writes, so a read-only replica does not pass), first after half a second, then at doubling intervals up to 10
//! seconds, with jitter; after two probes in a row that were good and quick the store decides again.
//!
//! A single decision that fails while the breaker is closed falls back in the same way. It is not asked again: the
//! charge may have been made.
//!
//! # What the local limiter promises
//!
//! It counts in this process with the same quota. So with `n` instances the fleet may admit up to `n` times the quota
//! during an outage, and each instance starts with what it counted itself before, not with what the store knew.
//! Policies that must never be exceeded take [`OnOutage::Refuse`](crate::OnOutage::Refuse).

mod backoff;
mod breaker;
mod chain;
mod outage;
mod probe;
mod store;

pub use self::store::{ResilientStore, ResilientStoreBuilder};
