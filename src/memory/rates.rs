//! The rates of adaptive keys in this process.

use std::{collections::HashMap, time::Duration};

use crate::{
    algorithm::{AdaptiveRate, MicroRate, RateReport},
    charge::Fingerprint,
    clock::Timestamp,
};

/// A rate per key. A key that is not reported for a day starts again.
#[derive(Debug, Default)]
pub(super) struct AdaptiveRates {
    rates: HashMap<Fingerprint, AdaptiveRate>,
}

impl AdaptiveRates {
    /// Takes a report on a key, and returns its rate.
    pub fn report(&mut self, key: Fingerprint, report: &RateReport, now: Timestamp) -> MicroRate {
        let is_kept = |rate: &AdaptiveRate| rate.since() + LIFETIME > now;
        if self.rates.len() >= MAX_KEYS && !self.rates.contains_key(&key) {
            self.rates.retain(|_, rate| is_kept(rate));
            self.drop_oldest();
        }
        let new = AdaptiveRate::new(report, now);
        let rate = self.rates.entry(key).or_insert(new);
        if !is_kept(rate) {
            *rate = new;
        }
        rate.report(report, now)
    }

    /// Drops the older half of the keys, if there are still too many.
    fn drop_oldest(&mut self) {
        if self.rates.len() >= MAX_KEYS {
            let mut times: Vec<Timestamp> = self.rates.values().map(AdaptiveRate::since).collect();
            let (_, median, _) = times.select_nth_unstable(MAX_KEYS / 2);
            let median = *median;
            self.rates.retain(|_, rate| rate.since() > median);
        }
    }
}

/// As in `lua/adapt.lua`.
const LIFETIME: Duration = Duration::from_secs(86_400);
/// At about 70 bytes each.
const MAX_KEYS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{algorithm::Quota, key::Key, policy::Policy};

    fn key(number: u64) -> Fingerprint {
        let policy = Policy::new("api", Quota::per_second(1));
        Fingerprint::of(&policy, &Key::from(number))
    }

    #[test]
    fn keys_beyond_the_bound_replace_those_that_were_not_reported_for_longest() {
        let mut rates = AdaptiveRates::default();
        let rate = |count| MicroRate::of(Quota::per_second(count));
        let report = RateReport::new(rate(1), rate(100)).used(100);
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        let most = u64::try_from(MAX_KEYS).expect("a small number");
        for number in 0..=most {
            rates.report(key(number), &report, start + Duration::from_micros(number));
        }
        assert!(rates.rates.len() <= MAX_KEYS / 2 + 1);
        let later = start + Duration::from_secs(2);
        assert!(rates.report(key(most), &report, later) > rate(1), "kept");
        assert_eq!(rates.report(key(0), &report, later), rate(1), "dropped");
        let next_day = later + LIFETIME;
        assert_eq!(rates.report(key(most), &report, next_day), rate(1));
    }
}
