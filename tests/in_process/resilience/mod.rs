//! Outages: the breaker.

mod breaker;
