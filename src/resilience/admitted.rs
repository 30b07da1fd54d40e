//! Units that were admitted locally and are still outstanding, in units of the whole policy.
//!
//! ```text
//! a share of 5 of 10 units, which started with 2 used, and has 4 used now
//!
//! window   admitted 4 - 2 = 2 units
//! bucket   the local TAT is 24 s later than at the start, and 5 units take as long as 10 under the whole policy:
//!          admitted 24 s * 5 / 10 = 12 s of the whole policy's TAT
//! ```
//!
//! The debts of buckets add up: the same units move the TAT of one bucket as far as the sum of these times.
//!
//! # Refills that count twice
//!
//! Once Redis is back, it refills a bucket at the whole rate from the first merge on, while the shares of the instances that
//! have not noticed yet are refilled too. So each of these merges adds what its share was refilled by since then. An
//! instance only knows that Redis came back between its last two probes, and takes the middle:
//!
//! ```text
//! probe failed    Redis is back?    good probes    merge
//! ----|-----------------|----------------|-----------|---->
//!                       '-- counted twice: the part --'
//! ```

use std::time::Duration;

use crate::{
    algorithm::{Admitted, Counter, SlidingWindow},
    clock::{Timestamp, micros},
    state::Usage,
};

use super::shares::SharePolicy;

/// The state of a share at a time from which on local charges are not in the shared store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) at: Timestamp,
    /// The usage of the share.
    pub(super) usage: Usage,
    /// Units of the whole limit that were used in the shared store, if it returned a state; else 0.
    pub(super) shared_used: u64,
}

impl Start {
    /// Returns what was admitted since, from the share's usage at `now`. `None` if nothing is outstanding.
    ///
    /// The shared store has been back since `back_at`, if that is after the start.
    pub(super) fn admitted(
        &self,
        policies: &SharePolicy,
        usage: Usage,
        (back_at, now): (Timestamp, Timestamp),
    ) -> Option<Admitted> {
        if usage.remaining >= usage.limit {
            return None;
        }
        let admitted = match policies.whole.counter() {
            Counter::Bucket(_) => self.admitted_by_bucket(policies, usage, (back_at, now)),
            // The slots of requests in flight come back when the requests end.
            Counter::Concurrency(_) => return None,
            counter @ (Counter::FixedWindow(_)
            | Counter::SlidingLog(_)
            | Counter::SlidingWindow(_)) => {
                let used = usage.limit.saturating_sub(usage.remaining);
                let before = self.usage.limit.saturating_sub(self.usage.remaining);
                let amount = used.saturating_sub(self.still_used(counter, before, now));
                let from = self.still_used(counter, self.shared_used, now);
                Admitted::new(amount, from, usage.reset_at)
            }
        };
        (admitted.amount > 0).then_some(admitted)
    }

    /// Counts units as charged to the shared store, which admitted them as well as the share.
    pub(super) fn add_shared(&mut self, policies: &SharePolicy, units: u64, now: Timestamp) {
        match policies.part.counter() {
            Counter::Bucket(bucket) => {
                let micros = Duration::from_micros(bucket.micros_up(units));
                self.usage.reset_at = self.usage.reset_at.max(now) + micros;
            }
            Counter::Concurrency(_) => {}
            Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => {
                self.usage.remaining = self.usage.remaining.saturating_sub(units);
            }
        }
    }

    fn admitted_by_bucket(
        &self,
        policies: &SharePolicy,
        usage: Usage,
        (back_at, now): (Timestamp, Timestamp),
    ) -> Admitted {
        let before = self.usage.reset_at.max(now);
        let mut debt = usage
            .reset_at
            .as_micros()
            .saturating_sub(before.as_micros());
        if debt > 0 && back_at > self.at {
            debt = debt.saturating_add(micros(now.since(back_at)));
        }
        let (part, whole) = (
            policies.part.counter().limit(),
            policies.whole.counter().limit(),
        );
        let scaled = (u128::from(debt) * u128::from(part)).div_ceil(u128::from(whole.max(1)));
        let amount = u64::try_from(scaled).unwrap_or(u64::MAX);
        let is_known = self.shared_used > 0;
        let from = if is_known {
            self.usage.reset_at
        } else {
            Timestamp::default()
        };
        Admitted::new(amount, from.as_micros(), usage.reset_at)
    }

    /// Returns how many units that were used at the start still count.
    fn still_used(&self, counter: &Counter, used: u64, now: Timestamp) -> u64 {
        still_used(counter, used, (self.at, self.usage.reset_at), now)
    }
}

/// Returns how many of the units that were used at `since`, and all come back by `back`, still count.
pub(super) fn still_used(
    counter: &Counter,
    used: u64,
    (since, back): (Timestamp, Timestamp),
    now: Timestamp,
) -> u64 {
    if now >= back {
        return 0;
    }
    match counter {
        Counter::SlidingWindow(window) => still_weighed(window, used, (since, back), now),
        Counter::Bucket(_)
        | Counter::Concurrency(_)
        | Counter::FixedWindow(_)
        | Counter::SlidingLog(_) => used,
    }
}

/// As [`still_used`] for a sliding window, whose previous units count less and less.
fn still_weighed(
    window: &SlidingWindow,
    used: u64,
    (since, back): (Timestamp, Timestamp),
    now: Timestamp,
) -> u64 {
    let (back, length) = (back.as_micros(), window.millis() * 1_000);
    let ends = back.saturating_sub(length);
    let now = now.as_micros();
    if now < ends {
        return used;
    }
    let span = (back - since.as_micros().max(ends).min(now)).max(1);
    let weighed = (u128::from(used) * u128::from(back - now)).div_ceil(u128::from(span));
    u64::try_from(weighed).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use crate::{
        algorithm::{Algorithm, WindowStart},
        policy::Policy,
        quota::Quota,
    };

    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    fn halves(algorithm: Algorithm) -> SharePolicy {
        let whole = Policy::new("ip", Quota::per_minute(10)).algorithm(algorithm);
        let part = whole.part(5);
        SharePolicy { whole, part }
    }

    fn start(remaining: u64, reset_at: u64) -> Start {
        Start {
            at: at(0),
            usage: Usage::new(5, remaining, at(reset_at)),
            shared_used: 4,
        }
    }

    #[test]
    fn bucket_admits_its_part_of_the_time_by_which_the_tat_moved() {
        let policies = halves(Algorithm::TokenBucket);
        let usage = Usage::new(5, 1, at(48));
        let admitted = start(3, 24).admitted(&policies, usage, (at(0), at(10)));
        assert_eq!(
            admitted,
            Some(Admitted::new(12_000_000, at(24).as_micros(), at(48)))
        );
        // The debt at the start has been paid back.
        let admitted = start(3, 24).admitted(&policies, usage, (at(0), at(40)));
        assert_eq!(admitted.map(|admitted| admitted.amount), Some(4_000_000));
        assert_eq!(
            start(3, 48).admitted(&policies, usage, (at(0), at(10))),
            None
        );
    }

    // Regression: a fleet admitted up to 1.5 s of the rate once more, while its instances noticed the recovery.
    #[test]
    fn bucket_adds_what_its_share_was_refilled_by_since_the_store_is_back() {
        let policies = halves(Algorithm::TokenBucket);
        let amount = |start: Start, usage, times| {
            let admitted = start.admitted(&policies, usage, times);
            admitted.map(|admitted| admitted.amount)
        };
        let usage = Usage::new(5, 1, at(48));
        let both = (at(8), at(10));
        assert_eq!(amount(start(3, 24), usage, both), Some(13_000_000));
        let later = Start {
            at: at(9),
            ..start(3, 24)
        };
        assert_eq!(amount(later, usage, both), Some(12_000_000));
        assert_eq!(amount(start(3, 48), usage, both), None);
    }

    #[test]
    fn window_admits_what_is_used_beyond_the_start_while_that_window_is_open() {
        for algorithm in [
            Algorithm::FixedWindow(WindowStart::Clock),
            Algorithm::SlidingLog,
        ] {
            let policies = halves(algorithm);
            let usage = Usage::new(5, 1, at(60));
            let admitted = start(3, 60).admitted(&policies, usage, (at(0), at(10)));
            assert_eq!(admitted, Some(Admitted::new(2, 4, at(60))));
            let admitted = start(3, 5).admitted(&policies, usage, (at(0), at(10)));
            assert_eq!(admitted, Some(Admitted::new(4, 0, at(60))));
            assert_eq!(
                start(1, 60).admitted(&policies, usage, (at(0), at(10))),
                None
            );
        }
    }

    #[test]
    fn sliding_window_admits_what_is_used_beyond_the_weight_of_the_start() {
        let policies = halves(Algorithm::SlidingWindow);
        let amount = |start: Start, now| {
            let usage = Usage::new(5, 1, at(200));
            start
                .admitted(&policies, usage, (at(0), at(now)))
                .map(|admitted| admitted.amount)
        };
        assert_eq!(amount(start(3, 100), 20), Some(2));
        assert_eq!(amount(start(3, 100), 70), Some(3), "half of 2 is left");
        assert_eq!(amount(start(3, 40), 0), Some(2));
        assert_eq!(amount(start(3, 40), 20), Some(3));
        assert_eq!(amount(start(3, 40), 40), Some(4));
    }

    // Regression: a full bucket, whose TAT is shown as the present time, was merged again and again.
    #[test]
    fn full_share_has_nothing_outstanding() {
        let policies = halves(Algorithm::TokenBucket);
        let usage = Usage::new(5, 5, at(11));
        assert_eq!(
            start(3, 0).admitted(&policies, usage, (at(0), at(10))),
            None
        );
    }

    #[test]
    fn requests_in_flight_are_not_merged() {
        let whole = Policy::concurrency("uploads", 10);
        let part = whole.part(5);
        let usage = Usage::new(5, 1, at(0));
        assert_eq!(
            start(5, 0).admitted(&SharePolicy { whole, part }, usage, (at(0), at(0))),
            None
        );
    }
}
