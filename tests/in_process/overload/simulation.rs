//! A service on an executor of four workers with one run queue, its clients, and a limit, in simulated time.
//!
//! As with tokio and hyper: a request waits in the run queue before the limit sees it, and the first part of its handler runs in the
//! same poll, unless the executor lags. Then it goes to the end of the queue once, after it was counted.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tollgate::{
    Key,
    clock::{Clock, Timestamp},
    overload::{InFlight, Overload, Priority},
};

/// A service, by the work of its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// 0.5 ms of work, 5 ms elsewhere without a limit, 0.5 ms of work.
    Await,
    /// 1 ms of work in one poll.
    Cpu,
    /// The same, and the executor looks for new requests after each 61 polls only, as tokio does.
    CpuInBunches,
    /// 1 ms of a pool of ten connections; one request in a hundred takes 2 s of it.
    MixPool,
    /// 0.5 ms of work; one request in twenty also waits for 2 s, and has as much work after it.
    MixWait,
    /// 20 ms of a pool of ten connections.
    Pool,
    /// 20 ms of a downstream without a pool, which slows down with what it has to do.
    Shared,
}

/// What happens to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    None,
    /// All requests of a second come in its first quarter.
    Bursts,
    /// The downstream takes ten times as long for the first 5 s.
    ColdStart,
    /// From 20 s to 50 s, the requests of one tenant, one in 200, take 2 s of the downstream.
    Poison,
    /// The downstream takes ten times as long from 20 s to 80 s.
    Slow,
    /// The downstream does not answer from 20 s to 50 s. The handler gives up after 5 s.
    Stuck,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub service: Service,
    pub event: Event,
    /// Demand as a multiple of what the service can do.
    pub load: f64,
    pub seconds: f64,
    /// From when on it is measured.
    pub from: f64,
    pub seed: u64,
    /// Whether requests have keys: 20 tenants, of whom one sends nine requests in ten.
    pub has_tenants: bool,
    /// A third of the demand is critical, a third normal, a third sheddable.
    pub has_classes: bool,
    /// The class of all requests otherwise.
    pub class: u8,
}

impl Setup {
    pub fn new(service: Service, load: f64) -> Self {
        Self {
            service,
            event: Event::None,
            load,
            seconds: 40.0,
            from: 10.0,
            seed: 1,
            has_tenants: false,
            has_classes: false,
            class: 1,
        }
    }

    /// Requests a second that the service can serve if it sheds none.
    pub fn capacity(&self) -> f64 {
        let of_pool = |seconds: f64| CONNECTIONS as f64 / seconds;
        match self.service {
            Service::Await | Service::Cpu | Service::CpuInBunches | Service::MixWait => {
                WORKERS as f64 / (self.work() + HEAD)
            }
            Service::MixPool => of_pool(0.99 * 0.001 + 0.01 * 2.0),
            Service::Pool | Service::Shared => of_pool(0.02),
        }
    }

    /// Responses in time a second that are possible with this many attempts, each of which takes some time to refuse.
    fn optimum(&self, attempts: f64) -> f64 {
        let refusing = attempts * (HEAD + REFUSAL);
        let of_workers = (WORKERS as f64 - refusing) / (self.work() - REFUSAL);
        attempts.min(self.capacity()).min(of_workers.max(0.0))
    }

    /// Seconds of a worker that a request takes, without its head.
    fn work(&self) -> f64 {
        match self.service {
            Service::Await | Service::Cpu | Service::CpuInBunches => 0.001,
            Service::MixWait => 0.000_525,
            Service::MixPool | Service::Pool | Service::Shared => 0.000_1,
        }
    }

    pub fn run(self, overload: Option<(Overload, Clock)>) -> Outcome {
        self.run_shown(overload, Arc::default())
    }

    /// Runs it, and shows meanwhile how many requests wait for a connection.
    pub fn run_shown(
        self,
        overload: Option<(Overload, Clock)>,
        waiting: Arc<AtomicUsize>,
    ) -> Outcome {
        let mut simulation = Simulation::new(self, overload);
        simulation.shown = waiting;
        simulation.run()
    }
}

/// What was measured.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Responses in time, of those that were possible.
    pub share: f64,
    pub p99: Duration,
    /// Served of those that came, by class.
    pub classes: [f64; 3],
    /// The least of Jain's indices over the tenants, of the classes of which at least 5 % are served.
    pub jain: f64,
    /// Served of the requests of the tenants but for the loud one.
    pub quiet: f64,
    /// The limit at the end of each second.
    pub limits: Vec<u32>,
    /// Responses in time in each second.
    pub served: Vec<u32>,
}

struct Simulation {
    setup: Setup,
    overload: Option<(Overload, Clock)>,
    now: f64,
    /// When the next request comes, if there are no bursts.
    due: f64,
    events: BinaryHeap<Reverse<(u64, u64, EventKind)>>,
    numbers: u64,
    random: Random,
    run_queue: VecDeque<Job>,
    /// Requests that the executor has not looked for, and its polls since it did.
    unseen: Vec<Job>,
    polls: u32,
    idle: usize,
    free_connections: usize,
    waiting: VecDeque<usize>,
    /// How many wait.
    shown: Arc<AtomicUsize>,
    downstream: usize,
    lags_until: f64,
    requests: Vec<Request>,
    measured: Measured,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    Arrives,
    Replied(usize),
    GivesUp(usize),
    Probe,
    Retry(u8, u16, u8),
    Second,
    WorkerIsFree(Job),
}

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    /// Reads the head, decides, and runs the first part.
    Begin(usize),
    End(usize),
    /// Runs the first part, after the request gave way.
    First(usize),
    Probe(u64),
}

struct Request {
    came_at: f64,
    class: u8,
    tenant: u16,
    attempt: u8,
    first: f64,
    downstream: f64,
    last: f64,
    place: Option<InFlight>,
    holds: bool,
    gave_way: bool,
    is_gone: bool,
    is_answered: bool,
    timed_out: bool,
}

#[derive(Default)]
struct Measured {
    attempts: f64,
    times: Vec<f64>,
    /// Came and served, by tenant and class.
    by_tenant: Vec<[(f64, f64); 3]>,
    limits: Vec<u32>,
    served: Vec<u32>,
}

impl Simulation {
    fn new(setup: Setup, overload: Option<(Overload, Clock)>) -> Self {
        Self {
            setup,
            overload,
            now: 0.0,
            due: 0.0,
            events: BinaryHeap::new(),
            numbers: 0,
            random: Random(setup.seed),
            run_queue: VecDeque::new(),
            unseen: Vec::new(),
            polls: 0,
            idle: WORKERS,
            free_connections: CONNECTIONS,
            waiting: VecDeque::new(),
            shown: Arc::default(),
            downstream: 0,
            lags_until: 0.0,
            requests: Vec::new(),
            measured: Measured {
                by_tenant: vec![[(0.0, 0.0); 3]; TENANTS],
                ..Measured::default()
            },
        }
    }

    fn run(mut self) -> Outcome {
        self.at(0.0, EventKind::Arrives);
        self.at(0.001, EventKind::Probe);
        self.at(1.0, EventKind::Second);
        while let Some(Reverse((nanos, _, event))) = self.events.pop() {
            self.now = nanos as f64 / 1e9;
            if self.now > self.setup.seconds {
                break;
            }
            if let Some((_, clock)) = &self.overload {
                clock.set(Timestamp::from_micros(START + nanos / 1_000));
            }
            self.happens(event);
            self.shown.store(self.waiting.len(), Ordering::Relaxed);
        }
        self.outcome()
    }

    fn at(&mut self, time: f64, event: EventKind) {
        self.numbers += 1;
        let nanos = (time * 1e9) as u64;
        self.events.push(Reverse((nanos, self.numbers, event)));
    }

    fn happens(&mut self, event: EventKind) {
        match event {
            EventKind::Arrives => {
                self.arrives_anew();
                let rate = self.setup.load * self.setup.capacity();
                self.due += self.random.exponential(1.0 / rate);
                let (second, within) = (self.due.floor(), self.due.fract());
                let at = match self.setup.event {
                    Event::Bursts => second + within / 4.0,
                    _ => self.due,
                };
                self.at(at, EventKind::Arrives);
            }
            EventKind::Retry(class, tenant, attempt) => self.arrives(class, tenant, attempt),
            EventKind::Replied(request) => self.replied(request),
            EventKind::GivesUp(request) => self.gives_up(request),
            EventKind::Probe => {
                self.queue(Job::Probe((self.now * 1e9) as u64));
                self.at(self.now + 0.01, EventKind::Probe);
            }
            EventKind::Second => {
                let limit = self
                    .overload
                    .as_ref()
                    .map_or(0, |(overload, _)| overload.limit());
                self.measured.limits.push(limit);
                self.at(self.now + 1.0, EventKind::Second);
            }
            EventKind::WorkerIsFree(job) => {
                self.idle += 1;
                self.done(job);
                self.dispatch();
            }
        }
    }

    // === Arrivals ===

    fn arrives_anew(&mut self) {
        let class = if self.setup.has_classes {
            (self.random.unit() * 3.0) as u8
        } else {
            self.setup.class
        };
        let tenant = if self.random.unit() < 0.9 {
            0
        } else {
            1 + (self.random.unit() * (TENANTS - 1) as f64) as u16
        };
        self.arrives(class, tenant, 0);
    }

    fn arrives(&mut self, class: u8, tenant: u16, attempt: u8) {
        let (first, mut downstream, last) = self.draw();
        let is_poisoned = (20.0..50.0).contains(&self.now) && tenant == 7;
        if self.setup.event == Event::Poison && is_poisoned {
            downstream = 2.0;
        }
        let patience = if downstream >= 2.0 { 5.0 } else { PATIENCE };
        let request = self.requests.len();
        self.requests.push(Request {
            came_at: self.now,
            class,
            tenant,
            attempt,
            first,
            downstream,
            last,
            place: None,
            holds: false,
            gave_way: false,
            is_gone: false,
            is_answered: false,
            timed_out: false,
        });
        if self.is_measured(request) {
            self.measured.attempts += 1.0;
            self.measured.by_tenant[usize::from(tenant)][usize::from(class)].0 += 1.0;
        }
        self.at(self.now + patience, EventKind::GivesUp(request));
        match self.setup.service {
            Service::CpuInBunches => {
                self.unseen.push(Job::Begin(request));
                self.dispatch();
            }
            _ => self.queue(Job::Begin(request)),
        }
    }

    /// Returns the work before the downstream, its time, and the work after it.
    fn draw(&mut self) -> (f64, f64, f64) {
        let random = &mut self.random;
        match self.setup.service {
            Service::Cpu | Service::CpuInBunches => (random.exponential(0.001), 0.0, 0.0),
            Service::Await => {
                let first = random.exponential(0.000_5);
                let downstream = random.log_normal(0.005, 0.5);
                (first, downstream, random.exponential(0.000_5))
            }
            Service::Pool | Service::Shared => (0.000_05, random.log_normal(0.02, 0.5), 0.000_05),
            Service::MixWait => {
                let is_long = random.unit() < 0.05;
                let downstream = if is_long { 2.0 } else { 0.0 };
                (
                    random.exponential(0.000_5),
                    downstream,
                    random.exponential(0.000_5),
                )
            }
            Service::MixPool => {
                let is_long = random.unit() < 0.01;
                (0.000_05, if is_long { 2.0 } else { 0.001 }, 0.000_05)
            }
        }
    }

    // === The executor ===

    fn queue(&mut self, job: Job) {
        self.run_queue.push_back(job);
        self.dispatch();
    }

    fn dispatch(&mut self) {
        while self.idle > 0 {
            if self.polls >= EVENT_INTERVAL || self.run_queue.is_empty() {
                self.polls = 0;
                self.run_queue.extend(self.unseen.drain(..));
            }
            let Some(job) = self.run_queue.pop_front() else {
                return;
            };
            (self.idle, self.polls) = (self.idle - 1, self.polls + 1);
            let takes = self.begins(job);
            self.at(self.now + takes, EventKind::WorkerIsFree(job));
        }
    }

    /// Returns how long a job takes.
    fn begins(&mut self, job: Job) -> f64 {
        match job {
            Job::Begin(request) => HEAD + self.decides(request),
            Job::First(request) => self.part(request, |request| request.first),
            Job::End(request) => self.part(request, |request| request.last),
            Job::Probe(queued_at) => {
                if self.now - queued_at as f64 / 1e9 > 0.001 {
                    self.lags_until = self.now + 0.1;
                }
                0.000_001
            }
        }
    }

    /// A request whose client has gone away is dropped, and costs nearly nothing.
    fn part(&self, request: usize, part: impl Fn(&Request) -> f64) -> f64 {
        let request = &self.requests[request];
        if request.is_gone {
            0.000_001
        } else {
            part(request)
        }
    }

    fn done(&mut self, job: Job) {
        match job {
            Job::Begin(request) => {
                let Request {
                    holds, gave_way, ..
                } = self.requests[request];
                match (holds, gave_way) {
                    (true, true) => self.queue(Job::First(request)),
                    (true, false) => self.first_part_done(request),
                    (false, _) => {}
                }
            }
            Job::First(request) => self.first_part_done(request),
            Job::End(request) => self.responds(request),
            Job::Probe(_) => {}
        }
    }

    // === The limit ===

    /// Returns how long the rest of the poll takes.
    fn decides(&mut self, index: usize) -> f64 {
        let request = &mut self.requests[index];
        if let Some((overload, _)) = &self.overload {
            let priority = CLASSES[usize::from(request.class)];
            let key = Key::from(u64::from(request.tenant));
            let key = self.setup.has_tenants.then_some(&key);
            match overload.enter(priority, key) {
                Ok(place) => request.place = Some(place),
                Err(_) => {
                    self.refused(index);
                    return REFUSAL;
                }
            }
        }
        let request = &mut self.requests[index];
        request.holds = true;
        request.gave_way = self.now < self.lags_until;
        if request.gave_way { 0.0 } else { request.first }
    }

    fn refused(&mut self, request: usize) {
        let Request {
            class,
            tenant,
            attempt,
            is_gone,
            ..
        } = self.requests[request];
        self.requests[request].is_answered = true;
        if !is_gone && attempt < 2 && self.random.unit() < 0.3 {
            // `Retry-After`, spread.
            let wait = 1.0 + self.random.unit();
            self.at(
                self.now + wait,
                EventKind::Retry(class, tenant, attempt + 1),
            );
        }
    }

    // === The handler ===

    fn first_part_done(&mut self, request: usize) {
        let Request {
            is_gone,
            downstream,
            ..
        } = self.requests[request];
        if is_gone {
            return;
        }
        if downstream == 0.0 {
            self.responds(request);
            return;
        }
        match self.setup.service {
            Service::MixPool | Service::Pool if self.free_connections == 0 => {
                self.waiting.push_back(request);
            }
            Service::MixPool | Service::Pool => {
                self.free_connections -= 1;
                self.asks(request);
            }
            _ => self.asks(request),
        }
    }

    fn asks(&mut self, request: usize) {
        self.downstream += 1;
        let mut takes = self.requests[request].downstream * self.slowness();
        if self.setup.service == Service::Shared {
            let crowd = self.downstream as f64 / CONNECTIONS as f64;
            takes *= crowd.max(1.0) * (1.0 + 0.05 * (crowd - 1.0).max(0.0));
        }
        if takes > TIME_OUT {
            self.requests[request].timed_out = true;
            takes = TIME_OUT;
        }
        self.at(self.now + takes, EventKind::Replied(request));
    }

    fn slowness(&self) -> f64 {
        match self.setup.event {
            Event::ColdStart if self.now < 5.0 => 10.0,
            Event::Slow if (20.0..80.0).contains(&self.now) => 10.0,
            Event::Stuck if (20.0..50.0).contains(&self.now) => 1e6,
            _ => 1.0,
        }
    }

    fn replied(&mut self, request: usize) {
        self.downstream -= 1;
        if matches!(self.setup.service, Service::MixPool | Service::Pool) {
            self.free_connections += 1;
            while let Some(next) = self.waiting.pop_front() {
                if !self.requests[next].is_gone {
                    self.free_connections -= 1;
                    self.asks(next);
                    break;
                }
            }
        }
        if !self.requests[request].is_gone {
            self.queue(Job::End(request));
        }
    }

    fn responds(&mut self, index: usize) {
        let is_measured = self.is_measured(index);
        let request = &mut self.requests[index];
        let place = request.place.take();
        if request.is_gone {
            return;
        }
        request.is_answered = true;
        if request.timed_out {
            place.into_iter().for_each(InFlight::timed_out);
            return;
        }
        place.into_iter().for_each(InFlight::answered);
        let second = request.came_at as usize;
        if self.measured.served.len() <= second {
            self.measured.served.resize(second + 1, 0);
        }
        self.measured.served[second] += 1;
        if is_measured {
            self.measured.times.push(self.now - request.came_at);
            let served = &mut self.measured.by_tenant[usize::from(request.tenant)];
            served[usize::from(request.class)].1 += 1.0;
        }
    }

    /// The future of the request is dropped.
    fn gives_up(&mut self, index: usize) {
        let request = &mut self.requests[index];
        if request.is_answered {
            return;
        }
        request.is_gone = true;
        let place = request.place.take();
        let (class, tenant, attempt) = (request.class, request.tenant, request.attempt);
        drop(place);
        if attempt < 2 && self.random.unit() < 0.5 {
            let wait = 0.1 + 0.2 * self.random.unit();
            self.at(
                self.now + wait,
                EventKind::Retry(class, tenant, attempt + 1),
            );
        }
    }

    // === Measures ===

    fn is_measured(&self, request: usize) -> bool {
        let came_at = self.requests[request].came_at;
        (self.setup.from..self.setup.seconds - 1.0).contains(&came_at)
    }

    fn outcome(mut self) -> Outcome {
        let span = self.setup.seconds - 1.0 - self.setup.from;
        let measured = &mut self.measured;
        measured.times.sort_by(f64::total_cmp);
        let served = measured.times.len() as f64;
        let last = measured.times.len().saturating_sub(1);
        let p99 = measured.times.get(last * 99 / 100).copied();
        let total = |tenants: &[[(f64, f64); 3]], class: usize| {
            let of_class = tenants.iter().map(|tenant| tenant[class]);
            of_class.fold((0.0, 0.0), |(came, served), more| {
                (came + more.0, served + more.1)
            })
        };
        let by_tenant = &measured.by_tenant;
        let classes = [0, 1, 2].map(|class| total(by_tenant, class));
        // Of a class that gets next to nothing, and so of its tenants, only the noise would be seen.
        let contended = (0..3).filter(|class| classes[*class].1 > 0.05 * classes[*class].0);
        let indices = contended.map(|class| {
            let tenants: Vec<_> = by_tenant.iter().map(|tenant| tenant[class]).collect();
            jain(&tenants)
        });
        let jain = indices.fold(1.0, f64::min);
        let quiet = [0, 1, 2].map(|class| total(&by_tenant[1..], class));
        let quiet = quiet
            .iter()
            .fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        Outcome {
            share: served / span / self.setup.optimum(measured.attempts / span),
            p99: Duration::from_secs_f64(p99.unwrap_or_default()),
            classes: classes.map(|(came, served)| served / came.max(1.0)),
            jain,
            quiet: quiet.1 / f64::max(quiet.0, 1.0),
            limits: std::mem::take(&mut measured.limits),
            served: std::mem::take(&mut measured.served),
        }
    }
}

/// Returns Jain's index of what tenants got, as a part of what each would get if all were served equally (max-min).
fn jain(tenants: &[(f64, f64)]) -> f64 {
    let mut fair = vec![0.0; tenants.len()];
    let mut left: f64 = tenants.iter().map(|(_, served)| served).sum();
    let mut open: Vec<usize> = (0..fair.len()).collect();
    while !open.is_empty() {
        let level = left / open.len() as f64;
        let (small, large): (Vec<usize>, Vec<usize>) = open
            .into_iter()
            .partition(|tenant| tenants[*tenant].0 <= level);
        if small.is_empty() {
            large.iter().for_each(|tenant| fair[*tenant] = level);
            break;
        }
        for tenant in small {
            fair[tenant] = tenants[tenant].0;
            left -= fair[tenant];
        }
        open = large;
    }
    let parts: Vec<f64> = fair
        .iter()
        .zip(tenants)
        .filter(|(fair, _)| **fair > 0.0)
        .map(|(fair, (_, served))| served / fair)
        .collect();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    parts.iter().sum::<f64>().powi(2) / (parts.len() as f64 * squares)
}

// === Random ===

/// A small generator (splitmix64), so that a run can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// With this mean, and this standard deviation as a part of it.
    fn log_normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let variance = (1.0 + deviation * deviation).ln();
        let angle = (std::f64::consts::TAU * self.unit()).cos();
        let normal = (-2.0 * (1.0 - self.unit()).ln()).sqrt() * angle;
        (mean.ln() - variance / 2.0 + variance.sqrt() * normal).exp()
    }
}

pub(super) const START: u64 = 1_700_000_000_000_000;
const CLASSES: [Priority; 3] = [Priority::Critical, Priority::Normal, Priority::Sheddable];
const TENANTS: usize = 20;
const WORKERS: usize = 4;
const CONNECTIONS: usize = 10;
/// Polls from one look for new requests to the next.
const EVENT_INTERVAL: u32 = 61;
/// Seconds to read a request, and to refuse one.
const HEAD: f64 = 0.000_01;
const REFUSAL: f64 = 0.000_01;
/// Seconds after which a client gives up, and a handler its downstream.
const PATIENCE: f64 = 1.0;
const TIME_OUT: f64 = 5.0;
