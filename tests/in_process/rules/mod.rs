//! Which requests a policy counts.

mod requests;
