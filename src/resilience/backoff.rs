//! How long to wait before the next probe.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::clock::Timestamp;

/// Waits that double up to a limit, each spread by a fifth either way so that a fleet does not probe in step.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    recovered_at: Timestamp,
}

impl Backoff {
    /// The next wait.
    pub(super) fn wait(&mut self) -> Duration {
        let wait = spread(self.next, random());
        self.next = (self.next * 2).min(LONGEST);
        wait
    }

    /// Notes that the store came back.
    pub(super) fn recovered(&mut self, now: Timestamp) {
        self.recovered_at = now;
    }

    /// Notes that the store failed: soon after it came back, the waits go on where they were.
    pub(super) fn failed(&mut self, now: Timestamp) {
        if now.since(self.recovered_at) > STEADY {
            self.next = FIRST;
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            next: FIRST,
            recovered_at: Timestamp::default(),
        }
    }
}

/// 80 % to 120 % of `wait`, for `random` from 0 to `u64::MAX`.
fn spread(wait: Duration, random: u64) -> Duration {
    let tenths_of_percent = 800 + (random % 401) as u32;
    wait * tenths_of_percent / 1_000
}

/// The standard library's per-process entropy, advanced on each call: good enough to spread probes.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(10);
/// A store that decided for so long is taken for well.
const STEADY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_stay_within_a_fifth() {
        let mut backoff = Backoff::default();
        for expected in [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            let wait = backoff.wait().as_millis();
            assert!(
                (expected * 8 / 10..=expected * 12 / 10).contains(&wait),
                "{wait} for {expected}"
            );
        }
    }

    #[test]
    fn waits_go_on_where_they_were_when_the_store_fails_again_soon() {
        let at = |second: u64| Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000);
        let mut backoff = Backoff::default();
        backoff.failed(at(0));
        for _ in 0..3 {
            backoff.wait();
        }
        backoff.recovered(at(10));
        backoff.failed(at(11));
        assert!(backoff.wait() >= Duration::from_millis(3_200));
        backoff.recovered(at(20));
        backoff.failed(at(51));
        assert!(backoff.wait() <= Duration::from_millis(600));
    }

    #[test]
    fn spread_reaches_both_ends() {
        let second = Duration::from_secs(1);
        assert_eq!(spread(second, 0), Duration::from_millis(800));
        assert_eq!(spread(second, 400), Duration::from_millis(1_200));
    }
}
