//! Reports of a region by themselves, for tests that move the time and lose messages.

use std::time::Duration;

use crate::{
    algorithm::{Admitted, TokenBucket},
    clock::Timestamp,
    remote::protocol::{LeaseReply, LeaseReport, PotEnd, PotNote, PotReply, PotStep, PotUpdate},
};

use super::{report::owed, size::Demand};

/// A report under way.
#[derive(Clone, Debug)]
pub struct RegionTrial {
    begun: PotReply,
    demand: Demand,
    report: LeaseReport,
}

impl RegionTrial {
    /// Returns the step that begins a report.
    #[must_use]
    pub fn first_step(gives_back: bool, reserve: u64) -> Vec<u8> {
        let idle = Duration::ZERO;
        let step = if gives_back {
            PotStep::GiveBack { idle, reserve }
        } else {
            PotStep::Begin
        };
        step.to_bytes(Duration::ZERO).to_vec()
    }

    /// Returns the report that the region's server has begun, by the integers of its reply; `None` if it has not.
    #[must_use]
    pub fn begin(
        bucket: &TokenBucket,
        at: Timestamp,
        numbers: [u64; 16],
        gives_back: bool,
    ) -> Option<Self> {
        let begun = PotReply::of(at, numbers).expect("a reply of the script");
        let demand = Demand::new(&begun, Duration::from_millis(100), gives_back);
        let report = demand.report(&begun, bucket, 512);
        begun.has_begun.then_some(Self {
            begun,
            demand,
            report,
        })
    }

    /// Returns the report as the script of the home takes it. `overshoot` is in 1/1000.
    #[must_use]
    pub fn to_bytes(&self, overshoot: u16) -> [u8; 37] {
        self.report.to_bytes(overshoot)
    }

    /// Returns when the report began, by the region's server.
    #[must_use]
    pub fn began_at(&self) -> Timestamp {
        self.begun.at
    }

    /// Returns the units that were admitted without the home.
    #[must_use]
    pub fn owed(&self) -> u64 {
        self.begun.owed
    }

    /// Returns what the home is charged for them, and the number of this merge. The home's clock is ahead by so many microseconds.
    #[must_use]
    pub fn merge(&self, bucket: &TokenBucket, ahead: i64) -> (Admitted, u64) {
        let since = self.begun.owed_since.as_micros();
        let from = Timestamp::from_micros(since.saturating_add_signed(ahead));
        owed(bucket, &self.begun, from)
    }

    /// Returns the step that ends the report by the integers of the home's reply. `paid` units were charged there besides.
    #[must_use]
    pub fn replied(
        &self,
        bucket: &TokenBucket,
        decided_at: Timestamp,
        numbers: [u64; 8],
        paid: u64,
    ) -> Vec<u8> {
        let reply = LeaseReply::of(decided_at, numbers).expect("a reply of the script");
        let update = self
            .demand
            .update((&self.begun, &self.report), &reply, bucket, paid);
        let end = if reply.is_late {
            PotEnd::Late
        } else {
            PotEnd::Replied
        };
        self.step(end, update)
    }

    /// Returns the step that ends the report without a reply.
    #[must_use]
    pub fn failed(&self, was_sent: bool, paid: u64) -> Vec<u8> {
        let wait = Duration::from_millis(100);
        let end = if was_sent {
            PotEnd::Lost
        } else {
            PotEnd::NotSent
        };
        let update = PotUpdate::without_reply(&self.begun, wait, paid);
        self.step(end, update)
    }

    /// Returns what identifies a charge by the last two integers of its reply.
    #[must_use]
    pub fn token(number: u64, refunded: u64) -> u64 {
        PotNote::of(number, refunded).0
    }

    /// Returns the total of refunds at the home before a charge.
    #[must_use]
    pub fn refunded_before(token: u64, now: u64) -> u64 {
        PotNote(token).refunded_before(now)
    }

    fn step(&self, end: PotEnd, update: PotUpdate) -> Vec<u8> {
        let step = PotStep::End(self.begun.at, end, update);
        step.to_bytes(Duration::ZERO).to_vec()
    }
}
