//! Limits that are leased: their arguments for the script, and how far a sequence of admitted units is beyond them.

use std::time::Duration;

use tollgate::{
    Consistency, Percent, Policy, Quota,
    algorithm::{
        Algorithm, Counter, Counting, FixedWindow, SlidingWindow, WindowStart, WindowState,
    },
    clock::Timestamp,
    decision::Retry,
    remote::TrialTaken,
};

use crate::support::Random;

/// What counts the units of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bucket,
    Window(WindowStart),
    SlidingWindow,
}

pub(super) const KINDS: [Kind; 5] = [
    Kind::Bucket,
    Kind::Window(WindowStart::Clock),
    Kind::Window(WindowStart::FirstHit),
    Kind::Window(WindowStart::Month),
    Kind::SlidingWindow,
];

/// A policy, and its numbers as the script takes them.
#[derive(Clone)]
pub(super) struct Limit {
    kind: Kind,
    pub policy: Policy,
    /// By how much leased units may exceed it, in 1/1000.
    pub overshoot: u16,
}

impl Limit {
    pub fn random(kind: Kind, random: &mut Random) -> Self {
        let more = 16 << random.below(5);
        let units = 32 + random.below(more);
        let quota = match kind {
            Kind::Bucket => {
                // Full again after 0.5 to 10 s: leases last about as long.
                let tenths = [5, 10, 20, 50, 100][index(random, 5)];
                let per_second = (units * 10 / tenths + random.below(2)).max(1);
                Quota::per_second(per_second).burst(units)
            }
            Kind::Window(WindowStart::Month) => Quota::per_month(units),
            Kind::Window(_) | Kind::SlidingWindow => {
                let millis = [40, 300, 1_000, 1_700, 5_000][index(random, 5)];
                Quota::new(units, Duration::from_millis(millis))
            }
        };
        let overshoot = [0, 0, 0, 0, 1, 20, 200, 1_000][index(random, 8)];
        Self::new(kind, quota, overshoot)
    }

    pub fn new(kind: Kind, quota: Quota, overshoot: u16) -> Self {
        let consistency = Consistency::Delayed {
            overshoot: Percent::new(f64::from(overshoot) / 10.0),
        };
        let algorithm = match kind {
            Kind::Bucket => Algorithm::TokenBucket,
            Kind::Window(start) => Algorithm::FixedWindow(start),
            Kind::SlidingWindow => Algorithm::SlidingWindow,
        };
        let policy = Policy::new("walk", quota).algorithm(algorithm);
        Self {
            kind,
            policy: policy.consistency(consistency),
            overshoot,
        }
    }

    /// Returns a limit, and another that a rule may change it to. All times of the buckets are whole microseconds, so that nothing
    /// is rounded.
    pub fn pair(kind: Kind, random: &mut Random) -> [Self; 2] {
        let one = Self::random(kind, random);
        if kind != Kind::Bucket {
            let halved = one.halved();
            return [one, halved];
        }
        let mut numbers = || {
            let more = 16 << random.below(5);
            let units = 32 + random.below(more);
            let tenths = [5, 10, 20, 50, 100][index(random, 5)];
            (units, 2 * (tenths * 50_000 / units))
        };
        let (first, mut second) = (numbers(), numbers());
        // Units and the rate change, or one of them, or both so that all units come back in the same time.
        match random.below(5) {
            0 => second.0 = first.0,
            1 => second.1 = first.1,
            2 => second = (2 * first.0, first.1 / 2),
            _ => {}
        }
        let quota = |(units, micros)| Quota::new(1, Duration::from_micros(micros)).burst(units);
        [first, second].map(|numbers| one.with(quota(numbers)))
    }

    /// Returns the bound of all spans while some have this limit, and some the other.
    pub fn larger(&self, other: &Self) -> Self {
        let units = self.units().max(other.units());
        if self.kind == Kind::Bucket {
            let span = Duration::from_micros(self.span().min(other.span()));
            self.with(Quota::new(units, span).burst(units))
        } else {
            self.with(Quota::new(units, self.policy.quota().period()))
        }
    }

    /// The same window with half of the units.
    pub fn halved(&self) -> Self {
        let quota = self.policy.quota();
        let units = self.units() / 2;
        self.with(Quota::new(units, quota.period()))
    }

    pub fn with(&self, quota: Quota) -> Self {
        Self::new(self.kind, quota, self.overshoot)
    }

    pub fn units(&self) -> u64 {
        self.policy.counter().limit()
    }

    /// The most units that may be leased.
    fn most_leased(&self) -> u64 {
        self.units() / 4 + self.ahead(self.units())
    }

    pub fn ahead(&self, number: u64) -> u64 {
        number * u64::from(self.overshoot) / 1_000
    }

    /// The microseconds in which all units come back; of months not as many, so that walks do something in each.
    pub fn span(&self) -> u64 {
        match self.policy.counter() {
            Counter::Bucket(bucket) => bucket.span(),
            Counter::FixedWindow(window) if window.window_start() == WindowStart::Month => {
                3_000_000
            }
            Counter::FixedWindow(window) => window.millis() * 1_000,
            Counter::SlidingWindow(window) => window.millis() * 1_000,
            other => unreachable!("{other:?} is not leased"),
        }
    }

    /// The arguments of a plain charge.
    pub fn charge(&self, units: u64) -> Vec<Vec<u8>> {
        match self.policy.counter() {
            Counter::Bucket(bucket) if units == 1 && bucket.refill().0 == 1 => {
                vec![self.tag(b'w'), text(bucket.refill().1), text(bucket.span())]
            }
            _ => self.charge_in_units(units),
        }
    }

    /// The arguments of a charge of a key that has regions, or of a report.
    pub fn charge_in_units(&self, units: u64) -> Vec<Vec<u8>> {
        let (letter, numbers) = match self.policy.counter() {
            Counter::Bucket(bucket) => {
                let (per, micros) = bucket.refill();
                (b'l', vec![units, bucket.span(), per, micros])
            }
            Counter::FixedWindow(window) => {
                let letter = match window.window_start() {
                    WindowStart::Clock => b'f',
                    WindowStart::FirstHit => b'o',
                    WindowStart::Month => b'm',
                    other => unreachable!("{other:?}"),
                };
                (letter, vec![units, window.limit(), window.millis()])
            }
            Counter::SlidingWindow(window) => {
                let numbers = [units, window.limit(), window.millis(), window.tick()];
                (b's', numbers.to_vec())
            }
            other => unreachable!("{other:?} is not leased"),
        };
        let tag = std::iter::once(self.tag(letter));
        tag.chain(numbers.into_iter().map(text)).collect()
    }

    pub fn report(&self, report: &[u8; 37]) -> Vec<Vec<u8>> {
        let head = [b"&".to_vec(), report.to_vec()].into_iter();
        head.chain(self.charge_in_units(0)).collect()
    }

    pub fn refund(&self, units: u64, taken: &TrialTaken, total: u64) -> Vec<Vec<u8>> {
        let charge = match self.policy.counter() {
            Counter::Bucket(bucket) => {
                let (per, micros) = bucket.refill();
                vec![
                    self.tag(b'w'),
                    text(units * micros / per),
                    text(bucket.span()),
                ]
            }
            _ => self.charge(units),
        };
        let mark = [b"-".to_vec(), text(taken.reset_at.as_micros()), text(total)];
        mark.into_iter().chain(charge).collect()
    }

    pub fn tag(&self, letter: u8) -> Vec<u8> {
        let mut tag = vec![letter];
        match self.policy.counter() {
            Counter::Bucket(bucket) => tag.extend(bucket.quota_tag().to_be_bytes()),
            Counter::FixedWindow(window) => tag.extend(window.quota_tag().to_be_bytes()),
            _ => {}
        }
        tag
    }

    /// Units that are left by the integers of a reply.
    pub fn remaining(&self, [first, second, third]: [u64; 3], now: u64) -> u64 {
        let (now, ends_at) = (Timestamp::from_micros(now), Timestamp::from_micros(first));
        let usage = match self.policy.counter() {
            Counter::Bucket(bucket) => bucket.usage(&bucket.state(first), now),
            Counter::FixedWindow(window) => window.usage(&window.state(ends_at, second), now),
            Counter::SlidingWindow(window) => {
                window.usage(&window.state(first / 1_000, second, third), now)
            }
            other => unreachable!("{other:?} is not leased"),
        };
        usage.remaining
    }
}

// === Bounds ===

/// Units that were admitted.
pub(super) struct Admitted {
    pub at: u64,
    pub units: u64,
    /// The end of the window that they were charged or leased in, if windows begin with their first hit.
    pub window_ends: u64,
    /// How often the key was lost when they were leased, if it was lost since.
    pub lost: Option<usize>,
}

/// An exact count of admitted units.
#[derive(Default)]
struct Count {
    /// The level of a bucket, in units of time.
    level: i128,
    window_ends: u64,
    previous: u64,
    current: u64,
}

impl Count {
    /// Adds units. Returns the usage, the most that it may be, and the whole quota.
    fn add(&mut self, limit: &Limit, admitted: &Admitted) -> (i128, i128, i128) {
        let whole = i128::from(limit.units());
        let most = whole + i128::from(limit.ahead(limit.units()));
        match limit.policy.counter() {
            Counter::Bucket(bucket) => {
                let (units, micros) = bucket.refill();
                let scale = |number: u64| i128::from(number) * i128::from(units);
                self.level = self.level.max(scale(admitted.at))
                    + i128::from(admitted.units) * i128::from(micros);
                let span = bucket.span();
                // Charges walk a lattice of whole microseconds, on which a TAT may lose one.
                let most = span + limit.ahead(span) + u64::from(units > 1);
                (self.level - scale(admitted.at), scale(most), scale(span))
            }
            Counter::FixedWindow(window) => {
                if admitted.at >= self.window_ends {
                    let ends = match window.window_start() {
                        WindowStart::FirstHit => admitted.window_ends,
                        _ => end_of_window(window, admitted.at),
                    };
                    (self.window_ends, self.current) = (ends, 0);
                }
                self.current += admitted.units;
                // Those of another window are one too many.
                let is_in_window = admitted.at < self.window_ends;
                let used = if is_in_window {
                    self.current.into()
                } else {
                    most + 1
                };
                (used, most, whole)
            }
            Counter::SlidingWindow(window) => {
                self.roll(window, admitted.at);
                self.current += admitted.units;
                let passed =
                    (admitted.at - (self.window_ends - window.millis() * 1_000)) / window.tick();
                let ticks = window.millis() * 1_000 / window.tick();
                let weighed = self.previous.min(window.limit()) * (ticks - passed);
                let used = self.current + weighed.div_ceil(ticks);
                (used.into(), most, whole)
            }
            other => unreachable!("{other:?} is not leased"),
        }
    }

    fn roll(&mut self, window: &SlidingWindow, at: u64) {
        let length = window.millis() * 1_000;
        let ends = at - at % length + length;
        if ends != self.window_ends {
            let is_next = ends == self.window_ends + length;
            self.previous = if is_next { self.current } else { 0 };
            (self.window_ends, self.current) = (ends, 0);
        }
    }
}

fn end_of_window(window: &FixedWindow, at: u64) -> u64 {
    match window.retry(&WindowState::default(), Timestamp::from_micros(at), 1) {
        Retry::At(ends_at) => ends_at.as_micros(),
        other => unreachable!("{other:?}"),
    }
}

/// Returns by how much the fullest moment is beyond the limit and the overshoot, and how full that is, as a part of the limit.
///
/// The units are in the order of their times, and so are the `restarts`, at each of which the key had all of its quota again. Each of
/// the `losses` of its state admits the units that were leased then besides.
pub(super) fn excess<'a>(
    limit: &Limit,
    admitted: impl Iterator<Item = &'a Admitted>,
    restarts: &[u64],
    losses: usize,
) -> (i128, f64) {
    let (mut worst, mut fullest) = (i128::MIN, 0.0_f64);
    let mut lost = vec![0; losses];
    let mut restarts = restarts.iter().peekable();
    let mut count = Count::default();
    for admitted in admitted {
        while restarts.next_if(|at| **at <= admitted.at).is_some() {
            count = Count::default();
        }
        if let Some(losses) = admitted.lost {
            lost[losses] += admitted.units;
            worst = worst.max(i128::from(lost[losses]) - i128::from(limit.most_leased()));
            continue;
        }
        let (used, most, whole) = count.add(limit, admitted);
        worst = worst.max(used - most);
        fullest = fullest.max(used as f64 / whole as f64);
    }
    (worst, fullest)
}

pub(super) fn index(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a usize")
}

pub(super) fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}
