//! Carries waiting decisions to Redis, many in one call.

use std::sync::Arc;

use redis::{Cmd, RedisError, Value};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
};

use super::super::{
    connection::{Held, Lane, classify},
    protocol::{Reply, Request, Script, reply},
    shared::Shared,
};
use super::queue::{Fate, Job, Lease};

/// Decides a group of charges, together with whatever else waits.
///
/// # Cancel safety
///
/// Dropped before the group is sent, nothing is charged; afterwards the charge may have been made.
pub(in crate::remote) async fn ask(shared: &Arc<Shared>, group: Request) -> Result<Reply, Error> {
    // Timers would panic without one.
    let runtime = Handle::try_current().map_err(classify::no_runtime)?;
    let is_up = |lane: usize| shared.lanes[lane].is_up();
    // A leader does not dial: when its time is up and it is not, nobody polls it.
    if let Some(lease) = shared.queue.lead(shared.deadline, is_up) {
        let leader = Worker::new(shared, lease, true);
        // Gone down since the question, or while it was idle: the usual way dials.
        if let Some(mut held) = leader.lane().held() {
            let result = leader.lead(&mut held, &group).await;
            if !held.is_gone {
                return result;
            }
        }
    }
    match timeout(shared.deadline, follow(shared, group, &runtime)).await {
        Ok(result) => result,
        Err(_) => Err(shared.late(shared.phase())),
    }
}

/// Waits until a lane has carried a group.
async fn follow(
    shared: &Arc<Shared>,
    mut group: Request,
    runtime: &Handle,
) -> Result<Reply, Error> {
    // Each lane may find its connection gone. Not without end: on a runtime that is ending each new worker is dropped.
    for _ in 0..=shared.lanes.len() {
        let (answer, answered) = oneshot::channel();
        let job = Job { group, answer };
        let is_up = |lane: usize| shared.lanes[lane].is_up();
        if let Some(lease) = shared.queue.push(job, shared.patience(), is_up)? {
            runtime.spawn(Worker::new(shared, lease, false).run());
        }
        match answered.await {
            Ok(Fate::ChargeReply(result)) => return result,
            Ok(Fate::Unsent(left)) => group = *left,
            Err(_) => break,
        }
    }
    Err(Error::new(
        ErrorKind::Connect,
        "the runtime or the connection that carried the decision to redis ended",
    ))
}

/// Works on one lane until nothing waits. What arrives during a call goes in the next one: no timer, and no delay when
/// the lane is idle.
struct Worker {
    shared: Arc<Shared>,
    lease: Lease,
    /// It runs in the future of a decision that found the lane idle: one round trip, and no task for it.
    leads: bool,
    /// The call under way: when it was made, and on which connection.
    call: Option<(Timestamp, u64)>,
}

impl Worker {
    fn new(shared: &Arc<Shared>, lease: Lease, leads: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            lease,
            leads,
            call: None,
        }
    }

    fn lane(&self) -> &Arc<Lane> {
        &self.shared.lanes[self.lease.lane]
    }

    /// Carries one group; dropped, also in mid-call, it leaves the lane to a task for what has gathered meanwhile.
    async fn lead(mut self, held: &mut Held, group: &Request) -> Result<Reply, Error> {
        let verdicts = self.exchange(held, std::slice::from_ref(group)).await?;
        let verdict = verdicts.into_iter().next();
        verdict.expect("one verdict per group")
    }

    async fn run(mut self) {
        loop {
            let mut held = match self.lane().hold().await {
                Ok(held) => held,
                Err(error) => {
                    answer_all(self.shared.queue.give_up(&self.lease), &error);
                    return;
                }
            };
            let batch = self
                .shared
                .queue
                .take(&mut self.lease, self.shared.patience());
            if batch.is_empty() {
                return;
            }
            let (groups, answers): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|job| (job.group, job.answer)).unzip();
            // A caller who left meanwhile needs no answer; the charge stays.
            match self.exchange(&mut held, &groups).await {
                Ok(verdicts) => answers
                    .into_iter()
                    .zip(verdicts)
                    .for_each(|(answer, verdict)| {
                        let _ = answer.send(Fate::ChargeReply(verdict));
                    }),
                Err(_) if held.is_gone => groups.into_iter().zip(answers).for_each(hand_back),
                Err(error) => answers.into_iter().for_each(|answer| {
                    let _ = answer.send(Fate::ChargeReply(Err(error.clone())));
                }),
            }
        }
    }

    /// One call for all groups. Gives the connection up when it is to blame for a failure.
    async fn exchange(
        &mut self,
        held: &mut Held,
        groups: &[Request],
    ) -> Result<Vec<Result<Reply, Error>>, Error> {
        let called = Clock::system().now();
        self.call = Some((called, held.generation));
        let replied = timeout(self.shared.deadline, self.call(held, groups)).await;
        self.call = None;
        if held.is_doubtful && replied.is_ok() {
            self.lane().answered(held.generation);
        }
        let (error, is_broken) = match replied {
            Ok(Ok(reply)) => match reply::parse(&reply, groups.iter().map(Request::reply_lens)) {
                Ok(verdicts) => {
                    self.check_up(called, &verdicts);
                    return Ok(verdicts);
                }
                // Another reply than the one asked for: requests and replies may have got out of step.
                Err(error) => (error, true),
            },
            Ok(Err(error)) => classify::judge(error),
            // On a half-open connection the reply never comes: the next decision needs another.
            Err(_) => (self.shared.late(Phase::Reply), true),
        };
        if is_broken {
            self.lane().break_off(held.generation);
        }
        Err(error)
    }

    /// Looks at the server, by an answer to a call.
    fn check_up(&self, called: Timestamp, verdicts: &[Result<Reply, Error>]) {
        let check = &self.shared.check;
        if self.shared.clock.is_none()
            && let Some(Ok(verdict)) = verdicts.first()
        {
            check.compare(called, verdict.decided_at());
        }
        check.ask(|| self.lane().held());
    }

    async fn call(&self, held: &mut Held, groups: &[Request]) -> Result<Value, RedisError> {
        let clock = self.shared.clock.as_ref();
        let now = clock.map(Clock::now);
        match held
            .send(&command(Script::DECIDE.by_hash(), now, groups))
            .await
        {
            // A new, restarted or flushed server: nothing was done, so asking again is safe.
            Err(error) if classify::is_unknown_script(&error) => {
                let command = command(Script::DECIDE.by_text(), now, groups);
                let reply = held.send(&command).await;
                // Time has passed, and another connection would be given a deadline of its own.
                held.is_gone = false;
                reply
            }
            result => result,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some((called, generation)) = self.call {
            self.lane().left(generation, called, self.shared.deadline);
        }
        let queue = &self.shared.queue;
        // Only a leader has a successor: a task that is dropped goes with its runtime, and the next would too.
        if self.leads
            && queue.pass_on(&mut self.lease, self.shared.patience())
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(Self::new(&self.shared, self.lease, false).run());
            return;
        }
        // Their callers may be on runtimes that go on.
        let left = queue.give_up(&self.lease).into_iter();
        left.map(|job| (job.group, job.answer)).for_each(hand_back);
    }
}

fn command(mut command: Cmd, now: Option<Timestamp>, groups: &[Request]) -> Cmd {
    command.arg(groups.iter().map(Request::charges).sum::<usize>());
    for group in groups {
        group.write_keys(&mut command);
    }
    if let Some(now) = now {
        command.arg(b"@").arg(now.as_micros());
    }
    for group in groups {
        group.write_arguments(&mut command);
    }
    command
}

/// Lets a caller submit its group again.
fn hand_back((group, answer): (Request, oneshot::Sender<Fate>)) {
    let _ = answer.send(Fate::Unsent(Box::new(group)));
}

fn answer_all(jobs: impl IntoIterator<Item = Job>, error: &Error) {
    for job in jobs {
        let _ = job.answer.send(Fate::ChargeReply(Err(error.clone())));
    }
}
