//! How long to wait before the next probe.

use std::time::Duration;

use crate::{backoff::Backoff, clock::Timestamp};

/// A few short waits, then waits that double.
#[derive(Debug)]
pub(super) struct ProbeBackoff {
    backoff: Backoff,
    /// Waits that are left before they begin to double.
    short: u32,
    recovered_at: Timestamp,
}

impl ProbeBackoff {
    /// Returns the next wait.
    pub(super) fn wait(&mut self) -> Duration {
        match self.short.checked_sub(1) {
            Some(left) => {
                self.short = left;
                self.backoff.wait_again()
            }
            None => self.backoff.wait(),
        }
    }

    /// Notes that the store came back.
    pub(super) fn recovered(&mut self, now: Timestamp) {
        self.recovered_at = now;
    }

    /// Notes that the store was given up: if it came back only just before, the waits go on where they were.
    pub(super) fn gave_up(&mut self, now: Timestamp) {
        if now.since(self.recovered_at) > STEADY {
            self.backoff.reset();
            self.short = SHORT_WAITS;
        }
    }

    /// Notes an error that waiting does not cure: all waits are long.
    pub(super) fn prolong(&mut self) {
        self.backoff.prolong();
    }
}

impl Default for ProbeBackoff {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(FIRST, LONGEST),
            short: SHORT_WAITS,
            recovered_at: Timestamp::default(),
        }
    }
}

/// Most outages are stalls of a fraction of a second, so the first probes follow soon: each after 50 to 100 ms.
const FIRST: Duration = Duration::from_millis(100);
const SHORT_WAITS: u32 = 3;
const LONGEST: Duration = Duration::from_secs(10);
/// A store that decided for this long is healthy again.
const STEADY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    #[test]
    fn waits_are_short_then_double_up_to_the_longest_and_are_shortened_by_up_to_half() {
        let mut backoff = ProbeBackoff::default();
        for longest in [
            100, 100, 100, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000,
        ] {
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
        backoff.gave_up(at(0));
        for _ in 0..7 {
            backoff.wait();
        }
        backoff.recovered(at(10));
        backoff.gave_up(at(12));
        assert!(backoff.wait() >= Duration::from_millis(800));
        backoff.recovered(at(20));
        backoff.gave_up(at(31));
        assert!(backoff.wait() <= Duration::from_millis(100));
    }

    #[test]
    fn what_waiting_does_not_cure_is_looked_at_seldom() {
        let mut backoff = ProbeBackoff::default();
        backoff.gave_up(at(0));
        backoff.prolong();
        for _ in 0..3 {
            assert!(backoff.wait() >= Duration::from_secs(5));
        }
    }
}
