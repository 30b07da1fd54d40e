//! Which requests a policy counts.

mod requests;
mod short_forms;
