//! Which requests a policy counts.

mod requests;
mod reserves;
mod short_forms;
