//! Durations, counted by their length, for quantiles over short times.
//!
//! ```text
//! micros   0  1  2  3 | 4  5  6  7 | 8   10   12   14 | 16   20   24   28 | ..
//! bucket   0  1  2  3 | 4  5  6  7 | 8    9   10   11 | 12   13   14   15 | ..   79: from 1.8 s
//! ```
//!
//! Each power of two has four buckets, so a quantile is at most an eighth off.

#[cfg(any(feature = "redis", test))]
use std::sync::atomic::{AtomicU64, Ordering};
use std::{array, time::Duration};

/// Counts of durations since the start, which threads add to at the same time.
#[cfg(any(feature = "redis", test))]
#[derive(Debug)]
pub(crate) struct DurationCounter([AtomicU64; BUCKETS]);

#[cfg(any(feature = "redis", test))]
impl DurationCounter {
    /// Counts a duration.
    pub fn add(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.0[bucket_of(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the present counts.
    pub fn counts(&self) -> DurationCounts {
        let counts = array::from_fn(|bucket| self.0[bucket].load(Ordering::Relaxed));
        DurationCounts(Box::new(counts))
    }
}

#[cfg(any(feature = "redis", test))]
impl Default for DurationCounter {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU64::new(0)))
    }
}

// === DurationCounts ===

/// Counts of durations at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DurationCounts(Box<[u64; BUCKETS]>);

impl DurationCounts {
    /// Returns the durations that were counted after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = array::from_fn(|bucket| self.0[bucket].saturating_sub(earlier.0[bucket]));
        Self(Box::new(counts))
    }

    /// Adds those of another counter.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0.iter()) {
            *count += more;
        }
    }

    /// Returns the duration that `percent` of all do not exceed, as the middle of its bucket; `None` without any.
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let total: u64 = self.0.iter().sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut counted = 0;
        let bucket = self.0.iter().position(|count| {
            counted += count;
            counted >= rank
        })?;
        Some(Duration::from_micros(middle_of(bucket)))
    }
}

impl Default for DurationCounts {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

#[cfg(any(feature = "redis", test))]
fn bucket_of(micros: u64) -> usize {
    if micros < 4 {
        return usize::try_from(micros).unwrap_or_default();
    }
    let octave = micros.ilog2();
    let quarter = micros >> (octave - 2) & 3;
    let bucket = u64::from(octave - 1) * 4 + quarter;
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

fn middle_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 8 {
        return bucket;
    }
    let width = 1 << (bucket / 4 - 1);
    (bucket % 4 + 4) * width + width / 2
}

/// The last one begins at 1.8 s.
const BUCKETS: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_within_an_eighth_of_its_bucket() {
        for micros in (0..2_000).chain((2_000..1_800_000).step_by(97)) {
            let middle = middle_of(bucket_of(micros));
            assert!(middle.abs_diff(micros) * 8 <= micros, "{micros}: {middle}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_durations_since_the_earlier_counts() {
        let counter = DurationCounter::default();
        counter.add(Duration::from_secs(1));
        let earlier = counter.counts();
        for millis in 1..=100 {
            counter.add(Duration::from_millis(millis));
        }
        let counts = counter.counts().since(&earlier);
        for percent in [1, 50, 99, 100] {
            let found = counts.percentile(percent).expect("durations");
            let exact = Duration::from_millis(percent);
            assert!(found.abs_diff(exact) * 8 <= exact, "{percent}: {found:?}");
        }
        assert_eq!(earlier.since(&earlier).percentile(50), None);
    }
}
