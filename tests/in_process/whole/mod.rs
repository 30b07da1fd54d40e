//! Tests of the whole crate: its architecture, complete lists, its public items, its package and its documents.

mod architecture;
mod difference;
mod docs;
mod lists;
mod package;
mod public_items;
