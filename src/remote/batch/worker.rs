//! Sends decisions to the server, and hands replies to those who wait.

use std::{
    pin::pin,
    sync::{Arc, LazyLock},
};

use redis::{Cmd, Value};
use tokio::{runtime::Handle, task::yield_now};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
};

use super::{
    super::{
        connection::classify,
        node::Node,
        protocol::{Reply, Request},
    },
    alarm::Alarm,
    calls::Call,
    exchange::{Exchanged, exchange, watched},
    queue::{Answer, JobResult, answer},
    step::{Ended, Entered, Gatherer, Taken},
};

/// Decides a request, together with whatever else waits.
///
/// # Cancel safety
///
/// Dropped before the request is sent, nothing is charged; afterwards the charge may have been made.
pub(in crate::remote) async fn ask(
    node: &Arc<Node>,
    mut request: Box<Request>,
) -> Result<Reply, Error> {
    let runtime = Handle::try_current().map_err(classify::no_runtime)?;
    node.watch.ensure(node)?;
    let asked_at = now();
    let mut entered_at = asked_at;
    // A request that was not sent is sent by another: each lane may find its connection gone.
    for _ in 0..node.traffic.lanes().len() + 2 {
        match node.traffic.enter(request, asked_at, entered_at) {
            Entered::Lead(call, alarm, led) => {
                // Boxed: most decisions wait, and a call would make their futures ten times as large.
                match Box::pin(lead(node, call, &alarm, std::slice::from_ref(&led))).await {
                    Some(result) => return result,
                    None => request = led,
                }
            }
            Entered::Wait {
                answered,
                gatherer,
                shed,
            } => {
                if let Some(shed) = shed {
                    answer(shed, Err(overloaded()));
                }
                if let Some(gatherer) = gatherer {
                    runtime.spawn(Worker::gathering(node, gatherer).run(None));
                }
                match answered.await {
                    Ok(JobResult::Replied(result)) => return result,
                    Ok(JobResult::NotSent(left)) => request = left,
                    Err(_) => break,
                }
            }
        }
        entered_at = now();
    }
    Err(runtime_ended())
}

/// Sends a command that is not a decision, and waits for its reply.
pub(in crate::remote) async fn command(node: &Arc<Node>, command: &Cmd) -> Result<Value, Error> {
    Handle::try_current().map_err(classify::no_runtime)?;
    node.watch.ensure(node)?;
    let lanes = node.traffic.lanes();
    let up = lanes.iter().position(|lane| lane.generation().is_some());
    let lane = &lanes[up.unwrap_or(0)];
    let (call, alarm) = node.traffic.begin(now());
    let _ends = Worker::leading(node, call);
    let sending = pin!(async {
        let mut held = lane.hold(false).await?;
        let mut reply = held.send(command).await;
        if held.is_closed {
            lane.disconnect(held.generation, None);
            held = lane.hold(false).await?;
            reply = held.send(command).await;
        }
        reply.map_err(|error| {
            let (error, is_broken) = classify::judge(error);
            if is_broken {
                lane.disconnect(held.generation, Some(&error));
            }
            error
        })
    });
    match watched(node, call, &alarm, true, sending).await {
        Some(result) => result,
        None if node.traffic.is_up() => Err(node.late(Phase::Reply)),
        None => Err(node.late(Phase::Connect)),
    }
}

/// Makes a call for one request in the caller's own future. `None` if it was not sent.
async fn lead(
    node: &Arc<Node>,
    call: Call,
    alarm: &Alarm,
    requests: &[Box<Request>],
) -> Option<Result<Reply, Error>> {
    let mut worker = Worker::leading(node, call);
    match worker.exchange(call, alarm, requests).await {
        Exchanged::Failed(error) => Some(Err(error)),
        Exchanged::NotSent => None,
        Exchanged::Replied(replies) => {
            let reply = replies.into_iter().next();
            Some(reply.expect("one reply per request"))
        }
    }
}

// === Worker ===

/// A task that gathers what waits and makes calls, or a caller that makes its own call.
struct Worker {
    node: Arc<Node>,
    /// Whether it runs in its caller's own future.
    leads: bool,
    /// The call under way.
    call: Option<Call>,
    /// Set while it gathers, or is about to.
    gatherer: Option<Gatherer>,
    /// Where the replies to its call go. A leader returns them.
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
    fn leading(node: &Arc<Node>, call: Call) -> Self {
        Self {
            node: Arc::clone(node),
            leads: true,
            call: Some(call),
            gatherer: None,
            answers: Vec::new(),
        }
    }

    fn gathering(node: &Arc<Node>, gatherer: Gatherer) -> Self {
        Self {
            node: Arc::clone(node),
            leads: false,
            call: None,
            gatherer: Some(gatherer),
            answers: Vec::new(),
        }
    }

    fn carrying(node: &Arc<Node>, call: Call) -> Self {
        let mut worker = Self::leading(node, call);
        worker.leads = false;
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
    async fn exchange(
        &mut self,
        call: Call,
        alarm: &Alarm,
        requests: &[Box<Request>],
    ) -> Exchanged {
        let call = (call, alarm);
        let (exchanged, ended) = exchange(&self.node, call, self.leads, requests).await;
        if let Some(ended) = ended {
            self.note_end(ended);
        }
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
            if self.leads {
                self.gatherer = self.node.traffic.abandon(call, now());
            } else {
                // Its runtime has ended. The charges may have been made.
                let ended = self.node.traffic.end(call, now(), false);
                self.note_end(ended);
                for job in std::mem::take(&mut self.answers) {
                    answer(job, Err(runtime_ended()));
                }
            }
        }
        let Some(gatherer) = self.gatherer.take() else {
            return;
        };
        // Only a caller's future has a successor: a task that is dropped goes with its runtime, and the next would too.
        if self.leads
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(Self::gathering(&self.node, gatherer).run(None));
            return;
        }
        // Their callers may be on runtimes that go on.
        for job in self.node.traffic.give_up(gatherer) {
            hand_back(job.answer, job.request);
        }
    }
}

/// Lets a caller ask again.
fn hand_back(job: Answer, request: Box<Request>) {
    let _ = job.send(JobResult::NotSent(request));
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

fn runtime_ended() -> Error {
    Error::new(
        ErrorKind::Connect,
        "the runtime or the connection that carried the decision to redis ended",
    )
}

fn now() -> Timestamp {
    Clock::system().now()
}
