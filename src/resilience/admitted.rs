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
//! Once Redis is back, it refills a bucket at the whole rate, while the shares of the instances that have not noticed yet are
//! refilled too. So the debt of a bucket is that of the time when Redis came back. An instance only knows that Redis came back
//! between its last two probes, and takes the middle, which is right on average over a fleet:
//!
//! ```text
//! probe failed    Redis is back?    good probes    merge
//! ----|-----------------|----------------|-----------|---->
//!                       '-- refill here does not lower the debt
//!                                        '-- the debt is added to a TAT that is not earlier
//! ```
//!
//! A bucket that Redis has not charged in the outage is full there. The first merge of a fleet decides from when on it is in
//! debt, so that must not be too early.
//!
//! # Why do keys stay within their share after an outage?
//!
//! The first instance that reaches Redis again does not find the charges of the others there. Without its share as a
//! limit, it would admit once more what they have admitted. Waiting for a sign of each instance would take a list of
//! instances that are still alive. A fixed time is enough, because probes bound how late an instance notices the
//! recovery. The charge is taken from the share before Redis decides, so that of many callers at once only as many are
//! sent as fit. If Redis denies it or fails, the charge is given back. Otherwise a Redis that comes and goes would
//! halve the quota: each failed decision would be charged to the share twice.

use crate::{
    algorithm::{Admitted, Counter, SlidingWindow},
    clock::Timestamp,
    decision::Usage,
};

use super::shares::SharePolicy;

/// When the shared store came back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovery {
    /// The middle of the time in which it may have happened.
    pub at: Timestamp,
    /// When it had certainly happened.
    pub noticed_at: Timestamp,
}

/// The state of a share at a time from which on local charges are not in the shared store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub at: Timestamp,
    /// The usage of the share.
    pub usage: Usage,
}

impl Start {
    /// Returns what was admitted since, from the share's usage at `now`. `None` if nothing is outstanding.
    ///
    /// The recovery may be one before the start.
    pub fn admitted(
        &self,
        policies: &SharePolicy,
        usage: Usage,
        recovery: Recovery,
        now: Timestamp,
    ) -> Option<Admitted> {
        let outstanding = self.outstanding(policies, usage, recovery, now);
        let (amount, from) = match policies.whole.counter() {
            Counter::Bucket(_) => {
                let (part, whole) = (&policies.part, &policies.whole);
                let (part, whole) = (part.counter().limit(), whole.counter().limit());
                let scaled = u128::from(outstanding) * u128::from(part);
                let scaled = scaled.div_ceil(u128::from(whole.max(1)));
                let amount = u64::try_from(scaled).unwrap_or(u64::MAX);
                (amount, self.at.max(recovery.noticed_at).as_micros())
            }
            Counter::Concurrency(_)
            | Counter::FixedWindow(_)
            | Counter::SlidingLog(_)
            | Counter::SlidingWindow(_) => (outstanding, 0),
        };
        (amount > 0).then_some(Admitted::new(amount, from, usage.reset_at))
    }

    /// Notes a charge that the shared store makes as well as the share, or its refund. The usage of the share was `before` it,
    /// and is `after` it.
    ///
    /// It adds nothing to the units that are to be merged, and takes none of them.
    pub fn change_shared(
        &mut self,
        policies: &SharePolicy,
        (before, after): (Usage, Usage),
        recovery: Recovery,
        now: Timestamp,
    ) {
        let outstanding = self.outstanding(policies, before, recovery, now);
        self.usage = after;
        match policies.part.counter() {
            Counter::Bucket(_) => {
                let tat = after.reset_at.as_micros().saturating_sub(outstanding);
                self.usage.reset_at = Timestamp::from_micros(tat);
            }
            Counter::Concurrency(_)
            | Counter::FixedWindow(_)
            | Counter::SlidingLog(_)
            | Counter::SlidingWindow(_) => {
                self.usage.remaining += outstanding;
                self.at = now;
            }
        }
    }

    /// Returns the units of the share that were charged since; for a bucket, the microseconds of its TAT.
    fn outstanding(
        &self,
        policies: &SharePolicy,
        usage: Usage,
        recovery: Recovery,
        now: Timestamp,
    ) -> u64 {
        // A full bucket is full now, whenever it became so.
        if usage.remaining >= usage.limit {
            return 0;
        }
        match policies.part.counter() {
            Counter::Bucket(_) => {
                let before = self.usage.reset_at.max(self.at).max(recovery.at);
                let tat = usage.reset_at.as_micros();
                tat.saturating_sub(before.as_micros())
            }
            // The slots of requests in flight come back when the requests end.
            Counter::Concurrency(_) => 0,
            counter @ (Counter::FixedWindow(_)
            | Counter::SlidingLog(_)
            | Counter::SlidingWindow(_)) => {
                let used = usage.limit.saturating_sub(usage.remaining);
                let before = self.usage.limit.saturating_sub(self.usage.remaining);
                let span = (self.at, self.usage.reset_at);
                used.saturating_sub(still_used(counter, before, span, now))
            }
        }
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
        algorithm::{Algorithm, Quota, WindowStart},
        policy::Policy,
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
        }
    }

    fn back(second: u64) -> Recovery {
        Recovery {
            at: at(second),
            noticed_at: at(second + 1),
        }
    }

    #[test]
    fn bucket_admits_its_part_of_the_time_by_which_the_tat_moved() {
        let policies = halves(Algorithm::TokenBucket);
        let usage = Usage::new(5, 1, at(48));
        let admitted = |start: Start, back_at| {
            let admitted = start.admitted(&policies, usage, back(back_at), at(40));
            admitted.map(|admitted| (admitted.amount / 1_000_000, admitted.from, admitted.until))
        };
        let from = |second| at(second).as_micros();
        assert_eq!(admitted(start(3, 24), 0), Some((12, from(1), at(48))));
        // Part of the debt at the start has been paid back, and the whole of it.
        assert_eq!(admitted(start(3, 24), 10), Some((12, from(11), at(48))));
        assert_eq!(admitted(start(3, 24), 30), Some((9, from(31), at(48))));
        let later = Start {
            at: at(32),
            ..start(3, 24)
        };
        assert_eq!(admitted(later, 30), Some((8, from(32), at(48))));
        assert_eq!(admitted(start(3, 48), 30), None);
    }

    #[test]
    fn window_admits_what_is_used_beyond_the_start_while_that_window_is_open() {
        for algorithm in [
            Algorithm::FixedWindow(WindowStart::Clock),
            Algorithm::SlidingLog,
        ] {
            let policies = halves(algorithm);
            let usage = Usage::new(5, 1, at(60));
            let admitted = |start: Start| start.admitted(&policies, usage, back(0), at(10));
            assert_eq!(admitted(start(3, 60)), Some(Admitted::new(2, 0, at(60))));
            assert_eq!(admitted(start(3, 5)), Some(Admitted::new(4, 0, at(60))));
            assert_eq!(admitted(start(1, 60)), None);
        }
    }

    // Regression: in a window that began after the outage, what Redis had charged was merged once more.
    #[test]
    fn charge_of_the_shared_store_leaves_outstanding_what_was_so() {
        let algorithms = [
            Algorithm::TokenBucket,
            Algorithm::FixedWindow(WindowStart::Clock),
            Algorithm::SlidingLog,
            Algorithm::SlidingWindow,
        ];
        for algorithm in algorithms {
            let policies = halves(algorithm);
            let is_bucket = algorithm == Algorithm::TokenBucket;
            let unit = if is_bucket { 6_000_000 } else { 1 };
            for (reset_at, second) in [(24, 10), (24, 30), (60, 30)] {
                let mut start = start(3, reset_at);
                let before = Usage::new(5, 3, at(66));
                let usages = (before, Usage::new(5, 1, at(90)));
                let amount = |start: &Start, usage| {
                    let admitted = start.admitted(&policies, usage, back(0), at(second));
                    admitted.map(|admitted| admitted.amount)
                };
                let outstanding = amount(&start, before);
                start.change_shared(&policies, usages, back(0), at(second));
                assert_eq!(amount(&start, usages.1), outstanding, "{algorithm:?}");
                let more = Usage::new(5, 0, at(102));
                let expected = outstanding.unwrap_or_default() + unit;
                assert_eq!(amount(&start, more), Some(expected), "{algorithm:?}");
            }
        }
    }

    // Regression: the time for which a share had been full became debt, which was merged. A restart of Redis cost a tenth of the
    // limit for as long as shares took part.
    #[test]
    fn charge_of_the_shared_store_on_a_full_share_makes_nothing_outstanding() {
        let policies = halves(Algorithm::TokenBucket);
        let mut start = start(3, 24);
        let usages = (Usage::new(5, 5, at(60)), Usage::new(5, 4, at(72)));
        start.change_shared(&policies, usages, back(0), at(60));
        let admitted = start.admitted(&policies, usages.1, back(0), at(60));
        assert_eq!(admitted, None);
    }

    #[test]
    fn sliding_window_admits_what_is_used_beyond_the_weight_of_the_start() {
        let policies = halves(Algorithm::SlidingWindow);
        let amount = |start: Start, now| {
            let usage = Usage::new(5, 1, at(200));
            start
                .admitted(&policies, usage, back(0), at(now))
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
            start(3, 0).admitted(&policies, usage, back(0), at(10)),
            None
        );
    }

    #[test]
    fn requests_in_flight_are_not_merged() {
        let whole = Policy::concurrency("uploads", 10);
        let part = whole.part(5);
        let usage = Usage::new(5, 1, at(0));
        assert_eq!(
            start(5, 0).admitted(&SharePolicy { whole, part }, usage, back(0), at(0)),
            None
        );
    }
}
