//! The client of one Redis server: the state that all decisions on it share.
//!
//! ```text
//! RedisStore --> Client --> Scheduler --> queue, calls, window
//!                  |          '-------> lanes: the connections
//!                  |--> Keyspace        makes the keys
//!                  |--> ServerCheck     warns about the clock and the eviction policy
//!                  |--> Watchdog        the thread that keeps the deadlines; it holds a weak reference
//!                  |--> observer        the breaker, which gets a report on each call
//!                  '--> releases        slots to release in the background
//! ```

use std::{
    io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::Thread,
    time::Duration,
};

use crate::{
    clock::Clock,
    error::{Error, ErrorKind, Phase},
    retry::RetryQueue,
    store::{CallObserver, CallReport, Settlement},
    sync::Mutex,
};

use super::{
    batch::Scheduler,
    connection::{Lane, ServerCheck},
    protocol::Keyspace,
};

/// The client of one Redis server.
///
/// Clones of a store, its workers and the watchdog thread share it. Only the scheduler and the lanes have a lock that
/// every decision takes.
#[derive(Debug)]
pub(super) struct Client {
    /// The waiting requests, the calls in flight and the connections.
    pub(super) scheduler: Scheduler,
    /// Makes the keys.
    pub(super) keyspace: Keyspace,
    /// The longest time that a decision takes, with all waits.
    pub(super) deadline: Duration,
    /// The caller's clock, if the script must not take the server's time.
    pub(super) clock: Option<Clock>,
    /// Warns about a server that is not fit to keep counts.
    pub(super) check: ServerCheck,
    /// The thread that keeps the deadlines.
    pub(super) watchdog: Watchdog,
    /// The breaker, which judges the server by its calls.
    pub(super) observer: OnceLock<Weak<dyn CallObserver>>,
    /// Slots that nobody holds, whose release is not confirmed.
    pub(super) releases: RetryQueue<Settlement>,
    /// Whether the next dial begins at once, although the last ones failed.
    skips_next_backoff: AtomicBool,
}

impl Client {
    /// Returns a client without connections. Lanes connect, and the watchdog starts, with the first decision.
    pub(super) fn new(
        lanes: Box<[Arc<Lane>]>,
        keyspace: Keyspace,
        deadline: Duration,
        clock: Option<Clock>,
        check: ServerCheck,
    ) -> Arc<Self> {
        Arc::new(Self {
            scheduler: Scheduler::new(deadline, lanes),
            keyspace,
            deadline,
            clock,
            check,
            watchdog: Watchdog::default(),
            observer: OnceLock::new(),
            releases: RetryQueue::default(),
            skips_next_backoff: AtomicBool::new(false),
        })
    }

    /// Lets the next dial begin at once, although the last ones failed. The probe of the breaker has its own backoff.
    pub(super) fn skip_next_backoff(&self) {
        self.skips_next_backoff.store(true, Ordering::Relaxed);
    }

    /// Returns whether a dial now skips the backoff, and resets that choice.
    pub(super) fn take_backoff_skip(&self) -> bool {
        self.skips_next_backoff.swap(false, Ordering::Relaxed)
    }

    /// Reports a call with a reply to the breaker. `took` is without the delays of this process.
    pub(super) fn report_reply(&self, took: Duration) {
        self.report(CallReport::Replied { latency: took });
    }

    /// Reports a call that failed to the breaker.
    pub(super) fn report_failure(&self, error: &Error) {
        self.report(CallReport::Failed { error });
    }

    /// Reports a call to the breaker, if one observes this store.
    fn report(&self, call: CallReport<'_>) {
        if let Some(observer) = self.observer.get().and_then(Weak::upgrade) {
            observer.call_ended(call);
        }
    }

    /// Returns the error of a decision that the deadline ended in this phase.
    pub(super) fn timeout_error(&self, phase: Phase) -> Error {
        let missing = match phase {
            Phase::Connect => "no connection to redis",
            Phase::Queue => "no room for another call to redis",
            Phase::Reply => "no reply from redis",
        };
        Error::new(
            ErrorKind::Timeout(phase),
            format!("{missing} within the deadline of {:?}", self.deadline),
        )
    }
}

// === Watchdog ===

/// A handle on the thread that keeps the deadlines, see `batch/watchdog.rs`.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// Whether the thread looks without being woken. Every decision reads it.
    is_awake: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Watchdog {
    /// Returns whether the thread looks without being woken.
    #[inline]
    pub(super) fn is_awake(&self) -> bool {
        self.is_awake.load(Ordering::Acquire)
    }

    /// Notes whether the thread looks without being woken.
    pub(super) fn set_awake(&self, is_awake: bool) {
        self.is_awake.store(is_awake, Ordering::Release);
    }

    /// Wakes the thread, or calls `start` if there is none yet.
    ///
    /// # Errors
    ///
    /// That of `start`. The next call tries again.
    pub(super) fn wake_or_start(
        &self,
        start: impl FnOnce() -> io::Result<Thread>,
    ) -> io::Result<()> {
        let mut thread = self.thread.lock();
        self.set_awake(true);
        if let Some(thread) = &*thread {
            thread.unpark();
            return Ok(());
        }
        *thread = Some(start().inspect_err(|_| self.set_awake(false))?);
        Ok(())
    }
}

impl Drop for Watchdog {
    /// Wakes the thread, which ends since its client is dropped.
    fn drop(&mut self) {
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }
}
