//! Steps in a report of the units that another region has leased to this one. `lua/pot.lua` is the other side.

use std::time::Duration;

use crate::{
    algorithm::RefundToken,
    clock::{self, Timestamp},
};

use super::lease::LeaseId;

/// A note that comes with the decision on a charge of such units.
///
/// A [`PolicyState`](crate::decision::PolicyState) carries it in place of the key's total of refunds: that at the home, without its
/// highest bits, is in it. With the number of the report, the script finds out at a refund whether the units were reported
/// meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct PotNote(pub u64);

impl PotNote {
    /// Returns the note in a reply.
    pub fn of(number: u64, refunded: u64) -> Self {
        Self((number % (1 << NUMBER_BITS)) | ((refunded % (1 << TOTAL_BITS)) << NUMBER_BITS))
    }

    /// Returns the total of refunds at the home before the charge. `now` is the present one, or was a while ago.
    pub fn refunded_before(self, now: u64) -> u64 {
        let since = now.wrapping_sub(self.0 >> NUMBER_BITS) % (1 << TOTAL_BITS);
        now.wrapping_sub(since) % RefundToken::MODULUS
    }

    /// Returns whether a refund was not made, since the home knows of the charge.
    pub fn is_of_home(self) -> bool {
        self.0 & 1 > 0
    }

    /// Returns whether a report is under way: that of the charge, for a refund.
    pub fn is_under_way(self) -> bool {
        self.0 & 4 > 0
    }

    /// Returns whether the last report has failed.
    pub fn has_failed(self) -> bool {
        self.0 & 8 > 0
    }

    /// Returns how many reports have begun since an earlier note of this key.
    pub fn reports_since(self, earlier: Self) -> u64 {
        let number = |note: Self| (note.0 >> 4) % REPORTS;
        (number(self) + REPORTS - number(earlier)) % REPORTS
    }

    /// Returns whether a report is due.
    pub fn is_due(self) -> bool {
        self.0 & 1 > 0
    }

    /// Returns whether the charge was denied, but the home may have units.
    pub fn is_missing(self) -> bool {
        self.0 & 2 > 0
    }
}

/// The number of reports wraps to 0 here.
const REPORTS: u64 = 4_096;
/// Bits of the number in a reply, and those of the total of refunds: 19 hours in microseconds.
const NUMBER_BITS: u32 = 16;
const TOTAL_BITS: u32 = 36;

/// A step in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) enum PotStep {
    /// Begins a report, unless one is under way or was a moment ago.
    Begin,
    /// Begins a report of what was spent that gives back what is left, if nobody has asked for this long. The reserve stays if anybody
    /// has within a turn.
    GiveBack { idle: Duration, reserve: u64 },
    /// Ends the report that began at this time.
    End(Timestamp, PotEnd, PotUpdate),
}

/// The end of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) enum PotEnd {
    Replied,
    /// It came too late: what was left counts as spent.
    Late,
    /// It may have reached the home or not.
    Lost,
    /// It did not reach the home.
    NotSent,
}

/// The changes at the end of a report. Without a reply, only `wait` and `paid` count, and `granted` if it was not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::remote) struct PotUpdate {
    /// How long the next report waits.
    pub wait: Duration,
    /// Units that are leased now, or that were to be given back by a report that was not sent.
    pub granted: u64,
    /// How long after the beginning of the report the units can be spent.
    pub lasts: Duration,
    pub lease: LeaseId,
    /// The TAT by the clock of this region's server.
    pub tat: u64,
    pub elsewhere: u64,
    /// The next report begins when so few units are left: with the next request, if that is the most.
    pub low: u64,
    /// How long requests are denied at once, and do not wait for units: the home had too few.
    pub dry: Duration,
    /// This region's part of all requests, in 1/1024.
    pub share: u16,
    /// The units that all regions were asked for, modulo 2^32.
    pub asked: u32,
    /// Units a second that this region was asked for.
    pub rate: u64,
    /// Units admitted without the home, which are charged there now.
    pub paid: u64,
    /// Units refunded here, which are noted at the home now.
    pub told: u64,
    /// The key's total of refunds at the home.
    pub refunded: u64,
}

impl PotUpdate {
    /// Returns the changes at the end of a report that began with this reply, and has none of the home.
    pub fn without_reply(begun: &PotReply, wait: Duration, paid: u64) -> Self {
        Self {
            wait,
            granted: begun.left.saturating_sub(begun.stays),
            paid,
            ..Self::default()
        }
    }
}

impl PotStep {
    /// Returns the step as one argument of the script. `life` is how long the state is of use after its last unit.
    pub fn to_bytes(self, life: Duration) -> [u8; 88] {
        let (step, at, update) = match self {
            Self::Begin => (1, 0, PotUpdate::default()),
            Self::GiveBack { idle, reserve } => {
                let update = PotUpdate {
                    wait: idle,
                    granted: reserve,
                    ..PotUpdate::default()
                };
                (2, 0, update)
            }
            Self::End(at, end, update) => {
                let step = match end {
                    PotEnd::Replied => 3,
                    PotEnd::Late => 4,
                    PotEnd::Lost => 5,
                    PotEnd::NotSent => 6,
                };
                (step, at.as_micros(), update)
            }
        };
        let mut bytes = [0; 88];
        let mut rest = &mut bytes[..];
        let mut put = |number: u64, length: usize| {
            let (place, after) = std::mem::take(&mut rest).split_at_mut(length);
            place.copy_from_slice(&number.to_be_bytes()[8 - length..]);
            rest = after;
        };
        put(step, 1);
        put(at, 7);
        put(clock::micros(update.wait), 7);
        put(saturated(update.granted), 4);
        put(clock::micros(update.lasts), 7);
        put(update.lease.turn.into(), 4);
        put(update.lease.born.into(), 4);
        put(update.tat, 7);
        put(saturated(update.elsewhere), 4);
        put(saturated(update.low), 4);
        put(clock::micros(update.dry), 7);
        put(update.share.into(), 2);
        put(update.asked.into(), 4);
        put(saturated(update.rate), 4);
        put(saturated(update.paid), 4);
        put(saturated(update.told), 4);
        put(update.refunded, 7);
        put(clock::micros(life).min(1 << 52), 7);
        bytes
    }
}

fn saturated(units: u64) -> u64 {
    units.min(u32::MAX.into())
}

/// The reply to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct PotReply {
    /// The time of this region's server: if a report began, it is known by it.
    pub at: Timestamp,
    pub has_begun: bool,
    /// Units that were spent since the last report.
    pub spent: u64,
    pub left: u64,
    pub lease: LeaseId,
    /// Units that were asked for since the last report.
    pub asked: u64,
    /// Those among them that were not there.
    pub missed: u64,
    /// The time since the last report began; zero if there was none, or if it gave units back.
    pub since: Duration,
    /// Units that were admitted without the home.
    pub owed: u64,
    pub owed_since: Timestamp,
    /// As in the last [`PotUpdate`].
    pub share: u16,
    pub all_asked: u32,
    /// Units that were refunded here, of which the home was not told.
    pub taken_back: u64,
    /// As in the last [`PotUpdate`].
    pub rate: u64,
    /// Units among those that are left which are not given back.
    pub stays: u64,
    /// When units may be given back; zero if they are.
    pub due_in: Duration,
}

impl PotReply {
    /// The number of integers in the script's reply.
    pub const LEN: usize = 16;

    /// Returns the reply of these integers; `None` if the script cannot have sent them.
    pub fn of(at: Timestamp, numbers: [u64; Self::LEN]) -> Option<Self> {
        let [
            has_begun,
            spent,
            left,
            turn,
            born,
            asked,
            missed,
            since,
            owed,
            owed_since,
            share,
            all_asked,
            taken_back,
            rate,
            stays,
            due_in,
        ] = numbers;
        Some(Self {
            at,
            has_begun: has_begun > 0,
            spent,
            left,
            lease: LeaseId {
                turn: turn.try_into().ok()?,
                born: born.try_into().ok()?,
            },
            asked,
            missed,
            since: Duration::from_micros(since),
            owed,
            owed_since: Timestamp::from_micros(owed_since),
            share: share.try_into().ok()?,
            all_asked: all_asked.try_into().ok()?,
            taken_back,
            rate,
            stays,
            due_in: Duration::from_micros(due_in),
        })
    }
}
