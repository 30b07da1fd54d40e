//! Decisions that wait for a lane.

use std::{collections::VecDeque, time::Duration};

use tokio::sync::oneshot;

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
    sync::Mutex,
};

use super::super::protocol::{Reply, Request};

/// One decision that waits, and where its answer goes.
#[derive(Debug)]
pub(in crate::remote) struct Job {
    pub(super) group: Request,
    pub(super) answer: oneshot::Sender<Fate>,
}

/// What became of a job.
#[derive(Debug)]
pub(in crate::remote) enum Fate {
    ChargeReply(Result<Reply, Error>),
    /// Nobody is left to carry it. It was not sent, so its caller may submit it again.
    Unsent(Box<Request>),
}

/// What waits, and which lanes are at work.
#[derive(Debug)]
pub(in crate::remote) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    jobs: VecDeque<Job>,
    lanes: Box<[Option<Lease>]>,
    leases: u64,
}

/// A worker's leave to use a lane. Not renewed in time (its runtime is gone, or nobody drives it), another may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct Lease {
    pub(super) lane: usize,
    number: u64,
    until: Timestamp,
}

impl Queue {
    pub(in crate::remote) fn new(lanes: usize) -> Self {
        Self {
            state: Mutex::new(State {
                jobs: VecDeque::new(),
                lanes: vec![None; lanes].into(),
                leases: 0,
            }),
        }
    }

    /// A lane for a decision that need not be added, because nothing waits and a lane that `is_up` is idle.
    pub(in crate::remote) fn lead(
        &self,
        span: Duration,
        is_up: impl Fn(usize) -> bool,
    ) -> Option<Lease> {
        let mut state = self.state.lock();
        if !state.jobs.is_empty() {
            return None;
        }
        let now = now();
        let lane = (0..state.lanes.len()).find(|lane| state.is_idle(*lane, now) && is_up(*lane))?;
        Some(state.lend(lane, span))
    }

    /// Renews a lease for a successor when something waits. When nothing does it ends, in the same step, so that nothing
    /// that is added afterwards is overlooked.
    pub(in crate::remote) fn pass_on(&self, lease: &mut Lease, span: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.has(lease) {
            return false;
        }
        let is_needed = !state.jobs.is_empty();
        lease.until = now() + span;
        state.lanes[lease.lane] = is_needed.then_some(*lease);
        is_needed
    }

    /// Adds a decision. `Some` when a lane is idle: the caller is to start a worker on it.
    ///
    /// Of several idle lanes it is the first that `is_up`.
    pub(in crate::remote) fn push(
        &self,
        job: Job,
        span: Duration,
        is_up: impl Fn(usize) -> bool,
    ) -> Result<Option<Lease>, Error> {
        let mut state = self.state.lock();
        let now = now();
        let idle = || (0..state.lanes.len()).filter(|lane| state.is_idle(*lane, now));
        let lane = idle().find(|lane| is_up(*lane)).or_else(|| idle().next());
        // With a lane idle there is always room: whoever starts on it is the one to make some.
        if lane.is_none() && !state.has_room() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "over 16,384 decisions wait for redis: the server or this process is overloaded",
            ));
        }
        state.jobs.push_back(job);
        Ok(lane.map(|lane| state.lend(lane, span)))
    }

    /// What waits, up to one batch; those whose callers left are passed over. When nothing waits the lease ends, in the
    /// same step, so that nothing that is added afterwards is overlooked.
    pub(in crate::remote) fn take(&self, lease: &mut Lease, span: Duration) -> Vec<Job> {
        let mut state = self.state.lock();
        if !state.has(lease) {
            return Vec::new();
        }
        let (mut batch, mut charges) = (Vec::new(), 0);
        loop {
            state.pass_over_left();
            let Some(job) = state.jobs.front() else {
                break;
            };
            charges += job.group.charges();
            if charges > MOST_CHARGES && !batch.is_empty() {
                break;
            }
            batch.extend(state.jobs.pop_front());
        }
        if batch.is_empty() {
            state.lanes[lease.lane] = None;
        } else {
            lease.until = now() + span;
            state.lanes[lease.lane] = Some(*lease);
        }
        batch
    }

    /// Ends a lease, if it has not ended. What waits is returned when no other lane is at work on it.
    pub(in crate::remote) fn give_up(&self, lease: &Lease) -> VecDeque<Job> {
        let mut state = self.state.lock();
        if !state.has(lease) {
            return VecDeque::new();
        }
        state.lanes[lease.lane] = None;
        let now = now();
        let others_work = state.lanes.iter().flatten().any(|other| now < other.until);
        if others_work {
            VecDeque::new()
        } else {
            std::mem::take(&mut state.jobs)
        }
    }
}

impl State {
    /// Whether one more may wait. Those whose callers left take no room, once they are the first.
    fn has_room(&mut self) -> bool {
        if self.jobs.len() >= MOST_WAITING {
            self.pass_over_left();
        }
        self.jobs.len() < MOST_WAITING
    }

    fn pass_over_left(&mut self) {
        while self.jobs.front().is_some_and(|job| job.answer.is_closed()) {
            self.jobs.pop_front();
        }
    }

    fn is_idle(&self, lane: usize, now: Timestamp) -> bool {
        self.lanes[lane].is_none_or(|lease| lease.until < now)
    }

    fn lend(&mut self, lane: usize, span: Duration) -> Lease {
        self.leases += 1;
        let lease = Lease {
            lane,
            number: self.leases,
            until: now() + span,
        };
        self.lanes[lane] = Some(lease);
        lease
    }

    fn has(&self, lease: &Lease) -> bool {
        self.lanes[lease.lane].is_some_and(|current| current.number == lease.number)
    }
}

fn now() -> Timestamp {
    Clock::system().now()
}

/// Beyond it a decision fails at once: each takes a few hundred bytes.
const MOST_WAITING: usize = 16_384;
/// Charges in one call, unless one decision has more. More would make each call longer than it saves: 64 take Redis
/// about 0.2 ms.
const MOST_CHARGES: usize = 64;
