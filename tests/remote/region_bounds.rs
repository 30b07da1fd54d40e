//! How far a sequence of events in several regions is beyond a limit.

use std::collections::HashMap;

use tollgate::algorithm::Counter;

use super::lease_limits::Limit;

/// An event, and its time.
pub(super) struct Event {
    pub at: u64,
    pub happened: Happened,
}

#[derive(Clone, Copy)]
pub(super) enum Happened {
    /// Units were admitted, or at the home perhaps none but leased.
    Admitted {
        units: u64,
        at_home: bool,
    },
    /// Units were admitted in a region without the home, at a time of its server.
    Apart {
        region: usize,
        units: u64,
        at: u64,
    },
    /// The home was charged more than it has room for.
    Forced(u64),
    /// The home was charged for units that were admitted without it from this time on.
    Merged(u64, u64),
    /// The server of a region has lost its states.
    Lost {
        region: usize,
    },
    Reset,
}

impl Event {
    /// Takes units back, as if they had not been admitted.
    pub fn refund(&mut self, refunded: u64) {
        match &mut self.happened {
            Happened::Admitted { units, .. } | Happened::Apart { units, .. } => *units -= refunded,
            _ => unreachable!("it is not refunded"),
        }
    }
}

/// Returns the microseconds by which the fullest moment of a bucket that admits the same is beyond its span and the overshoot, and
/// how full it was, as a part of the span. Without the home, each region admits a share in 1/1000.
///
/// Forced charges and merges may be beyond the limit, and then regions may spend what they have. But by the next unit that the home
/// admits or leases, all of it is within the limit, with merged units at the time when they were admitted. A merge charges up to the
/// limit, and no more.
pub(super) fn excess<'a>(
    limit: &Limit,
    share: Option<u64>,
    events: impl Iterator<Item = &'a Event>,
) -> (i128, f64) {
    let Counter::Bucket(bucket) = limit.policy.counter() else {
        unreachable!("only buckets have regions");
    };
    let (each, micros) = bucket.refill();
    let scale = |number: u64| i128::from(number) * i128::from(each);
    let cost = |units: u64| i128::from(units) * i128::from(micros);
    let span = bucket.span();
    // Charges walk a lattice of whole microseconds, on which a TAT may lose one.
    let room = scale(span + limit.ahead(span) + u64::from(each > 1));
    let (mut level, mut is_checked, mut worst, mut fullest) = (0, true, i128::MIN, i128::MIN);
    // The level at some time, and the charges since.
    let (mut before, mut charges) = (0, Vec::new());
    let after = |level: i128, charge: &(i128, i128)| level.max(charge.0) + charge.1;
    let mut apart: HashMap<usize, i128> = HashMap::new();
    for Event { at, happened } in events {
        let now = scale(*at);
        match *happened {
            Happened::Admitted { units, at_home } => {
                charges.push((now, cost(units)));
                level = after(level, &(now, cost(units)));
                is_checked |= at_home;
                if is_checked {
                    worst = worst.max(level - now - room);
                    fullest = fullest.max(level - now);
                }
            }
            Happened::Apart { region, units, at } => {
                if let Some(share) = share {
                    let level = apart.entry(region).or_default();
                    let cost = cost(units) * 1_000 / i128::from(share);
                    *level = (*level).max(scale(at)) + cost;
                    worst = worst.max(*level - scale(at) - scale(span));
                }
            }
            Happened::Forced(units) => {
                charges.push((now, cost(units)));
                level = after(level, &(now, cost(units)));
                is_checked = false;
            }
            Happened::Merged(units, from) => {
                let place = charges.partition_point(|(at, _)| *at <= scale(from));
                charges.insert(place, (scale(from), cost(units)));
                let most = level.max(now + scale(span));
                level = charges.iter().fold(before, after);
                if level > most {
                    (level, before) = (most, most);
                    charges.clear();
                }
                is_checked = false;
            }
            Happened::Lost { region } => {
                apart.remove(&region);
            }
            Happened::Reset => {
                (level, before) = (0, 0);
                charges.clear();
            }
        }
    }
    (worst, fullest as f64 / scale(span) as f64)
}
