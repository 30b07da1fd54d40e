//! When waiting requests are sent: the queue and the calls in flight, under one lock.
//!
//! ```text
//! submit --> SendNow: the caller's own future makes the call     (nothing is in flight, and the last call had one job)
//!        '-> Queued --> [ queue ] -- next_batch --> [ calls ] -- end_call --> waiters
//!                           |                          |
//!                           | take_overdue             | expire, take_overdue
//!                           v                          v
//!                        shed, or handed back       timed out
//! ```
//!
//! At most one task, the [`Dispatcher`], takes batches from the queue, and callers whose requests fill a call take it. The
//! dispatcher stops when nothing waits or nothing may be sent; the next request or the next reply starts another one. A call may
//! be sent
//!
//! 1. while the charges in flight are fewer than the capacity of the [`SendWindow`],
//! 2. unless the network is being measured, or is about to be (a *probe*),
//! 3. if fewer than 16 calls are in flight. Beyond that it must have a sixteenth of the charges in flight, 4 at least.
//!
//! # Shedding
//!
//! Example: the deadline is 50 ms, the server makes 2,000 charges a second, the window is full, and over 12 charges
//! wait.
//!
//! ```text
//! the oldest job has waited   next batch     waiting jobs         new requests
//! up to 8.3 ms                oldest first   wait                 wait; shed if others were in the last 200 ms
//! 8.3 to 25 ms                newest first   wait                 shed
//! 25 to 50 ms                 newest first   the oldest is shed   shed
//! 50 ms                                      it times out         shed
//! ```
//!
//! These are a sixth, half and all of the deadline, and four deadlines; 12 charges are those of an eighth. The delay of
//! a busy runtime of the client adds to the sixth and to the eighth.
//!
//! If the window has room for all that wait, it is this process that was slow to send them, as one that others take the core
//! from. Then they are sent as long as the server can decide them in time: until an eighth of the deadline is left, or two round
//! trips.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{clock::Timestamp, store::ServerStats, task::Mutex};

use super::{
    super::{connection::Lane, protocol::Request},
    calls::{CallHandle, CallId, Calls, NO_CONNECTION, Overdue},
    queue::{Job, JobQueue, Waiter},
    shedding::Shedding,
    steps::{Batch, Dispatch, Dispatcher, EndedCall, Submitted},
    window::{SendWindow, WindowSample},
};

/// The waiting requests to one server and the calls in flight to it.
#[derive(Debug)]
pub(in crate::remote) struct Scheduler {
    lanes: Box<[Arc<Lane>]>,
    /// Whether new requests are shed. Every decision reads it without the lock.
    pub shedding: Shedding,
    /// How often the server was replaced.
    run_number: AtomicU64,
    traffic: Mutex<Traffic>,
}

/// Everything behind the lock: what waits and what is in flight.
#[derive(Debug)]
struct Traffic {
    /// The longest time that a request takes. All limits on waits are fractions of it.
    deadline: Duration,
    /// The jobs that wait.
    queue: JobQueue,
    /// The calls in flight.
    calls: Calls,
    /// The number of charges that may be in flight.
    window: SendWindow,
    /// The current dispatcher, from its start until it stops or is replaced.
    dispatcher: Option<Dispatcher>,
    /// Whether the latest call had one job. After one with several, their callers are about to submit again together.
    is_alone: bool,
    /// When new requests were last shed.
    shed_at: Timestamp,
    /// The number of the next call or dispatcher.
    next_number: u64,
}

impl Scheduler {
    /// Returns a scheduler for these lanes, at least one.
    pub fn new(deadline: Duration, lanes: Box<[Arc<Lane>]>) -> Self {
        Self {
            shedding: Shedding::default(),
            run_number: AtomicU64::new(0),
            traffic: Mutex::new(Traffic::new(deadline, lanes.len())),
            lanes,
        }
    }

    /// Returns the lanes. A [`CallId`] has the index of one.
    pub fn lanes(&self) -> &[Arc<Lane>] {
        &self.lanes
    }

    /// Returns whether any lane has a connection.
    pub fn is_up(&self) -> bool {
        self.lanes.iter().any(|lane| lane.connection_id().is_some())
    }

    /// Adds the present load to the stats of the server.
    pub fn add_load(&self, stats: ServerStats) -> ServerStats {
        let traffic = self.traffic.lock();
        let stats = traffic.window.add_to(traffic.calls.add_to(stats));
        stats.waiting(traffic.queue.charges())
    }

    /// Adds a request: its caller makes the call at once, or waits.
    ///
    /// `submitted_at` is when the caller submitted it first, and begins its deadline. `now` is later if the request was
    /// handed back.
    pub(super) fn submit(
        &self,
        request: Box<Request>,
        submitted_at: Timestamp,
        now: Timestamp,
    ) -> Submitted {
        let mut traffic = self.traffic.lock();
        if traffic.may_send_alone()
            && let Some(lane) = self.least_busy_lane(&traffic)
        {
            let due = submitted_at + traffic.deadline;
            let call = traffic.begin(lane, now, due, request.charges(), Vec::new());
            return Submitted::SendNow(call, request);
        }
        let (waiter, result) = Waiter::new();
        let job = Job {
            request,
            submitted_at,
            waiter,
        };
        let shed = traffic.queue.push(job, MAX_WAITING);
        self.update_shedding(&mut traffic, now);
        Submitted::Queued {
            result,
            dispatcher: traffic.start_dispatcher(now),
            shed: shed.map(|job| job.waiter),
            fills_call: traffic.fills_call(now),
        }
    }

    /// Notes that the server was replaced: requests meant for an earlier run must not be sent. Returns the jobs that wait, which
    /// nobody sends then.
    pub(super) fn note_replaced(&self) -> VecDeque<Job> {
        let mut traffic = self.traffic.lock();
        self.run_number.fetch_add(1, Ordering::AcqRel);
        self.shedding.end();
        traffic.queue.drain()
    }

    /// Returns the number of the server's present run, as far as is known. It rises after the guard has learnt of the new run.
    #[inline]
    pub fn run_number(&self) -> u64 {
        self.run_number.load(Ordering::Acquire)
    }

    /// Notes a command that is not a decision, so that its deadline is kept. It belongs to no connection.
    pub(super) fn begin_command(&self, now: Timestamp) -> CallHandle {
        let mut traffic = self.traffic.lock();
        let due = now + traffic.deadline;
        traffic.begin((0, NO_CONNECTION), now, due, 0, Vec::new())
    }

    /// Returns the next step of a dispatcher, and the callers whose jobs waited too long and are shed.
    ///
    /// The batch is in flight from here on: its call must end with [`end_call`](Self::end_call).
    pub(super) fn next_batch(
        &self,
        dispatcher: Dispatcher,
        now: Timestamp,
    ) -> (Dispatch, Vec<Waiter>) {
        let mut traffic = self.traffic.lock();
        if !traffic.is_current(dispatcher) {
            return (Dispatch::Nothing, Vec::new());
        }
        traffic.note_dispatch(dispatcher, now);
        if traffic.queue.is_empty() {
            traffic.dispatcher = None;
            return (Dispatch::Nothing, Vec::new());
        }
        let Some(lane) = self.least_busy_lane(&traffic) else {
            return (Dispatch::NotConnected, Vec::new());
        };
        let is_idle = traffic.calls.len() == 0;
        traffic.window.note_connection(lane.1, now, is_idle);
        let shed = traffic.shed_late_jobs(now);
        let batch = self.take_batch(&mut traffic, lane, now);
        self.update_shedding(&mut traffic, now);
        if batch.as_ref().is_none_or(|batch| batch.is_last) {
            traffic.dispatcher = None;
        }
        let next = batch.map_or(Dispatch::Nothing, Dispatch::Send);
        (next, shed)
    }

    /// Returns the jobs that wait if they fill a call, so that it is sent at once. The dispatcher goes on with those that follow.
    ///
    /// The batch is in flight from here on, as that of [`next_batch`](Self::next_batch).
    pub(super) fn full_batch(&self, now: Timestamp) -> Option<Batch> {
        let mut traffic = self.traffic.lock();
        // Another caller may have sent them meanwhile.
        if !traffic.fills_call(now) {
            return None;
        }
        let lane = self.least_busy_lane(&traffic)?;
        let mut batch = self.take_batch(&mut traffic, lane, now)?;
        batch.call.is_urgent = true;
        self.update_shedding(&mut traffic, now);
        Some(Batch {
            is_last: false,
            ..batch
        })
    }

    /// Takes a batch for a lane, and finds another lane to dial if that one is busy.
    fn take_batch(
        &self,
        traffic: &mut Traffic,
        lane: (usize, u64),
        now: Timestamp,
    ) -> Option<Batch> {
        let is_busy = traffic.calls.on_lane(lane.0) > 0;
        let mut batch = traffic.take_batch(lane, now)?;
        if is_busy {
            let mut lanes = self.lanes.iter();
            batch.lane_to_dial = lanes.position(|lane| lane.connection_id().is_none());
        }
        Some(batch)
    }

    /// Ends a dispatcher, and removes all jobs: nobody will send them.
    pub(super) fn give_up(&self, dispatcher: Dispatcher) -> VecDeque<Job> {
        let mut traffic = self.traffic.lock();
        if !traffic.is_current(dispatcher) {
            return VecDeque::new();
        }
        traffic.dispatcher = None;
        self.shedding.end();
        traffic.queue.drain()
    }

    /// Notes the end of a call. `replied` means that the server sent a reply, even an error.
    pub(super) fn end_call(&self, id: CallId, now: Timestamp, replied: bool) -> EndedCall {
        let mut traffic = self.traffic.lock();
        if replied {
            traffic.calls.note_reply(id, now);
        }
        let (mut in_time, mut waiters) = (false, Vec::new());
        if let Some(ended) = traffic.calls.remove(id) {
            traffic.is_alone = ended.waiters.len() <= 1;
            if replied {
                let sample = WindowSample {
                    call: id.number,
                    charges: ended.charges,
                    in_flight: ended.charges + traffic.calls.charges(),
                    round_trip: now.since(ended.sent_at),
                };
                traffic.window.note_reply(now, sample);
            }
            in_time = ended.is_in_time();
            waiters = ended.waiters;
        }
        EndedCall {
            in_time,
            waiters,
            dispatcher: traffic.start_dispatcher(now),
        }
    }

    /// Handles a call whose task runs after it was due, see [`Calls::expire`].
    pub(super) fn expire(&self, id: CallId, now: Timestamp) -> Option<Vec<Waiter>> {
        self.traffic.lock().calls.expire(id, now)
    }

    /// Removes everything that is overdue: for the watchdog, about three times per deadline.
    ///
    /// A dispatcher that took no batch for two thirds of the deadline is ended: its runtime does not run it. Its jobs
    /// go back to their callers, which have the last third of the deadline to send them.
    pub(super) fn take_overdue(&self, now: Timestamp) -> Overdue {
        let (mut unsent, mut stranded) = (Vec::new(), VecDeque::new());
        let mut guard = self.traffic.lock();
        let traffic = &mut *guard;
        while let Some(job) = traffic.queue.pop_older_than(now - traffic.deadline) {
            unsent.push(job.waiter);
        }
        self.update_shedding(traffic, now);
        let max_wait = traffic.deadline / 3 * 2;
        // A dispatcher that was not polled for so long is on a runtime that nobody drives, or it waits for a dial.
        if let Some(dispatcher) = traffic.dispatcher
            && now.since(dispatcher.active_at) > max_wait
            && (self.is_up() || !self.lanes.iter().any(|lane| lane.is_dialling()))
        {
            traffic.dispatcher = None;
            // Where no tasks run, only callers make calls.
            traffic.is_alone = true;
            self.shedding.end();
            stranded = traffic.queue.drain();
        }
        let oldest = traffic.queue.oldest().map(|oldest| oldest + max_wait);
        let overdue = traffic.calls.take_overdue(now);
        Overdue {
            unsent,
            stranded,
            next: oldest.into_iter().chain(overdue.next).min(),
            ..overdue
        }
    }

    /// Abandons all calls on a connection, and wakes their tasks.
    pub fn abandon_connection(&self, lane: usize, connection_id: u64) {
        let mut traffic = self.traffic.lock();
        let abandoned = traffic.calls.abandon_connection(lane, connection_id);
        drop(traffic);
        abandoned.iter().for_each(|alarm| alarm.ring());
    }

    /// Updates whether new requests are shed, after each change of the queue.
    fn update_shedding(&self, traffic: &mut Traffic, now: Timestamp) {
        let is_on = traffic.must_shed(now);
        self.shedding.set(is_on, traffic.window.is_process_slow());
    }

    /// Returns the lane with the fewest calls in flight of those with a connection, and the connection_id of that.
    fn least_busy_lane(&self, traffic: &Traffic) -> Option<(usize, u64)> {
        let up = self.lanes.iter().enumerate();
        let up = up.filter_map(|(index, lane)| Some((index, lane.connection_id()?)));
        up.min_by_key(|(index, _)| traffic.calls.on_lane(*index))
    }
}

// === Traffic ===

impl Traffic {
    fn new(deadline: Duration, lanes: usize) -> Self {
        Self {
            deadline,
            queue: JobQueue::default(),
            calls: Calls::new(deadline, lanes),
            window: SendWindow::new(deadline),
            dispatcher: None,
            is_alone: true,
            shed_at: Timestamp::default(),
            next_number: 0,
        }
    }

    /// Returns whether the next caller may make its call itself, without waiting for others.
    fn may_send_alone(&self) -> bool {
        let is_idle = self.calls.len() == 0 && self.queue.is_empty() && self.dispatcher.is_none();
        is_idle && self.is_alone
    }

    /// Notes a call that is sent now, to a lane and the connection_id of its connection.
    fn begin(
        &mut self,
        (lane, connection_id): (usize, u64),
        now: Timestamp,
        due: Timestamp,
        charges: usize,
        waiters: Vec<Waiter>,
    ) -> CallHandle {
        let is_idle = self.calls.len() == 0;
        if self.calls.charges() == 0 {
            self.window.note_idle(now);
        }
        self.window.note_connection(connection_id, now, is_idle);
        let id = CallId {
            number: self.take_number(),
            lane,
            connection_id,
        };
        self.calls.add(id, now, due, charges, waiters)
    }

    /// Returns whether no other dispatcher has taken its place.
    fn is_current(&self, dispatcher: Dispatcher) -> bool {
        self.dispatcher
            .is_some_and(|current| current.number == dispatcher.number)
    }

    /// Returns a new dispatcher, if there is none and a job waits that may be sent. The caller must run it.
    fn start_dispatcher(&mut self, now: Timestamp) -> Option<Dispatcher> {
        if self.dispatcher.is_some() || self.queue.is_empty() || !self.may_send(now) {
            return None;
        }
        self.dispatcher = Some(Dispatcher {
            number: self.take_number(),
            active_at: now,
        });
        self.dispatcher
    }

    /// Notes that the current dispatcher runs now.
    fn note_dispatch(&mut self, dispatcher: Dispatcher, now: Timestamp) {
        // Its first run is one scheduling delay after it was started.
        if let Some(current) = &mut self.dispatcher
            && current.active_at == dispatcher.active_at
        {
            let delay = now.since(dispatcher.active_at);
            self.window.note_scheduling_delay(delay);
        }
        self.dispatcher = Some(Dispatcher {
            active_at: now,
            ..dispatcher
        });
    }

    /// Removes the jobs of the next call, and begins it. `None` if nothing waits or may be sent.
    fn take_batch(&mut self, lane: (usize, u64), now: Timestamp) -> Option<Batch> {
        if self.queue.is_empty() || !self.may_send(now) {
            return None;
        }
        let is_probe = self.window.wants_probe(now);
        let max_charges = if is_probe {
            1
        } else {
            // Half of the window at most, so that the server is not idle while a reply travels.
            (self.window.capacity() / 2).min(MAX_CALL_CHARGES)
        };
        let newest_first = self.is_late(now);
        let jobs = self.queue.take(max_charges, newest_first);
        let submitted_at = jobs.iter().map(|job| job.submitted_at).min()?;
        let charges = jobs.iter().map(|job| job.request.charges()).sum();
        let (requests, waiters) = jobs
            .into_iter()
            .map(|job| (job.request, job.waiter))
            .unzip();
        let due = submitted_at + self.deadline;
        let call = self.begin(lane, now, due, charges, waiters);
        if is_probe {
            self.window.note_probe(call.id.number);
        }
        Some(Batch {
            call,
            requests,
            is_last: self.queue.is_empty() || !self.may_send(now),
            lane_to_dial: None,
        })
    }

    /// Returns whether a call may be sent now.
    ///
    /// Example: 61 charges are in flight in 16 calls, and the capacity is 128. A sixteenth of 61 is 3, and the least
    /// share is 4, so the 17th call is sent once 4 charges wait.
    fn may_send(&mut self, now: Timestamp) -> bool {
        if self.is_window_full() {
            self.window.note_limited();
            return false;
        }
        if self.waits_for_probe(now) {
            return false;
        }
        let share = self.calls.charges() / MAX_PART_CALLS;
        let share = share.clamp(MIN_PART_CHARGES, MAX_CALL_CHARGES);
        self.calls.len() < MAX_PART_CALLS || self.queue.charges() >= share
    }

    /// Returns whether the jobs that wait should be sent at once, as a full call.
    fn fills_call(&self, now: Timestamp) -> bool {
        // A server that has two full calls to do is not idle soon, and the others are better written together. Late jobs are for
        // the dispatcher, which sheds the oldest of them.
        self.queue.charges() >= MAX_CALL_CHARGES
            && self.calls.charges() < 2 * MAX_CALL_CHARGES
            && self.dispatcher.is_some()
            && !self.is_late(now)
    }

    /// Returns whether the charges in flight have reached the capacity of the window.
    fn is_window_full(&self) -> bool {
        self.calls.charges() >= self.window.capacity()
    }

    /// Returns whether everything in flight must end first, so that the network is measured.
    fn waits_for_probe(&self, now: Timestamp) -> bool {
        self.calls.charges() > 0 && (self.window.is_probing() || self.window.wants_probe(now))
    }

    /// Returns whether new requests must be shed. Notes the time if so.
    ///
    /// That is the case if more charges wait than the server decides in an eighth of the deadline and a scheduling
    /// delay, and if it is not just a burst: the oldest job is late, or requests were shed in the last four deadlines.
    /// Nobody is shed until the throughput of the server was measured.
    fn must_shed(&mut self, now: Timestamp) -> bool {
        let time = self.deadline / 8 + self.window.scheduling_delay();
        let max_waiting = self.window.charges_in(time).max(MIN_WAITING);
        // Without this memory, ten times the load would be let in for a sixth of the deadline again and again.
        let has_shed = now.since(self.shed_at) < self.deadline * 4;
        // A wait for a probe is not an overload.
        let is_overloaded = if self.is_window_full() {
            has_shed || self.is_late(now)
        } else {
            has_shed && self.waits_for_probe(now)
        };
        let must_shed =
            self.window.is_measured() && self.queue.charges() > max_waiting && is_overloaded;
        if must_shed {
            self.shed_at = now;
        }
        must_shed
    }

    /// Removes jobs that would be decided too late. Returns their callers.
    ///
    /// If more jobs wait than the window has room for, the server is too slow: a job is late once it has waited for
    /// half of the deadline. Otherwise this process was slow to send the jobs, and the server decides them in a few
    /// round trips.
    fn shed_late_jobs(&mut self, now: Timestamp) -> Vec<Waiter> {
        let mut shed = Vec::new();
        let max_wait = self
            .window
            .latest_send(self.queue.charges() + self.calls.charges());
        while let Some(oldest) = self.queue.oldest()
            && self.window.waited(oldest, now) > max_wait
        {
            shed.extend(self.queue.pop_oldest().map(|job| job.waiter));
        }
        shed
    }

    /// Returns whether the oldest job has waited for a sixth of the deadline and a scheduling delay.
    ///
    /// Then the newest jobs are sent first: they can still be in time.
    fn is_late(&self, now: Timestamp) -> bool {
        let max_wait = self.deadline / 6 + self.window.scheduling_delay();
        let oldest = self.queue.oldest();
        oldest.is_some_and(|submitted_at| self.window.waited(submitted_at, now) > max_wait)
    }

    /// Returns a number that no other call or dispatcher of this scheduler has.
    fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}

/// Charges in one call, unless one decision has more. 64 take Redis about 0.2 ms; more charges would take longer than
/// they save.
const MAX_CALL_CHARGES: usize = 64;
/// Calls in flight from which on a call must have its share of the charges.
const MAX_PART_CALLS: usize = 16;
/// The least share of a call beyond [`MAX_PART_CALLS`].
const MIN_PART_CHARGES: usize = 4;
/// Charges that may wait however slow the server is.
const MIN_WAITING: usize = 4;
/// Jobs that may wait however fast the server is. Each takes a few hundred bytes.
const MAX_WAITING: usize = 16_384;

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::{
        super::{
            queue::JobResult,
            simulation::{request, scheduler},
        },
        *,
    };

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    /// A request that waits.
    struct QueuedRequest {
        result: oneshot::Receiver<JobResult>,
        dispatcher: Option<Dispatcher>,
        shed: Option<Waiter>,
    }

    /// Submits a request that waits.
    fn wait(scheduler: &Scheduler, millis: u64) -> QueuedRequest {
        match scheduler.submit(request(), at(millis), at(millis)) {
            Submitted::SendNow(..) => panic!("it must wait"),
            Submitted::Queued {
                result,
                dispatcher,
                shed,
                ..
            } => QueuedRequest {
                result,
                dispatcher,
                shed,
            },
        }
    }

    /// Submits a request that is sent at once.
    fn send_now(scheduler: &Scheduler, millis: u64) -> CallHandle {
        match scheduler.submit(request(), at(millis), at(millis)) {
            Submitted::SendNow(call, _) => call,
            Submitted::Queued { .. } => panic!("nothing is under way"),
        }
    }

    /// Sends the next batch. Returns its call, the number of its requests, and whether the dispatcher stops after it.
    fn take(scheduler: &Scheduler, dispatcher: Dispatcher, millis: u64) -> (CallId, usize, bool) {
        match scheduler.next_batch(dispatcher, at(millis)).0 {
            Dispatch::Send(batch) => (batch.call.id, batch.requests.len(), batch.is_last),
            Dispatch::NotConnected | Dispatch::Nothing => panic!("something waits"),
        }
    }

    /// Returns a scheduler whose latest call carried two requests. Nothing is under way.
    fn scheduler_after_a_batch() -> Scheduler {
        let scheduler = scheduler(1);
        let call = send_now(&scheduler, 0).id;
        let others = [wait(&scheduler, 0), wait(&scheduler, 0)];
        let (batch, ..) = take(&scheduler, others[0].dispatcher.expect("a dispatcher"), 0);
        scheduler.end_call(call, at(1), true);
        scheduler.end_call(batch, at(1), true);
        scheduler
    }

    /// Returns a scheduler that has measured a slow server.
    fn slow_scheduler() -> Scheduler {
        let scheduler = scheduler(1);
        for millis in [0, 60] {
            let call = send_now(&scheduler, millis).id;
            scheduler.traffic.lock().window.note_limited();
            scheduler.end_call(call, at(millis), true);
        }
        // The network is measured.
        scheduler.traffic.lock().window.note_probe(0);
        scheduler
    }

    #[test]
    fn first_request_is_sent_at_once_and_the_next_one_starts_a_dispatcher() {
        let scheduler = scheduler(2);
        let call = send_now(&scheduler, 0).id;
        let second = wait(&scheduler, 0);
        let third = wait(&scheduler, 0);
        let dispatcher = second.dispatcher.expect("a dispatcher");
        assert!(third.dispatcher.is_none(), "there is one already");
        let (other, taken, is_last) = take(&scheduler, dispatcher, 1);
        assert_eq!((taken, is_last), (2, true));
        assert_ne!(call.lane, other.lane, "the lane with fewer calls");
        assert_eq!(scheduler.end_call(other, at(2), true).waiters.len(), 2);
    }

    // Regression: after a batch, the first caller to submit again was sent alone and the others waited for its reply:
    // two calls for each round of callers.
    #[test]
    fn requests_that_follow_a_batch_are_sent_together() {
        let scheduler = scheduler_after_a_batch();
        let again = [wait(&scheduler, 1), wait(&scheduler, 1)];
        let (batch, taken, _) = take(&scheduler, again[0].dispatcher.expect("a dispatcher"), 1);
        assert_eq!(taken, 2);
        scheduler.end_call(batch, at(2), true);
        let single = wait(&scheduler, 2);
        let (batch, ..) = take(&scheduler, single.dispatcher.expect("a dispatcher"), 2);
        scheduler.end_call(batch, at(3), true);
        send_now(&scheduler, 3);
    }

    // Regression: on a runtime that runs no tasks, no request was sent any more.
    #[test]
    fn request_that_was_stranded_is_sent_at_once_when_it_is_submitted_again() {
        let scheduler = scheduler_after_a_batch();
        let lone = wait(&scheduler, 1);
        assert_eq!(scheduler.take_overdue(at(45)).stranded.len(), 1);
        send_now(&scheduler, 45);
        drop(lone);
    }

    #[test]
    fn beyond_sixteen_calls_each_has_four_charges_or_a_sixteenth_of_those_in_flight() {
        let scheduler = scheduler(2);
        send_now(&scheduler, 0);
        let mut kept = Vec::new();
        for _ in 1..16 {
            let waiting: Vec<_> = (0..4).map(|_| wait(&scheduler, 0)).collect();
            take(&scheduler, waiting[0].dispatcher.expect("a dispatcher"), 0);
            kept.extend(waiting);
        }
        // 61 charges are in flight.
        for _ in 0..3 {
            let waiting = wait(&scheduler, 0);
            assert!(waiting.dispatcher.is_none(), "sixteen calls are in flight");
            kept.push(waiting);
        }
        let fourth = wait(&scheduler, 0);
        let (_, taken, _) = take(&scheduler, fourth.dispatcher.expect("a large call"), 0);
        assert_eq!(taken, 4);
    }

    // Regression: a call was sent behind all tasks that were ready, and the server stood still meanwhile.
    #[test]
    fn jobs_that_fill_a_call_are_sent_before_the_dispatcher_runs() {
        let scheduler = scheduler(1);
        let _alone = send_now(&scheduler, 0);
        let first = wait(&scheduler, 0);
        let dispatcher = first.dispatcher.expect("a dispatcher");
        let mut waiting = vec![first.result];
        while waiting.len() + 1 < MAX_CALL_CHARGES {
            waiting.push(wait(&scheduler, 0).result);
            assert!(scheduler.full_batch(at(0)).is_none(), "{}", waiting.len());
        }
        waiting.push(wait(&scheduler, 0).result);
        let batch = scheduler.full_batch(at(0)).expect("a full call");
        assert_eq!(batch.requests.len(), MAX_CALL_CHARGES);
        assert!(batch.call.is_urgent && !batch.is_last);
        assert!(scheduler.full_batch(at(0)).is_none());
        waiting.push(wait(&scheduler, 0).result);
        assert_eq!(
            take(&scheduler, dispatcher, 0).1,
            1,
            "the dispatcher goes on"
        );
    }

    // Regression: with many callers, each call was written on its own, and the network carried more of them.
    #[test]
    fn beyond_two_full_calls_in_flight_the_dispatcher_sends() {
        let scheduler = scheduler(1);
        let fill = |millis| [(); MAX_CALL_CHARGES].map(|()| wait(&scheduler, millis));
        let _alone = send_now(&scheduler, 0);
        // A server of 64,000 charges a second, so that the window has room for more than two calls.
        for millis in 0..30 {
            let _waiting = fill(millis);
            let batch = scheduler.full_batch(at(millis)).expect("a full call");
            scheduler.end_call(batch.call.id, at(millis + 1), true);
        }
        assert!(scheduler.traffic.lock().window.capacity() > 4 * MAX_CALL_CHARGES);
        let _waiting = [(); 4].map(|()| fill(30));
        let sent = [(); 4].map(|()| scheduler.full_batch(at(30)).is_some());
        assert_eq!(sent, [true, true, false, false]);
    }

    // Regression: a full call of late jobs timed out as a whole.
    #[test]
    fn late_jobs_are_left_to_the_dispatcher() {
        let scheduler = scheduler(1);
        let _alone = send_now(&scheduler, 0);
        let waiting = [(); MAX_CALL_CHARGES].map(|()| wait(&scheduler, 0).result);
        assert!(scheduler.full_batch(at(40)).is_none());
        let batch = scheduler.full_batch(at(1)).expect("they are in time");
        assert_eq!(batch.requests.len(), waiting.len());
    }

    #[test]
    fn full_call_waits_for_room_in_the_window() {
        let scheduler = slow_scheduler();
        let _alone = send_now(&scheduler, 100);
        let waiting: Vec<_> = (0..2 * MAX_CALL_CHARGES)
            .map(|_| wait(&scheduler, 100).result)
            .collect();
        let mut sent = 0;
        while let Some(batch) = scheduler.full_batch(at(100)) {
            sent += batch.requests.len();
        }
        let traffic = scheduler.traffic.lock();
        assert!((1..=traffic.window.capacity()).contains(&sent), "{sent}");
        assert_eq!(traffic.queue.charges(), waiting.len() - sent);
    }

    #[test]
    fn charges_in_flight_are_limited_and_a_reply_makes_room() {
        let scheduler = scheduler(1);
        send_now(&scheduler, 0);
        let kept: Vec<_> = (0..1_000).map(|_| wait(&scheduler, 0)).collect();
        let dispatcher = kept[0].dispatcher.expect("a dispatcher");
        let mut calls = Vec::new();
        loop {
            let (call, taken, is_last) = take(&scheduler, dispatcher, 0);
            assert_eq!(taken, 64);
            calls.push(call);
            if is_last {
                break;
            }
        }
        // One was sent alone, and 128 fill the window: the batch that reaches the limit is the last.
        assert_eq!(calls.len(), 2);
        let next = scheduler.end_call(calls[0], at(1), true).dispatcher;
        take(&scheduler, next.expect("there is room again"), 1);
    }

    #[test]
    fn newest_go_first_once_the_oldest_has_waited_for_a_sixth_of_the_deadline() {
        // After 10 ms and the scheduling delay, which is a quarter of the first sample.
        for (millis, newest_first) in [(12, false), (13, true)] {
            let scheduler = scheduler(1);
            let call = send_now(&scheduler, 0).id;
            // The connection is not new.
            scheduler.end_call(call, at(0), true);
            let call = send_now(&scheduler, 1_000).id;
            let mut kept: Vec<_> = (0..200).map(|_| wait(&scheduler, 1_000)).collect();
            let dispatcher = kept[0].dispatcher.expect("a dispatcher");
            let (batch, ..) = take(&scheduler, dispatcher, 1_000 + millis);
            for waiter in scheduler.end_call(batch, at(1_000 + millis), true).waiters {
                waiter.hand_back(request());
            }
            let has_result = |waiting: &mut QueuedRequest| waiting.result.try_recv().is_ok();
            assert_eq!(has_result(&mut kept[199]), newest_first);
            assert_eq!(has_result(&mut kept[0]), !newest_first);
            scheduler.end_call(call, at(1_100), true);
        }
    }

    /// Returns how many of these are shed if they were submitted at 0 and the dispatcher runs after this time, and then
    /// whether the others are sent.
    fn shed_after(scheduler: &Scheduler, waiting: usize, millis: u64) -> (usize, bool) {
        let call = send_now(scheduler, 0).id;
        scheduler.end_call(call, at(0), true);
        send_now(scheduler, 1_000);
        let old: Vec<_> = (0..waiting).map(|_| wait(scheduler, 1_000)).collect();
        let young = wait(scheduler, 999 + millis);
        let dispatcher = old[0].dispatcher.expect("a dispatcher");
        let (taken, shed) = scheduler.next_batch(dispatcher, at(1_000 + millis));
        drop((old, young));
        (shed.len(), matches!(taken, Dispatch::Send(_)))
    }

    #[test]
    fn decisions_that_waited_for_the_server_for_half_of_the_deadline_are_shed() {
        // More than the window has room for.
        assert_eq!(shed_after(&scheduler(1), 200, 29), (0, true));
        assert_eq!(shed_after(&scheduler(1), 200, 31), (200, true));
    }

    // Regression: a process that others took the core from shed decisions that an idle server would have made in time.
    #[test]
    fn decisions_that_waited_for_this_process_are_sent_while_the_server_can_make_them_in_time() {
        // 60 ms, less an eighth and the scheduling delay, which is a quarter of the first sample.
        assert_eq!(shed_after(&scheduler(1), 5, 49), (0, true));
        assert_eq!(shed_after(&scheduler(1), 5, 51), (5, true));
    }

    #[test]
    fn waiting_for_the_first_connection_is_not_an_overload() {
        let scheduler = scheduler(1);
        scheduler.lanes[0].simulate(0);
        let waiting = wait(&scheduler, 0);
        let dispatcher = waiting.dispatcher.expect("a dispatcher");
        assert!(matches!(
            scheduler.next_batch(dispatcher, at(1)).0,
            Dispatch::NotConnected
        ));
        scheduler.lanes[0].simulate(7);
        let (taken, shed) = scheduler.next_batch(dispatcher, at(50));
        assert!(shed.is_empty());
        assert!(matches!(taken, Dispatch::Send(_)));
    }

    #[test]
    fn new_requests_are_shed_while_more_wait_than_the_server_decides_in_time() {
        let scheduler = slow_scheduler();
        send_now(&scheduler, 1_000);
        let mut kept: Vec<_> = (0..400).map(|_| wait(&scheduler, 1_000)).collect();
        let dispatcher = kept[0].dispatcher.expect("a dispatcher");
        // 4 charges may be in flight to a slow server, so a call has 2.
        let (mut first, ..) = take(&scheduler, dispatcher, 1_001);
        let (mut second, _, is_last) = take(&scheduler, dispatcher, 1_001);
        assert!(is_last, "the window is full");
        assert!(!scheduler.shedding.is_on(), "a burst");
        kept.push(wait(&scheduler, 1_012));
        assert!(
            scheduler.shedding.is_on(),
            "the oldest has waited for 12 ms"
        );
        // 397 wait. After 196 calls of 2, 5 still do.
        for call in 1..=197 {
            let dispatcher = scheduler.end_call(first, at(1_014), true).dispatcher;
            let (next, ..) = take(&scheduler, dispatcher.expect("there is room again"), 1_014);
            (first, second) = (second, next);
            assert_eq!(scheduler.shedding.is_on(), call <= 196);
        }
        scheduler.end_call(second, at(1_014), true);
    }

    // Regression: new requests were shed before enough waited for a full call, and nothing was sent although there was
    // room.
    #[test]
    fn nobody_is_shed_while_the_window_has_room() {
        for wants_probe in [false, true] {
            let scheduler = slow_scheduler();
            send_now(&scheduler, 1_000);
            if wants_probe {
                scheduler.traffic.lock().window.want_probe(at(1_000));
            }
            let mut kept: Vec<_> = (0..40).map(|_| wait(&scheduler, 1_000)).collect();
            kept.push(wait(&scheduler, 1_012));
            assert!(!scheduler.shedding.is_on());
        }
    }

    // Regression: others were sent together with the charge that was to measure the network alone.
    #[test]
    fn probe_is_sent_alone() {
        let scheduler = scheduler(2);
        let call = send_now(&scheduler, 0).id;
        scheduler.traffic.lock().window.want_probe(at(0));
        let kept: Vec<_> = (0..20).map(|_| wait(&scheduler, 1)).collect();
        assert!(kept.iter().all(|waiting| waiting.dispatcher.is_none()));
        let dispatcher = scheduler.end_call(call, at(2), true).dispatcher;
        let (probe, taken, is_last) =
            take(&scheduler, dispatcher.expect("nothing is in flight"), 2);
        assert_eq!((taken, is_last), (1, true));
        assert!(wait(&scheduler, 3).dispatcher.is_none(), "it is under way");
        let dispatcher = scheduler.end_call(probe, at(4), true).dispatcher;
        let (_, taken, _) = take(&scheduler, dispatcher.expect("it has ended"), 4);
        assert!(taken > 1);
    }

    // Regression: before a probe, nothing was sent until the call in flight was abandoned.
    #[test]
    fn others_wait_half_a_deadline_for_a_probe_at_most() {
        let scheduler = scheduler(2);
        send_now(&scheduler, 0);
        scheduler.traffic.lock().window.want_probe(at(0));
        assert!(wait(&scheduler, 29).dispatcher.is_none());
        assert!(wait(&scheduler, 30).dispatcher.is_some());
    }

    #[test]
    fn nobody_is_shed_before_the_throughput_of_the_server_is_measured() {
        let scheduler = scheduler(1);
        send_now(&scheduler, 1_000);
        let mut kept: Vec<_> = (0..400).map(|_| wait(&scheduler, 1_000)).collect();
        kept.push(wait(&scheduler, 1_011));
        assert!(!scheduler.shedding.is_on());
    }

    // Regression: new requests were shed, although nothing waited any more.
    #[test]
    fn nobody_is_shed_after_the_server_was_replaced() {
        let scheduler = slow_scheduler();
        send_now(&scheduler, 1_000);
        let mut kept: Vec<_> = (0..400).map(|_| wait(&scheduler, 1_000)).collect();
        let dispatcher = kept[0].dispatcher.expect("a dispatcher");
        // Fills the window.
        let _calls = [0, 1].map(|_| take(&scheduler, dispatcher, 1_001));
        kept.push(wait(&scheduler, 1_012));
        assert!(scheduler.shedding.is_on());
        assert_eq!(scheduler.note_replaced().len(), 397);
        assert!(!scheduler.shedding.is_on());
    }

    #[test]
    fn oldest_is_shed_when_too_many_wait() {
        let scheduler = scheduler(1);
        send_now(&scheduler, 0);
        let kept: Vec<_> = (0..MAX_WAITING).map(|_| wait(&scheduler, 0)).collect();
        assert!(kept.iter().all(|waiting| waiting.shed.is_none()));
        assert!(wait(&scheduler, 0).shed.is_some());
    }

    #[test]
    fn call_without_a_reply_is_due_at_the_deadline_of_its_oldest_request() {
        let scheduler = scheduler(1);
        let leading = send_now(&scheduler, 0).id;
        let waiting = wait(&scheduler, 0);
        let (call, ..) = take(&scheduler, waiting.dispatcher.expect("a dispatcher"), 20);
        assert!(scheduler.take_overdue(at(59)).to_wake.is_empty());
        assert_eq!(scheduler.take_overdue(at(60)).to_wake.len(), 2);
        assert_eq!(
            scheduler.expire(call, at(61)).map(|late| late.len()),
            Some(1)
        );
        // Its connection is given up a deadline after the call was sent.
        scheduler.end_call(leading, at(19), true);
        assert!(scheduler.take_overdue(at(79)).unresponsive.is_empty());
        assert_eq!(scheduler.take_overdue(at(80)).unresponsive, [(0, 1)]);
    }

    #[test]
    fn call_whose_task_runs_late_is_extended_by_the_delay() {
        let scheduler = scheduler(1);
        let call = send_now(&scheduler, 0);
        scheduler.take_overdue(at(60));
        assert!(call.alarm.is_due());
        assert!(scheduler.expire(call.id, at(75)).is_none(), "15 ms late");
        assert!(scheduler.take_overdue(at(89)).to_wake.is_empty());
        assert_eq!(scheduler.take_overdue(at(90)).to_wake.len(), 1);
        assert!(scheduler.expire(call.id, at(91)).is_some(), "on time");
    }

    #[test]
    fn requests_of_a_call_that_nobody_polls_fail_at_twice_the_deadline() {
        let scheduler = scheduler(1);
        send_now(&scheduler, 0);
        let waiting = wait(&scheduler, 0);
        take(&scheduler, waiting.dispatcher.expect("a dispatcher"), 0);
        assert!(scheduler.take_overdue(at(119)).unpolled.is_empty());
        assert_eq!(scheduler.take_overdue(at(120)).unpolled.len(), 1);
        // Their call makes room for others.
        send_now(&scheduler, 121);
    }

    #[test]
    fn requests_are_handed_back_when_the_dispatcher_does_not_run() {
        let scheduler = scheduler(1);
        send_now(&scheduler, 0);
        let waiting = wait(&scheduler, 0);
        let dispatcher = waiting.dispatcher.expect("a dispatcher");
        assert!(scheduler.take_overdue(at(40)).stranded.is_empty());
        assert_eq!(scheduler.take_overdue(at(41)).stranded.len(), 1);
        assert!(matches!(
            scheduler.next_batch(dispatcher, at(42)).0,
            Dispatch::Nothing
        ));
        assert!(
            wait(&scheduler, 42).dispatcher.is_some(),
            "there is another one"
        );
    }

    // Regression: a busy runtime had healthy connections given up.
    #[test]
    fn connection_of_a_call_that_nobody_polls_is_kept() {
        let scheduler = scheduler(1);
        let call = send_now(&scheduler, 0);
        let overdue = scheduler.take_overdue(at(120));
        assert!(overdue.unresponsive.is_empty());
        assert_eq!(overdue.to_wake.len(), 2, "when due, and when abandoned");
        assert!(call.alarm.is_abandoned());
    }

    #[test]
    fn connection_is_given_up_unless_it_replied_since_the_call_was_sent() {
        for replies in [false, true] {
            let scheduler = scheduler(1);
            let earlier = send_now(&scheduler, 0).id;
            let waiting = wait(&scheduler, 5);
            let (call, ..) = take(&scheduler, waiting.dispatcher.expect("a dispatcher"), 5);
            scheduler.end_call(earlier, at(if replies { 30 } else { 5 }), true);
            scheduler.take_overdue(at(65));
            assert!(scheduler.expire(call, at(65)).is_some(), "on time");
            assert_eq!(
                scheduler.take_overdue(at(66)).unresponsive.is_empty(),
                replies
            );
        }
    }

    // Regression: each extension led to another, and a server that no longer replied was not reported while the runtime
    // was busy.
    #[test]
    fn call_that_is_polled_late_is_extended_once_and_ends_an_unresponsive_connection() {
        for polled_again in [false, true] {
            let scheduler = scheduler(1);
            let call = send_now(&scheduler, 0).id;
            scheduler.take_overdue(at(60));
            assert!(scheduler.expire(call, at(63)).is_none(), "extended to 66");
            assert_eq!(scheduler.take_overdue(at(66)).to_wake.len(), 1);
            if polled_again {
                assert!(scheduler.expire(call, at(75)).is_some(), "once is enough");
            }
            let overdue = scheduler.take_overdue(at(120));
            assert_eq!(overdue.unresponsive, [(0, 1)]);
            assert_eq!(overdue.is_unreported, !polled_again);
        }
    }

    // Regression: it was removed without waking its task, which then kept the connection permanently.
    #[test]
    fn call_whose_connection_stops_replying_is_woken_at_its_end() {
        let scheduler = scheduler(1);
        let earlier = send_now(&scheduler, 0).id;
        let waiting = wait(&scheduler, 5);
        let (call, ..) = take(&scheduler, waiting.dispatcher.expect("a dispatcher"), 5);
        scheduler.end_call(earlier, at(6), true);
        scheduler.take_overdue(at(65));
        assert!(scheduler.expire(call, at(65)).is_some(), "on time");
        assert_eq!(scheduler.take_overdue(at(65)).unresponsive, []);
        let overdue = scheduler.take_overdue(at(66));
        assert_eq!(overdue.unresponsive, [(0, 1)], "nothing since 6");
        assert_eq!(overdue.to_wake.len(), 1);
    }

    // Regression: each command ended all others, and counted as a failure of the server.
    #[test]
    fn command_that_nobody_polls_ends_no_other() {
        let scheduler = scheduler(1);
        let first = scheduler.begin_command(at(0));
        scheduler.take_overdue(at(60));
        assert!(scheduler.expire(first.id, at(60)).is_some(), "on time");
        let other = scheduler.begin_command(at(119));
        assert!(scheduler.take_overdue(at(120)).unresponsive.is_empty());
        assert!(first.alarm.is_abandoned());
        assert!(other.alarm.is_not_due());
    }
}
