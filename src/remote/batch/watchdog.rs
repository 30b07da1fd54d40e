//! The thread that ends everything overdue: requests, calls, dials and unresponsive connections.
//!
//! A thread keeps the deadlines, because the runtime's timers fail while it is busy, blocked, ended, not driven or built without
//! timers. A timer for each decision also took 15 to 20 % of the client's time. Waits outside of the Redis store have another
//! thread (`src/task/timer.rs`).
//!
//! ```text
//! overdue                                    action
//! job in the queue for a deadline            its caller gets a timeout
//! dispatcher idle for 2/3 of the deadline    its jobs are handed back: their callers submit them again
//! call in flight                             see calls.rs
//! connection without a reply for a deadline  it is given up
//! connection whose runtime has ended         it is given up, and its calls end
//! dial that outlasts the connect timeout     it is cancelled
//! ```
//!
//! Wakers and observers are foreign code: a panic in one is contained, so the thread survives.
//!
//! While something is under way, the thread looks about three times per deadline. After 20 looks that find nothing it
//! sleeps until a request wakes it, so an idle process is idle.

use std::{
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
    task::spawn::contain_panic,
};

use super::super::client::{Client, Watchdog};

/// Wakes the thread, and starts it when it is first needed.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] if the process cannot start a thread.
#[cold]
pub(super) fn wake(client: &Arc<Client>) -> Result<(), Error> {
    let watchdog = Arc::downgrade(&client.watchdog);
    let thread = thread::Builder::new()
        .name("tollgate-watch".to_owned())
        .stack_size(STACK_BYTES);
    let started = client
        .watchdog
        .wake_or_start(|| Ok(thread.spawn(move || run(&watchdog))?.thread().clone()));
    started.map_err(|error| {
        Error::new(
            ErrorKind::Unavailable,
            "the thread that keeps deadlines cannot be started: this process has too many threads",
        )
        .with_source(error)
    })
}

/// Looks for overdue work until the clients are dropped.
fn run(watchdog: &Weak<Watchdog>) {
    let mut idle_looks = 0;
    // Neither the watchdog nor a client is kept while the thread sleeps.
    while let Some(strong) = watchdog.upgrade() {
        let now = Clock::system().now();
        let max_sleep = (strong.deadline / 3).clamp(MIN_SLEEP, MAX_SLEEP);
        if let Some(next) = end_all_overdue(&strong, now) {
            idle_looks = 0;
            drop(strong);
            thread::park_timeout(next.since(now).clamp(MIN_SLEEP, max_sleep));
            continue;
        }
        idle_looks += 1;
        if idle_looks > MAX_IDLE_LOOKS {
            strong.set_awake(false);
            // A request may have been submitted before that was stored, and rely on this thread.
            if end_all_overdue(&strong, now).is_none() {
                drop(strong);
                thread::park();
                idle_looks = 0;
                continue;
            }
            strong.set_awake(true);
        }
        drop(strong);
        thread::park_timeout(max_sleep);
    }
}

/// Ends everything overdue of all clients, see [`end_overdue`].
fn end_all_overdue(watchdog: &Watchdog, now: Timestamp) -> Option<Timestamp> {
    let clients = watchdog.clients();
    clients
        .iter()
        .filter_map(|client| end_overdue(client, now))
        .min()
}

/// Ends everything overdue, see the [module docs](self). Returns when something will be overdue next; `None` if nothing
/// is under way.
fn end_overdue(client: &Arc<Client>, now: Timestamp) -> Option<Timestamp> {
    let scheduler = &client.scheduler;
    let overdue = scheduler.take_overdue(now);
    let phase = if scheduler.is_up() {
        Phase::Queue
    } else {
        Phase::Connect
    };
    // A dial that outlasts the deadline of a decision is a failure of the server. A full queue is not.
    if phase == Phase::Connect && !overdue.unsent.is_empty() {
        contain_panic(|| client.report_failure(&client.timeout_error(phase)));
    }
    for waiter in overdue.unsent {
        contain_panic(|| waiter.complete(Err(client.timeout_error(phase))));
    }
    if !overdue.stranded.is_empty() {
        client.callers.forget();
    }
    for job in overdue.stranded {
        contain_panic(|| job.waiter.hand_back(job.request));
    }
    let no_reply = || client.timeout_error(Phase::Reply);
    for waiter in overdue.unpolled {
        contain_panic(|| waiter.complete(Err(no_reply())));
    }
    for (lane, connection_id) in &overdue.unresponsive {
        scheduler.lanes()[*lane].disconnect(*connection_id, Some(&no_reply()));
    }
    for alarm in overdue.to_wake {
        contain_panic(|| alarm.ring());
    }
    if overdue.is_unreported {
        contain_panic(|| client.report_failure(&no_reply()));
    }
    // A command that a connection took as its runtime ended may get neither a reply nor an error.
    for (index, lane) in scheduler.lanes().iter().enumerate() {
        if let Some(connection_id) = lane.disconnect_if_runtime_ended() {
            contain_panic(|| scheduler.abandon_connection(index, connection_id));
        }
    }
    let dials = scheduler.lanes().iter();
    let dial = dials.filter_map(|lane| lane.cancel_late_dial(now)).min();
    overdue.next.into_iter().chain(dial).min()
}

/// Looks in a row that find nothing before the thread sleeps.
const MAX_IDLE_LOOKS: u32 = 20;
/// The least time between two looks.
const MIN_SLEEP: Duration = Duration::from_millis(1);
/// The longest time between two looks while something is under way or was just before.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Stack of the thread. Its own code needs little, but it also runs wakers and observers.
const STACK_BYTES: usize = 128 * 1_024;
