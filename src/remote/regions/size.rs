//! How many units a region asks a key's home for, and when it asks again.

use std::time::Duration;

use crate::{
    algorithm::{Counter, TokenBucket},
    remote::protocol::{LeaseReply, LeaseReport, PotReply, PotUpdate, Purpose},
};

/// The demand for a key in this region, as its server replied when a report began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    per_second: f64,
    /// Whether there was no report for so long that the demand is not known.
    is_new: bool,
    round_trip: Duration,
}

impl Demand {
    pub fn new(begun: &PotReply, round_trip: Duration) -> Self {
        let since = match begun.since {
            Duration::ZERO => LONGEST_SINCE,
            since => since.clamp(SHORTEST_SINCE, LONGEST_SINCE),
        };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let asked = begun.asked as f64;
        Self {
            per_second: asked / since.as_secs_f64(),
            is_new: begun.since.is_zero() || begun.since > LONGEST_SINCE,
            round_trip,
        }
    }

    /// Returns the report for the home. `first_share` is this region's part of all requests while it is not known.
    pub fn report(
        &self,
        begun: &PotReply,
        bucket: &TokenBucket,
        first_share: u16,
        gives_back: bool,
    ) -> LeaseReport {
        let aim = if self.is_new {
            // It goes back soon if nobody asks for it.
            bucket.capacity() / PART_AT_FIRST
        } else if self.per_second >= LEAST_RATE {
            self.units_in(SECONDS_HELD + ROUND_TRIPS_HELD * self.round_trip.as_secs_f64())
        } else {
            0
        };
        LeaseReport {
            spent: saturated(begun.spent),
            kept: saturated(begun.left),
            lease: begun.lease,
            asked: saturated(begun.asked),
            want: saturated((aim + begun.missed).saturating_sub(begun.left)),
            need: saturated(begun.missed),
            share: if self.is_new || begun.share == 0 {
                begun.share.max(first_share)
            } else {
                begun.share
            },
            taken_back: saturated(begun.taken_back),
            purpose: if gives_back {
                Purpose::GiveBack
            } else {
                Purpose::OfRegion
            },
        }
    }

    /// Returns the time without a request after which units are given back.
    pub fn idle(&self) -> Duration {
        let requests = Duration::from_secs_f64(2.0 / self.per_second.max(2.0));
        requests.max(SHORTEST_IDLE)
    }

    /// Returns what the reply changes in the region.
    pub fn update(
        &self,
        (begun, report): (&PotReply, &LeaseReport),
        reply: &LeaseReply,
        bucket: &TokenBucket,
        paid: u64,
    ) -> PotUpdate {
        let counter = Counter::Bucket(*bucket);
        // Until two units are back; if the debt alone denies a request, not before that is over.
        let interval = Duration::from_micros(bucket.micros_up(2));
        let denied_for = reply.denied_for(&counter).min(LONGEST_DENIAL);
        let wait = if reply.granted > 0 || report.want.max(report.need) == 0 {
            Duration::ZERO
        } else {
            interval.clamp(SHORTEST_WAIT, LONGEST_WAIT).max(denied_for)
        };
        // Until the next report has come back.
        let dry = if reply.granted < report.need.into() {
            wait.max(2 * self.round_trip)
                .max(interval)
                .min(LONGEST_DENIAL)
        } else {
            Duration::ZERO
        };
        let most_low = (reply.granted + begun.left) * 3 / 4;
        let low = if self.is_new {
            most_low
        } else {
            self.units_in(ROUND_TRIPS_AHEAD * self.round_trip.as_secs_f64())
        };
        let [tat, ..] = reply.state.0;
        let ahead = tat.saturating_sub(reply.decided_at.as_micros());
        let (ends_at, _) = reply.ends_at(&counter);
        PotUpdate {
            wait,
            granted: reply.granted,
            lasts: ends_at
                .since(reply.decided_at)
                .min(LONGEST_LEASE)
                .saturating_sub(GUARD),
            lease: reply.lease,
            tat: begun.at.as_micros() + ahead,
            elsewhere: reply.leased_elsewhere,
            low: low.min(most_low),
            dry,
            share: if self.is_new {
                report.share
            } else {
                share(begun, report.share, reply.asked)
            },
            asked: reply.asked,
            told: if reply.is_late { 0 } else { begun.taken_back },
            refunded: reply.refunded(&counter),
            paid,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, which is not negative"
    )]
    fn units_in(&self, seconds: f64) -> u64 {
        (self.per_second * seconds).ceil() as u64
    }
}

/// Returns this region's part of all requests, in 1/1024: half of it as it was, half as it is since the last report.
fn share(begun: &PotReply, before: u16, asked: u32) -> u16 {
    let all = u64::from(asked.wrapping_sub(begun.all_asked));
    if all == 0 || begun.asked > all {
        return before;
    }
    let now = begun.asked * 1_024 / all;
    let mean = (u64::from(before) + now).div_ceil(2);
    mean.clamp(1, 1_024).try_into().unwrap_or(1_024)
}

fn saturated(units: u64) -> u32 {
    units.try_into().unwrap_or(u32::MAX)
}

/// A rate is measured over these times.
const SHORTEST_SINCE: Duration = Duration::from_millis(20);
const LONGEST_SINCE: Duration = Duration::from_secs(1);
/// Units a second from which on units are leased in advance.
const LEAST_RATE: f64 = 1.0;
/// The demand that a pot covers: this many seconds, and this many round trips to the home.
const SECONDS_HELD: f64 = 0.2;
const ROUND_TRIPS_HELD: f64 = 4.0;
/// The part of the capacity that is asked for with the first request.
const PART_AT_FIRST: u64 = 8;
/// Units are asked for when those that are left last for this many round trips.
const ROUND_TRIPS_AHEAD: f64 = 2.0;
/// Two turns of the home: if its clock was set back, the units seem to last longer.
const LONGEST_LEASE: Duration = Duration::from_secs(2);
/// By how much earlier than at the home the units end here: clocks may run apart by 500 ppm, so by 1 ms in 2 s.
const GUARD: Duration = Duration::from_millis(3);
/// The wait after a report that got no units.
const SHORTEST_WAIT: Duration = Duration::from_millis(2);
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// A reset or refund elsewhere is noticed after this time.
const LONGEST_DENIAL: Duration = Duration::from_secs(2);
/// The time without a request after which units are given back, if the rate was high.
const SHORTEST_IDLE: Duration = Duration::from_millis(300);
