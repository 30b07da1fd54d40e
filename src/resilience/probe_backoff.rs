//! When to probe the primary.

use std::time::Duration;

use crate::{clock::Timestamp, task::Backoff};

/// Waits between probes: a few short ones, since most outages are short, then waits that double.
///
/// ```text
/// up to 100, 100, 100, 100, 200, 400, 800 ms, 1, 1, .. s
/// ```
///
/// With a wait of at most 1 s and two good probes, a store decides again within 2 s of the end of its fault, also on a key
/// whose share is used up and must refill first.
///
/// Each is [jittered](crate::task::backoff::jittered). If the store fails again within 10 s of its recovery, the waits go on
/// where they were, so that a store that comes and goes is probed less and less often.
#[derive(Debug)]
pub(super) struct ProbeBackoff {
    backoff: Backoff,
    /// Number of short waits that remain before they begin to double.
    short_waits: u32,
    recovered_at: Timestamp,
}

impl ProbeBackoff {
    /// Returns the next wait.
    pub fn wait(&mut self) -> Duration {
        match self.short_waits.checked_sub(1) {
            Some(left) => {
                self.short_waits = left;
                self.backoff.wait_again()
            }
            None => self.backoff.wait(),
        }
    }

    /// Records the time at which the breaker closed.
    pub fn closed(&mut self, now: Timestamp) {
        self.recovered_at = now;
    }

    /// Starts with short waits again, unless the breaker closed only just before it opened.
    pub fn opened(&mut self, now: Timestamp) {
        if now.since(self.recovered_at) > STABLE {
            self.backoff.reset();
            self.short_waits = SHORT_WAITS;
        }
    }

    /// Makes all waits long, after a permanent error.
    pub fn prolong(&mut self) {
        self.backoff.prolong();
    }
}

impl Default for ProbeBackoff {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(FIRST, LONGEST),
            short_waits: SHORT_WAITS,
            recovered_at: Timestamp::default(),
        }
    }
}

const FIRST: Duration = Duration::from_millis(100);
const SHORT_WAITS: u32 = 3;
const LONGEST: Duration = Duration::from_secs(1);
/// A store that decides for this long after an outage has recovered.
const STABLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    #[test]
    fn waits_are_short_then_double_up_to_the_longest_and_are_shortened_by_up_to_half() {
        let mut backoff = ProbeBackoff::default();
        for longest in [100, 100, 100, 100, 200, 400, 800, 1_000, 1_000, 1_000] {
            let wait = backoff.wait().as_millis();
            assert!(
                (longest / 2..=longest).contains(&wait),
                "{wait} for {longest}"
            );
        }
    }

    #[test]
    fn waits_go_on_where_they_were_when_the_store_fails_again_soon() {
        let mut backoff = ProbeBackoff::default();
        backoff.opened(at(0));
        for _ in 0..7 {
            backoff.wait();
        }
        backoff.closed(at(10));
        backoff.opened(at(12));
        // At least half of the longest.
        assert!(backoff.wait() >= Duration::from_millis(500));
        backoff.closed(at(20));
        backoff.opened(at(31));
        assert!(backoff.wait() <= Duration::from_millis(100));
    }

    #[test]
    fn waits_after_a_permanent_error_are_long() {
        let mut backoff = ProbeBackoff::default();
        backoff.opened(at(0));
        backoff.prolong();
        for _ in 0..3 {
            assert!(backoff.wait() >= Duration::from_millis(500));
        }
    }
}
