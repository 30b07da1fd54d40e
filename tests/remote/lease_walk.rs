//! Random walks of the real script and the real leases: instances spend, report, crash and lose messages at the worst moments, and
//! every span or window of what they admitted is within the limit.
//!
//! The time is an argument of both, so it is moved and not waited for. Holders have clocks of their own, which are off by hours and
//! run up to 500 ppm apart. In some walks the limit changes, and some holders have the one of before for a while, as during a
//! deployment. With [`Fault`], a holder or the script breaks one of its rules: the walks find each.

use std::sync::{Arc, atomic::AtomicU64};

use tollgate::{
    Key,
    algorithm::WindowStart,
    clock::Timestamp,
    remote::{LeaseTrial, Script, TrialTaken},
};

use super::{
    lease_limits::{Admitted, KINDS, Kind, Limit, excess, index},
    walks::{self, Changes, Clock, Command, SECOND, START},
};
use crate::support::{Random, Server};

/// A rule that holders or the script break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Units are charged in advance, and spent whenever.
    ChargeOnly,
    /// Units are spent after their lease has ended.
    SpendPastTheEnd,
    /// A report is sent a second time.
    ReportTwice,
    /// Reports of a state that was lost count.
    IgnoreBorn,
    /// Units that a decision under way holds are reported as spent, and may go back.
    HeldAsSpent,
    /// A reset deletes what is leased.
    ResetDeletes,
    /// Units of a window are spent in the next one.
    SpendPastTheWindow,
    /// A change of the limit forgets what is leased.
    ChangeForgetsLeases,
}

const FAULTS: [Fault; 8] = [
    Fault::ChargeOnly,
    Fault::SpendPastTheEnd,
    Fault::ReportTwice,
    Fault::IgnoreBorn,
    Fault::HeldAsSpent,
    Fault::ResetDeletes,
    Fault::SpendPastTheWindow,
    Fault::ChangeForgetsLeases,
];

impl Fault {
    /// Returns whether it breaks a limit of this kind.
    fn breaks(self, kind: Kind) -> bool {
        match self {
            Self::None => false,
            // Units of a window are used until its end, whether they are held or spent.
            Self::HeldAsSpent => kind == Kind::Bucket,
            // Windows of one length are those of one quota.
            Self::ChangeForgetsLeases => kind == Kind::Bucket,
            // The window of a first hit is known by its end, which this changes.
            Self::SpendPastTheWindow => {
                kind != Kind::Bucket && kind != Kind::Window(WindowStart::FirstHit)
            }
            Self::ChargeOnly
            | Self::IgnoreBorn
            | Self::ReportTwice
            | Self::ResetDeletes
            | Self::SpendPastTheEnd => true,
        }
    }
}

/// An instance.
#[derive(Default)]
struct Holder {
    lease: LeaseTrial,
    ids: Arc<AtomicU64>,
    clock: Clock,
    /// Whether it mostly keeps what it has leased, and charges.
    hoards: bool,
    /// Units of decisions under way: when they were taken, what [`Walk::lost`] was then, and how many.
    held: Vec<(u64, Option<usize>, u64, TrialTaken)>,
    /// Spending from leases: the event, its units, the limit, and what a refund needs.
    spent: Vec<(usize, u64, usize, TrialTaken)>,
    /// Which of the limits it has.
    limit: usize,
    /// Units that were charged in advance, and the end of their window.
    bank: u64,
    bank_window: u64,
    /// How often the key was lost when its units were leased.
    losses: usize,
    /// Rises when it crashes: replies to before are nobody's.
    life: u32,
}

/// A call to Redis under way.
struct Message {
    holder: usize,
    life: u32,
    limit: usize,
    job: Job,
    arguments: Vec<Vec<u8>>,
    /// When Redis executes it, and then when its reply is there.
    due_at: u64,
    is_executed: bool,
    /// Whether it, or its reply, is lost.
    is_lost: bool,
    is_reply_lost: bool,
    reply: Vec<i64>,
    /// How often the key was lost when Redis executed it.
    losses: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Charge(u64),
    Report,
    Refund,
    Reset,
}

struct Walk {
    fault: Fault,
    random: Random,
    changes: Changes,
    key: String,
    now: u64,
    steps: usize,
    holders: Vec<Holder>,
    messages: Vec<Message>,
    admitted: Vec<Admitted>,
    /// When the key was reset or lost.
    restarts: Vec<u64>,
    losses: usize,
    may_restart: bool,
    reports_often: bool,
    /// Whether more is asked for than the limit, for a while.
    is_busy: bool,
    /// When leasing began and the state, as the latest replies have them.
    born: u32,
    state: [u64; 3],
    /// The message that Redis is executing.
    executing: Option<usize>,
}

/// The end of the month.
const MONTH_ENDS: u64 = 1_701_388_800_000_000;

impl walks::Walk for Walk {
    type Rules = (Fault, Kind);

    fn script((fault, _): Self::Rules) -> String {
        let turns = "turn_micros = turn < SHORT_TURNS and REGION_TURN or TURN";
        match fault {
            Fault::ChangeForgetsLeases => {
                let forget = "if sub(stored, 8, 11) ~= quota_tag then leases = nil end";
                walks::script_with(turns, &format!("{turns} {forget}"))
            }
            _ => Script::DECIDE.source().to_owned(),
        }
    }

    fn new(seed: u64, (fault, kind): Self::Rules, steps: usize) -> Self {
        let mut random = Random(seed);
        let limit_changes =
            fault == Fault::ChangeForgetsLeases || fault == Fault::None && random.below(3) == 0;
        let limits = if limit_changes {
            Limit::pair(kind, &mut random)
        } else {
            let limit = Limit::random(kind, &mut random);
            [limit.clone(), limit]
        };
        let start = match kind {
            Kind::Window(WindowStart::Month) => MONTH_ENDS - 15 * SECOND,
            _ => START,
        };
        let holders = (0..2 + random.below(4)).map(|_| {
            let ids = Arc::default();
            Holder {
                lease: LeaseTrial::new(Arc::clone(&ids)),
                ids,
                clock: Clock::random(&mut random),
                hoards: random.below(2) == 0,
                ..Holder::default()
            }
        });
        let holders = holders.collect();
        let may_restart = matches!(fault, Fault::IgnoreBorn | Fault::ResetDeletes)
            || fault == Fault::None && random.below(2) == 0;
        let reports_often = random.below(2) == 0 || fault == Fault::ReportTwice;
        Self {
            fault,
            key: format!("walk:{{{seed}}}:{fault:?}:{kind:?}"),
            now: start + random.below(10 * SECOND),
            random,
            changes: Changes::new(limits, limit_changes),
            steps,
            holders,
            messages: Vec::new(),
            admitted: Vec::new(),
            restarts: Vec::new(),
            losses: 0,
            may_restart,
            reports_often,
            is_busy: true,
            born: 0,
            state: [0; 3],
            executing: None,
        }
    }

    fn next(&mut self) -> Option<Command> {
        while self.steps > 0 {
            self.steps -= 1;
            let limits = self.holders.iter().map(|holder| holder.limit);
            let limits = limits.chain(self.messages.iter().map(|message| message.limit));
            self.changes.note(limits, &mut self.now);
            let limit = &self.changes.limits[0];
            let until =
                self.now + walks::pause(&mut self.random, limit, self.now, (SECOND, self.state[0]));
            let due = self.messages.iter().enumerate();
            let due = due.filter(|(_, message)| message.due_at <= until);
            let first = due.min_by_key(|(_, message)| message.due_at);
            let Some((index, _)) = first else {
                self.now = until;
                if let Some(command) = self.act() {
                    return Some(command);
                }
                continue;
            };
            self.now = self.now.max(self.messages[index].due_at);
            if self.messages[index].is_executed {
                let message = self.messages.swap_remove(index);
                self.take_reply(message);
            } else if self.messages[index].is_lost {
                self.messages[index].is_executed = true;
                self.messages[index].due_at = self.now + 50_000;
            } else {
                self.executing = Some(index);
                let mut arguments = self.messages[index].arguments.clone();
                if self.fault == Fault::IgnoreBorn && arguments[0][0] == b'&' {
                    arguments[1][12..16].copy_from_slice(&self.born.to_be_bytes());
                }
                return Some(Command::Call(self.key.clone(), self.now, arguments));
            }
        }
        None
    }

    fn executed(&mut self, reply: Vec<i64>) {
        let Some(index) = self.executing.take() else {
            return;
        };
        let delay = [0, 0, 0, 200, 5_000, 40_000][self::index(&mut self.random, 6)];
        let due_at = self.now + self.random.below(delay + 1);
        let message = &mut self.messages[index];
        for (number, replied) in self.state.iter_mut().zip(&reply[3..]) {
            *number = replied.cast_unsigned();
        }
        let window_ends = self.state[0];
        let mut is_admitted = reply[1] == 1;
        if message.job == Job::Report {
            self.born = u32::try_from(reply[9]).expect("milliseconds");
            // Twice the units that are leased now.
            is_admitted = reply[6] > 1;
        }
        if is_admitted && matches!(message.job, Job::Charge(_) | Job::Report) {
            self.changes.admitted(self.now);
        }
        message.reply = reply;
        message.losses = self.losses;
        message.is_executed = true;
        message.due_at = due_at;
        let is_reply_lost = message.is_reply_lost;
        match message.job {
            Job::Charge(units) if is_admitted && !is_reply_lost => {
                if self.fault != Fault::ChargeOnly {
                    self.admit(self.now, units, window_ends, None);
                }
            }
            Job::Reset => self.begin_anew(),
            Job::Charge(_) | Job::Refund | Job::Report => {}
        }
    }

    fn excess(mut self) -> (i128, f64) {
        self.admitted.sort_by_key(|admitted| admitted.at);
        let (mut worst, mut fullest) = (i128::MIN, 0.0_f64);
        for (limit, times) in self.changes.bounds(self.now) {
            let admitted = self.admitted.iter().filter(|it| times.contains(&it.at));
            let (excess, full) = excess(&limit, admitted, &self.restarts, self.losses);
            (worst, fullest) = (worst.max(excess), fullest.max(full));
        }
        (worst, fullest)
    }
}

impl Walk {
    fn local_time(&self, holder: usize) -> Timestamp {
        self.holders[holder].clock.at(self.now)
    }

    fn act(&mut self) -> Option<Command> {
        let phase = if self.is_busy { 12 } else { 40 };
        if self.random.below(phase) == 0 {
            self.is_busy = !self.is_busy;
        }
        let holder = index(&mut self.random, self.holders.len());
        self.changes.change(&mut self.random);
        if self.holders[holder].limit != self.changes.latest && self.random.below(8) == 0 {
            self.learn(holder);
        }
        match self.random.below(100) {
            0..45 => self.spend(holder),
            45..55 => self.hold(holder),
            55..63 => self.end_hold(holder),
            63..70 => self.refund(holder),
            70..78 => self.report(holder),
            78..96 if self.reports_often => self.report(holder),
            78..96 => self.spend(holder),
            96 => self.crash(holder),
            99 => self.forget(holder),
            97..99 if self.may_restart => return self.restart(),
            _ => {}
        }
        None
    }

    /// Returns how often the key was lost when a holder's units were leased, if it was lost since.
    fn lost(&self, holder: usize) -> Option<usize> {
        let losses = self.holders[holder].losses;
        (losses < self.losses).then_some(losses)
    }

    fn admit(&mut self, at: u64, units: u64, window_ends: u64, lost: Option<usize>) -> usize {
        self.admitted.push(Admitted {
            at,
            units,
            window_ends,
            lost,
        });
        self.admitted.len() - 1
    }

    fn limit(&self, holder: usize) -> &Limit {
        &self.changes.limits[self.holders[holder].limit]
    }

    fn cost(&mut self, holder: usize) -> u64 {
        let units = self.holders[holder].lease.units(self.local_time(holder));
        match self.random.below(8) {
            0 => units.max(1),
            1 | 2 => 1 + self.random.below(3),
            3 | 4 => {
                // About as much as there is room for.
                let room = self.limit(holder).remaining(self.state, self.now);
                room.saturating_sub(self.random.below(8)).max(1)
            }
            _ => 1,
        }
    }

    /// Spends units: a few, or all of the lease.
    fn spend(&mut self, holder: usize) {
        let mut local = self.local_time(holder);
        let cost = self.cost(holder);
        if self.fault == Fault::ChargeOnly && self.holders[holder].bank >= cost {
            self.holders[holder].bank -= cost;
            self.admit(self.now, cost, self.holders[holder].bank_window, None);
            return;
        }
        if self.fault == Fault::SpendPastTheEnd {
            local = Timestamp::from_micros(local.as_micros() - SECOND);
        }
        let limit = &self.changes.limits[self.holders[holder].limit];
        let charge = limit.policy.charge(Key::GLOBAL).cost(cost);
        let keeps = self.holders[holder].hoards && self.random.below(16) > 0;
        let lease = &mut self.holders[holder].lease;
        let taken = (!keeps)
            .then(|| lease.take(&charge, false, local))
            .flatten();
        match taken {
            Some(taken) => {
                let window_ends = taken.reset_at.as_micros();
                let event = self.admit(self.now, cost, window_ends, self.lost(holder));
                if self.admitted[event].lost.is_none() {
                    let holder = &mut self.holders[holder];
                    holder.spent.push((event, cost, holder.limit, taken));
                }
            }
            None if self.is_busy => {
                let arguments = self.limit(holder).charge(cost);
                self.send(holder, Job::Charge(cost), arguments);
            }
            None => {}
        }
    }

    fn hold(&mut self, holder: usize) {
        let local = self.local_time(holder);
        let units = self.holders[holder].lease.units(local);
        let cost = if self.random.below(2) == 0 {
            units.max(1)
        } else {
            1
        };
        let limit = &self.changes.limits[self.holders[holder].limit];
        let charge = limit.policy.charge(Key::GLOBAL).cost(cost);
        let taken = self.holders[holder].lease.take(&charge, true, local);
        if let Some(taken) = taken {
            let lost = self.lost(holder);
            self.holders[holder]
                .held
                .push((self.now, lost, cost, taken));
        }
    }

    fn end_hold(&mut self, holder: usize) {
        let Some((at, lost, units, taken)) = self.holders[holder].held.pop() else {
            return;
        };
        let is_admitted = self.random.below(2) == 0;
        let lease = &mut self.holders[holder].lease;
        lease.end_hold(units, taken.generation, is_admitted);
        if is_admitted {
            self.admit(at, units, taken.reset_at.as_micros(), lost);
        }
    }

    /// Refunds what was spent from a lease, as if it had not been.
    fn refund(&mut self, holder: usize) {
        let spent = self.holders[holder].spent.len();
        if spent == 0 {
            return;
        }
        let newest = spent - 1 - index(&mut self.random, spent.min(6));
        let (event, units, limit, taken) = self.holders[holder].spent.remove(newest);
        let units = 1 + self.random.below(units);
        self.admitted[event].units -= units;
        let refunded = self.holders[holder].lease.refund(units, taken.token);
        if let Err(total) = refunded {
            let arguments = self.changes.limits[limit].refund(units, &taken, total);
            self.send_under(limit, holder, Job::Refund, arguments);
        }
    }

    /// Forgets a lease, as a table does with one that is idle. What was taken from it is not over.
    fn forget(&mut self, holder: usize) {
        let local = self.local_time(holder);
        let Holder { lease, ids, .. } = &mut self.holders[holder];
        if lease.is_at_rest(local) {
            *lease = LeaseTrial::new(Arc::clone(ids));
        }
    }

    /// Goes on under the latest limit. Units of the one of before go back, unless somebody else still has a part of them.
    fn learn(&mut self, holder: usize) {
        let local = self.local_time(holder);
        if self.holders[holder].lease.is_at_rest(local) {
            self.send_report(holder, true);
        }
        let Holder {
            lease,
            ids,
            limit,
            life,
            ..
        } = &mut self.holders[holder];
        *lease = LeaseTrial::new(Arc::clone(ids));
        *life += 1;
        *limit = self.changes.latest;
    }

    fn report(&mut self, holder: usize) {
        if self.fault == Fault::ChargeOnly {
            let units = self.limit(holder).units() / 4;
            let arguments = self.limit(holder).charge(units);
            return self.send(holder, Job::Charge(units), arguments);
        }
        let gives_back = self.random.below(2) == 0;
        if !self.holders[holder].lease.has_report() {
            let is_at_rest = self.holders[holder]
                .lease
                .is_at_rest(self.local_time(holder));
            self.send_report(holder, gives_back && is_at_rest);
        }
    }

    fn send_report(&mut self, holder: usize, gives_back: bool) {
        let local = self.local_time(holder);
        let limit = self.limit(holder).clone();
        let Holder { lease, held, .. } = &mut self.holders[holder];
        let mut report = lease.begin_report(gives_back, limit.overshoot, local);
        // As if it were alone and busy. Small leases leave some for others.
        let most = limit.units() >> self.random.below(5);
        let want = 4 + u32::try_from(self.random.below(most + 1)).expect("few");
        report[20..24].copy_from_slice(&want.to_be_bytes());
        report[24..26].copy_from_slice(&1_024_u16.to_be_bytes());
        if self.random.below(2) == 0 {
            report[33..].copy_from_slice(&want.to_be_bytes());
        }
        if self.fault == Fault::HeldAsSpent {
            let held: u64 = held.iter().map(|(_, _, units, _)| units).sum();
            let held = u32::try_from(held).expect("few").min(number_at(&report, 4));
            let (spent, kept) = (number_at(&report, 0) + held, number_at(&report, 4) - held);
            report[..4].copy_from_slice(&spent.to_be_bytes());
            report[4..8].copy_from_slice(&kept.to_be_bytes());
        }
        self.send(holder, Job::Report, limit.report(&report));
    }

    fn crash(&mut self, holder: usize) {
        let holder = &mut self.holders[holder];
        holder.lease = LeaseTrial::new(Arc::clone(&holder.ids));
        holder.held.clear();
        holder.spent.clear();
        holder.life += 1;
    }

    /// Resets the key, or loses its state, which some holders notice.
    fn restart(&mut self) -> Option<Command> {
        if self.fault != Fault::IgnoreBorn && self.random.below(2) == 0 {
            if self.fault == Fault::ResetDeletes {
                self.begin_anew();
                return Some(Command::Delete(self.key.clone()));
            }
            let mut report = [0; 37];
            report[30] = 2;
            report[31..33].copy_from_slice(&self.changes.limits[0].overshoot.to_be_bytes());
            let arguments = self.limit(0).report(&report);
            self.send(0, Job::Reset, arguments);
            return None;
        }
        if self.fault == Fault::ResetDeletes {
            return None;
        }
        for holder in &mut self.holders {
            if self.random.below(4) == 0 {
                holder.lease.void();
                holder.held.clear();
            }
        }
        self.losses += 1;
        // The script distinguishes a state from one that was lost by the millisecond of its birth.
        self.now += 1_000;
        self.begin_anew();
        Some(Command::Delete(self.key.clone()))
    }

    /// From now on, the key has its whole quota. Charges of before cannot be refunded: their refunds
    /// would be those of later charges.
    fn begin_anew(&mut self) {
        // Nothing else happens in this microsecond.
        self.now += 1;
        self.restarts.push(self.now);
        self.holders
            .iter_mut()
            .for_each(|holder| holder.spent.clear());
        self.messages.retain(|message| message.job != Job::Refund);
    }

    fn send(&mut self, holder: usize, job: Job, arguments: Vec<Vec<u8>>) {
        let limit = self.holders[holder].limit;
        self.send_under(limit, holder, job, arguments);
    }

    fn send_under(&mut self, limit: usize, holder: usize, job: Job, arguments: Vec<Vec<u8>>) {
        let life = self.holders[holder].life;
        if self.fault == Fault::ReportTwice && job == Job::Report {
            // Nobody waits for the reply to the first.
            self.send_in(limit, (holder, u32::MAX), job, arguments.clone());
        }
        self.send_in(limit, (holder, life), job, arguments);
    }

    fn send_in(
        &mut self,
        limit: usize,
        (holder, life): (usize, u32),
        job: Job,
        arguments: Vec<Vec<u8>>,
    ) {
        let fate = self.random.below(30);
        self.messages.push(Message {
            holder,
            life,
            limit,
            job,
            arguments,
            due_at: self.now + walks::delay(&mut self.random),
            is_executed: false,
            is_lost: fate == 0,
            is_reply_lost: fate == 1,
            reply: Vec::new(),
            losses: 0,
        });
    }

    fn take_reply(&mut self, message: Message) {
        let local = self.local_time(message.holder);
        let holder = &mut self.holders[message.holder];
        if message.life != holder.life {
            return;
        }
        match message.job {
            Job::Report if message.is_lost && self.random.below(2) == 0 => {
                holder.lease.cancel_report(local);
            }
            Job::Report if message.is_lost || message.is_reply_lost => {
                holder.lease.lose_report(local);
            }
            Job::Report => {
                let numbers = message.reply[3..].iter().map(|n| n.cast_unsigned());
                let mut numbers: Vec<u64> = numbers.collect();
                if self.fault == Fault::SpendPastTheWindow {
                    numbers[0] += 10 * SECOND;
                }
                let numbers = numbers.try_into().expect("the reply to a report");
                let decided_at = Timestamp::from_micros(message.reply[0].cast_unsigned());
                let counter = self.changes.limits[message.limit].policy.counter();
                holder.lease.end_report(counter, decided_at, numbers, local);
                holder.losses = message.losses;
            }
            Job::Charge(units) if self.fault == Fault::ChargeOnly => {
                if message.reply.get(1) == Some(&1) {
                    holder.bank += units;
                    holder.bank_window = message.reply[3].cast_unsigned();
                }
            }
            Job::Charge(_) | Job::Refund | Job::Reset => {}
        }
    }
}

fn number_at(report: &[u8; 37], place: usize) -> u32 {
    u32::from_be_bytes(report[place..place + 4].try_into().expect("four bytes"))
}

#[test]
fn no_span_or_window_of_any_walk_exceeds_the_limit() {
    let server = Server::start();
    for kind in KINDS {
        walks::check::<Walk>(&server, (Fault::None, kind), 0..512);
    }
}

#[test]
fn walks_find_each_fault() {
    let server = Server::start();
    let faults = FAULTS
        .into_iter()
        .flat_map(|fault| KINDS.map(|kind| (fault, kind)));
    for rules in faults.filter(|(fault, kind)| fault.breaks(*kind)) {
        walks::find::<Walk>(&server, rules);
    }
}
