//! Carries waiting decisions to Redis, many in one call.

use std::sync::Arc;

use redis::{Cmd, RedisError, Value};
use tokio::{
    runtime::{Handle, TryCurrentError},
    sync::oneshot,
    time::timeout,
};

use crate::error::{Error, ErrorKind, Phase};

use super::{
    failure,
    lane::{Held, Lane},
    queue::{Job, Lease},
    script::Script,
    shared::Shared,
    wire::{self, Group, Verdict},
};

/// Decides a group of charges, together with whatever else waits.
///
/// # Cancel safety
///
/// Dropped before the group is sent, nothing is charged; afterwards the charge may have been made.
pub(super) async fn ask(shared: &Arc<Shared>, group: Group) -> Result<Verdict, Error> {
    let answered = submit(shared, group)?;
    match timeout(shared.deadline, answered).await {
        Ok(Ok(result)) => result,
        Ok(Err(abandoned)) => Err(Error::new(
            ErrorKind::Connect,
            "the runtime that carried the decision to redis ended",
        )
        .with_source(abandoned)),
        Err(_) => Err(shared.late(shared.phase())),
    }
}

/// Hands a group to a lane; the answer comes by the channel.
fn submit(
    shared: &Arc<Shared>,
    group: Group,
) -> Result<oneshot::Receiver<Result<Verdict, Error>>, Error> {
    let runtime = Handle::try_current().map_err(no_runtime)?;
    let (answer, answered) = oneshot::channel();
    let job = Job { group, answer };
    let is_up = |lane: usize| shared.lanes[lane].is_up();
    if let Some(lease) = shared.queue.push(job, shared.patience(), is_up)? {
        let worker = Worker {
            shared: Arc::clone(shared),
            lease,
        };
        runtime.spawn(worker.run());
    }
    Ok(answered)
}

/// Works on one lane until nothing waits. What arrives during a call goes in the next one: no timer, and no delay when
/// the lane is idle.
struct Worker {
    shared: Arc<Shared>,
    lease: Lease,
}

impl Worker {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let lane = &shared.lanes[self.lease.lane];
        loop {
            let mut held = match lane.hold().await {
                Ok(held) => held,
                Err(error) => {
                    answer_all(shared.queue.give_up(&self.lease), &error);
                    return;
                }
            };
            let batch = shared.queue.take(&mut self.lease, shared.patience());
            if batch.is_empty() {
                return;
            }
            self.carry(lane, &mut held, batch).await;
        }
    }

    /// One call for the whole batch. Gives the connection up when it is to blame for a failure.
    async fn carry(&self, lane: &Lane, held: &mut Held, batch: Vec<Job>) {
        let deadline = self.shared.deadline;
        let result = match timeout(deadline, self.call(held, &batch)).await {
            Ok(Ok(reply)) => {
                let charges = batch.iter().map(|job| job.group.charges());
                let verdicts = wire::verdicts(&reply, charges);
                // Another reply than the one asked for: requests and replies may have got out of step.
                verdicts.map_err(|error| (error, true))
            }
            Ok(Err(error)) => {
                let is_broken = failure::breaks_connection(&error);
                Err((failure::classify(error), is_broken))
            }
            // On a half-open connection the reply never comes: the next decision needs another.
            Err(_) => Err((self.shared.late(Phase::Reply), true)),
        };
        match result {
            Ok(verdicts) => {
                for (job, verdict) in batch.into_iter().zip(verdicts) {
                    // A caller who left meanwhile needs no answer; the charge stays.
                    let _ = job.answer.send(Ok(verdict));
                }
            }
            Err((error, is_broken)) => {
                if is_broken {
                    lane.break_off(held.generation);
                }
                answer_all(batch, &error);
            }
        }
    }

    async fn call(&self, held: &mut Held, batch: &[Job]) -> Result<Value, RedisError> {
        let now = self
            .shared
            .clock
            .as_ref()
            .map_or(0, |clock| clock.now().as_micros());
        match held
            .send(&command(Script::DECIDE.by_hash(), now, batch))
            .await
        {
            // A new, restarted or flushed server: nothing was done, so asking again is safe.
            Err(error) if failure::is_unknown_script(&error) => {
                held.send(&command(Script::DECIDE.by_text(), now, batch))
                    .await
            }
            result => result,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.queue.release(&self.lease);
    }
}

fn command(mut command: Cmd, now: u64, batch: &[Job]) -> Cmd {
    command.arg(batch.iter().map(|job| job.group.charges()).sum::<usize>());
    for job in batch {
        job.group.write_keys(&mut command);
    }
    command.arg(now);
    for job in batch {
        job.group.write_arguments(&mut command);
    }
    command
}

fn answer_all(jobs: impl IntoIterator<Item = Job>, error: &Error) {
    for job in jobs {
        let _ = job.answer.send(Err(error.clone()));
    }
}

fn no_runtime(error: TryCurrentError) -> Error {
    Error::new(
        ErrorKind::Connect,
        "no tokio runtime: ask for decisions inside of one",
    )
    .with_source(error)
}
