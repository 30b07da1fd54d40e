//! How many units a key is asked for here, and which part of all that is.

use std::time::Duration;

use crate::clock::Timestamp;

/// The units a second that a key is asked for, as an average over about half a second.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// The average when it was last updated.
    per_second: f64,
    updated_at: Timestamp,
    /// Units since then.
    since: f64,
}

impl Demand {
    /// Adds units. Returns whether the average was updated, which happens now and then.
    pub fn add(&mut self, units: u64, now: Timestamp) -> bool {
        let is_due = now >= self.updated_at + STEP;
        if is_due {
            self.per_second = self.per_second(now);
            self.updated_at = now;
            self.since = 0.0;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        {
            self.since += units as f64;
        }
        is_due
    }

    /// Returns the average at this time.
    pub fn per_second(&self, now: Timestamp) -> f64 {
        let elapsed = now.since(self.updated_at).as_secs_f64();
        (self.per_second + self.since / WINDOW) * (-elapsed / WINDOW).exp()
    }
}

/// The part of all requests for a key that this instance gets.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Units that were asked for since the last report.
    unsent: u64,
    /// Units in all reports.
    sent: u64,
    /// When the reply counted what: the units of all instances, and those of this one.
    counted: Option<(Timestamp, u32, u64)>,
    part: Option<f64>,
}

impl Share {
    pub fn add(&mut self, units: u64) {
        self.unsent = self.unsent.saturating_add(units);
    }

    /// Returns the units since the last report, for the next one.
    pub fn take_unsent(&mut self) -> u32 {
        let unsent = u32::try_from(self.unsent).unwrap_or(u32::MAX);
        self.unsent = 0;
        self.sent += u64::from(unsent);
        unsent
    }

    /// Takes the count of all instances from a reply.
    pub fn learn(&mut self, asked: u32, now: Timestamp) {
        let Some((at, all_before, own_before)) = self.counted else {
            self.counted = Some((now, asked, self.sent));
            return;
        };
        let (all, own) = (asked.wrapping_sub(all_before), self.sent - own_before);
        if all > u32::MAX / 2 || u64::from(all) < own {
            // Redis counts anew.
            self.counted = Some((now, asked, self.sent));
        } else if now >= at + SHORTEST && all >= LEAST {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let part = own as f64 / f64::from(all);
            let before = self.part.unwrap_or(part);
            self.part = Some(0.7 * before + 0.3 * part);
            self.counted = Some((now, asked, self.sent));
        }
    }

    /// Returns the part in 1/1024: of this many instances, until it is known.
    pub fn in_1024(&self, instances: u32) -> u16 {
        let even = 1.0 / f64::from(instances.max(1));
        let part = self.part.unwrap_or(even).clamp(even / 4.0, 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 1024"
        )]
        let part = (part * 1_024.0) as u16;
        part.max(1)
    }
}

/// How old the average is at most when units are added to it.
const STEP: Duration = Duration::from_millis(50);
/// Seconds over which it is taken.
const WINDOW: f64 = 0.5;
/// The shortest time between two counts of all instances, and the fewest units.
const SHORTEST: Duration = Duration::from_millis(50);
const LEAST: u32 = 4;
