//! Outages: the breaker.

mod breaker;
mod full;
