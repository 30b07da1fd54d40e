//! How late the executor polls what is woken.
//!
//! # Why does a request give way?
//!
//! A handler that never waits runs to its end in the poll in which its request was read. The requests behind it lie in the run queue of
//! the executor, where no limit sees them: few are ever in flight, and nothing is shed. So while the executor lags, each request goes
//! to the end of the run queue once, after it was counted and before its handler runs. Those in front of it are then counted too, and
//! what is in flight is the queue.
//!
//! The lag is measured by the same: a request each 10 ms goes to the end of the run queue, and takes the time until it is polled again.
//! So there is no task, no timer, and no executor in particular.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::clock::{Timestamp, micros};

/// Whether requests give way. Written a few times a second.
#[derive(Debug, Default)]
pub(super) struct ExecutorLag {
    /// When the next request measures the lag. Microseconds.
    measures_at: AtomicU64,
    /// Until when the executor is taken for late. Microseconds.
    lags_until: AtomicU64,
}

impl ExecutorLag {
    /// Returns whether a request that starts now gives way.
    #[inline]
    pub fn gives_way(&self, now: Timestamp) -> bool {
        let micros = now.as_micros();
        let due = self.measures_at.load(Relaxed);
        if micros < due {
            return micros < self.lags_until.load(Relaxed);
        }
        let next = (now + MEASURED_EACH).as_micros();
        let measures = self
            .measures_at
            .compare_exchange(due, next, Relaxed, Relaxed);
        measures.is_ok() || micros < self.lags_until.load(Relaxed)
    }

    /// Notes how long a request that gave way was at the back of the run queue.
    #[inline]
    pub fn note(&self, now: Timestamp, waited: Duration) {
        if micros(waited) > LATE {
            self.lags_until
                .store((now + REMEMBERED).as_micros(), Relaxed);
        }
    }
}

const MEASURED_EACH: Duration = Duration::from_millis(10);
/// From this on the executor lags: more than a poll of other tasks takes. Microseconds.
const LATE: u64 = 1_000;
const REMEMBERED: Duration = Duration::from_millis(100);
