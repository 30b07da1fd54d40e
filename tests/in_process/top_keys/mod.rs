//! The keys that are denied most often.

mod counts;
mod exact;
mod interval_log;
mod snapshots;
