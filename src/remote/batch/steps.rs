//! The next steps that the scheduler gives to callers, dispatchers and calls.

use tokio::sync::oneshot;

use crate::clock::Timestamp;

use super::{
    super::protocol::Request,
    calls::CallHandle,
    queue::{JobResult, Waiter},
};

/// Identifies the task that takes batches from the queue. At most one is current.
///
/// The watchdog replaces one that does not run, so a task checks with each batch whether it still is the current one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dispatcher {
    pub number: u64,
    /// When it started, or last took a batch.
    pub active_at: Timestamp,
}

/// The next step of a caller.
pub(super) enum Submitted {
    /// It makes the call in its own future.
    SendNow(CallHandle, Box<Request>),
    /// It waits.
    Queued {
        result: oneshot::Receiver<JobResult>,
        /// It starts the task of this dispatcher.
        dispatcher: Option<Dispatcher>,
        /// The oldest caller, since too many wait.
        shed: Option<Waiter>,
        /// Whether those that wait fill a call.
        fills_call: bool,
    },
}

/// The next step of a dispatcher.
pub(super) enum Dispatch {
    /// It sends this batch, or has another task send it.
    Send(Batch),
    /// No lane has a connection: it connects, and tries again.
    NotConnected,
    /// It stops.
    Nothing,
}

/// Requests to send in one call.
pub(super) struct Batch {
    pub call: CallHandle,
    #[expect(clippy::vec_box, reason = "each was boxed when it was made")]
    pub requests: Vec<Box<Request>>,
    /// Whether the dispatcher stops after it.
    pub is_last: bool,
    /// A lane without a connection, if all others are busy.
    pub lane_to_dial: Option<usize>,
}

/// The next steps after a call.
pub(super) struct EndedCall {
    /// The callers of its jobs. Empty if they have timed out, or if the call was in its caller's own future.
    pub waiters: Vec<Waiter>,
    /// The task of the call goes on as this dispatcher.
    pub dispatcher: Option<Dispatcher>,
    /// Whether its jobs still waited for the reply.
    pub in_time: bool,
}
