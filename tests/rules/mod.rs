//! Which requests a policy counts, at what cost, and in which mode.

mod modes;
mod requests;
