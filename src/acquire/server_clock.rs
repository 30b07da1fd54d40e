//! The clock of the store, as this process sees it: never ahead of it.
//!
//! A reply holds the time of its decision, and arrives later. The difference to the local clock is therefore at least the true
//! one minus the way back. The greatest difference of the last seconds is that of the fastest reply. A start that is converted with
//! it is never too early, and too late by the fastest way back at most.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    clock::{Clock, Timestamp},
    task::Mutex,
};

/// Converts times of the store to local ones.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    differences: Mutex<Differences>,
    /// Moving average of round trips, in microseconds.
    round_trip: AtomicU64,
}

/// The greatest differences in microseconds of the present span of time and the one before.
#[derive(Debug, Default)]
struct Differences {
    since: Timestamp,
    present: Option<i64>,
    before: Option<i64>,
}

impl ServerClock {
    /// Notes a reply.
    pub fn note(&self, decided_at: Timestamp, sent_at: Timestamp, received_at: Timestamp) {
        let took = received_at.since(sent_at);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let known = self.round_trip.load(Ordering::Relaxed);
        let average = if known == 0 {
            took
        } else {
            known - known / 8 + took / 8
        };
        self.round_trip.store(average, Ordering::Relaxed);
        let difference =
            decided_at.as_micros().cast_signed() - received_at.as_micros().cast_signed();
        let mut known = self.differences.lock();
        if received_at.since(known.since) > SPAN {
            *known = Differences {
                since: received_at,
                before: known.present,
                present: None,
            };
        }
        // The true difference is at most that of a reply that took no time for its way back. If a known one is above, the clock
        // was set back.
        let most = difference.saturating_add_unsigned(took);
        if known.before.is_some_and(|before| before > most) {
            known.before = None;
        }
        known.present = match known.present {
            Some(present) if present <= most => Some(present.max(difference)),
            _ => Some(difference),
        };
    }

    /// Returns the local time at which the clock of the store shows `at` for sure.
    pub fn local(&self, at: Timestamp) -> Timestamp {
        let known = self.differences.lock();
        let difference = known.present.max(known.before).unwrap_or(0);
        drop(known);
        let local = at.as_micros().cast_signed().saturating_sub(difference);
        Timestamp::from_micros(local.max(0).cast_unsigned())
    }

    /// Returns how far ahead units are asked for.
    pub fn ahead(&self) -> Duration {
        let round_trip = Duration::from_micros(self.round_trip.load(Ordering::Relaxed));
        (round_trip * 2 + Duration::from_millis(2)).clamp(LEAST_AHEAD, MOST_AHEAD)
    }

    pub fn now() -> Timestamp {
        Clock::system().now()
    }
}

/// Differences are kept for one to two such spans.
const SPAN: Duration = Duration::from_secs(15);
const LEAST_AHEAD: Duration = Duration::from_millis(10);
const MOST_AHEAD: Duration = Duration::from_millis(50);
