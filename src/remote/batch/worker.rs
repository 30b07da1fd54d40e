//! The tasks that send decisions to the server, and hand replies to those who wait.

use std::sync::{Arc, LazyLock};

use tokio::{runtime::Handle, task::yield_now};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
};

use super::{
    super::{node::Node, protocol::Request},
    alarm::Alarm,
    calls::Call,
    exchange::{Exchanged, exchange},
    queue::{Answer, answer, hand_back},
    step::{Ended, Gatherer, Taken},
};

/// A task that gathers what waits and makes calls, or a future that makes one call.
pub(super) struct Worker {
    node: Arc<Node>,
    /// Whether others take over what it was to gather.
    has_successor: bool,
    /// The call under way.
    call: Option<Call>,
    /// Set while it gathers, or is about to.
    gatherer: Option<Gatherer>,
    /// Where the replies to its call go.
    answers: Vec<Answer>,
}

/// A batch to send.
struct Batch {
    call: Call,
    alarm: Arc<Alarm>,
    #[expect(clippy::vec_box, reason = "each was boxed when it was asked for")]
    requests: Vec<Box<Request>>,
}

impl Worker {
    /// Makes a call in the current future.
    pub(super) fn calling(node: Arc<Node>, call: Call) -> Self {
        Self {
            node,
            has_successor: true,
            call: Some(call),
            gatherer: None,
            answers: Vec::new(),
        }
    }

    /// Gathers in a task of its own.
    pub(super) fn gather_on(runtime: &Handle, node: &Arc<Node>, gatherer: Gatherer) {
        let worker = Self {
            node: Arc::clone(node),
            has_successor: false,
            call: None,
            gatherer: Some(gatherer),
            answers: Vec::new(),
        };
        runtime.spawn(worker.run(None));
    }

    /// Makes a call in a task of its own, and gathers after it.
    fn carrying(node: &Arc<Node>, call: Call) -> Self {
        let mut worker = Self::calling(Arc::clone(node), call);
        worker.has_successor = false;
        worker
    }

    /// Runs as a task of the current runtime. Not part of an async function: a task starts tasks of its own kind.
    fn start(self, batch: Option<Batch>) {
        tokio::spawn(self.run(batch));
    }

    /// Gathers, sends and answers until nothing is left to send.
    async fn run(mut self, mut batch: Option<Batch>) {
        loop {
            match batch {
                Some(batch) => self.carry(batch).await,
                None if self.gatherer.is_none() => return,
                None => {}
            }
            batch = self.gather().await;
        }
    }

    /// Sends what waits, up to the last batch, which is returned for the caller to send.
    async fn gather(&mut self) -> Option<Batch> {
        let gatherer = self.gatherer?;
        // Everybody who is ready to run asks first, so that they travel together.
        yield_now().await;
        loop {
            let (taken, shed) = self.node.traffic.take(gatherer, now());
            for shed in shed {
                answer(shed, Err(overloaded()));
            }
            match taken {
                Taken::Batch {
                    call,
                    alarm,
                    requests,
                    is_last,
                    dial,
                } => {
                    if let Some(lane) = dial {
                        self.node.traffic.lanes()[lane].dial();
                    }
                    let batch = Batch {
                        call,
                        alarm,
                        requests,
                    };
                    if is_last {
                        self.gatherer = None;
                        return Some(batch);
                    }
                    Self::carrying(&self.node, call).start(Some(batch));
                }
                Taken::Down => {
                    let lane = Arc::clone(&self.node.traffic.lanes()[0]);
                    if let Err(error) = lane.hold(self.node.takes_no_backoff()).await {
                        self.gatherer = None;
                        self.node.report_failure(&error);
                        let error = error.into_unsent();
                        for job in self.node.traffic.give_up(gatherer) {
                            answer(job.answer, Err(error.clone()));
                        }
                        return None;
                    }
                }
                Taken::Nothing => {
                    self.gatherer = None;
                    return None;
                }
            }
        }
    }

    /// Sends a batch, and answers its jobs.
    async fn carry(&mut self, batch: Batch) {
        self.call = Some(batch.call);
        let requests = batch.requests;
        let exchanged = self.exchange(batch.call, &batch.alarm, &requests).await;
        // A caller who left meanwhile needs no answer; the charge stays.
        let answers = std::mem::take(&mut self.answers).into_iter();
        match exchanged {
            Exchanged::Failed(error) => {
                answers.for_each(|job| answer(job, Err(error.clone())));
            }
            Exchanged::NotSent => {
                let jobs = answers.zip(requests);
                jobs.for_each(|(job, request)| hand_back(job, request));
            }
            Exchanged::Replied(replies) => {
                let jobs = answers.zip(replies);
                jobs.for_each(|(job, reply)| answer(job, reply));
            }
        }
    }

    /// Makes the call under way.
    pub(super) async fn exchange(
        &mut self,
        call: Call,
        alarm: &Alarm,
        requests: &[Box<Request>],
    ) -> Exchanged {
        let call = (call, alarm);
        let (exchanged, ended) = exchange(&self.node, call, requests).await;
        self.note_end(ended);
        exchanged
    }

    fn note_end(&mut self, ended: Ended) {
        self.call = None;
        self.answers = ended.answers;
        self.gatherer = ended.gatherer;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            // Its runtime has ended. The charges may have been made.
            let ended = self.node.traffic.end(call, now(), false);
            self.note_end(ended);
            for job in std::mem::take(&mut self.answers) {
                answer(job, Err(runtime_ended()));
            }
        }
        let Some(gatherer) = self.gatherer.take() else {
            return;
        };
        // A task that is dropped goes with its runtime, and its successor would too.
        if self.has_successor
            && let Ok(runtime) = Handle::try_current()
        {
            Self::gather_on(&runtime, &self.node, gatherer);
            return;
        }
        // Their callers may be on runtimes that go on.
        for job in self.node.traffic.give_up(gatherer) {
            hand_back(job.answer, job.request);
        }
    }
}

/// The error of a decision that was shed. It is made once: overload is no time to allocate.
pub(in crate::remote) fn overloaded() -> Error {
    static ERROR: LazyLock<Error> = LazyLock::new(|| {
        Error::new(
            ErrorKind::Overloaded,
            "shed: more decisions wait for redis than it can make in time",
        )
    });
    ERROR.clone()
}

pub(super) fn runtime_ended() -> Error {
    Error::new(
        ErrorKind::Connect,
        "the runtime or the connection that carried the decision to redis ended",
    )
}

fn now() -> Timestamp {
    Clock::system().now()
}
