//! A rate that is found by trial, where the other side of a call does not show its limit. Twin of `lua/adapt.lua`.
//!
//! ```text
//! rate
//!  ^                    refused
//!  |                    |            refused again, 60 s to 160 s later
//!  |                  . x           x
//!  |                .   |     . . '
//!  |            . '     | . '
//!  |  . . . ' '         x 0.85
//!  '--------------------------------> time
//!    +10 % a second     +1 %, and +0.1 % near the refused rate
//! ```
//!
//! The rate grows by a share of itself until the first refusal, so it finds a limit of 100 times the floor in 48 s. A refusal lowers
//! it to 85 %, once for all calls that were charged before. From then on it grows by 1 % of the refused rate a second, but only by a
//! tenth of that within 10 % of the refused rate, where the next refusal is likely. It grows only while at least 80 % of it is
//! used: otherwise the other side has not shown that it admits more. One unit less is enough, since it may fall on either side
//! of an end of the span.

#[cfg(any(feature = "client", test))]
use std::time::Duration;

use super::quota::Quota;
use crate::clock::Timestamp;

/// A rate in millionths of a unit per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MicroRate(u64);

impl MicroRate {
    /// Returns the rate of a quota, rounded down. At least one millionth, at most a million units a second.
    #[must_use]
    pub fn of(quota: Quota) -> Self {
        let nanos = quota.period().as_nanos().max(1);
        let micros = u128::from(quota.count()) * (MICROS as u128) * 1_000_000_000 / nanos;
        Self(u64::try_from(micros).unwrap_or(MOST).clamp(1, MOST))
    }

    /// Returns a rate of this many millionths of a unit per second.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the millionths of a unit per second.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns a quota of this rate, at most a thousandth lower: a whole number of microseconds per unit, or of units per second.
    #[cfg(any(feature = "client", test))]
    pub(crate) fn quota(self) -> Quota {
        let rate = self.0.max(1);
        let interval = (MICROS * MICROS).div_ceil(rate);
        if interval >= 1_000 {
            Quota::new(1, Duration::from_micros(interval))
        } else {
            Quota::per_second(rate / MICROS)
        }
    }
}

// === RateReport ===

/// How an instance used a key, since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateReport {
    pub(crate) floor: MicroRate,
    pub(crate) ceiling: MicroRate,
    /// Units that were charged.
    pub(crate) used: u64,
    /// When a call was charged that the other side refused, by the clock of the store.
    pub(crate) refused_at: Option<Timestamp>,
    /// The rate that responses showed last.
    pub(crate) shown: Option<MicroRate>,
}

impl RateReport {
    /// Returns a report without any use, for a rate within these bounds.
    #[must_use]
    pub fn new(floor: MicroRate, ceiling: MicroRate) -> Self {
        Self {
            floor: floor.min(ceiling),
            ceiling,
            used: 0,
            refused_at: None,
            shown: None,
        }
    }

    /// Sets the units that were charged since the last report.
    ///
    /// Default: 0.
    #[must_use]
    pub const fn used(mut self, units: u64) -> Self {
        self.used = if units < LARGEST { units } else { LARGEST };
        self
    }

    /// Sets when a call was charged that the other side refused, by the clock of the store.
    ///
    /// Default: no call was refused.
    #[must_use]
    pub const fn refused_at(mut self, charged_at: Timestamp) -> Self {
        self.refused_at = Some(charged_at);
        self
    }

    /// Sets the rate that the other side shows. It is the highest rate from now on, if the ceiling is above it.
    ///
    /// Default: it shows none, and what it showed before still counts.
    #[must_use]
    pub const fn shown(mut self, rate: MicroRate) -> Self {
        self.shown = Some(rate);
        self
    }
}

// === AdaptiveRate ===

/// The rate of a key, as all reports together have made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveRate {
    rate: u64,
    /// The rate at the last refusal; 0 before the first one.
    refused_rate: u64,
    /// When the rate was lowered the last time.
    cut_at: u64,
    /// When the present span of use began.
    since: u64,
    /// Units that were charged in it.
    used: u64,
    /// The rate that the other side has shown; 0 if it shows none.
    shown_rate: u64,
}

impl AdaptiveRate {
    /// Returns the rate of a key without reports: the floor.
    #[must_use]
    pub fn new(report: &RateReport, now: Timestamp) -> Self {
        Self {
            rate: report.floor.0,
            refused_rate: 0,
            cut_at: 0,
            since: now.as_micros(),
            used: 0,
            shown_rate: 0,
        }
    }

    /// Takes a report, and returns the rate from now on.
    // As in Lua, all numbers are doubles.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "all numbers are below 2^53, and none is negative"
    )]
    pub fn report(&mut self, report: &RateReport, now: Timestamp) -> MicroRate {
        self.shown_rate = report.shown.map_or(self.shown_rate, |shown| shown.0);
        let ceiling = match self.shown_rate {
            0 => report.ceiling.0,
            shown => report.ceiling.0.min(shown),
        };
        let floor = report.floor.0.min(ceiling);
        let now = now.as_micros();
        self.rate = self.rate.clamp(floor, ceiling);
        // The clock may have been set back.
        self.since = self.since.min(now);
        self.cut_at = self.cut_at.min(now);
        self.used = LARGEST.min(self.used + report.used);
        let elapsed = now - self.since;
        let is_refused = report
            .refused_at
            .is_some_and(|charged_at| charged_at.as_micros() > self.cut_at);
        if is_refused {
            self.refused_rate = self.rate;
            self.rate = floor.max((self.rate as f64 * CUT / 100.0) as u64);
            (self.cut_at, self.since, self.used) = (now, now, 0);
        } else if elapsed >= SPAN {
            let usable = self.rate as f64 / MICROS as f64 * (elapsed as f64 / MICROS as f64);
            // One unit may fall on either side of an end of the span.
            if self.used > 0 && self.used as f64 + 1.0 >= usable * LEAST_USED / 100.0 {
                let grown = self.growth() * elapsed.min(LONGEST_SPAN) as f64 / MICROS as f64;
                self.rate = ceiling.min(self.rate + grown as u64);
            }
            (self.since, self.used) = (now, 0);
        }
        MicroRate(self.rate)
    }

    /// Returns when the last span of use began.
    pub(crate) fn since(&self) -> Timestamp {
        Timestamp::from_micros(self.since)
    }

    /// Returns by how much the rate grows in a second.
    #[expect(clippy::cast_precision_loss, reason = "all numbers are below 2^53")]
    fn growth(&self) -> f64 {
        let (rate, refused) = (self.rate as f64, self.refused_rate as f64);
        if self.refused_rate == 0 {
            rate / 10.0
        } else if (rate - refused).abs() * 10.0 <= refused {
            refused / 1_000.0
        } else {
            refused / 100.0
        }
    }
}

const MICROS: u64 = 1_000_000;
/// A million units a second.
const MOST: u64 = MICROS * MICROS;
/// Numbers up to this one are exact in doubles, also in sums of two.
const LARGEST: u64 = 1 << 51;
/// Percentage of the rate that is left after a refusal.
const CUT: f64 = 85.0;
/// Percentage of the rate that must be used before it grows.
const LEAST_USED: f64 = 80.0;
/// The shortest span over which use is counted, in microseconds.
const SPAN: u64 = MICROS;
/// The longest span for which the rate grows at once, in microseconds: before the first refusal, it doubles at most.
const LONGEST_SPAN: u64 = 10 * MICROS;

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn report() -> RateReport {
        let ceiling = MicroRate::of(Quota::per_second(1_000));
        RateReport::new(MicroRate::of(Quota::per_second(1)), ceiling)
    }

    /// Lets seconds pass in which this percentage of the rate is used.
    fn pass(rate: &mut AdaptiveRate, (from, seconds): (u64, u64), percent: u64) -> u64 {
        let mut per_second = rate.rate;
        for second in from + 1..=from + seconds {
            let used = (per_second * percent).div_ceil(100 * MICROS);
            let report = report().used(used);
            per_second = rate
                .report(&report, START + Duration::from_secs(second))
                .as_micros();
        }
        per_second
    }

    #[test]
    fn rate_grows_by_a_tenth_a_second_until_the_first_refusal() {
        let mut rate = AdaptiveRate::new(&report(), START);
        assert_eq!(pass(&mut rate, (0, 1), 100), 1_100_000);
        let after = pass(&mut rate, (1, 47), 100);
        assert!((96_000_000..98_000_000).contains(&after), "{after}");
        assert_eq!(
            pass(&mut rate, (48, 100), 100),
            1_000 * MICROS,
            "the ceiling"
        );
    }

    #[test]
    fn refusal_counts_once_for_all_calls_that_were_charged_before_it() {
        let mut rate = AdaptiveRate::new(&report(), START);
        rate.rate = 100 * MICROS;
        let refused = |at: u64| report().refused_at(START + Duration::from_millis(at));
        let now = |at: u64| START + Duration::from_millis(at);
        assert_eq!(rate.report(&refused(90), now(100)).as_micros(), 85 * MICROS);
        assert_eq!(rate.report(&refused(95), now(101)).as_micros(), 85 * MICROS);
        assert_eq!(
            rate.report(&refused(100), now(102)).as_micros(),
            85 * MICROS
        );
        assert_eq!(rate.report(&refused(101), now(103)).as_micros(), 72_250_000);
        for at in 2..100 {
            rate.report(&refused(at * 1_000), now(at * 1_000 + 1));
        }
        assert_eq!(rate.rate, MICROS, "the floor");
    }

    #[test]
    fn rate_grows_slower_near_the_refused_rate() {
        let mut rate = AdaptiveRate::new(&report(), START);
        rate.rate = 100 * MICROS;
        rate.report(
            &report().refused_at(START + Duration::from_micros(1)),
            START,
        );
        assert_eq!(pass(&mut rate, (0, 5), 100), 90 * MICROS);
        assert_eq!(pass(&mut rate, (5, 10), 100), 91 * MICROS);
        rate.rate = 111 * MICROS;
        assert_eq!(pass(&mut rate, (15, 1), 100), 112 * MICROS);
    }

    #[test]
    fn rate_that_is_not_used_does_not_grow() {
        let mut rate = AdaptiveRate::new(&report(), START);
        rate.rate = 100 * MICROS;
        assert_eq!(pass(&mut rate, (0, 30), 78), 100 * MICROS);
        assert_eq!(pass(&mut rate, (30, 1), 79), 110 * MICROS);
        let idle = START + Duration::from_secs(1_000);
        assert_eq!(
            rate.report(&report().used(90), idle).as_micros(),
            110 * MICROS
        );
    }

    #[test]
    fn rate_that_is_shown_is_the_ceiling_until_another_one_is_shown() {
        let mut rate = AdaptiveRate::new(&report(), START);
        rate.rate = 100 * MICROS;
        let shown = |count| report().shown(MicroRate::of(Quota::per_second(count)));
        assert_eq!(rate.report(&shown(50), START).as_micros(), 50 * MICROS);
        assert_eq!(pass(&mut rate, (0, 20), 100), 50 * MICROS);
        rate.report(&shown(60), START + Duration::from_secs(20));
        assert_eq!(pass(&mut rate, (20, 20), 100), 60 * MICROS, "it grows");
        rate.report(&shown(2_000), START + Duration::from_secs(40));
        let most = pass(&mut rate, (40, 60), 100);
        assert_eq!(most, 1_000 * MICROS, "never above the own ceiling");
        let below = RateReport::new(MicroRate(5 * MICROS), MicroRate(9 * MICROS));
        let below = below.shown(MicroRate(MICROS));
        let late = START + Duration::from_secs(101);
        assert_eq!(
            rate.report(&below, late).as_micros(),
            MICROS,
            "not even the floor"
        );
    }

    #[test]
    fn quotas_of_rates_are_never_faster_and_at_most_a_thousandth_slower() {
        for micros in [
            1,
            100_000,
            333_333,
            1_000_001,
            12_345_678,
            999_999_999,
            1_000_000_000,
            1_234_567_890,
            MOST,
        ] {
            let quota = MicroRate(micros).quota();
            let exact = MicroRate::of(quota).as_micros();
            assert!(
                exact <= micros && exact >= micros - micros / 1_000 - 1,
                "{micros}: {exact}"
            );
        }
    }
}
