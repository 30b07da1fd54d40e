//! Sends decisions to the server, and hands replies to those who wait.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, LazyLock},
    task::Poll,
    time::Duration,
};

use redis::{Cmd, RedisResult, Value};
use tokio::{runtime::Handle, task::yield_now};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
};

use super::{
    super::{
        connection::{Held, Lane, classify, server_check},
        node::Node,
        protocol::{Reply, Request, Script, reply},
    },
    queue::{Answer, JobResult},
    traffic::{Alarm, Call, Entered, Gatherer, Taken},
};

/// Decides a request, together with whatever else waits.
///
/// # Cancel safety
///
/// Dropped before the request is sent, nothing is charged; afterwards the charge may have been made.
pub(in crate::remote) async fn ask(node: &Arc<Node>, request: Request) -> Result<Reply, Error> {
    let runtime = Handle::try_current().map_err(classify::no_runtime)?;
    node.watch.ensure(node)?;
    let asked_at = now();
    let (mut request, mut entered_at) = (request, asked_at);
    // A request that was not sent is sent by another: each lane may find its connection gone.
    for _ in 0..node.traffic.lanes().len() + 2 {
        match node.traffic.enter(request, asked_at, entered_at) {
            Entered::Lead(call, alarm, led) => match lead(node, call, &alarm, &led).await {
                Some(result) => return result,
                None => request = led,
            },
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
                    Ok(JobResult::NotSent(left)) => request = *left,
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
    let worker = Worker::leading(node, call);
    let sending = async {
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
    };
    match worker.watched(call, &alarm, sending).await {
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
    request: &Request,
) -> Option<Result<Reply, Error>> {
    let mut worker = Worker::leading(node, call);
    match worker
        .exchange(call, alarm, std::slice::from_ref(request))
        .await
    {
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
    requests: Vec<Request>,
}

/// What became of a call.
enum Exchanged {
    Failed(Error),
    NotSent,
    Replied(Vec<Result<Reply, Error>>),
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

    /// Makes one call for all requests. Gives the connection up if it is to blame for a failure.
    async fn exchange(&mut self, call: Call, alarm: &Alarm, requests: &[Request]) -> Exchanged {
        let held = self.lane(call).held();
        // It went down since the call was noted, or another took its place.
        let held = held.filter(|held| held.generation == call.generation);
        let Some(mut held) = held else {
            self.end(call, false);
            return Exchanged::NotSent;
        };
        let called = now();
        let sending = send(&self.node, &mut held, requests);
        let replied = self.watched(call, alarm, sending).await;
        let took = now().since(called);
        let Some(replied) = replied else {
            let late = self.node.late(Phase::Reply);
            if !self.leads {
                self.end(call, false);
            }
            return Exchanged::Failed(late);
        };
        let is_closed = held.is_closed;
        let is_in_time = self.end(call, !is_closed);
        if is_closed {
            self.lane(call).disconnect(call.generation, None);
            return Exchanged::NotSent;
        }
        let parsed = match replied {
            Ok(reply) => reply::parse(&reply, requests.iter().map(Request::reply_lens))
                // Another reply than the one asked for: requests and replies may have got out of step.
                .map_err(|error| (error, true)),
            Err(error) => Err(classify::judge(error)),
        };
        match parsed {
            Ok(replies) => {
                self.check_server(call, called, &replies);
                if is_in_time {
                    self.report(took, &replies);
                }
                Exchanged::Replied(replies)
            }
            Err((error, is_broken)) => {
                if is_broken {
                    self.lane(call).disconnect(call.generation, Some(&error));
                }
                if is_in_time {
                    self.node.report_failure(&error);
                }
                Exchanged::Failed(error)
            }
        }
    }

    /// Polls a call until it ends. `None` if its time is up, or its connection was given up.
    ///
    /// A call whose time is up is awaited further unless its caller leads: a late reply shows that the connection lives.
    async fn watched<T>(
        &self,
        call: Call,
        alarm: &Alarm,
        sending: impl Future<Output = T>,
    ) -> Option<T> {
        let mut sending = pin!(sending);
        poll_fn(|context| {
            alarm.register(context);
            if let Poll::Ready(result) = sending.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
            if alarm.is_due()
                && let Some(answers) = self.node.traffic.expire(call, now())
            {
                let late = self.node.late(Phase::Reply);
                self.node.report_failure(&late);
                for job in answers {
                    answer(job, Err(late.clone()));
                }
                if self.leads {
                    return Poll::Ready(None);
                }
            }
            match alarm.is_mute() {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// Notes the end of the call. Returns whether its jobs were still waiting for the reply.
    fn end(&mut self, call: Call, replied: bool) -> bool {
        self.call = None;
        let ended = self.node.traffic.end(call, now(), replied);
        self.answers = ended.answers;
        self.gatherer = ended.gatherer;
        ended.in_time
    }

    /// Reports a call that was answered.
    fn report(&self, took: Duration, replies: &[Result<Reply, Error>]) {
        let failed = replies.iter().find_map(|reply| match reply {
            Err(error) if error.kind() == ErrorKind::Unavailable => Some(error),
            _ => None,
        });
        if let Some(error) = failed {
            self.node.report_failure(error);
        } else if took <= self.node.deadline / 4 {
            self.node.report_answer(took);
        } else {
            report_slow(Arc::clone(&self.node), took);
        }
    }

    /// Compares clocks by the reply, and looks at the server's settings once.
    fn check_server(&self, call: Call, called: Timestamp, replies: &[Result<Reply, Error>]) {
        let check = &self.node.check;
        if self.node.clock.is_none()
            && let Some(Ok(reply)) = replies.first()
        {
            check.compare(called, reply.decided_at());
        }
        check.ask(|| self.lane(call).held());
    }

    fn lane(&self, call: Call) -> &Arc<Lane> {
        &self.node.traffic.lanes()[call.lane]
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            if self.leads {
                self.gatherer = self.node.traffic.abandon(call, now());
            } else {
                // Its runtime has ended. The charges may have been made.
                self.end(call, false);
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

/// Sends the script for all requests.
async fn send(node: &Node, held: &mut Held, requests: &[Request]) -> RedisResult<Value> {
    let now = node.clock.as_ref().map(Clock::now);
    if held.is_first {
        // The server may not know the script yet, and the round trip to find out would count against the deadline.
        return server_check::with_mode(held, &script(Script::DECIDE.by_text(), now, requests))
            .await;
    }
    match held
        .send(&script(Script::DECIDE.by_hash(), now, requests))
        .await
    {
        // A restarted or flushed server: nothing was done, so it is safe to ask again.
        Err(error) if classify::is_unknown_script(&error) => {
            let reply = held
                .send(&script(Script::DECIDE.by_text(), now, requests))
                .await;
            // Time has passed, and another connection would be given a deadline of its own.
            held.is_closed = false;
            reply
        }
        result => result,
    }
}

fn script(mut command: Cmd, now: Option<Timestamp>, requests: &[Request]) -> Cmd {
    command.arg(requests.iter().map(Request::charges).sum::<usize>());
    for request in requests {
        request.write_keys(&mut command);
    }
    if let Some(now) = now {
        command.arg(b"@").arg(now.as_micros());
    }
    for request in requests {
        request.write_arguments(&mut command);
    }
    command
}

/// Reports a slow call, less the time that this process took to notice its parts.
///
/// A call takes three turns of the runtime: one to write it, one to read the reply, and one to run its task. On a busy
/// runtime each of them waits for all other tasks that are ready, and so does a task that yields.
fn report_slow(node: Arc<Node>, took: Duration) {
    let yielded = now();
    let reporting = async move {
        yield_now().await;
        let turns = now().since(yielded) * 3;
        node.report_answer(took.saturating_sub(turns));
    };
    drop(tokio::spawn(reporting));
}

fn answer(job: Answer, result: Result<Reply, Error>) {
    let _ = job.send(JobResult::Replied(result));
}

/// Lets a caller ask again.
fn hand_back(job: Answer, request: Request) {
    let _ = job.send(JobResult::NotSent(Box::new(request)));
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
