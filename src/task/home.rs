//! Where background work runs: at home, on one thread of the process that has a runtime of its own.
//!
//! ```text
//! what no decision waits for      spawn, SingleTask   at home
//!   probes, merges, renewals, retries, look-ups of slots
//! what several callers share      spawn_lasting       on the runtime of one of them, and at home once that has ended
//!   connections, and the calls that carry decisions
//! ```
//!
//! So no runtime of a caller takes background work with it when it ends, and none holds it up while nobody drives it.
//!
//! Connections and calls do not begin at home, since each decision would be passed to another thread and back. In a
//! measurement with everything at home, one caller waited 93 us instead of 78 us, and 64 callers on two threads got 0.7
//! of the decisions.
//!
//! The thread starts with the first such work and runs until the process ends. Foreign code that blocks there, such as a
//! credentials provider or a custom store, delays everything at home.
//!
//! # Why does work go home when its runtime ends?
//!
//! Before, a runtime that ended took the connection of others along. With 400 brief runtimes in a row on one store, every third
//! ended by `shutdown_background`, 1 to 7 of 1,200 decisions failed in each of 11 runs. They could not be retried, since their
//! fate was unknown, and the broken connection looked like a failure of Redis. Two cases remain. The pool of an application
//! drives its own connections, so they end with their runtime, without a back-off and without a report to the breaker. A runtime
//! that is not driven any more holds its connection until a call has had no reply for a deadline.

use std::{
    cell::Cell,
    fmt,
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    task::AbortHandle,
};

use super::mutex::Mutex;

/// Spawns a future at home. If the system cannot start the thread, drops the future and returns `None`.
///
/// Its events go to the subscriber of the caller, which may be one for this thread.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
    #[cfg(feature = "tracing")]
    let future = tracing::instrument::WithSubscriber::with_current_subscriber(future);
    Some(home()?.spawn(future).abort_handle())
}

/// Spawns a future on the caller's runtime, and moves it home when that ends. Without a runtime, it begins at home.
pub(crate) fn spawn_lasting<F>(future: Pin<Box<F>>) -> LastingTask
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current().ok().or_else(home) {
        Some(runtime) => spawn_lasting_on(&runtime, future),
        None => LastingTask::default(),
    }
}

/// As [`spawn_lasting`], for a given runtime.
pub(crate) fn spawn_lasting_on<F>(runtime: &Handle, future: Pin<Box<F>>) -> LastingTask
where
    F: Future<Output: Send> + Send + 'static,
{
    let task = LastingTask::default();
    let lasting = Lasting {
        future: Some(future),
        task: task.clone(),
        is_at_home: false,
    };
    let spawned = runtime.spawn(lasting).abort_handle();
    let mut place = task.place.lock();
    // A runtime that has ended has moved the future home by now.
    if let SpawnState::Nowhere = *place {
        *place = SpawnState::Spawned(spawned);
    }
    drop(place);
    task
}

/// Returns whether the current thread is home.
#[cfg(feature = "redis")]
#[inline]
pub(crate) fn is_current() -> bool {
    IS_HOME.get()
}

/// Returns the runtime at home, and starts its thread if none runs. `None` if the system cannot start one now.
fn home() -> Option<Handle> {
    let mut home = HOME.lock();
    if home.is_none() {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let runtime = Arc::new(runtime);
        let (handle, driven) = (runtime.handle().clone(), Arc::clone(&runtime));
        let builder = thread::Builder::new().name("tollgate-home".to_owned());
        let run = move || {
            IS_HOME.set(true);
            driven.block_on(pending::<()>());
        };
        if builder.spawn(run).is_err() {
            // A runtime that is dropped on a thread of another one panics.
            Arc::into_inner(runtime)?.shutdown_background();
            return None;
        }
        *home = Some(handle);
    }
    home.clone()
}

// === SingleTask ===

/// A task at home of which one runs at a time.
#[derive(Debug, Default)]
pub(crate) struct SingleTask {
    is_running: Arc<AtomicBool>,
}

/// Owned by the task of a [`SingleTask`]. Once it is dropped, the next task may start.
#[derive(Debug)]
pub(crate) struct Running(Arc<AtomicBool>);

impl SingleTask {
    /// Starts a task, unless one is running. Returns `false` if none runs, since the system cannot start the thread now.
    pub fn start<T>(&self, task: impl FnOnce(Running) -> T) -> bool
    where
        T: Future<Output = ()> + Send + 'static,
    {
        // Each decision in an outage comes here.
        let is_running = &self.is_running;
        is_running.load(Ordering::Acquire)
            || is_running.swap(true, Ordering::AcqRel)
            || spawn(task(Running(Arc::clone(is_running)))).is_some()
    }

    /// Returns whether a task is running.
    #[cfg(test)]
    pub fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

// === CallersRuntime ===

/// The runtime of the latest caller, for tasks that callers share and that work at home starts.
///
/// Without it, such a task would stay at home, and each decision would be passed to another thread and back.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct CallersRuntime(Mutex<Option<Handle>>);

#[cfg(feature = "redis")]
impl CallersRuntime {
    /// Returns the current runtime, or at home that of the latest caller, if there was one.
    pub fn choose(&self, current: Handle) -> Handle {
        let mut latest = self.0.lock();
        if is_current() {
            return latest.clone().unwrap_or(current);
        }
        *latest = Some(current.clone());
        current
    }

    /// Forgets a runtime that is not driven.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }
}

// === LastingTask ===

/// A handle on a future that outlives its first runtime. Dropping it changes nothing.
#[derive(Clone, Default)]
pub(crate) struct LastingTask {
    place: Arc<Mutex<SpawnState>>,
}

/// Where the future is polled.
#[derive(Default)]
enum SpawnState {
    /// It was dropped, or must be.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only connections are cancelled")
    )]
    Cancelled,
    /// It is about to be spawned, or no runtime took it.
    #[default]
    Nowhere,
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only connections are cancelled")
    )]
    Spawned(AbortHandle),
}

impl LastingTask {
    /// Drops the future, wherever it is polled.
    #[cfg(feature = "redis")]
    pub fn cancel(&self) {
        let place = std::mem::replace(&mut *self.place.lock(), SpawnState::Cancelled);
        if let SpawnState::Spawned(task) = place {
            task.abort();
        }
    }
}

impl fmt::Debug for LastingTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastingTask").finish_non_exhaustive()
    }
}

// === Lasting ===

/// A future that goes home when it is dropped by its runtime.
struct Lasting<F: Future<Output: Send> + Send + 'static> {
    /// `None` once it is done, and while it is polled: one that panics is dropped.
    future: Option<Pin<Box<F>>>,
    task: LastingTask,
    is_at_home: bool,
}

impl<F: Future<Output: Send> + Send + 'static> Future for Lasting<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(mut future) = self.future.take() else {
            return Poll::Ready(());
        };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled.map(drop)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Lasting<F> {
    fn drop(&mut self) {
        // Before the lock: a future that stays is dropped after it.
        let future = self.future.take();
        let mut place = self.task.place.lock();
        if future.is_none() || self.is_at_home || matches!(*place, SpawnState::Cancelled) {
            return;
        }
        if let Some(home) = home() {
            let lasting = Self {
                future,
                task: self.task.clone(),
                is_at_home: true,
            };
            *place = SpawnState::Spawned(home.spawn(lasting).abort_handle());
        }
    }
}

static HOME: Mutex<Option<Handle>> = Mutex::new(None);

thread_local! {
    static IS_HOME: Cell<bool> = const { Cell::new(false) };
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command, sync::mpsc, time::Duration};

    use tokio::sync::oneshot;

    use super::*;

    const HUNG: Duration = Duration::from_secs(10);

    fn runtime() -> tokio::runtime::Runtime {
        Builder::new_current_thread().build().expect("a runtime")
    }

    /// A future that sends whether it ended at home, once it gets a message.
    fn reporting() -> (oneshot::Sender<()>, mpsc::Receiver<bool>, LastingTask) {
        let (sender, receiver) = oneshot::channel();
        let (report, reported) = mpsc::channel();
        let task = spawn_lasting(Box::pin(async move {
            let _ = receiver.await;
            let _ = report.send(IS_HOME.get());
        }));
        (sender, reported, task)
    }

    #[test]
    fn future_stays_on_its_runtime_while_that_lives_and_then_goes_home() {
        let runtime = runtime();
        let (go_on, reported, _) = runtime.block_on(async { reporting() });
        let _ = go_on.send(());
        runtime.block_on(tokio::task::yield_now());
        assert_eq!(reported.recv_timeout(HUNG), Ok(false));
        let (go_on, reported, _) = runtime.block_on(async { reporting() });
        drop(runtime);
        let _ = go_on.send(());
        assert_eq!(reported.recv_timeout(HUNG), Ok(true));
    }

    #[test]
    fn future_begins_at_home_without_a_runtime_or_on_one_that_has_ended() {
        let (go_on, reported, _) = reporting();
        let _ = go_on.send(());
        assert_eq!(reported.recv_timeout(HUNG), Ok(true));
        let ended = runtime().handle().clone();
        let (report, reported) = mpsc::channel();
        let reporting = Box::pin(async move { report.send(IS_HOME.get()) });
        spawn_lasting_on(&ended, reporting);
        assert_eq!(reported.recv_timeout(HUNG), Ok(true));
    }

    // Regression: work at home that started such a future on a runtime that had ended lost it.
    #[test]
    fn future_that_home_starts_on_a_runtime_that_has_ended_comes_home() {
        let ended = runtime().handle().clone();
        let (report, reported) = mpsc::channel();
        spawn(async move {
            let reporting = Box::pin(async move { report.send(IS_HOME.get()) });
            spawn_lasting_on(&ended, reporting);
        });
        assert_eq!(reported.recv_timeout(HUNG), Ok(true));
    }

    #[test]
    fn task_of_which_one_runs_starts_again_only_after_its_end() {
        let single = SingleTask::default();
        let (end, ended) = oneshot::channel::<()>();
        let started = |ended: oneshot::Receiver<()>| {
            single.start(move |running| async move {
                let _ = ended.await;
                drop(running);
            })
        };
        assert!(started(ended));
        let (other, not_started) = oneshot::channel::<()>();
        assert!(started(not_started), "one is running");
        assert!(other.is_closed(), "and no second one");
        let _ = end.send(());
        let deadline = std::time::Instant::now() + HUNG;
        while single.is_running() {
            assert!(std::time::Instant::now() < deadline);
            thread::yield_now();
        }
        let (third, runs) = oneshot::channel::<()>();
        assert!(started(runs));
        assert!(!third.is_closed());
    }

    #[cfg(feature = "redis")]
    #[test]
    fn home_chooses_the_runtime_of_the_latest_caller_unless_it_is_forgotten() {
        let chosen_at_home = |callers: &Arc<CallersRuntime>| {
            let callers = Arc::clone(callers);
            let (report, reported) = mpsc::channel();
            spawn(async move {
                let own = Handle::current();
                let chosen = callers.choose(own.clone());
                let _ = report.send((chosen.id(), own.id()));
            });
            reported.recv_timeout(HUNG).expect("it runs")
        };
        let callers = Arc::new(CallersRuntime::default());
        let (chosen, own) = chosen_at_home(&callers);
        assert_eq!(chosen, own, "there was no caller");
        let [first, second] = [runtime(), runtime()];
        for caller in [&first, &second] {
            let chosen = callers.choose(caller.handle().clone());
            assert_eq!(chosen.id(), caller.handle().id());
            assert_eq!(chosen_at_home(&callers).0, caller.handle().id());
        }
        callers.forget();
        let (chosen, own) = chosen_at_home(&callers);
        assert_eq!(chosen, own);
    }

    #[cfg(feature = "redis")]
    #[test]
    fn future_that_is_cancelled_is_dropped_wherever_it_is() {
        let runtime = runtime();
        for moves in [false, true] {
            let (_go_on, reported, task) = runtime.block_on(async { reporting() });
            if moves {
                let (_go_on, reported, task) = self::runtime().block_on(async { reporting() });
                task.cancel();
                let ended = reported.recv_timeout(HUNG);
                assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected));
            }
            task.cancel();
            runtime.block_on(tokio::task::yield_now());
            let ended = reported.recv_timeout(HUNG);
            assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected));
        }
    }

    // Regression: a runtime was dropped on a thread of the caller's, which panicked.
    #[test]
    fn home_without_room_for_a_thread_drops_the_future() {
        const HAS_NO_ROOM: &str = "TOLLGATE_HAS_NO_ROOM";
        if env::var_os(HAS_NO_ROOM).is_some() {
            let spawned = runtime().block_on(async { spawn(async {}) });
            assert!(spawned.is_none());
            return;
        }
        // In a process of its own, whose threads would have a larger stack than there is memory.
        let output = Command::new(env::current_exe().expect("this test"))
            .args([
                "task::home::tests::home_without_room_for_a_thread_drops_the_future",
                "--exact",
            ])
            .env(HAS_NO_ROOM, "")
            .env("RUST_MIN_STACK", (1_u64 << 60).to_string())
            .env("RUST_TEST_THREADS", "1")
            .output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{output:#?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }
}
