//! The difference between the wall clock and the system's clock of this crate, which does not follow its steps.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::timestamp::Timestamp;

/// The difference, which is 0 at first.
#[derive(Debug, Default)]
pub(super) struct Wall {
    /// Microseconds by which the wall clock is ahead.
    ahead: AtomicI64,
    /// Nanoseconds since the start at which it is looked at again.
    due: AtomicU64,
}

impl Wall {
    /// Returns whether the last look at the wall clock was a millisecond ago or earlier. If so, the caller must look
    /// now.
    pub fn is_due(&self, nanos: u64) -> bool {
        let is_due = nanos >= self.due.load(Ordering::Relaxed);
        if is_due {
            self.due.store(nanos + LOOK_NANOS, Ordering::Relaxed);
        }
        is_due
    }

    /// Notes that the wall clock showed `wall` at the time `now`, or up to `gap` nanoseconds later.
    ///
    /// A small difference changes nothing, so that what is rounded to seconds does not change with each look.
    pub fn learn(&self, wall: Timestamp, now: Timestamp, gap: u64) {
        let [wall, now] =
            [wall, now].map(|time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX));
        let (ahead, known) = (wall - now, self.ahead.load(Ordering::Relaxed));
        if gap <= LOOK_NANOS && ahead.abs_diff(known) > STEP_MICROS {
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// Converts a time by this clock to the time that the wall clock shows.
    #[inline]
    pub fn time(&self, at: Timestamp) -> Timestamp {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Timestamp::from_micros(at.as_micros().saturating_add_signed(ahead))
    }
}

/// Nanoseconds between two looks at the wall clock, and the most for which one may take to count.
const LOOK_NANOS: u64 = 1_000_000;
/// A difference in microseconds above which the wall clock has been set, or the machine been suspended.
const STEP_MICROS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_770_000_000_000_000);
    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn time_follows_each_step_of_the_wall_clock() {
        let wall = Wall::default();
        assert_eq!(wall.time(NOW), NOW);
        for set in [NOW - HOUR, NOW + HOUR, NOW] {
            wall.learn(set, NOW, 300);
            assert_eq!(wall.time(NOW), set);
            assert_eq!(wall.time(NOW + HOUR), set + HOUR);
        }
    }

    #[test]
    fn small_difference_and_slow_look_change_nothing() {
        let wall = Wall::default();
        let millis = Duration::from_millis;
        for close in [NOW - millis(10), NOW + millis(10)] {
            wall.learn(close, NOW, 300);
            assert_eq!(wall.time(NOW), NOW);
        }
        // The thread was suspended between the two clocks.
        wall.learn(NOW + HOUR, NOW, LOOK_NANOS + 1);
        assert_eq!(wall.time(NOW), NOW);
        wall.learn(NOW + millis(11), NOW, 300);
        assert_eq!(wall.time(NOW), NOW + millis(11));
    }

    #[test]
    fn wall_clock_is_looked_at_once_a_millisecond() {
        let wall = Wall::default();
        let looks = (0..10 * LOOK_NANOS).step_by(1_000);
        let looks = looks.filter(|nanos| wall.is_due(*nanos)).count();
        assert_eq!(looks, 10);
    }
}
