//! A timer that works on every Tokio runtime, also one that was built without a timer.
//!
//! One thread wakes all sleepers of the process. It starts with the first sleeper and runs until the process ends.
//!
//! # Why a timer thread?
//!
//! A Tokio runtime may be built without timers, and Tokio's own timers panic on it, also in the request path. Queues and lookups
//! use Tokio's timer, and need a runtime that has one. The deadlines of decisions in Redis have a thread of their own
//! (`src/remote/batch/watchdog.rs`).

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Condvar, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use super::{mutex::Mutex, spawn::contain_panic};
use crate::clock::{Clock, Timestamp};

/// Sleeps for this long, by the system clock.
pub(crate) fn sleep(duration: Duration) -> Sleep {
    Sleep {
        until: now() + duration,
        number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
        is_registered: false,
    }
}

/// Returns the output of a future, or `None` if it takes longer than `limit`.
pub(crate) async fn timeout<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut sleep = sleep(limit);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        Pin::new(&mut sleep).poll(context).map(|()| None)
    })
    .await
}

// === Sleep ===

/// A future that is ready at a given time.
#[derive(Debug)]
#[must_use = "a sleep does nothing unless it is awaited"]
pub(crate) struct Sleep {
    until: Timestamp,
    /// Distinguishes sleepers that wake at the same time.
    number: u64,
    /// Whether the timer holds a waker of this sleeper.
    is_registered: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if now() >= self.until {
            return Poll::Ready(());
        }
        self.is_registered = true;
        TIMER.wake_at(self.until, self.number, context.waker());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if self.is_registered {
            let mut state = TIMER.state.lock();
            state.sleepers.remove(&(self.until, self.number));
        }
    }
}

// === Timer ===

/// The sleepers of the process, and the thread that wakes them.
struct Timer {
    state: Mutex<Sleepers>,
    /// Notified when a new sleeper wakes before all others.
    new_first: Condvar,
}

struct Sleepers {
    /// Wakers by time of waking, then by number.
    sleepers: BTreeMap<(Timestamp, u64), Waker>,
    has_thread: bool,
}

impl Timer {
    /// Registers a sleeper, or replaces its waker. Starts the thread if none runs.
    fn wake_at(&'static self, until: Timestamp, number: u64, waker: &Waker) {
        let mut state = self.state.lock();
        // If the system cannot start a thread now, the next poll of any sleeper tries again.
        if !state.has_thread {
            let builder = thread::Builder::new().name("tollgate-timer".to_owned());
            state.has_thread = builder.spawn(|| self.run()).is_ok();
        }
        match state.sleepers.get_mut(&(until, number)) {
            Some(registered) => registered.clone_from(waker),
            None => {
                state.sleepers.insert((until, number), waker.clone());
            }
        }
        let is_first = state.sleepers.keys().next() == Some(&(until, number));
        drop(state);
        if is_first {
            self.new_first.notify_one();
        }
    }

    /// The loop of the thread: wakes all sleepers that are due, then waits for the next one.
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            let now = now();
            let due = state.take_due(now);
            if !due.is_empty() {
                drop(state);
                for waker in due {
                    contain_panic(|| waker.wake());
                }
                state = self.state.lock();
                continue;
            }
            let next = state.sleepers.keys().next();
            let wait = next.map_or(LONGEST, |(until, _)| until.since(now).min(LONGEST));
            let woken = self.new_first.wait_timeout(state, wait);
            (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Sleepers {
    /// Removes the sleepers that are due. Returns their wakers.
    fn take_due(&mut self, now: Timestamp) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(first) = self.sleepers.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due
    }
}

fn now() -> Timestamp {
    Clock::system().now()
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
static TIMER: Timer = Timer {
    state: Mutex::new(Sleepers {
        sleepers: BTreeMap::new(),
        has_thread: false,
    }),
    new_first: Condvar::new(),
};
/// Maximum length of one wait of the thread: some systems cannot wait for thousands of years.
const LONGEST: Duration = Duration::from_secs(3_600);

#[cfg(test)]
mod tests {
    use tokio::runtime;

    use super::*;

    /// A runtime without a timer. Tokio's own sleeps panic on it.
    fn runtime_without_time() -> runtime::Runtime {
        runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime")
    }

    #[test]
    fn sleepers_wake_in_the_order_of_their_times_and_not_before() {
        let started = now();
        let (sender, receiver) = std::sync::mpsc::channel();
        runtime_without_time().block_on(async {
            let sleepers = [60_u64, 20, 40, 0].map(|millis| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_millis(millis)).await;
                    assert!(now().since(started) >= Duration::from_millis(millis));
                    sender.send(millis).expect("the receiver exists");
                })
            });
            for sleeper in sleepers {
                sleeper.await.expect("no panic");
            }
        });
        drop(sender);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 20, 40, 60]);
    }

    #[test]
    fn output_that_is_there_at_once_is_not_waited_for() {
        runtime_without_time().block_on(async {
            assert_eq!(timeout(Duration::ZERO, async { 7 }).await, Some(7));
            let never = timeout(Duration::from_millis(5), std::future::pending::<()>());
            assert_eq!(never.await, None);
        });
    }

    #[test]
    fn longest_sleep_neither_panics_nor_ends() {
        runtime_without_time().block_on(async {
            let long = timeout(Duration::from_millis(5), sleep(Duration::MAX));
            assert_eq!(long.await, None);
        });
    }

    #[test]
    fn sleep_that_is_dropped_is_forgotten() {
        let number = runtime_without_time().block_on(async {
            let mut long = sleep(Duration::from_secs(3_600));
            std::future::poll_fn(|context| {
                assert!(Pin::new(&mut long).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            assert!(is_registered(long.number));
            long.number
        });
        assert!(!is_registered(number));
    }

    fn is_registered(number: u64) -> bool {
        let state = TIMER.state.lock();
        state
            .sleepers
            .keys()
            .any(|(_, registered)| *registered == number)
    }
}
