//! What holds for the whole crate: its architecture, complete lists, and the environment of the tests.

mod architecture;
mod lists;
mod support;
