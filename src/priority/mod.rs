//! Classes of requests.

pub(crate) mod priority;
