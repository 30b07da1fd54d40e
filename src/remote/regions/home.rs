//! Another region, as this one sees it: a server that is the home of some keys.

use std::{
    sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use crate::{clock::Timestamp, diagnosis::log, error::Error, remote::store::RedisStore};

/// Another region.
#[derive(Debug)]
pub(super) struct Home {
    name: String,
    /// Without a guard: an error is that of the call.
    pub store: RedisStore,
    /// Reports in a row that failed.
    failures: AtomicU32,
    /// When a report failed the last time, in microseconds of this process' clock.
    failed_at: AtomicU64,
    /// Of the last report, in microseconds.
    round_trip: AtomicU64,
    /// By how much its clock is ahead of that of this region's server at least, in microseconds, as a signed number.
    ahead: AtomicI64,
}

impl Home {
    pub fn new(name: String, store: RedisStore) -> Self {
        Self {
            name,
            store,
            failures: AtomicU32::new(0),
            failed_at: AtomicU64::new(0),
            round_trip: AtomicU64::new(100_000),
            ahead: AtomicI64::new(UNKNOWN),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether it cannot be reached.
    pub fn is_cut_off(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES
    }

    /// Notes a report that failed.
    pub fn note_failure(&self, error: &Error, began_at: Timestamp, now: Timestamp) {
        if !error.is_transient() {
            // It is that of the key, or of a setting.
            return;
        }
        let last = self.failed_at.load(Ordering::Relaxed);
        if began_at.as_micros() < last {
            // They failed together.
            return;
        }
        self.failed_at.store(now.as_micros(), Ordering::Relaxed);
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES {
            log::event!(
                WARN,
                "a region cannot be reached: this one admits its share of the limits of keys whose home it is",
                region = self.name,
                error = error,
            );
        }
    }

    /// Notes the reply to a report.
    pub fn note_reply(&self, took: Duration) {
        if self.failures.swap(0, Ordering::Relaxed) >= FAILURES {
            log::event!(INFO, "a region can be reached again", region = self.name);
        }
        let micros = took.as_micros().try_into().unwrap_or(u64::MAX);
        self.round_trip.store(micros, Ordering::Relaxed);
    }

    /// Notes a report that was decided at a time of the home's server, and ended at a later one of this region's.
    pub fn note_times(&self, decided_at: Timestamp, ended_at: Timestamp) {
        let ahead = decided_at
            .as_micros()
            .wrapping_sub(ended_at.as_micros())
            .cast_signed();
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// Returns how long a report took the last time.
    pub fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    /// Returns a time of this region's server by the home's clock, or one that is earlier by a round trip at most; `None` until this
    /// process has reported.
    pub fn time_there(&self, here: Timestamp) -> Option<Timestamp> {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let there = here.as_micros().saturating_add_signed(ahead);
        (ahead != UNKNOWN).then(|| Timestamp::from_micros(there))
    }
}

const UNKNOWN: i64 = i64::MIN;
/// Failures in a row after which it counts as cut off: more than one call that was lost.
const FAILURES: u32 = 2;
