//! How long to wait before the next dial.

use std::time::Duration;

use crate::{backoff::Backoff, clock::Timestamp};

/// Waits between dials, while connections fail soon.
///
/// A connection counts as failed when it could not be made, and when it broke before it was [`STEADY`] old: a demoted
/// primary accepts connections, and refuses to write on each.
#[derive(Debug)]
pub(super) struct DialBackoff {
    backoff: Backoff,
    has_failed: bool,
    not_before: Timestamp,
}

impl DialBackoff {
    /// Whether a dial may begin.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.not_before <= now
    }

    /// Notes that a dial failed.
    pub(super) fn dial_failed(&mut self, now: Timestamp) {
        self.has_failed = true;
        self.not_before = now + self.backoff.wait();
    }

    /// Notes that a connection broke that was made at `made`. The next dial is made at once, but for a connection that
    /// broke soon and followed another failure.
    pub(super) fn broke(&mut self, made: Timestamp, now: Timestamp) {
        if now.since(made) >= STEADY {
            *self = Self::default();
        } else if self.has_failed {
            self.dial_failed(now);
        } else {
            // It took the first wait's place.
            let _ = self.backoff.wait();
            self.has_failed = true;
        }
    }
}

impl Default for DialBackoff {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(FIRST, LONGEST),
            has_failed: false,
            not_before: Timestamp::default(),
        }
    }
}

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);
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
        let mut backoff = DialBackoff::default();
        for wait in [20, 40, 80, 160, 320, 640, 1_280, 2_000, 2_000] {
            backoff.dial_failed(at(0));
            assert!(!backoff.is_over(at(wait / 2 - 1)), "too soon for {wait}");
            assert!(backoff.is_over(at(wait)), "too late for {wait}");
        }
    }

    #[test]
    fn connection_that_lived_long_is_replaced_at_once() {
        let mut backoff = DialBackoff::default();
        backoff.dial_failed(at(0));
        backoff.broke(at(100), at(5_100));
        assert!(backoff.is_over(at(5_100)));
    }

    #[test]
    fn second_connection_that_broke_soon_counts_as_a_failed_dial() {
        let mut backoff = DialBackoff::default();
        backoff.broke(at(0), at(10));
        assert!(backoff.is_over(at(10)));
        backoff.broke(at(10), at(20));
        assert!(!backoff.is_over(at(39)));
    }
}
