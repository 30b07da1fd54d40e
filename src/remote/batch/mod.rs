//! Decisions of many callers, carried to the server in few calls.

mod queue;
mod worker;

pub(super) use self::queue::Queue;
pub(super) use self::worker::ask;
