//! The in-process store: bounds on memory, and exact results at those bounds.

mod admits;
mod algorithms;
mod capacity;
mod groups;
mod hot_key;
mod in_flight;
mod logs;
