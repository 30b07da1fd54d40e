//! A steady load on a fleet, and a record of each request.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Handle},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time,
};

/// One instance of a limiter.
pub(crate) trait Subject: Send + Sync {
    /// Decides on a request with one of the [`KEYS`].
    fn check(&self, key: usize) -> Pin<Box<dyn Future<Output = Response> + Send + '_>>;
}

/// The response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// Decided with the shared count of the fleet.
    Shared {
        allowed: bool,
    },
    /// Decided without it.
    Local {
        allowed: bool,
    },
    Error,
    /// There was none within [`PATIENCE`].
    Lost,
}

impl Response {
    pub(crate) fn is_allowed(self) -> bool {
        matches!(
            self,
            Self::Shared { allowed: true } | Self::Local { allowed: true }
        )
    }

    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Shared { .. })
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) instance: usize,
    pub(crate) asked: Instant,
    pub(crate) took: Duration,
    pub(crate) response: Response,
}

/// All requests of a run, and how late timers were meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub(crate) requests: Vec<Sample>,
    /// How late a timer was, and when it was due.
    pub(crate) timers: Vec<(Instant, Duration)>,
}

/// Numbers of requests since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: AtomicUsize,
    pub(crate) allowed: AtomicUsize,
    pub(crate) lost: AtomicUsize,
    pub(crate) errors: AtomicUsize,
    /// Those that took more than twice the deadline.
    pub(crate) late: AtomicUsize,
    /// Tasks of the runtime now.
    pub(crate) tasks: AtomicUsize,
}

impl Tally {
    fn count(&self, sample: &Sample, deadline: Duration) {
        let add = |number: &AtomicUsize, is_meant: bool| {
            number.fetch_add(usize::from(is_meant), Ordering::Relaxed);
        };
        add(&self.requests, true);
        add(&self.allowed, sample.response.is_allowed());
        add(&self.lost, sample.response == Response::Lost);
        add(&self.errors, sample.response == Response::Error);
        add(&self.late, sample.took > deadline * 2);
    }
}

/// What the callers leave behind.
#[derive(Clone, Debug)]
enum Record {
    /// Each request.
    Samples,
    /// Only numbers, so that nothing grows.
    Tally(Arc<Tally>),
}

/// Callers, on their own runtime.
pub(crate) struct Load {
    has_ended: Arc<AtomicBool>,
    thread: JoinHandle<Samples>,
}

impl Load {
    /// Starts `callers` for each key of each instance. Each makes one request per [`PAUSE`].
    pub(crate) fn start(fleet: Vec<Arc<dyn Subject>>, callers: usize, deadline: Duration) -> Self {
        Self::start_recording(fleet, callers, deadline, Record::Samples)
    }

    /// As [`start`](Self::start), but counts the requests instead of keeping them.
    pub(crate) fn start_counting(
        fleet: Vec<Arc<dyn Subject>>,
        deadline: Duration,
        tally: &Arc<Tally>,
    ) -> Self {
        Self::start_recording(fleet, 1, deadline, Record::Tally(Arc::clone(tally)))
    }

    fn start_recording(
        fleet: Vec<Arc<dyn Subject>>,
        callers: usize,
        deadline: Duration,
        record: Record,
    ) -> Self {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (started, has_started) = mpsc::channel();
        let thread = thread::spawn({
            let has_ended = Arc::clone(&has_ended);
            move || {
                let runtime = Builder::new_multi_thread().enable_all().build();
                runtime.expect("a runtime").block_on(async {
                    let mut tasks = JoinSet::new();
                    for (instance, subject) in fleet.iter().enumerate() {
                        for caller in 0..KEYS * callers {
                            let caller = Caller {
                                instance,
                                key: caller % KEYS,
                                subject: Arc::clone(subject),
                                has_ended: Arc::clone(&has_ended),
                                deadline,
                                record: record.clone(),
                            };
                            tasks.spawn(caller.run());
                        }
                    }
                    let timers = Timers::start(Arc::clone(&has_ended), &record);
                    // The other end waits for it.
                    let _ = started.send(());
                    let requests = tasks.join_all().await.concat();
                    let timers = timers.stop().await;
                    Samples { requests, timers }
                })
            }
        });
        has_started.recv().expect("it starts");
        Self { has_ended, thread }
    }

    pub(crate) fn stop(self) -> Samples {
        self.has_ended.store(true, Ordering::Relaxed);
        self.thread.join().expect("no caller panics")
    }
}

struct Caller {
    instance: usize,
    key: usize,
    subject: Arc<dyn Subject>,
    has_ended: Arc<AtomicBool>,
    deadline: Duration,
    record: Record,
}

impl Caller {
    async fn run(self) -> Vec<Sample> {
        let mut samples = Vec::new();
        // Not all at once: spread over one pause.
        let place = self.instance * KEYS + self.key;
        time::sleep(PAUSE * u32::try_from(place % 64).expect("below 64") / 64).await;
        while !self.has_ended.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let response = time::timeout(PATIENCE, self.subject.check(self.key)).await;
            let sample = Sample {
                instance: self.instance,
                asked,
                took: asked.elapsed(),
                response: response.unwrap_or(Response::Lost),
            };
            match &self.record {
                Record::Samples => samples.push(sample),
                Record::Tally(tally) => tally.count(&sample, self.deadline),
            }
            time::sleep_until((asked + PAUSE).into()).await;
        }
        samples
    }
}

/// Measures by how much the machine's own scheduling delays a decision that waits for its deadline: a thread sleeps, as
/// that of the deadlines does, and wakes a task. There are as many measurements as requests of 64 callers, so that a
/// stall that hits one in a thousand decisions hits one in a thousand of these too.
struct Timers {
    thread: JoinHandle<()>,
    tasks: JoinSet<Vec<(Instant, Duration)>>,
}

impl Timers {
    fn start(has_ended: Arc<AtomicBool>, record: &Record) -> Self {
        let mut tasks = JoinSet::new();
        let mut wakers = Vec::new();
        for _ in 0..TIMERS {
            let (waker, woken) = unbounded_channel();
            wakers.push(waker);
            tasks.spawn(note_lateness(woken, record.clone()));
        }
        let thread = thread::spawn(move || {
            let mut due = Instant::now();
            for waker in wakers.iter().cycle() {
                if has_ended.load(Ordering::Relaxed) {
                    return;
                }
                due += PAUSE / TIMERS;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                // Its task ends only after this thread.
                let _ = waker.send(due);
            }
        });
        Self { thread, tasks }
    }

    async fn stop(self) -> Vec<(Instant, Duration)> {
        let late = self.tasks.join_all().await.concat();
        self.thread.join().expect("it does not panic");
        late
    }
}

async fn note_lateness(
    mut woken: UnboundedReceiver<Instant>,
    record: Record,
) -> Vec<(Instant, Duration)> {
    let mut late = Vec::new();
    while let Some(due) = woken.recv().await {
        match &record {
            Record::Samples => late.push((due, due.elapsed())),
            Record::Tally(tally) => {
                let tasks = Handle::current().metrics().num_alive_tasks();
                tally.tasks.store(tasks, Ordering::Relaxed);
            }
        }
    }
    late
}

/// The number of keys.
pub(crate) const KEYS: usize = 8;
/// The time between two requests of a caller.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// The number of tasks that measure how late timers are.
const TIMERS: u32 = 64;
/// The time after which a request without a response counts as lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
