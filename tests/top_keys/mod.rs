//! The keys that are denied most often.

mod counts;
mod recorded;
mod shared;
mod snapshots;
