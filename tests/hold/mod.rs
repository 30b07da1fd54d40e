//! Charges of requests in flight: slots, leases and tickets.

mod concurrency;
mod holding;
mod leases;
