//! Hooks on decisions.

mod hooks;
