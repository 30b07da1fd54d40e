//! The wait before the next dial of a lane.
//!
//! A connection fails when it cannot be made, and when it breaks before it is 5 s old ([`STEADY`]): a demoted primary
//! accepts connections and then refuses every write. One connection may break at once without a wait, since servers and
//! networks close idle ones. Waits double from 20 ms to 2 s, and each is shortened by up to half at random.
//!
//! ```text
//! dial fails         wait 10-20 ms
//! dial fails         wait 20-40 ms
//! connection breaks  after 1 s:  wait 40-80 ms
//! connection breaks  after 5 s:  dial at once, and the next wait is the first again
//! ```

use std::time::Duration;

use crate::{clock::Timestamp, task::Backoff};

/// Waits between dials while connections fail.
#[derive(Debug)]
pub(super) struct DialBackoff {
    backoff: Backoff,
    has_failed: bool,
    not_before: Timestamp,
}

impl DialBackoff {
    /// Returns whether a dial may begin.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.not_before <= now
    }

    /// Records a dial that failed.
    pub fn record_failed_dial(&mut self, now: Timestamp) {
        self.has_failed = true;
        self.not_before = now + self.backoff.wait();
    }

    /// Records that a connection made at `made_at` broke. The next dial may begin at once, unless the connection broke
    /// early and followed another failure.
    pub fn record_broken(&mut self, made_at: Timestamp, now: Timestamp) {
        if now.since(made_at) >= STEADY {
            *self = Self::default();
        } else if self.has_failed {
            self.record_failed_dial(now);
        } else {
            // It uses up the first wait.
            let _ = self.backoff.wait();
            self.has_failed = true;
        }
    }
}

impl Default for DialBackoff {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(FIRST_WAIT, MAX_WAIT),
            has_failed: false,
            not_before: Timestamp::default(),
        }
    }
}

const FIRST_WAIT: Duration = Duration::from_millis(20);
const MAX_WAIT: Duration = Duration::from_secs(2);
/// The age from which a connection counts as a success.
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
            backoff.record_failed_dial(at(0));
            assert!(!backoff.is_over(at(wait / 2 - 1)), "too soon for {wait}");
            assert!(backoff.is_over(at(wait)), "too late for {wait}");
        }
    }

    #[test]
    fn connection_that_lived_long_is_replaced_at_once() {
        let mut backoff = DialBackoff::default();
        backoff.record_failed_dial(at(0));
        backoff.record_broken(at(100), at(5_100));
        assert!(backoff.is_over(at(5_100)));
    }

    #[test]
    fn second_connection_that_broke_soon_counts_as_a_failed_dial() {
        let mut backoff = DialBackoff::default();
        backoff.record_broken(at(0), at(10));
        assert!(backoff.is_over(at(10)));
        backoff.record_broken(at(10), at(20));
        assert!(!backoff.is_over(at(39)));
    }
}
