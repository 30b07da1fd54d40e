//! Waits between attempts that fail.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Waits that double up to a limit, each [`jittered`].
///
/// ```text
/// first 20 ms, longest 100 ms:   10..=20   20..=40   40..=80   50..=100   50..=100 ms   ..
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Creates waits that start at `first` and end at `longest`, both before jitter.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            next: first,
            longest,
        }
    }

    /// Returns the next wait. The one after it is twice as long.
    pub fn wait(&mut self) -> Duration {
        let wait = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        wait
    }

    /// Returns the next wait. The one after it is equally long.
    #[cfg(feature = "redis")]
    pub fn wait_again(&self) -> Duration {
        jittered(self.next)
    }

    /// Makes all waits the longest.
    #[cfg(any(feature = "redis", test))]
    pub fn prolong(&mut self) {
        self.next = self.longest;
    }

    /// Starts again with the first wait.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Returns 50 % to 100 % of `wait`, at random, so that a fleet does not act in step.
pub(crate) fn jittered(wait: Duration) -> Duration {
    scaled(wait, random())
}

/// Returns a number from the standard library's entropy, advanced on each call: good enough to spread load.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// Returns 50 % to 100 % of `wait`, for `random` from 0 to `u64::MAX`.
fn scaled(wait: Duration, random: u64) -> Duration {
    let per_mille = 500 + u32::try_from(random % 501).expect("below 501");
    wait * per_mille / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn waits_double_up_to_the_longest_and_are_shortened_by_up_to_half() {
        let mut backoff = Backoff::new(millis(20), millis(2_000));
        for longest in [20, 40, 80, 160, 320, 640, 1_280, 2_000, 2_000] {
            let wait = backoff.wait();
            assert!(
                (millis(longest / 2)..=millis(longest)).contains(&wait),
                "{wait:?} for {longest} ms"
            );
        }
        backoff.reset();
        assert!(backoff.wait() <= millis(20));
        backoff.prolong();
        assert!(backoff.wait() >= millis(1_000));
    }

    #[test]
    fn waits_of_a_fleet_are_spread_over_the_whole_half() {
        let second = Duration::from_secs(1);
        assert_eq!(scaled(second, 0), Duration::from_millis(500));
        assert_eq!(scaled(second, 500), second);
        let waits: Vec<_> = (0..1_000).map(|_| jittered(second)).collect();
        for tenth in 10..20_u32 {
            let from = second * tenth / 20;
            let share = waits
                .iter()
                .filter(|&&wait| from <= wait && wait < from + second / 20)
                .count();
            assert!((40..250).contains(&share), "{share} of 1,000 from {from:?}");
        }
    }
}
