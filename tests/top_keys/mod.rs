//! The keys that are denied most often, by limiters with a server and in the whole fleet.

#[path = "../in_process/top_keys/exact.rs"]
mod exact;
mod recorded;
mod shared;
