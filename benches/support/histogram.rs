//! A histogram of durations in constant memory.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "counts and nanoseconds of a bench are small"
)]

use std::time::Duration;

/// Counts durations in buckets that are at most 0.4 % wide.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Histogram {
    pub(crate) fn record(&mut self, duration: Duration) {
        let bucket = bucket_of(nanos(duration));
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + STEPS as usize, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max = self.max.max(duration);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    /// Returns the duration that this share of all recorded ones does not exceed; zero if none was recorded.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        let nanos = bucket.map_or(0, |bucket| (floor_of(bucket) + floor_of(bucket + 1)) / 2);
        Duration::from_nanos(nanos).min(self.max)
    }

    /// Returns the number of durations up to this one, to the width of a bucket.
    pub(crate) fn within(&self, duration: Duration) -> u64 {
        let last = bucket_of(nanos(duration));
        self.buckets.iter().take(last + 1).sum()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the bucket of a duration: one per nanosecond below `STEPS`, then `STEPS` per power of two.
fn bucket_of(nanos: u64) -> usize {
    let shift = nanos.max(1).ilog2().saturating_sub(STEPS.ilog2());
    (u64::from(shift) * STEPS + (nanos >> shift)) as usize
}

/// Returns the shortest duration of the bucket, in nanoseconds.
fn floor_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    match (bucket / STEPS).checked_sub(1) {
        None => bucket,
        Some(shift) => (bucket - shift * STEPS) << shift,
    }
}

const STEPS: u64 = 256;
