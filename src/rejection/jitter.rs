//! Spreads the waits of rejected clients.
//!
//! ```text
//! wait 9.2 s, share 0.3: longest 11.96 s
//!
//!   9.2   10        11        12
//!    [----]---------]--------]         one of the whole seconds 10, 11 and 12, then a moment before its end
//! ```
//!
//! # Why are whole seconds drawn before the moment?
//!
//! Most clients read `Retry-After`, which has whole seconds. A wait drawn evenly from 3 to 3.9 s is nearly always 4 in the header, so
//! that all clients would come back together, and later. So 3 and 4 are drawn with equal chances. The moment within the
//! second is for gRPC clients.

use std::time::Duration;

use crate::{
    clock::{micros, whole_seconds},
    error::{Error, ErrorKind},
};

/// The largest part of a wait that is added to it at random.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetryAfterJitter {
    share: f64,
}

impl RetryAfterJitter {
    /// Any number is taken: [`validate`](Self::validate) checks it.
    pub const fn new(share: f64) -> Self {
        Self { share }
    }

    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a share that is not from 0.0 to 0.3.
    pub fn validate(self) -> Result<(), Error> {
        if (0.0..=LARGEST).contains(&self.share) {
            return Ok(());
        }
        let share = self.share;
        Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "retry_after_jitter of {share}: set a share from 0.0 to {LARGEST}, such as 0.1 to add up to 10 % to each wait"
            ),
        ))
    }

    /// Returns whether nothing is added.
    pub fn is_none(self) -> bool {
        self.share <= 0.0
    }

    /// Returns a wait from `wait` to the longest one, to the microsecond.
    pub fn spread(self, wait: Duration, random: u64) -> Duration {
        let longest = wait + Duration::from_micros(micros(wait.mul_f64(self.share)));
        let first = whole_seconds(wait);
        let choices = whole_seconds(longest) - first + 1;
        let end = Duration::from_secs(first + random % choices);
        let (from, to) = (wait.max(end.saturating_sub(SECOND)), longest.min(end));
        // Counted from the end, which belongs to this second: the start is in the one before.
        let moment = (random >> 32) % micros(to - from).max(1);
        to - Duration::from_micros(moment)
    }
}

/// A larger share would cost clients more time than it saves the server requests.
const LARGEST: f64 = 0.3;
const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wait_is_never_below_the_real_one_nor_above_the_longest(
            micros in prop_oneof![1..10_000_000_u64, any::<u64>()],
            share in 0.0..=LARGEST,
            random: u64,
        ) {
            let wait = Duration::from_micros(micros);
            let spread = RetryAfterJitter::new(share).spread(wait, random);
            prop_assert!(wait <= spread, "{spread:?}");
            prop_assert!(spread <= wait + wait.mul_f64(share), "{spread:?}");
        }
    }

    #[test]
    fn each_whole_second_of_the_range_is_equally_likely() {
        for (millis, expected) in [
            (400, 1..=1),
            (900, 1..=2),
            (2_200, 3..=3),
            (2_950, 3..=4),
            (3_000, 3..=4),
            (9_200, 10..=12),
            (60_000, 60..=78),
        ] {
            let mut counts = [0_u32; 80];
            let seconds = u32::try_from(expected.clone().count()).expect("a few");
            for number in 0..seconds * 100 {
                let random = u64::from(number) | 0x9E37_79B9_u64 << 32;
                let wait = RetryAfterJitter::new(0.3).spread(Duration::from_millis(millis), random);
                counts[usize::try_from(whole_seconds(wait)).expect("a few")] += 1;
            }
            for (second, count) in counts.into_iter().enumerate() {
                let is_expected = expected.contains(&second);
                assert!(
                    count.abs_diff(if is_expected { 100 } else { 0 }) <= 5,
                    "{millis} ms: {count} of {second} s"
                );
            }
        }
    }

    #[test]
    fn moments_of_a_second_are_spread_over_all_of_it() {
        let jitter = RetryAfterJitter::new(0.3);
        let wait = Duration::from_millis(500);
        let earliest = jitter.spread(wait, u64::from(149_999_u32) << 32);
        assert_eq!(earliest, Duration::from_micros(500_001));
        assert_eq!(jitter.spread(wait, 0), Duration::from_millis(650));
    }
}
