//! Outages: the breaker, probes, and decisions without Redis.

pub(crate) mod breaker;
mod breaker_on_redis;
mod outage;
mod probing;
