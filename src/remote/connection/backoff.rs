//! How long to wait before the next dial.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::clock::Timestamp;

/// Waits between dials that double while connections fail soon, spread by jitter so that a fleet does not dial in step.
///
/// A connection counts as failed when it could not be made, and when it broke before it was [`STEADY`] old: a demoted
/// primary accepts connections, and refuses to write on each.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    not_before: Timestamp,
}

impl Backoff {
    /// Whether a dial may begin.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.not_before <= now
    }

    /// Notes that a dial failed.
    pub(super) fn dial_failed(&mut self, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        let doublings = (self.failures - 1).min(MOST_DOUBLINGS);
        let longest = (FIRST * 2_u32.pow(doublings)).min(LONGEST);
        self.not_before = now + jittered(longest);
    }

    /// Notes that a connection broke that was made at `made`. The next dial is made at once, but for a connection that
    /// broke soon and followed another failure.
    pub(super) fn broke(&mut self, made: Timestamp, now: Timestamp) {
        if now.since(made) >= STEADY {
            *self = Self::default();
        } else if self.failures == 0 {
            self.failures = 1;
        } else {
            self.dial_failed(now);
        }
    }
}

/// Half of the wait to all of it.
fn jittered(wait: Duration) -> Duration {
    // Two keys of the standard library's hasher are random per process, and differ at each call.
    let random = RandomState::new().hash_one(()) % 501;
    wait * (500 + u32::try_from(random).expect("below 501")) / 1_000
}

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);
const MOST_DOUBLINGS: u32 = 7;
/// A connection that lived so long was a good one.
const STEADY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    #[test]
    fn waits_double_from_20_ms_to_2_s_and_are_jittered_down_to_half() {
        let mut backoff = Backoff::default();
        for wait in [20, 40, 80, 160, 320, 640, 1_280, 2_000, 2_000] {
            backoff.dial_failed(at(0));
            assert!(!backoff.is_over(at(wait / 2 - 1)), "too soon for {wait}");
            assert!(backoff.is_over(at(wait)), "too late for {wait}");
        }
    }

    #[test]
    fn connection_that_lived_long_is_replaced_at_once() {
        let mut backoff = Backoff::default();
        backoff.dial_failed(at(0));
        backoff.broke(at(100), at(5_100));
        assert!(backoff.is_over(at(5_100)));
    }

    #[test]
    fn second_connection_that_broke_soon_counts_as_a_failed_dial() {
        let mut backoff = Backoff::default();
        backoff.broke(at(0), at(10));
        assert!(backoff.is_over(at(10)));
        backoff.broke(at(10), at(20));
        assert!(!backoff.is_over(at(39)));
    }
}
