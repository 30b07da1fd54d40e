//! The log of the keys that were denied most often in each interval.
//!
//! The intervals are the halves of a window of their own. So while one is counted, the one before it is whole.
//!
//! # Why is an interval logged with a denied request?
//!
//! A task would need a runtime, and a thread would run for a line a day. Whoever denies the first request after an interval logs
//! the interval, which takes about as long as a snapshot.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{clock::Timestamp, diagnosis::log, key::Key, policy::Policy};

use super::{
    counts::SharedCounts,
    snapshot::{PolicyTopKeys, TopKey},
};

/// Logs the keys of each interval that has ended.
#[derive(Debug)]
pub(super) struct IntervalLog {
    counts: SharedCounts,
    /// The number of the latest interval with a record, or of the first one.
    latest: AtomicU64,
}

impl IntervalLog {
    /// Returns a log whose intervals are the halves of these counts.
    pub fn new(counts: SharedCounts, now: Timestamp) -> Self {
        let latest = AtomicU64::new(counts.half_at(now));
        Self { counts, latest }
    }

    /// Counts units of a key, after the interval before is logged.
    pub fn record(&self, policy: &Policy, key: &Key, units: u32, now: Timestamp) {
        let number = self.counts.half_at(now);
        let latest = self.latest.load(Ordering::Relaxed);
        let is_first = latest < number
            && self
                .latest
                .compare_exchange(latest, number, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if is_first {
            self.log(latest, now);
        }
        self.counts.record(policy, key, units, now);
    }

    #[cold]
    fn log(&self, number: u64, now: Timestamp) {
        let snapshot = self.counts.snapshot_of(number, now);
        for list in snapshot.policies() {
            log::event!(
                INFO,
                "top denied keys",
                policy = list.policy(),
                since = snapshot.since().as_secs_ceil(),
                until = snapshot.until().as_secs_ceil(),
                denied = list.total(),
                keys = shown(list),
            );
        }
    }
}

/// Returns the first keys of a list with their counts, on one line.
fn shown(list: &PolicyTopKeys) -> String {
    let shown = |key: &TopKey| {
        let (most, least) = (key.count(), key.count() - key.error());
        match key.error() {
            0 => format!("{} {most}", key.key()),
            _ => format!("{} {least}-{most}", key.key()),
        }
    };
    let keys: Vec<String> = list.keys().iter().take(KEYS).map(shown).collect();
    keys.join(", ")
}

/// The keys in a line.
const KEYS: usize = 10;
