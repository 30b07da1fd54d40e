//! The keys that are denied most often.

mod counts;
mod exact;
mod snapshots;
