//! Reports of an instance on its leased units, and the replies of the script. `lua/lease.lua` is the other side.

use std::time::Duration;

use crate::{
    algorithm::{Counting, TokenBucket},
    clock::Timestamp,
    decision::Retry,
};

/// The report of an instance on the units of a key that it had leased, with how many more it wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::remote) struct LeaseReport {
    /// Units that were spent since the last report.
    pub spent: u32,
    /// Units that are left.
    pub kept: u32,
    /// When these units were leased.
    pub lease: LeaseId,
    /// Units that requests have asked for since the last report, admitted or not.
    pub asked: u32,
    /// The most units to lease.
    pub want: u32,
    /// Units that requests wait for.
    pub need: u32,
    /// The part of what is free, in 1/1024.
    pub share: u16,
    /// Units that were refunded here, or were held and not spent, since the last report.
    pub taken_back: u32,
    /// The fate of the units that are left, or of the key.
    pub purpose: Purpose,
}

/// Why a report is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::remote) enum Purpose {
    /// The units that are left stay leased, and more may be.
    #[default]
    Keep = 0,
    /// The units that are left are given back.
    GiveBack = 1,
    /// The key is reset: only leased units stay charged.
    Reset = 2,
    /// As `Keep`, for all of a region, which may need more than a quarter of the capacity.
    OfRegion = 3,
}

/// Identifies when units were leased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::remote) struct LeaseId {
    /// The number of the turn, in which they were leased or to which a report moved them.
    pub turn: u32,
    /// When leasing began on the key: a later one follows a loss of its state.
    pub born: u32,
}

/// The reply of the script to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct LeaseReply {
    /// The time of the server.
    pub decided_at: Timestamp,
    /// The TAT, without what is leased.
    pub tat: u64,
    /// Units that are leased now, besides those that were kept.
    pub granted: u64,
    /// Whether the report came too late: the units count as spent.
    pub is_late: bool,
    /// Units that are leased to other instances.
    pub leased_elsewhere: u64,
    pub lease: LeaseId,
    /// Units that requests have asked all instances for, modulo 2^32.
    pub asked: u32,
    /// The key's total of refunds.
    pub refunded: u64,
}

impl LeaseReport {
    /// Resets a key.
    pub const RESET: Self = Self {
        spent: 0,
        kept: 0,
        lease: LeaseId { turn: 0, born: 0 },
        asked: 0,
        want: 0,
        need: 0,
        share: 0,
        taken_back: 0,
        purpose: Purpose::Reset,
    };

    /// Returns the report as one argument of the script: several would cost the server more. `overshoot` is in 1/1000 of the
    /// capacity.
    pub fn to_bytes(self, overshoot: u16) -> [u8; 37] {
        let mut bytes = [0; 37];
        let numbers = [
            self.spent,
            self.kept,
            self.lease.turn,
            self.lease.born,
            self.asked,
            self.want,
        ];
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes[24..26].copy_from_slice(&self.share.to_be_bytes());
        bytes[26..30].copy_from_slice(&self.taken_back.to_be_bytes());
        bytes[30] = self.purpose as u8;
        bytes[31..33].copy_from_slice(&overshoot.to_be_bytes());
        bytes[33..].copy_from_slice(&self.need.to_be_bytes());
        bytes
    }
}

impl LeaseReply {
    /// The number of integers in the script's reply.
    pub const LEN: usize = 7;

    /// Returns the reply of these integers; `None` if the script cannot have sent them.
    pub fn of(decided_at: Timestamp, numbers: [u64; Self::LEN]) -> Option<Self> {
        let [tat, granted, leased_elsewhere, turn, born, asked, refunded] = numbers;
        Some(Self {
            decided_at,
            tat,
            granted: granted / 2,
            is_late: granted % 2 == 1,
            leased_elsewhere,
            lease: LeaseId {
                turn: turn.try_into().ok()?,
                born: born.try_into().ok()?,
            },
            asked: asked.try_into().ok()?,
            refunded,
        })
    }

    /// Returns how many units are leased to all instances. `kept` is what the report kept.
    pub fn leased(&self, kept: u64) -> u64 {
        let kept = if self.is_late { 0 } else { kept };
        self.leased_elsewhere + self.granted + kept
    }

    /// Returns the TAT as if these units were spent.
    pub fn tat_after(&self, bucket: &TokenBucket, units: u64) -> u64 {
        self.tat.max(self.decided_at.as_micros()) + bucket.micros_up(units)
    }

    /// Returns for how long a charge of these units is denied, whatever becomes of the leased ones.
    pub fn denied_for(&self, bucket: &TokenBucket, units: u64) -> Duration {
        match bucket.retry(&bucket.state(self.tat), self.decided_at, units) {
            Retry::At(at) => at.since(self.decided_at),
            Retry::Never | Retry::Now => Duration::ZERO,
        }
    }

    /// Returns when the units end, by the server's time: whoever has them must not spend them later.
    pub fn ends_at(&self) -> Timestamp {
        Timestamp::from_micros((u64::from(self.lease.turn) + 2) * TURN_MICROS)
    }
}

/// Returns whether a bucket is large enough for a lease.
pub(in crate::remote) fn can_lease(bucket: &TokenBucket) -> bool {
    bucket.capacity() / 4 >= LEAST_UNITS
}

/// The least number of units that the script leases.
pub(in crate::remote) const LEAST_UNITS: u64 = 4;
/// Microseconds of a turn.
const TURN_MICROS: u64 = 1_000_000;
