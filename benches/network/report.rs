//! Formats the rounds of one subject as cells of a table.

use std::{collections::BTreeMap, time::Duration};

use crate::{recorder::Measurement, support::Summary};

pub(crate) fn over(rounds: &[Measurement], value: impl Fn(&Measurement) -> f64) -> Summary {
    Summary::of(rounds.iter().map(value))
}

/// Returns the ratios of rounds that ran next to each other.
pub(crate) fn paired(
    rounds: &[Measurement],
    others: &[Measurement],
    value: impl Fn(&Measurement) -> f64,
) -> Summary {
    let pairs = rounds.iter().zip(others);
    Summary::of(pairs.map(|(round, other)| value(round) / value(other)))
}

/// Returns this quantile of the latency of decisions by Redis, in milliseconds.
pub(crate) fn wait(share: f64) -> impl Fn(&Measurement) -> f64 {
    move |round| match round.counts.by_redis.count() {
        0 => f64::NAN,
        _ => millis(round.counts.by_redis.quantile(share)),
    }
}

pub(crate) fn max_wait(rounds: &[Measurement]) -> String {
    over(rounds, |round| millis(round.max_wait())).show(1)
}

/// Returns p50 and p99 of the delay between scheduled and actual calls, in milliseconds.
pub(crate) fn lateness(rounds: &[Measurement]) -> String {
    let late = |share| {
        let late = over(rounds, |round| {
            millis(round.counts.lateness.quantile(share))
        });
        late.show(3)
    };
    format!("{}, {}", late(0.5), late(0.99))
}

/// Returns the share of decisions that Redis did not make, by reason.
pub(crate) fn without(rounds: &[Measurement]) -> String {
    let share = 100.0 * over(rounds, Measurement::share_without).median;
    match reasons(rounds) {
        reasons if reasons.is_empty() => format!("{share:.1} %"),
        reasons => format!("{share:.1} % ({reasons})"),
    }
}

/// Returns the reasons why decisions were not made by Redis, as shares of all decisions.
pub(crate) fn reasons(rounds: &[Measurement]) -> String {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut all = 0;
    for Measurement { counts, .. } in rounds {
        all += counts.by_redis.count() + counts.without.count();
        for (reason, count) in &counts.reasons {
            *sums.entry(reason.to_string()).or_default() += count;
        }
    }
    let share = |count| 100.0 * count as f64 / all as f64;
    let shares = sums
        .iter()
        .map(|(reason, count)| format!("{reason} {:.1} %", share(*count)));
    shares.collect::<Vec<_>>().join(", ")
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
