//! Reports of an instance on its leased units, and the replies of the script. `lua/lease.lua` is the other side.

use std::time::Duration;

use crate::{
    algorithm::Counter,
    clock::{self, Timestamp},
    decision::Retry,
};

use super::key_state::KeyState;

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
    /// The units that are left are given back, but for those that are needed.
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
    /// Without what is leased.
    pub state: KeyState,
    /// Units that are leased now, besides those that were kept.
    pub granted: u64,
    /// Whether the report came too late: the units count as spent.
    pub is_late: bool,
    /// Units that are leased to other instances.
    pub leased_elsewhere: u64,
    pub lease: LeaseId,
    /// Units that requests have asked all instances for, modulo 2^32.
    pub asked: u32,
}

impl LeaseId {
    /// Returns when the units end, by the server's time.
    fn ends_at(self) -> Timestamp {
        let turn = if self.turn < SHORT_TURNS {
            REGION_TURN
        } else {
            TURN
        };
        Timestamp::from_micros((u64::from(self.turn) + 2) * clock::micros(turn))
    }
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
    pub const LEN: usize = 8;

    /// Returns the reply of these integers; `None` if the script cannot have sent them.
    pub fn of(decided_at: Timestamp, numbers: [u64; Self::LEN]) -> Option<Self> {
        let [
            first,
            second,
            third,
            granted,
            leased_elsewhere,
            turn,
            born,
            asked,
        ] = numbers;
        Some(Self {
            decided_at,
            state: KeyState([first, second, third]),
            granted: granted / 2,
            is_late: granted % 2 == 1,
            leased_elsewhere,
            lease: LeaseId {
                turn: turn.try_into().ok()?,
                born: born.try_into().ok()?,
            },
            asked: asked.try_into().ok()?,
        })
    }

    /// Returns how many units are leased to all instances. `kept` is what the report kept.
    pub fn leased(&self, kept: u64) -> u64 {
        let kept = if self.is_late { 0 } else { kept };
        self.leased_elsewhere + self.granted + kept
    }

    /// Returns how long the holder waits before it asks again, if it got no units as in so many replies before: until two are back on
    /// average, and twice as long each time. If the key is at its limit without leased units, not before that is over.
    pub fn pause(&self, counter: &Counter, replies_before: u32) -> Duration {
        let all = clock::micros(counter.longest_recovery());
        let interval = Duration::from_micros(2 * all / counter.limit().max(1));
        let denied_for = match self.state.usage_and_retry(counter, 1, self.decided_at) {
            (usage, Retry::At(at)) if usage.remaining == 0 => at.since(self.decided_at),
            _ => Duration::ZERO,
        };
        let pause = interval.max(SHORTEST_PAUSE) * (1 << replies_before.min(MOST_DOUBLINGS));
        pause.min(LONGEST_PAUSE).max(denied_for.min(LONGEST_DENIAL))
    }

    /// Returns the total of refunds of a bucket; 0 for other algorithms.
    pub fn refunded(&self, counter: &Counter) -> u64 {
        counter.bucket().map_or(0, |_| self.state.0[1])
    }

    /// Returns for how long the units can be spent, from before the report was sent, and whether a report can move them to a later
    /// turn.
    pub fn lasts(&self, counter: &Counter) -> (Duration, bool) {
        let turn_ends = self.lease.ends_at();
        let (ends_at, is_movable) = match self.state.window_ends_at(counter) {
            Some(window_ends) if window_ends <= turn_ends => (window_ends, false),
            _ => (turn_ends, true),
        };
        let ends_in = ends_at.since(self.decided_at);
        (
            ends_in.saturating_sub(GUARD.max(ends_in / 1_000)),
            is_movable,
        )
    }
}

/// Returns whether units under this counter can be leased, and are enough for a lease.
pub(in crate::remote) fn can_lease(counter: &Counter) -> bool {
    has_leases(counter) && counter.limit() / 4 >= LEAST_UNITS
}

/// Returns whether the script leases units under this counter.
pub(in crate::remote) fn has_leases(counter: &Counter) -> bool {
    match counter {
        Counter::Bucket(_) | Counter::FixedWindow(_) | Counter::SlidingWindow(_) => true,
        Counter::Concurrency(_) | Counter::SlidingLog(_) => false,
    }
}

/// The least number of units that the script leases.
pub(in crate::remote) const LEAST_UNITS: u64 = 4;
/// The wait after a report that got no units.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
pub(in crate::remote) const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// So often is it doubled: from 2 ms to over 100 ms.
const MOST_DOUBLINGS: u32 = 6;
/// A reset or refund elsewhere is noticed after this time, as by the denial cache.
pub(in crate::remote) const LONGEST_DENIAL: Duration = Duration::from_secs(2);
/// A turn.
const TURN: Duration = Duration::from_secs(1);
/// A turn of a key whose units other regions lease. As in `lua/decide.lua`.
pub(in crate::remote) const REGION_TURN: Duration = Duration::from_secs(5);
/// The numbers of these turns are below.
const SHORT_TURNS: u32 = 1_000_000_000;
/// By how much earlier than in Redis a lease ends for its holder, or a thousandth if that is more: clocks may run apart by 500 ppm,
/// so by 1 ms in 2 s.
pub(in crate::remote) const GUARD: Duration = Duration::from_millis(3);
