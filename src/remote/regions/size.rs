//! How many units a region asks a key's home for, and when it asks again.

use std::time::Duration;

use crate::{
    algorithm::{Counter, TokenBucket},
    remote::protocol::{
        LONGEST_DENIAL, LeaseReply, LeaseReport, PotReply, PotUpdate, Purpose, REGION_TURN,
    },
};

/// The demand for a key in this region, as its server replied when a report began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    per_second: f64,
    /// Whether the last report was too long ago, or gave units back, so that the requests since then are no measure.
    is_new: bool,
    /// Whether the demand of before is not known either.
    is_unknown: bool,
    /// Whether the report gives units back.
    gives_back: bool,
    round_trip: Duration,
}

impl Demand {
    pub fn new(begun: &PotReply, round_trip: Duration, gives_back: bool) -> Self {
        let since = match begun.since {
            Duration::ZERO => SINCE_IF_NEW,
            since => since.max(SHORTEST_SINCE),
        };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (asked, before) = (begun.asked as f64, begun.rate as f64);
        let is_new = begun.since.is_zero() || begun.since > REGION_TURN;
        let is_known = begun.rate > 0 && (is_new || gives_back);
        let measured = asked / since.as_secs_f64();
        Self {
            per_second: if is_known && gives_back && !begun.since.is_zero() {
                // Each pause halves it, so that it falls also if there is a request now and then.
                measured.max(before / 2.0)
            } else if is_known {
                before
            } else {
                measured
            },
            is_new,
            is_unknown: is_new && !is_known,
            gives_back,
            round_trip,
        }
    }

    /// Returns the report for the home. `first_share` is this region's part of all requests while it is not known.
    pub fn report(&self, begun: &PotReply, bucket: &TokenBucket, first_share: u16) -> LeaseReport {
        let aim = if self.gives_back {
            0
        } else if self.is_unknown {
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
            need: saturated(if self.gives_back {
                begun.stays
            } else {
                begun.missed
            }),
            share: if self.is_new || begun.share == 0 {
                begun.share.max(first_share)
            } else {
                begun.share
            },
            taken_back: saturated(begun.taken_back),
            purpose: if self.gives_back {
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

    /// Returns how many units stay when the others are given back: enough for the time until the next report has come back.
    pub fn reserve(&self, bucket: &TokenBucket) -> u64 {
        let most = bucket.capacity().div_ceil(PARTS_IN_RESERVE);
        let needed = self.units_in(ROUND_TRIPS_IN_RESERVE * self.round_trip.as_secs_f64());
        needed.max(LEAST_GIVEN_BACK).min(most)
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
        let (need, want) = if self.gives_back {
            (0, 0)
        } else {
            (report.need.into(), report.want.max(report.need))
        };
        let wait = if reply.granted > 0 || want == 0 {
            Duration::ZERO
        } else {
            reply.pause(&counter, 0)
        };
        // Until two units are back, and the next report has.
        let dry = if reply.granted < need {
            wait.max(2 * self.round_trip)
                .max(Duration::from_micros(bucket.micros_up(2)))
                .min(LONGEST_DENIAL)
        } else {
            Duration::ZERO
        };
        let most_low = (reply.granted + begun.left) * 3 / 4;
        let low = if self.gives_back {
            u64::MAX
        } else if self.is_unknown {
            most_low
        } else {
            most_low.min(self.units_in(ROUND_TRIPS_AHEAD * self.round_trip.as_secs_f64()))
        };
        let [tat, ..] = reply.state.0;
        let ahead = tat.saturating_sub(reply.decided_at.as_micros());
        let (lasts, _) = reply.lasts(&counter);
        PotUpdate {
            wait,
            granted: reply.granted,
            // If the home's clock was set back, the units seem to last longer than two turns.
            lasts: lasts.min(2 * REGION_TURN),
            lease: reply.lease,
            tat: begun.at.as_micros() + ahead,
            elsewhere: reply.leased_elsewhere,
            low,
            dry,
            share: if self.is_new || self.gives_back {
                report.share
            } else {
                share(begun, report.share, reply.asked)
            },
            asked: reply.asked,
            rate: self.units_in(1.0),
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

/// A rate is measured over this time at least, and over a second if that is not known.
const SHORTEST_SINCE: Duration = Duration::from_millis(20);
const SINCE_IF_NEW: Duration = Duration::from_secs(1);
/// Units a second from which on units are leased in advance.
const LEAST_RATE: f64 = 0.5;
/// The demand that a pot covers: this many seconds, and this many round trips to the home.
const SECONDS_HELD: f64 = 0.2;
const ROUND_TRIPS_HELD: f64 = 4.0;
/// The part of the capacity that is asked for with the first request.
const PART_AT_FIRST: u64 = 8;
/// Units are asked for when those that are left last for this many round trips.
const ROUND_TRIPS_AHEAD: f64 = 2.0;
/// The demand that a reserve covers, in round trips, and the part of the capacity that it is at most.
const ROUND_TRIPS_IN_RESERVE: f64 = 1.5;
const PARTS_IN_RESERVE: u64 = 8;
/// So few units are not worth a report that gives them back.
const LEAST_GIVEN_BACK: u64 = 3;
/// The time without a request after which units are given back, if the rate was high.
const SHORTEST_IDLE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Quota, clock::Timestamp};

    const ROUND_TRIP: Duration = Duration::from_millis(250);

    /// Returns the demand when units are given back half a second after the last report, by the rate of before.
    fn after_a_pause(asked: u64, rate: u64) -> Demand {
        let mut numbers = [0; PotReply::LEN];
        // As in the reply of `lua/pot.lua`.
        (numbers[5], numbers[7], numbers[13]) = (asked, 500_000, rate);
        let begun = PotReply::of(Timestamp::default(), numbers).expect("a reply");
        Demand::new(&begun, ROUND_TRIP, true)
    }

    // Regression: a busy key with a request now and then since had the reserve of a busy one for ever.
    #[test]
    fn each_pause_lowers_the_reserve_down_to_three_units() {
        let bucket = TokenBucket::new(Quota::per_second(10_000)).expect("a usable quota");
        let mut rate = 2_000;
        let reserves: Vec<u64> = std::iter::from_fn(|| {
            let demand = after_a_pause(1, rate);
            rate = demand.units_in(1.0);
            Some(demand.reserve(&bucket))
        })
        .take(10)
        .collect();
        assert_eq!(reserves, [375, 188, 94, 47, 24, 12, 6, 3, 3, 3]);
    }

    #[test]
    fn key_that_was_busy_until_a_pause_keeps_its_rate() {
        assert_eq!(after_a_pause(450, 1_000).units_in(1.0), 900);
    }
}
