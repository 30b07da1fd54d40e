//! The leased units of one key: how they are spent, reported and given back.
//!
//! ```text
//!          reply: granted             admitted
//! script ───────────────▶ units ───────────────▶ spent ──┐
//!    ▲                    │   ▲                          │
//!    │      a decision    ▼   │ denied elsewhere         │
//!    │      under way     held ───── admitted ──▶ spent  │
//!    └───── report: spent, kept = units + held ◀─────────┘
//! ```
//!
//! Time is an argument, by the clock of this process.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    algorithm::{Counter, RefundToken},
    clock::Timestamp,
    remote::protocol::{
        GUARD, KeyState, LEAST_UNITS, LONGEST_PAUSE, LeaseId, LeaseReply, LeaseReport, Purpose,
    },
    store::KeyLease,
};

use super::demand::{Demand, Share};

/// Units of a key that this process may admit by itself.
#[derive(Debug, Default)]
pub(super) struct Lease {
    /// Units that can be spent before `ends_at`.
    units: u64,
    /// Units that decisions under way have taken: they count as kept until the decision is admitted.
    held: u64,
    /// Units that were spent and that no reply has confirmed the report of.
    spent: u64,
    id: LeaseId,
    /// When Redis may count the units as spent, at the earliest.
    ends_at: Timestamp,
    /// Whether a report can move them to a later end: it cannot if they end with their window.
    is_movable: bool,
    /// The report under way.
    report: Option<SentReport>,
    /// Whether the fate of a report is unknown: the units can be spent until their end, and are never reported.
    is_orphaned: bool,
    /// Changes when units become void, so that nothing from before returns.
    generation: u64,
    /// Changes with each report, so that a refund can tell whether its charge was reported.
    period: u64,
    /// Units that were refunded here since the last report: charges before them have later ends than they should.
    taken_back: u64,
    /// Numbers for generations and periods, which no other lease of the process has.
    ids: Arc<AtomicU64>,
    /// The last reply of Redis.
    known: Option<KnownState>,
    replied_at: Timestamp,
    last_grant: u64,
    /// Reports in a row that got no units.
    empty_grants: u32,
    /// So few units that others hardly missed them when Redis last replied: up to here, a lease covers a whole turn.
    few: u64,
    /// No units are asked for before, since there were none.
    waits_until: Timestamp,
    /// Nobody waits for a report until then: the last one failed, or left requests without an answer.
    no_waits_until: Timestamp,
    round_trip: Duration,
    last_request_at: Timestamp,
    demand: Demand,
    /// Redis is asked for more when so few units are left.
    low: u64,
    share: Share,
}

/// A report under way.
#[derive(Clone, Copy, Debug)]
struct SentReport {
    sent_at: Timestamp,
    spent: u64,
    kept: u64,
    is_returned: bool,
    wants_units: bool,
    /// The period in which its units were spent.
    period: u64,
    taken_back: u64,
    /// The part of all requests that this instance got, in 1/1024.
    share: u16,
}

/// The state of the key in Redis, as it was last replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct KnownState {
    /// Without what is leased.
    pub state: KeyState,
    pub leased_elsewhere: u64,
    pub refunded: u64,
    /// By how much the server's clock is ahead of this process' at least, in microseconds.
    offset: i64,
}

/// Units that were taken: spent, or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct Taken {
    pub generation: u64,
    pub period: u64,
    /// Units of this process that are not in the state.
    pub unreported: u64,
    pub known: KnownState,
}

impl Lease {
    /// Returns a lease without units.
    pub fn new(ids: Arc<AtomicU64>) -> Self {
        let lease = Self {
            ids,
            ..Self::default()
        };
        Self {
            generation: lease.next_id(),
            period: lease.next_id(),
            ..lease
        }
    }

    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes a request for units, whether it is admitted or not.
    pub fn note_request(&mut self, units: u64, now: Timestamp) {
        self.last_request_at = now;
        self.share.add(units);
        if self.demand.add(units, now) {
            self.low = self.low_at(now);
        }
    }

    /// Takes units, if there are enough: they are spent, or held for a decision under way.
    pub fn take(&mut self, units: u64, holds: bool, now: Timestamp) -> Option<Taken> {
        let known = self.known?;
        if self.units < units || now >= self.ends_at {
            return None;
        }
        self.units -= units;
        if holds {
            self.held += units;
        } else {
            self.spent += units;
        }
        Some(Taken {
            generation: self.generation,
            period: self.period,
            unreported: self.spent + if holds { units } else { 0 },
            known,
        })
    }

    /// Ends a decision that held units: they are spent, or go back.
    pub fn end_hold(&mut self, units: u64, generation: u64, is_admitted: bool) {
        if generation != self.generation {
            return;
        }
        self.held -= units;
        if is_admitted {
            self.spent += units;
        } else {
            self.units += units;
        }
    }

    /// Refunds units of a charge with this token. They are back if they were not reported.
    ///
    /// # Errors
    ///
    /// The key's total of refunds before the charge, with which Redis can refund it.
    pub fn refund(&mut self, units: u64, token: u64) -> Result<(), u64> {
        let in_report = self.report.map_or(0, |report| report.spent);
        let is_here = is_of(token, self.period) && !self.is_orphaned;
        if is_here && self.spent - in_report >= units {
            self.spent -= units;
            self.units += units;
            self.taken_back += units;
            return Ok(());
        }
        // The token has the lowest bits of a total that has grown since.
        let now = self.known.map_or(0, |known| known.refunded);
        let since = now.wrapping_sub(total_in(token)) % (1 << TOTAL_BITS);
        Err(now.wrapping_sub(since) % RefundToken::MODULUS)
    }

    /// Returns whether a charge with this token is in the report under way.
    pub fn is_reporting(&self, token: u64) -> bool {
        self.report
            .is_some_and(|report| is_of(token, report.period))
    }

    /// Makes all units void: they count as spent, and nothing of before returns.
    pub fn void(&mut self) {
        self.generation = self.next_id();
        self.period = self.next_id();
        (self.units, self.held, self.spent) = (0, 0, 0);
        self.is_orphaned = false;
        if let Some(report) = &mut self.report {
            (report.spent, report.kept) = (0, 0);
        }
    }

    /// Returns whether Redis is to be asked for more units, or to move these to the next turn.
    pub fn needs_report(&self, now: Timestamp) -> bool {
        let is_waiting = now < self.waits_until;
        let is_orphaned = self.is_orphaned && self.units(now) > 0;
        if self.report.is_some() || is_waiting || is_orphaned || self.is_closing(now) {
            return false;
        }
        let ends_soon = now + TURN / 2 > self.ends_at && now < self.ends_at;
        if ends_soon && self.is_movable && self.units > 0 {
            return true;
        }
        self.units(now) <= self.low && self.demand.per_second(now) >= LEAST_RATE
    }

    /// Returns whether the window of the units is about to end, so that units leased now could not be spent.
    fn is_closing(&self, now: Timestamp) -> bool {
        !self.is_movable && (self.ends_at..self.ends_at + GUARD).contains(&now)
    }

    /// Returns how few units are left when Redis is to be asked for more.
    fn low_at(&self, now: Timestamp) -> u64 {
        let on_the_way =
            self.demand.per_second(now) * self.round_trip.as_secs_f64() * ROUND_TRIPS_AHEAD;
        to_units(on_the_way).min(self.last_grant / 2).max(1)
    }

    /// Returns whether more than one request such as this one comes in the time of a round trip, so that they had better wait for
    /// one report together, for no longer than this.
    pub fn is_worth_waiting(
        &self,
        units: u64,
        limit: u64,
        longest: Duration,
        now: Timestamp,
    ) -> bool {
        let is_in_vain = now < self.no_waits_until || self.is_orphaned || self.is_closing(now);
        if self.known.is_none() || is_in_vain {
            return false;
        }
        // A request for many units would lease them while it waits, and be denied because of them.
        if 2 * self.round_trip > longest || units > limit / 16 {
            return false;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let requests = self.demand.per_second(now) / units as f64;
        requests * self.round_trip.as_secs_f64() >= LEAST_TOGETHER
    }

    /// Notes that waiting for a report was in vain: nobody does for a while, or until another one has succeeded.
    pub fn note_vain_wait(&mut self, now: Timestamp) {
        self.no_waits_until = now + LONGEST_PAUSE;
    }

    /// Begins a report to Redis. `needed` units are waited for, and `instances` is the number of those that may ask for units.
    pub fn begin_report(
        &mut self,
        is_returned: bool,
        needed: u64,
        instances: u32,
        now: Timestamp,
    ) -> LeaseReport {
        if now >= self.ends_at || self.is_orphaned {
            // Redis has counted the units as spent, or will.
            self.void();
        }
        let kept = self.units + self.held;
        let want = if is_returned {
            0
        } else {
            self.wanted(kept, now)
        };
        let share = self.share.in_1024(instances);
        self.report = Some(SentReport {
            share,
            sent_at: now,
            spent: self.spent,
            kept,
            is_returned,
            wants_units: want + needed > 0,
            period: self.period,
            taken_back: self.taken_back,
        });
        self.period = self.next_id();
        let taken_back = mem::take(&mut self.taken_back);
        if is_returned {
            self.units = 0;
        }
        LeaseReport {
            spent: saturated(self.spent),
            kept: saturated(kept),
            lease: self.id,
            asked: self.share.take_unsent(),
            want: saturated(want),
            need: saturated(needed),
            share,
            taken_back: saturated(taken_back),
            purpose: if is_returned {
                Purpose::GiveBack
            } else {
                Purpose::Keep
            },
        }
    }

    /// Returns how many units to ask for beside those that are kept: none that would end with their window before they are spent.
    fn wanted(&self, kept: u64, now: Timestamp) -> u64 {
        let a_turn = self.demand.per_second(now) * TURN.as_secs_f64();
        let mut seconds = match to_units(a_turn) <= self.few {
            true => TURN.as_secs_f64(),
            false => SECONDS_LEASED,
        };
        if !self.is_movable && now < self.ends_at {
            seconds = seconds.min(self.ends_at.since(now).as_secs_f64());
        }
        let aim = to_units(self.demand.per_second(now) * seconds);
        match aim.max(LEAST_UNITS).saturating_sub(kept) {
            0 => 0,
            // Redis leases no fewer.
            want => want.max(LEAST_UNITS),
        }
    }

    /// Ends a report whose reply came now. Returns how many units are leased to all instances.
    pub fn end_report(
        &mut self,
        reply: &LeaseReply,
        counter: &Counter,
        now: Timestamp,
    ) -> Option<u64> {
        let report = self.report.take()?;
        self.no_waits_until = Timestamp::default();
        if reply.is_late {
            self.taken_back += report.taken_back;
            self.void();
        } else {
            self.spent -= report.spent;
        }
        self.id = reply.lease;
        self.units += reply.granted;
        let offset = reply.decided_at.as_micros().cast_signed() - now.as_micros().cast_signed();
        let (lasts, is_movable) = reply.lasts(counter);
        self.is_movable = is_movable;
        self.ends_at = report.sent_at + lasts;
        self.known = Some(KnownState {
            state: reply.state,
            leased_elsewhere: reply.leased_elsewhere,
            refunded: reply.refunded(counter),
            offset,
        });
        self.replied_at = now;
        self.round_trip = now.since(report.sent_at);
        self.low = self.low_at(now);
        self.share.learn(reply.asked, now);
        if reply.granted > 0 {
            self.last_grant = reply.granted;
            self.empty_grants = 0;
        } else if report.wants_units {
            // Longer each time: at its limit, a key has none to lease, and reports cost more than charges.
            self.waits_until = now + reply.pause(counter, self.empty_grants);
            self.empty_grants += 1;
            if !is_movable {
                // The next window begins.
                self.waits_until = self.waits_until.min(now + lasts);
            }
        }
        let leased = reply.leased(if report.is_returned { 0 } else { report.kept });
        let (usage, _) = reply.state.usage_and_retry(counter, 0, reply.decided_at);
        let free = usage.remaining.saturating_sub(leased);
        self.few = free * u64::from(report.share) / 1_024 / PARTS_HARDLY_MISSED;
        Some(leased)
    }

    /// Ends a report that may have reached Redis or not: the units that are left can be spent until their end, but not be reported
    /// again, since a second report of the same units would free units that are in use.
    pub fn lose_report(&mut self, now: Timestamp) {
        if let Some(report) = self.report.take() {
            self.note_failure(now);
            // Perhaps once more than Redis has taken it, so that a refund may be too small.
            self.taken_back += report.taken_back;
            self.is_orphaned = self.units + self.held > 0;
            self.spent = 0;
            if report.is_returned || !self.is_orphaned {
                self.void();
            }
        }
    }

    /// Ends a report that certainly did not reach Redis.
    pub fn cancel_report(&mut self, now: Timestamp) {
        if let Some(report) = self.report.take() {
            self.note_failure(now);
            self.taken_back += report.taken_back;
            if report.is_returned {
                self.units += report.kept.saturating_sub(self.held);
            }
        }
    }

    fn note_failure(&mut self, now: Timestamp) {
        self.note_vain_wait(now);
        self.waits_until = now + LONGEST_PAUSE;
    }

    /// Returns whether the key is idle: its units are better off in Redis.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        let rate = self.demand.per_second(self.last_request_at);
        let idle =
            Duration::from_secs_f64((4.0 / rate.max(1.0)).clamp(SHORTEST_IDLE, LONGEST_IDLE));
        now >= self.last_request_at + idle
    }

    /// Returns whether a report is under way.
    pub fn has_report(&self) -> bool {
        self.report.is_some()
    }

    /// Returns whether no report is under way, and no decision that holds units which can still be spent.
    pub fn is_at_rest(&self, now: Timestamp) -> bool {
        self.report.is_none() && (self.held == 0 || now >= self.ends_at)
    }

    /// Returns whether there are units to give back.
    pub fn is_worth_returning(&self, now: Timestamp) -> bool {
        let is_worth = self.units >= 2 || self.taken_back > 0;
        is_worth && !self.is_orphaned && now < self.ends_at
    }

    /// Returns whether Redis has replied to a report.
    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Returns what is known of the key; `None` before the first reply.
    pub fn view(&self, now: Timestamp) -> Option<KeyLease> {
        let elsewhere = self.known?.leased_elsewhere;
        let age = now.since(self.replied_at);
        Some(KeyLease::new(self.units(now), elsewhere, age))
    }

    /// Returns the units that can be spent.
    pub fn units(&self, now: Timestamp) -> u64 {
        if now < self.ends_at { self.units } else { 0 }
    }
}

impl Taken {
    /// Returns what a refund needs besides the end of the charge: the total of refunds before it, and its period.
    pub fn token(&self) -> u64 {
        total_in(self.known.refunded) | (self.period << TOTAL_BITS)
    }
}

/// Returns the lowest bits of a total, or those in a token.
pub(super) fn total_in(token: u64) -> u64 {
    token % (1 << TOTAL_BITS)
}

/// Returns whether a token is of this period.
fn is_of(token: u64, period: u64) -> bool {
    token >> TOTAL_BITS == (period << TOTAL_BITS) >> TOTAL_BITS
}

impl KnownState {
    /// Returns a time of this process by the server's clock, or a little earlier.
    pub fn server_time(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.as_micros().saturating_add_signed(self.offset))
    }
}

fn saturated(units: u64) -> u32 {
    units.try_into().unwrap_or(u32::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, which is not negative"
)]
fn to_units(estimate: f64) -> u64 {
    estimate.ceil() as u64
}

/// Bits of the total of refunds in a token, 12 days in microseconds. The others are the lowest of the period: one in 16 million
/// refunds of a charge that was reported long ago finds the same ones.
const TOTAL_BITS: u32 = 40;
/// A turn of `lua/decide.lua`.
const TURN: Duration = Duration::from_secs(1);
/// The demand that a lease covers, in seconds, if it is not that of a whole turn.
const SECONDS_LEASED: f64 = 0.2;
/// Others hardly miss so small a part of what is free for this instance.
const PARTS_HARDLY_MISSED: u64 = 16;
/// Units a second from which on a key is worth a lease.
const LEAST_RATE: f64 = 4.0;
/// Units are asked for when those that are left last for this many round trips.
const ROUND_TRIPS_AHEAD: f64 = 2.5;
/// Requests in the time of a round trip from which on they wait for one report.
const LEAST_TOGETHER: f64 = 1.0;
/// Seconds without a request after which units are given back.
const SHORTEST_IDLE: f64 = 0.1;
const LONGEST_IDLE: f64 = 1.0;
