//! What holds for the whole crate: its architecture, and complete lists.

mod architecture;
mod lists;
mod public_items;
