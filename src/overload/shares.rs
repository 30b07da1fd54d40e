//! Fairness within a class: how many places a key may take, and how often it may try.
//!
//! - A key gets a place while it has fewer than 16 times the free ones (Choudhury and Hahne, "Dynamic queue length thresholds",
//!   1998): one comparison, without a list of the keys. The last free place is for a key that has none.
//! - Before that, a key that tries more often than the fair rate of its class passes with the probability `fair rate / its rate`, as
//!   in core-stateless fair queueing (Stoica, Shenker and Zhang, 1998). So a key that sends nine of ten requests does not find each
//!   place first. The fair rate falls while more than a fifth of those that pass find no place.
//!
//! A key that has a weight may have and try so many times as much.
//!
//! Keys are counted in two rows of cells by their hash, and the smaller count is taken: a fixed 64 KiB, and no key is remembered. A
//! key that shares a cell with a busy one in both rows is taken for as busy.

use std::{
    array,
    sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    charge::{key_hash, mix, place},
    clock::Timestamp,
    key::Key,
    task::{Mutex, backoff::random, lane::Line},
};

use super::classes::MOST_CLASSES;

/// Places and attempts of all keys, and the fair rate of each class.
pub(super) struct Shares {
    /// Places that keys have.
    held: Box<Cells<AtomicU32>>,
    /// Attempts of this half second, and of the one before, in turns.
    attempts: [Box<Cells<AtomicU16>>; 2],
    /// Number of the half second.
    half_second: AtomicU64,
    classes: [FairRate; MOST_CLASSES],
    /// By lane and class.
    tries: Box<[Line<[Tries; MOST_CLASSES]>]>,
    /// When the fair rates are adapted next. Microseconds.
    adapts_at: AtomicU64,
    turning: Mutex<()>,
}

type Cells<T> = [[T; CELLS]; 2];

/// The rate of attempts up to which all of a key's requests pass, for a weight of 1.
struct FairRate {
    /// Attempts a second, as the bits of a float.
    rate: AtomicU64,
    /// The highest rate of a key since it was adapted, as the bits of a float that is not negative, whose order is that of numbers.
    highest: AtomicU64,
}

/// Requests since the fair rate was adapted.
#[derive(Default)]
struct Tries {
    passed: AtomicU32,
    /// Those that passed, and found no place.
    full: AtomicU32,
}

/// A key in a class, as it is counted: what a key has in one class takes nothing from it in another.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyHash(u64);

impl KeyHash {
    #[inline]
    pub fn of(key: &Key, class: usize) -> Self {
        Self(mix(key_hash(key) ^ class as u64))
    }
}

impl Shares {
    /// Creates shares that are counted in so many lanes.
    pub fn new(lanes: usize, now: Timestamp) -> Self {
        Self {
            held: cells(),
            attempts: [cells(), cells()],
            half_second: AtomicU64::new(now.as_micros() / HALF_SECOND),
            classes: array::from_fn(|_| FairRate::unlimited()),
            tries: (0..lanes).map(|_| Line::default()).collect(),
            adapts_at: AtomicU64::new((now + ADAPTED).as_micros()),
            turning: Mutex::new(()),
        }
    }

    /// Counts an attempt, and returns whether it passes the filter by rate. A key of twice the weight may try twice as often.
    pub fn passes(
        &self,
        (lane, class): (usize, usize),
        (key, weight): (KeyHash, u32),
        now: Timestamp,
        half_is_free: impl FnOnce() -> bool,
    ) -> bool {
        self.turn(now, half_is_free);
        let rate = self.note_attempt(key, now) / f64::from(weight);
        let fair = &self.classes[class];
        // Read first: it rarely rises, and a write takes longer.
        if rate.to_bits() > fair.highest.load(Relaxed) {
            fair.highest.fetch_max(rate.to_bits(), Relaxed);
        }
        let limit = f64::from_bits(fair.rate.load(Relaxed));
        if rate > limit && unit(random()) * rate > limit {
            return false;
        }
        self.tries[lane].0[class].passed.fetch_add(1, Relaxed);
        true
    }

    /// Returns the attempts of a key a second, also if none has come since long ago.
    #[cfg(feature = "explain")]
    pub fn rate_now(&self, key: KeyHash, now: Timestamp) -> f64 {
        if let Some(_turning) = self.turning.try_lock() {
            self.begin_half(now.as_micros() / HALF_SECOND);
        }
        self.rate(key, now)
    }

    /// Returns up to how many attempts a second all pass; `None` while nothing is filtered.
    #[cfg(feature = "explain")]
    pub fn fair_rate(&self, class: usize) -> Option<f64> {
        let rate = f64::from_bits(self.classes[class].rate.load(Relaxed));
        (rate < HIGHEST).then_some(rate)
    }

    /// Notes that a request that has passed found no place.
    pub fn note_full(&self, (lane, class): (usize, usize)) {
        self.tries[lane].0[class].full.fetch_add(1, Relaxed);
    }

    /// Returns how many places a key has.
    pub fn held(&self, key: KeyHash) -> u32 {
        let [first, second] = places(key.0);
        let [row, other] = &*self.held;
        row[first].load(Relaxed).min(other[second].load(Relaxed))
    }

    pub fn take(&self, key: KeyHash) {
        self.places_of(key).for_each(|cell| {
            cell.fetch_add(1, Relaxed);
        });
    }

    pub fn give_back(&self, key: KeyHash) {
        self.places_of(key).for_each(|cell| {
            cell.fetch_sub(1, Relaxed);
        });
    }

    fn places_of(&self, key: KeyHash) -> impl Iterator<Item = &AtomicU32> {
        let cells = self.held.iter().zip(places(key.0));
        cells.map(|(row, place)| &row[place])
    }

    /// Counts an attempt, and returns those of this key in the last second or half, a second.
    fn note_attempt(&self, key: KeyHash, now: Timestamp) -> f64 {
        let [this, _] = self.halves(now);
        for (row, place) in this.iter().zip(places(key.0)) {
            // A count that is full stays so: the key is far above any fair rate.
            if row[place].load(Relaxed) < u16::MAX {
                row[place].fetch_add(1, Relaxed);
            }
        }
        self.rate(key, now)
    }

    /// Returns the attempts of this half second, and of the one before.
    fn halves(&self, now: Timestamp) -> [&Cells<AtomicU16>; 2] {
        let half = now.as_micros() / HALF_SECOND;
        let [even, odd] = &self.attempts;
        match half.is_multiple_of(2) {
            true => [even, odd],
            false => [odd, even],
        }
    }

    /// Returns the attempts of a key in the last second or half, a second.
    fn rate(&self, key: KeyHash, now: Timestamp) -> f64 {
        let places = places(key.0);
        let least = |cells: &Cells<AtomicU16>| {
            let counts = cells.iter().zip(places);
            let counts = counts.map(|(row, place)| row[place].load(Relaxed));
            f64::from(counts.min().unwrap_or_default())
        };
        let [this, last] = self.halves(now);
        let into = Duration::from_micros(now.as_micros() % HALF_SECOND);
        let half = Duration::from_micros(HALF_SECOND);
        let passed = into.div_duration_f64(half);
        let counted = least(this) + (1.0 - passed) * least(last);
        counted / half.as_secs_f64()
    }

    /// Begins the next half second, and adapts the fair rates, if it is time.
    #[inline]
    fn turn(&self, now: Timestamp, half_is_free: impl FnOnce() -> bool) {
        let half = now.as_micros() / HALF_SECOND;
        let is_due = half != self.half_second.load(Relaxed)
            || now.as_micros() >= self.adapts_at.load(Relaxed);
        if is_due && let Some(_turning) = self.turning.try_lock() {
            self.begin_half(half);
            if now.as_micros() >= self.adapts_at.load(Relaxed) {
                self.adapts_at.store((now + ADAPTED).as_micros(), Relaxed);
                let half_is_free = half_is_free();
                for (class, fair) in self.classes.iter().enumerate() {
                    fair.adapt(self.take_tries(class), half_is_free);
                }
            }
        }
    }

    /// Returns the requests of a class that have passed, and those of them that found no place, and begins anew.
    fn take_tries(&self, class: usize) -> [f64; 2] {
        let of = |count: fn(&Tries) -> &AtomicU32| {
            let lanes = self.tries.iter().map(|Line(classes)| &classes[class]);
            let counts = lanes.map(|tries| count(tries).swap(0, Relaxed));
            f64::from(counts.sum::<u32>())
        };
        [of(|tries| &tries.passed), of(|tries| &tries.full)]
    }

    #[cold]
    fn begin_half(&self, half: u64) {
        let last = self.half_second.load(Relaxed);
        if half <= last {
            return;
        }
        let begun = if half == last + 1 {
            half..=half
        } else {
            half - 1..=half
        };
        for number in begun {
            let cells = &self.attempts[(number % 2) as usize];
            let cells = cells.iter().flatten();
            cells.for_each(|cell| cell.store(0, Relaxed));
        }
        self.half_second.store(half, Relaxed);
    }
}

impl FairRate {
    fn unlimited() -> Self {
        Self {
            rate: AtomicU64::new(HIGHEST.to_bits()),
            highest: AtomicU64::new(0),
        }
    }

    fn adapt(&self, [passed, full]: [f64; 2], half_is_free: bool) {
        let rate = f64::from_bits(self.rate.load(Relaxed));
        let full = full / passed.max(1.0);
        let highest = f64::from_bits(self.highest.swap(0, Relaxed));
        let next = if full > TOO_FULL {
            rate.min(highest) * (1.0 - 0.2 * full)
        } else if half_is_free {
            rate * 1.3
        } else if passed > 0.0 {
            rate * 1.1
        } else {
            rate
        };
        self.rate.store(next.clamp(1.0, HIGHEST).to_bits(), Relaxed);
    }
}

/// Returns the cell of a hash in each row.
fn places(hash: u64) -> [usize; 2] {
    [hash, hash.rotate_left(32)].map(|hash| place(hash, CELLS))
}

/// Returns a number from 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "its lowest bits do not matter")]
fn unit(random: u64) -> f64 {
    random as f64 / u64::MAX as f64
}

fn cells<T: Default>() -> Box<Cells<T>> {
    Box::new(array::from_fn(|_| array::from_fn(|_| T::default())))
}

const CELLS: usize = 4_096;
const HALF_SECOND: u64 = 500_000;
const ADAPTED: Duration = Duration::from_millis(100);
/// The part of the requests that pass and may find no place.
const TOO_FULL: f64 = 0.2;
/// No limit.
const HIGHEST: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;

    // Two keys try 1,000 times a second each, and 100 places a second become free.
    #[test]
    fn key_of_three_times_the_weight_passes_three_times_as_often() {
        let mut now = Timestamp::from_micros(1_700_000_000_000_000);
        let shares = Shares::new(1, now);
        let keys = [("free", 1), ("partner", 3)];
        let keys = keys.map(|(key, weight)| (KeyHash::of(&Key::new(key), 0), weight));
        let (mut served, mut places) = ([0_u32; 2], 0.0);
        for milli in 0..60_000 {
            now = now + Duration::from_millis(1);
            places = f64::min(places + 0.1, 5.0);
            // Each comes first as often as the other.
            for turn in 0..2 {
                let who = (milli + turn) % 2;
                if !shares.passes((0, 0), keys[who], now, || false) {
                    continue;
                }
                if places < 1.0 {
                    shares.note_full((0, 0));
                } else {
                    places -= 1.0;
                    served[who] += 1;
                }
            }
        }
        let [free, partner] = served.map(f64::from);
        assert!(free + partner > 5_000.0, "{served:?}");
        assert!((2.5..3.5).contains(&(partner / free)), "{served:?}");
    }
}
