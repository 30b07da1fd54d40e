//! The calls in flight, and their deadlines.
//!
//! A call is due when its oldest job must have a reply. The watchdog notices that and wakes the task of the call, which
//! ends the jobs with a timeout and goes on waiting: a late reply still shows that the connection is alive. With a
//! deadline of 50 ms, and a job that was submitted at 0 and sent at 10 ms:
//!
//! ```text
//! time         event
//!   0 ms       the job is submitted
//!  10 ms       the call is sent
//!  50 ms  due  the task is woken, and its jobs time out
//!  60 ms       no reply came on the connection since the call was sent: it is unresponsive, and is given up
//! 100 ms  end  if nobody polled the task: its jobs fail, and the call no longer counts as in flight
//! ```
//!
//! If the task first runs more than 2 ms after the call was due, its runtime is busy and the reply may already be in
//! the socket. So the call gets that delay once more, up to the end, before its jobs fail. This happens once per call.
//!
//! An [`Alarm`] carries these steps from the watchdog to the task. Its level only rises, except for that one extension.
//!
//! # Why does a missing reply end the connection?
//!
//! On a half-open connection the other side has gone without notice: no reply ever comes, and every decision on it would wait for
//! its whole deadline. A new connection costs one dial in the background. A READONLY error ends a connection too: a demoted
//! primary keeps its connections and responds to PING, so nothing else would end them.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::Context,
    time::Duration,
};

use futures_util::task::AtomicWaker;

use crate::{clock::Timestamp, store::ServerStats};

use super::queue::{Job, Waiter};

/// Identifies a call in flight and the connection that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallId {
    pub number: u64,
    /// The index of the lane.
    pub lane: usize,
    /// The connection_id of the lane's connection when the call was scheduled.
    pub connection_id: u64,
}

/// A call in flight, for the task that makes it.
#[derive(Clone, Debug)]
pub(super) struct CallHandle {
    pub id: CallId,
    pub alarm: Arc<Alarm>,
    /// Whether it is written before the connection's task has its turn.
    pub is_urgent: bool,
    /// How long its oldest job waited to be sent.
    #[cfg(feature = "metrics")]
    pub waited: Duration,
}

/// A call in flight, for the deadlines.
#[derive(Debug)]
pub(super) struct PendingCall {
    call: CallHandle,
    pub sent_at: Timestamp,
    /// When its oldest job must have a reply.
    due: Timestamp,
    /// `due` before it was extended.
    original_due: Timestamp,
    pub charges: usize,
    /// The callers of its jobs; empty for a call in its caller's own future.
    pub waiters: Vec<Waiter>,
}

impl PendingCall {
    /// Returns whether its deadline was extended.
    fn is_extended(&self) -> bool {
        self.due != self.original_due
    }

    /// Returns whether its jobs still wait for the reply.
    pub fn is_in_time(&self) -> bool {
        !self.call.alarm.is_expired()
    }
}

/// Everything that is overdue, and the actions to take.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// Jobs that waited in the queue for the whole deadline.
    pub unsent: Vec<Waiter>,
    /// Jobs to hand back to their callers, since the dispatcher does not run.
    pub stranded: VecDeque<Job>,
    /// Jobs of calls whose tasks nobody polls any more.
    pub unpolled: Vec<Waiter>,
    /// Connections without a reply for a deadline: lane and connection_id.
    pub unresponsive: Vec<(usize, u64)>,
    /// Whether one of the calls failed and no task reports it.
    pub is_unreported: bool,
    /// Tasks to wake, outside the lock.
    pub to_wake: Vec<Arc<Alarm>>,
    /// When to look again; `None` if nothing waits and nothing is in flight.
    pub next: Option<Timestamp>,
}

// === Calls ===

/// All calls without a reply so far.
#[derive(Debug)]
pub(super) struct Calls {
    deadline: Duration,
    in_flight: Vec<PendingCall>,
    /// The charges of all calls.
    charges: usize,
    /// Per lane, the connection_id of the connection on which the latest reply came, and when.
    last_replies: Box<[(u64, Timestamp)]>,
}

impl Calls {
    /// Returns no calls, for this number of lanes.
    pub(super) fn new(deadline: Duration, lanes: usize) -> Self {
        Self {
            deadline,
            in_flight: Vec::new(),
            charges: 0,
            last_replies: vec![(NO_CONNECTION, Timestamp::default()); lanes].into(),
        }
    }

    /// Returns the number of calls.
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the number of charges in all calls.
    pub(super) fn charges(&self) -> usize {
        self.charges
    }

    /// Adds the calls to the stats of the server.
    pub(super) fn add_to(&self, stats: ServerStats) -> ServerStats {
        stats.in_flight(self.len(), self.charges)
    }

    /// Returns the number of calls on a lane.
    pub(super) fn on_lane(&self, lane: usize) -> usize {
        let calls = self.in_flight.iter();
        calls.filter(|other| other.call.id.lane == lane).count()
    }

    /// Adds a call that is sent now. `due` is the deadline of its oldest job.
    pub(super) fn add(
        &mut self,
        id: CallId,
        now: Timestamp,
        due: Timestamp,
        charges: usize,
        waiters: Vec<Waiter>,
    ) -> CallHandle {
        let alarm = Arc::new(Alarm::default());
        let call = CallHandle {
            id,
            alarm,
            is_urgent: false,
            #[cfg(feature = "metrics")]
            waited: self.deadline.saturating_sub(due.since(now)),
        };
        self.charges += charges;
        self.in_flight.push(PendingCall {
            call: call.clone(),
            sent_at: now,
            due,
            original_due: due,
            charges,
            waiters,
        });
        call
    }

    /// Removes a call that has ended.
    pub(super) fn remove(&mut self, id: CallId) -> Option<PendingCall> {
        let mut calls = self.in_flight.iter();
        let index = calls.position(|other| other.call.id == id)?;
        let removed = self.in_flight.swap_remove(index);
        self.charges -= removed.charges;
        Some(removed)
    }

    /// Records a reply on the connection of this call.
    pub(super) fn note_reply(&mut self, id: CallId, now: Timestamp) {
        self.last_replies[id.lane] = (id.connection_id, now);
    }

    /// Handles a call whose task runs after it was due. Returns the callers of its jobs, which time out.
    ///
    /// `None` if the call was extended: its task runs late, and the reply may already be in the socket.
    pub(super) fn expire(&mut self, id: CallId, now: Timestamp) -> Option<Vec<Waiter>> {
        let mut calls = self.in_flight.iter_mut();
        let in_flight = calls.find(|other| other.call.id == id)?;
        let delay = now.since(in_flight.due);
        let end = in_flight.original_due + self.deadline;
        if delay > MAX_DELAY && !in_flight.is_extended() && now < end {
            in_flight.due = (now + delay).min(end);
            in_flight.call.alarm.extend();
            return None;
        }
        in_flight.call.alarm.raise(EXPIRED);
        Some(std::mem::take(&mut in_flight.waiters))
    }

    /// Finds calls that are overdue, and removes those that have reached their end. Waiting jobs are not considered.
    ///
    /// A connection is unresponsive if it has sent no reply for a deadline since the call was sent, and the task of the
    /// call was polled meanwhile. Otherwise the reply may be in the socket, and the runtime is the cause.
    pub(super) fn take_overdue(&mut self, now: Timestamp) -> Overdue {
        let mut overdue = Overdue::default();
        let mut moments = Vec::new();
        for one in &mut self.in_flight {
            let (id, alarm) = (one.call.id, &one.call.alarm);
            if alarm.is_not_due() && one.due <= now {
                alarm.raise(DUE);
                overdue.to_wake.push(Arc::clone(alarm));
            }
            let replied_at = match self.last_replies[id.lane] {
                (connection_id, at) if connection_id == id.connection_id => at,
                _ => Timestamp::default(),
            };
            let unresponsive_at = (one.sent_at.max(replied_at) + self.deadline).max(one.due);
            let end = one.original_due + self.deadline;
            let mut was_polled = alarm.is_expired();
            if end <= now && !alarm.is_expired() {
                overdue.unpolled.append(&mut one.waiters);
                // Only a task that was polled after the call was due extends it. Otherwise the reply may be in the
                // socket.
                was_polled = one.is_extended();
                overdue.is_unreported |= was_polled;
            }
            if was_polled && unresponsive_at <= now && id.connection_id != NO_CONNECTION {
                overdue.unresponsive.push((id.lane, id.connection_id));
            }
            moments.extend([one.due, unresponsive_at, end]);
        }
        for (lane, connection_id) in &overdue.unresponsive {
            let abandoned = self.abandon_connection(*lane, *connection_id);
            overdue.to_wake.extend(abandoned);
        }
        overdue.to_wake.extend(self.remove_ended(now));
        overdue.next = moments.into_iter().filter(|at| *at > now).min();
        overdue
    }

    /// Abandons all calls on a connection. Returns the alarms of their tasks, which then end.
    pub(super) fn abandon_connection(
        &mut self,
        lane: usize,
        connection_id: u64,
    ) -> Vec<Arc<Alarm>> {
        let is_on_it = |id: CallId| id.lane == lane && id.connection_id == connection_id;
        let calls = self.in_flight.iter().map(|other| &other.call);
        let alarms = calls.filter(|call| is_on_it(call.id)).map(|call| {
            call.alarm.raise(ABANDONED);
            Arc::clone(&call.alarm)
        });
        alarms.collect()
    }

    /// Abandons calls that have reached their end: their tasks may never run again, and calls in flight are few.
    /// Returns their alarms.
    fn remove_ended(&mut self, now: Timestamp) -> Vec<Arc<Alarm>> {
        let has_ended = |one: &mut PendingCall| one.original_due + self.deadline <= now;
        let removed: Vec<PendingCall> = self.in_flight.extract_if(.., has_ended).collect();
        let alarms = removed.into_iter().map(|removed| {
            self.charges -= removed.charges;
            removed.call.alarm.raise(ABANDONED);
            removed.call.alarm
        });
        alarms.collect()
    }
}

// === Alarm ===

/// Wakes the task of a call at its deadlines, and shows it which one has passed.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    /// [`NOT_DUE`], [`DUE`], [`EXPIRED`] or [`ABANDONED`].
    level: AtomicU8,
    waker: AtomicWaker,
}

impl Alarm {
    /// Sets the task to wake. Poll the call afterwards, so that no alarm is missed.
    pub fn register(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }

    /// Wakes the task. Call it without a lock.
    pub fn ring(&self) {
        self.waker.wake();
    }

    /// Returns whether the call is due, and its task has not handled that.
    pub fn is_due(&self) -> bool {
        self.level() == DUE
    }

    /// Returns whether the jobs of the call have timed out.
    pub fn is_expired(&self) -> bool {
        self.level() >= EXPIRED
    }

    /// Returns whether the call was abandoned, so that its task must end.
    pub fn is_abandoned(&self) -> bool {
        self.level() == ABANDONED
    }

    /// Returns whether the call is not due yet.
    pub fn is_not_due(&self) -> bool {
        self.level() == NOT_DUE
    }

    /// Returns the step that has passed, such as [`DUE`].
    fn level(&self) -> u8 {
        self.level.load(Ordering::Acquire)
    }

    /// Moves on to a later step. An earlier one changes nothing.
    fn raise(&self, level: u8) {
        self.level.fetch_max(level, Ordering::AcqRel);
    }

    /// Notes that a call that was due is not due yet: it was extended.
    fn extend(&self) {
        let _ = self
            .level
            .compare_exchange(DUE, NOT_DUE, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The call is not due yet.
const NOT_DUE: u8 = 0;
/// The call is due, and its task has not handled that.
const DUE: u8 = 1;
/// The jobs of the call have timed out.
const EXPIRED: u8 = 2;
/// The call was abandoned, with its connection or since nobody polled it.
const ABANDONED: u8 = 3;

/// The connection_id of a command that is not bound to a connection.
pub(super) const NO_CONNECTION: u64 = 0;
/// A task that runs this long after its call was due shows that its runtime is busy.
const MAX_DELAY: Duration = Duration::from_millis(2);
