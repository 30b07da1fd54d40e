//! A server of HTTP connections in simulated time: its runtime, Redis and the clients, around the real [`Scheduler`].
//!
//! ```text
//! thread    step                                            what follows
//! worker    a request is read and submitted                 it waits, or is sent to Redis
//!           the dispatcher gives way, then takes batches    calls arrive at Redis after half of the round trip
//!           a reply is read                                 responses to write, or one that is written at once
//!           a response is written                           the clients can read it
//! redis     a call is executed                              a readable reply after half of the round trip
//! clients   a response is read                              a readable request
//! ```
//!
//! A worker runs its tasks in order. It polls the sockets when none is left, and after 61 tasks. Without a task, it takes half of
//! those of the other worker. A core changes to another thread when its own has nothing to do.
//!
//! The time of each step is in nanoseconds, as measured on an axum server under wrk, or fitted to the rates measured there. With a
//! random generator with a fixed seed, steps take half to one and a half of it. At 64 connections on one worker, the rate was 0.91
//! of the plain layer's with [`GiveWay::Sockets`] and 1.17 with [`GiveWay::Ready`]. The simulation returns the same.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot;

use crate::clock::Timestamp;

use super::{
    super::connection::classify,
    calls::CallId,
    queue::JobResult,
    scheduler::Scheduler,
    simulation::{request, scheduler},
    steps::{Dispatch, Dispatcher, Submitted},
};

/// How requests reach Redis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limiter {
    /// One call for each request.
    Plain,
    /// In batches, for which the dispatcher gives way like this.
    Tollgate(GiveWay),
}

/// The tasks that run before the dispatcher takes its batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum GiveWay {
    /// Those that are ready.
    Ready,
    /// Those too that become ready with the next poll of the sockets.
    Sockets,
}

/// A server and its load.
#[derive(Clone, Copy, Debug)]
struct Scene {
    /// Clients that send the next request after each response.
    connections: usize,
    /// One worker has a core of its own. Two share both cores with Redis and the clients.
    workers: usize,
    round_trip_millis: u64,
    /// The time that Redis takes for a charge, besides that of its call.
    charge: u64,
}

/// What happened in a simulation.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Responses to requests that Redis decided.
    responses: u64,
    calls: u64,
    /// Calls that were sent while no other one was in flight.
    lone_calls: u64,
}

/// A step of a worker.
#[derive(Clone, Copy, Debug)]
enum Task {
    /// A request is handled.
    Request,
    /// The dispatcher runs. It has given way if the flag is set.
    Dispatch(Dispatcher, bool),
    /// The reply to a call is read, or with the plain layer the reply to one request.
    Reply(Option<CallId>),
    /// A response is written. Redis has decided the request if the flag is set.
    Respond(bool),
}

/// The end of a way through a network.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    /// Redis gets a call with this many charges.
    Call(Option<CallId>, usize),
    /// A socket of the server becomes readable.
    Readable(Task),
}

/// A worker thread of the server's runtime.
#[derive(Debug, Default)]
struct Worker {
    tasks: VecDeque<Task>,
    /// Tasks that run after the next poll of the sockets.
    deferred: Vec<Task>,
    /// Tasks that ran since that poll.
    polled: usize,
}

/// The state of a simulation. Its threads are the workers, then Redis, then the clients.
struct World {
    scene: Scene,
    limiter: Limiter,
    scheduler: Scheduler,
    now: u64,
    /// What arrives later, by time and number.
    arrivals: BTreeMap<(u64, u64), Arrival>,
    next: u64,
    /// Tasks whose sockets are readable.
    sockets: VecDeque<Task>,
    workers: Vec<Worker>,
    /// Calls that Redis has not executed: the call, and its charges.
    redis: VecDeque<(Option<CallId>, usize)>,
    /// Responses that the clients have not read.
    unread: usize,
    /// Per core, the thread that ran last, and when its step ends.
    cores: [(usize, u64); 2],
    receivers: Vec<oneshot::Receiver<JobResult>>,
    in_flight: usize,
    counts: Counts,
    /// The state of the random generator.
    noise: u64,
}

impl World {
    /// Runs a scene for [`SPAN`], and counts its second half.
    fn run(scene: Scene, limiter: Limiter) -> Counts {
        let mut world = Self {
            scene,
            limiter,
            scheduler: scheduler(2),
            now: 0,
            arrivals: BTreeMap::new(),
            next: 0,
            sockets: VecDeque::new(),
            workers: (0..scene.workers).map(|_| Worker::default()).collect(),
            redis: VecDeque::new(),
            unread: scene.connections,
            cores: [(0, 0), (scene.workers, 0)],
            receivers: Vec::new(),
            in_flight: 0,
            counts: Counts::default(),
            noise: 1,
        };
        while world.now < SPAN / 2 {
            world.advance();
        }
        world.counts = Counts::default();
        while world.now < SPAN {
            world.advance();
        }
        world.counts
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + self.now / 1_000)
    }

    /// Goes on to the next moment at which a core is free or a socket becomes readable, and has the free cores work.
    fn advance(&mut self) {
        while let Some(arrival) = self.arrivals.first_entry()
            && arrival.key().0 <= self.now
        {
            match arrival.remove() {
                Arrival::Call(call, charges) => self.redis.push_back((call, charges)),
                Arrival::Readable(task) => self.sockets.push_back(task),
            }
        }
        for core in 0..2 {
            if self.cores[core].1 <= self.now {
                self.work(core);
            }
        }
        let busy = self.cores.iter().map(|core| core.1);
        let arrival = self.arrivals.keys().next().map(|(at, _)| *at);
        let later = busy.chain(arrival).filter(|at| *at > self.now);
        self.now = later.min().expect("something happens later");
    }

    /// Runs a step of a thread on a free core: of the same thread as long as it has work.
    fn work(&mut self, core: usize) {
        let (last, _) = self.cores[core];
        let threads = self.workers.len() + 2;
        let other = self.cores[1 - core];
        for turn in 0..threads {
            let thread = (last + turn) % threads;
            let is_elsewhere = other.0 == thread && other.1 > self.now;
            let is_pinned = self.scene.workers == 1 && (thread > 0) != (core > 0);
            if is_elsewhere || is_pinned {
                continue;
            }
            if let Some(nanos) = self.step(thread) {
                let switch = if turn == 0 { 0 } else { SWITCH };
                self.cores[core] = (thread, self.now + switch + nanos);
                return;
            }
        }
    }

    /// Runs a step of a thread. Returns how long it takes; `None` if it has nothing to do.
    fn step(&mut self, thread: usize) -> Option<u64> {
        if thread < self.workers.len() {
            let task = self.next_task(thread)?;
            let nanos = self.run_task(thread, task);
            return Some(self.vary(nanos));
        }
        if thread == self.workers.len() {
            let (call, charges) = self.redis.pop_front()?;
            let around = if call.is_some() {
                REDIS_CALL
            } else {
                REDIS_PLAIN
            };
            let nanos = self.vary(around + charges as u64 * self.scene.charge);
            let reply = Arrival::Readable(Task::Reply(call));
            self.arrive(nanos + self.half(), reply);
            return Some(nanos);
        }
        self.unread = self.unread.checked_sub(1)?;
        let nanos = self.vary(CLIENT);
        self.arrive(nanos, Arrival::Readable(Task::Request));
        Some(nanos)
    }

    /// Returns a random time from half to one and a half of this one.
    fn vary(&mut self, nanos: u64) -> u64 {
        self.noise = self
            .noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        nanos / 2 + (self.noise >> 33) % nanos
    }

    /// Returns half of the round trip.
    fn half(&self) -> u64 {
        self.scene.round_trip_millis * 500_000
    }

    fn arrive(&mut self, after: u64, arrival: Arrival) {
        self.arrivals.insert((self.now + after, self.next), arrival);
        self.next += 1;
    }

    /// Returns the next task of a worker. Without one, it polls the sockets, or takes half of the tasks of the other worker.
    fn next_task(&mut self, thread: usize) -> Option<Task> {
        let worker = &mut self.workers[thread];
        if worker.tasks.is_empty() || worker.polled == EVENT_INTERVAL {
            worker.polled = 0;
            worker.tasks.extend(self.sockets.drain(..));
            worker.tasks.extend(worker.deferred.drain(..));
        }
        worker.polled += 1;
        if worker.tasks.is_empty() && self.workers.len() > 1 {
            let other = &mut self.workers[1 - thread].tasks;
            let stolen: Vec<_> = other.drain(..other.len().div_ceil(2)).collect();
            self.workers[thread].tasks.extend(stolen);
        }
        self.workers[thread].tasks.pop_front()
    }

    /// Runs a task of a worker. Returns how long it takes.
    fn run_task(&mut self, thread: usize, task: Task) -> u64 {
        match task {
            Task::Request if self.limiter == Limiter::Plain => {
                self.send(None, 1);
                REQUEST + PLAIN
            }
            Task::Request if self.scheduler.shedding.is_on() => {
                self.unread += 1;
                REQUEST + RESPOND
            }
            Task::Request => match self.scheduler.submit(request(), self.time(), self.time()) {
                Submitted::SendNow(call, _) => {
                    self.send(Some(call.id), 1);
                    REQUEST + CALL
                }
                Submitted::Queued {
                    result, dispatcher, ..
                } => {
                    self.receivers.push(result);
                    self.start(thread, dispatcher);
                    REQUEST
                }
            },
            Task::Dispatch(dispatcher, false) => {
                let task = Task::Dispatch(dispatcher, true);
                if self.limiter == Limiter::Tollgate(GiveWay::Sockets) {
                    self.workers[thread].deferred.push(task);
                } else {
                    self.workers[thread].tasks.push_back(task);
                }
                GIVE_WAY
            }
            Task::Dispatch(dispatcher, true) => self.dispatch(thread, dispatcher),
            Task::Reply(None) => {
                self.in_flight -= 1;
                self.respond(true)
            }
            Task::Reply(Some(call)) => self.end(thread, call),
            Task::Respond(was_decided) => self.respond(was_decided),
        }
    }

    fn start(&mut self, thread: usize, dispatcher: Option<Dispatcher>) {
        let task = dispatcher.map(|dispatcher| Task::Dispatch(dispatcher, false));
        self.workers[thread].tasks.extend(task);
    }

    /// Sends batches while the scheduler returns some.
    fn dispatch(&mut self, thread: usize, dispatcher: Dispatcher) -> u64 {
        let mut nanos = GIVE_WAY;
        loop {
            let (next, shed) = self.scheduler.next_batch(dispatcher, self.time());
            for waiter in shed {
                waiter.complete(Err(classify::overloaded(false)));
                self.workers[thread].tasks.push_back(Task::Respond(false));
            }
            let Dispatch::Send(batch) = next else { break };
            self.send(Some(batch.call.id), batch.requests.len());
            nanos += CALL;
            if batch.is_last {
                break;
            }
        }
        self.forget_ended();
        nanos
    }

    /// Sends a call.
    fn send(&mut self, call: Option<CallId>, charges: usize) {
        self.counts.calls += 1;
        self.counts.lone_calls += u64::from(self.in_flight == 0);
        self.in_flight += 1;
        self.arrive(self.half(), Arrival::Call(call, charges));
    }

    /// Ends a call. A call of its caller's own has no waiters, and its caller responds at once.
    fn end(&mut self, thread: usize, call: CallId) -> u64 {
        self.in_flight -= 1;
        let ended = self.scheduler.end_call(call, self.time(), true);
        let is_of_caller = ended.waiters.is_empty();
        for waiter in ended.waiters {
            waiter.hand_back(request());
            self.workers[thread].tasks.push_back(Task::Respond(true));
        }
        self.forget_ended();
        self.start(thread, ended.dispatcher);
        if is_of_caller {
            REPLY + self.respond(true)
        } else {
            REPLY
        }
    }

    /// Drops the receivers of requests that have ended. Those of others stay: without them, their callers would have left.
    fn forget_ended(&mut self) {
        let waits = |result: &mut oneshot::Receiver<JobResult>| result.try_recv().is_err();
        self.receivers.retain_mut(waits);
    }

    /// Writes a response. Only those to requests that were decided count.
    fn respond(&mut self, was_decided: bool) -> u64 {
        self.counts.responses += u64::from(was_decided);
        self.unread += 1;
        RESPOND
    }
}

impl Scene {
    /// Returns connections to a server whose Redis is near and fast.
    const fn near(connections: usize, workers: usize) -> Self {
        Self {
            connections,
            workers,
            round_trip_millis: 0,
            charge: FAST,
        }
    }

    /// Returns the rate of decisions, in percent of that of another limiter.
    fn percent(self, limiter: Limiter, other: Limiter) -> u64 {
        let rate = |limiter| World::run(self, limiter).responses;
        rate(limiter) * 100 / rate(other)
    }
}

// === Tests ===

#[test]
fn connections_do_not_all_wait_for_the_same_call() {
    for connections in [16, 64] {
        let scene = Scene::near(connections, 1);
        let counts = World::run(scene, TOLLGATE);
        assert!(
            counts.lone_calls * 3 < counts.calls,
            "{scene:?}: {counts:?}"
        );
    }
    let counts = World::run(Scene::near(64, 1), SOCKETS);
    assert_eq!(counts.lone_calls, counts.calls, "the error to avoid");
}

#[test]
fn connections_get_more_decisions_than_from_single_calls() {
    for (connections, workers, least) in [
        (16, 1, 100),
        (64, 1, 115),
        (256, 1, 105),
        (1_024, 1, 100),
        (64, 2, 100),
        (256, 2, 100),
        (1_024, 2, 100),
    ] {
        let scene = Scene::near(connections, workers);
        let percent = scene.percent(TOLLGATE, Limiter::Plain);
        assert!(percent >= least, "{percent} %: {scene:?}");
    }
}

#[test]
fn dispatcher_that_ignores_the_sockets_loses_nothing_over_a_network_or_past_saturation() {
    let far = [1, 5].map(|millis| (millis, FAST, [64, 256, 1_024].as_slice()));
    let saturated = (0, 10 * FAST, [64, 256].as_slice());
    for (round_trip_millis, charge, crowds) in far.into_iter().chain([saturated]) {
        for (connections, workers) in crowds.iter().flat_map(|crowd| [(*crowd, 1), (*crowd, 2)]) {
            let scene = Scene {
                round_trip_millis,
                charge,
                ..Scene::near(connections, workers)
            };
            let percent = scene.percent(TOLLGATE, SOCKETS);
            assert!(percent >= 90, "{percent} %: {scene:?}");
        }
    }
}

const TOLLGATE: Limiter = Limiter::Tollgate(GiveWay::Ready);
/// As it would be if the dispatcher waited for the sockets.
const SOCKETS: Limiter = Limiter::Tollgate(GiveWay::Sockets);

/// The length of a simulation, in nanoseconds.
const SPAN: u64 = 200_000_000;
/// Tasks between two polls of the sockets, at most.
const EVENT_INTERVAL: usize = 61;
/// A worker handles a request, up to the limiter.
const REQUEST: u64 = 5_500;
/// A worker writes a response.
const RESPOND: u64 = 5_300;
/// The dispatcher gives way, or finds that nothing may be sent.
const GIVE_WAY: u64 = 200;
/// A worker sends a call of a batch.
const CALL: u64 = 5_000;
/// A worker reads the reply to it.
const REPLY: u64 = 5_000;
/// A worker sends a call of its own for a request.
const PLAIN: u64 = 1_300;
/// Redis executes a call, besides its charges.
const REDIS_CALL: u64 = 6_000;
/// Redis executes a charge.
const FAST: u64 = 3_800;
/// Redis executes a call of the plain layer, besides its charge.
const REDIS_PLAIN: u64 = 2_600;
/// A client reads a response and writes the next request.
const CLIENT: u64 = 7_000;
/// A core goes on with another thread.
const SWITCH: u64 = 2_000;
