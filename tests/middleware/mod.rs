//! What a request through the layer waits and pays for, in process and on Redis.

mod outcomes;
mod queueing;
mod request_deadline;
mod request_hold;
mod settling;
mod waits;
pub(crate) mod witness;
