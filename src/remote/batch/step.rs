//! What those who take part in the traffic do next.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::clock::Timestamp;

use super::{
    super::protocol::Request,
    alarm::Alarm,
    calls::{Call, OverdueCalls},
    queue::{Answer, Job, JobResult},
};

/// The task that is about to send what waits. There is one at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gatherer {
    pub(super) number: u64,
    /// When it last took something, or began.
    pub(super) since: Timestamp,
}

/// What a caller does next.
pub(super) enum Entered {
    /// It calls the server in its own future.
    Lead(Call, Arc<Alarm>, Box<Request>),
    /// It waits, and starts the gatherer if there is one.
    Wait {
        answered: oneshot::Receiver<JobResult>,
        gatherer: Option<Gatherer>,
        shed: Option<Answer>,
    },
}

/// What a gatherer does next.
pub(super) enum Taken {
    /// It sends a batch. When `is_last`, it has stopped gathering.
    Batch {
        call: Call,
        alarm: Arc<Alarm>,
        #[expect(clippy::vec_box, reason = "each was boxed when it was asked for")]
        requests: Vec<Box<Request>>,
        is_last: bool,
        /// A lane without a connection that would be of use.
        dial: Option<usize>,
    },
    /// No lane has a connection.
    Down,
    /// It has stopped gathering.
    Nothing,
}

/// What is left to do when a call has ended.
pub(super) struct Ended {
    /// Where the results go. Empty if the deadline has passed, or the caller was the leader.
    pub(super) answers: Vec<Answer>,
    /// The caller is to gather next.
    pub(super) gatherer: Option<Gatherer>,
    /// Whether its jobs were still waiting for the reply.
    pub(super) in_time: bool,
}

/// What a look at the time has found.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// Jobs that waited for the whole deadline.
    pub(super) unsent: Vec<Answer>,
    /// Jobs to hand back to their callers, since nobody sends them.
    pub(super) stranded: Vec<Job>,
    pub(super) calls: OverdueCalls,
    /// When to look again; `None` if nothing waits and nothing is in flight.
    pub(super) next: Option<Timestamp>,
}
