//! Outages: the breaker, probes, and decisions without Redis.

mod breaker_on_redis;
mod outage;
mod probing;
