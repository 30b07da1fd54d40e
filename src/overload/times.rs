//! Times of responses, counted in buckets.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use crate::clock::micros;

/// How many responses took how long. A bucket is an eighth of an octave: 6 to 12 % wide.
pub(super) struct Times([u32; BUCKETS]);

impl Times {
    pub fn none() -> Self {
        Self([0; BUCKETS])
    }

    pub fn count(&self) -> u32 {
        self.0.iter().sum()
    }

    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count += more;
        }
    }

    /// Returns the time, in seconds, within which this part of the responses came. `None` without a response.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let goal = (f64::from(self.count()) * part).ceil().max(1.0);
        let mut counted = 0.0;
        let bucket = self.0.iter().position(|count| {
            counted += f64::from(*count);
            counted >= goal
        })?;
        let bucket = u32::try_from(bucket).ok()?;
        let (octave, eighth) = (bucket / PER_OCTAVE, bucket % PER_OCTAVE);
        let middle = 1.0 + (f64::from(eighth) + 0.5) / f64::from(PER_OCTAVE);
        Some(f64::from(octave).exp2() * middle / 1e6)
    }
}

// === SharedTimes ===

/// [`Times`] that many threads count.
pub(super) struct SharedTimes([AtomicU32; BUCKETS]);

impl SharedTimes {
    pub fn none() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    #[inline]
    pub fn count(&self, time: Duration) {
        self.0[bucket(time)].fetch_add(1, Relaxed);
    }

    /// Returns how many were counted.
    pub fn total(&self) -> u32 {
        self.0.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Returns what was counted, and begins anew.
    pub fn take(&self) -> Times {
        Times(std::array::from_fn(|bucket| {
            self.0[bucket].swap(0, Relaxed)
        }))
    }
}

/// Linear between two powers of two: no logarithm on the way of a request.
#[inline]
fn bucket(time: Duration) -> usize {
    // Shifted so that times of a few microseconds have buckets of their own.
    let scaled = micros(time).clamp(1, u64::MAX >> 3) << 3;
    let octave = scaled.ilog2() - 3;
    let eighth = ((scaled >> octave) & 7) as u32;
    ((octave * PER_OCTAVE + eighth) as usize).min(BUCKETS - 1)
}

const PER_OCTAVE: u32 = 8;
/// Up to 2^32 microseconds: more than an hour.
const BUCKETS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_as_exact_as_a_bucket_is_wide() {
        for micros in [1_u32, 3, 10, 999, 20_000, 1_500_000, 60_000_000] {
            let times = SharedTimes::none();
            for _ in 0..8 {
                times.count(Duration::from_micros(micros.into()));
            }
            times.count(Duration::MAX);
            let seconds = times.take().quantile(0.5).expect("it was counted");
            let ratio = seconds * 1e6 / f64::from(micros);
            assert!((0.94..1.07).contains(&ratio), "{micros} us: {ratio}");
        }
    }

    #[test]
    fn counts_begin_anew() {
        let times = SharedTimes::none();
        times.count(Duration::ZERO);
        assert_eq!(times.take().count(), 1);
        assert_eq!(times.take().quantile(0.2), None);
    }
}
