//! Random walks of the real script and the real leases: instances spend, report, crash and lose messages at the worst moments, and
//! every span or window of what they admitted is within the limit.
//!
//! The time is an argument of both, so it is moved and not waited for. Holders have clocks of their own, which are off by hours and
//! run up to 500 ppm apart. Instances may have two limits for one window, as during a deployment. With [`Fault`], a holder breaks
//! one of its rules: the walks find each.

use std::sync::{Arc, atomic::AtomicU64};

use redis::Value;
use tollgate::{
    Key,
    algorithm::WindowStart,
    clock::Timestamp,
    remote::{LeaseTrial, Script, TrialTaken},
};

use super::lease_limits::{Admitted, KINDS, Kind, Limit, excess, index};
use crate::support::{Random, Server, unpack};

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
}

const FAULTS: [Fault; 7] = [
    Fault::ChargeOnly,
    Fault::SpendPastTheEnd,
    Fault::ReportTwice,
    Fault::IgnoreBorn,
    Fault::HeldAsSpent,
    Fault::ResetDeletes,
    Fault::SpendPastTheWindow,
];

impl Fault {
    /// Returns whether it breaks a limit of this kind.
    fn breaks(self, kind: Kind) -> bool {
        match self {
            Self::None => false,
            // Units of a window are used until its end, whether they are held or spent.
            Self::HeldAsSpent => kind == Kind::Bucket,
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
    /// By how much its clock is ahead, and how many microseconds a second it gains.
    offset: u64,
    gains: i64,
    /// Whether it mostly keeps what it has leased, and charges.
    hoards: bool,
    /// Units of decisions under way: when they were taken, what [`Walk::lost`] was then, and how many.
    held: Vec<(u64, Option<usize>, u64, TrialTaken)>,
    /// Spending from leases: the event, its units, and what a refund needs.
    spent: Vec<(usize, u64, TrialTaken)>,
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
    /// The second one is less, for some instances, or for none.
    limits: [Limit; 2],
    two_limits: bool,
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

/// A command of a walk to Redis.
enum Command {
    Call(u64, Vec<Vec<u8>>),
    Delete,
}

const START: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;
/// The end of the month.
const MONTH_ENDS: u64 = 1_701_388_800_000_000;

impl Walk {
    fn new(seed: u64, (fault, kind): (Fault, Kind), steps: usize) -> Self {
        let mut random = Random(seed);
        let limit = Limit::random(kind, &mut random);
        let two_limits = kind != Kind::Bucket && random.below(4) == 0;
        let limits = [
            limit.clone(),
            if two_limits { limit.halved() } else { limit },
        ];
        let start = match kind {
            Kind::Window(WindowStart::Month) => MONTH_ENDS - 15 * SECOND,
            _ => START,
        };
        let holders = (0..2 + random.below(4)).map(|_| {
            let ids = Arc::default();
            Holder {
                lease: LeaseTrial::new(Arc::clone(&ids)),
                ids,
                offset: random.below(10_000 * SECOND),
                gains: random.below(1_001).cast_signed() - 500,
                hoards: random.below(2) == 0,
                limit: if two_limits { index(&mut random, 2) } else { 0 },
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
            limits,
            two_limits,
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

    /// Walks on to the next command for Redis; `None` at the end.
    fn next(&mut self) -> Option<Command> {
        while self.steps > 0 {
            self.steps -= 1;
            let until = self.now + self.pause();
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
                let arguments = self.messages[index].arguments.clone();
                return Some(Command::Call(self.now, arguments));
            }
        }
        None
    }

    /// Returns how long nothing happens: mostly nothing, or until just before or after a turn or a window ends.
    fn pause(&mut self) -> u64 {
        let span = self.limits[0].span();
        let interval = span / self.limits[0].units();
        let to_turn = SECOND - self.now % SECOND;
        let to_end = match self.state[0].checked_sub(self.now) {
            Some(left) if left > 0 => left,
            _ => span,
        };
        match self.random.below(40) {
            0..20 => 0,
            20..30 => self.random.below(2 * interval + 2),
            30..33 => self.random.below(50_000),
            33 => self.random.below(3 * span),
            34 => to_turn.saturating_sub(self.random.below(5_000)),
            35 => to_turn + self.random.below(5_000),
            36 => self.random.below(5 * SECOND / 2),
            37 => to_end.saturating_sub(self.random.below(5_000)),
            38 => to_end + self.random.below(5_000),
            _ => self.random.below(interval + 1),
        }
    }

    fn local_time(&self, holder: usize) -> Timestamp {
        let Holder { offset, gains, .. } = self.holders[holder];
        let gained = (self.now - START).cast_signed() * gains / 1_000_000;
        Timestamp::from_micros((self.now + offset).saturating_add_signed(gained))
    }

    fn act(&mut self) -> Option<Command> {
        let phase = if self.is_busy { 12 } else { 40 };
        if self.random.below(phase) == 0 {
            self.is_busy = !self.is_busy;
        }
        let holder = index(&mut self.random, self.holders.len());
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
        &self.limits[self.holders[holder].limit]
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
        let limit = &self.limits[self.holders[holder].limit];
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
                    self.holders[holder].spent.push((event, cost, taken));
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
        let limit = &self.limits[self.holders[holder].limit];
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
        let (event, units, taken) = self.holders[holder].spent.remove(newest);
        let units = 1 + self.random.below(units);
        self.admitted[event].units -= units;
        let refunded = self.holders[holder].lease.refund(units, taken.token);
        if let Err(total) = refunded {
            let arguments = self.limit(holder).refund(units, &taken, total);
            self.send(holder, Job::Refund, arguments);
        }
    }

    /// Forgets a lease, as a table does with one that is idle, perhaps for one under another limit. What was taken from it is not
    /// over.
    fn forget(&mut self, holder: usize) {
        let local = self.local_time(holder);
        let other_limit = if self.two_limits {
            index(&mut self.random, 2)
        } else {
            0
        };
        let Holder {
            lease, ids, limit, ..
        } = &mut self.holders[holder];
        if lease.is_at_rest(local) {
            *lease = LeaseTrial::new(Arc::clone(ids));
            *limit = other_limit;
        }
    }

    fn report(&mut self, holder: usize) {
        if self.fault == Fault::ChargeOnly {
            let units = self.limit(holder).units() / 4;
            let arguments = self.limit(holder).charge(units);
            return self.send(holder, Job::Charge(units), arguments);
        }
        let local = self.local_time(holder);
        let gives_back = self.random.below(2) == 0;
        let Holder { lease, held, .. } = &mut self.holders[holder];
        if lease.has_report() {
            return;
        }
        let gives_back = gives_back && lease.is_at_rest(local);
        let mut report = lease.begin_report(gives_back, self.limits[0].overshoot, local);
        // As if it were alone and busy. Small leases leave some for others.
        let most = self.limits[0].units() >> self.random.below(5);
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
        let arguments = self.limit(holder).report(&report);
        self.send(holder, Job::Report, arguments);
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
                return Some(Command::Delete);
            }
            let mut report = [0; 37];
            report[30] = 2;
            report[31..33].copy_from_slice(&self.limits[0].overshoot.to_be_bytes());
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
        Some(Command::Delete)
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
        let life = self.holders[holder].life;
        if self.fault == Fault::ReportTwice && job == Job::Report {
            // Nobody waits for the reply to the first.
            self.send_in((holder, u32::MAX), job, arguments.clone());
        }
        self.send_in((holder, life), job, arguments);
    }

    fn send_in(&mut self, (holder, life): (usize, u32), job: Job, arguments: Vec<Vec<u8>>) {
        let delay = [0, 0, 0, 200, 5_000, 40_000, 3 * SECOND][index(&mut self.random, 7)];
        let fate = self.random.below(30);
        self.messages.push(Message {
            holder,
            life,
            limit: self.holders[holder].limit,
            job,
            arguments,
            due_at: self.now + self.random.below(delay + 1),
            is_executed: false,
            is_lost: fate == 0,
            is_reply_lost: fate == 1,
            reply: Vec::new(),
            losses: 0,
        });
    }

    /// Takes what Redis has replied to the command.
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
        if message.job == Job::Report {
            self.born = u32::try_from(reply[9]).expect("milliseconds");
        }
        let is_admitted = reply[1] == 1;
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
                let counter = self.limits[message.limit].policy.counter();
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

/// Walks, 64 side by side, so that their commands share round trips, and a walk ends long before the real time ends a key.
///
/// Returns the excess of each, and how full its bucket was.
fn walk(
    server: &Server,
    rules: (Fault, Kind),
    seeds: std::ops::Range<u64>,
    steps: usize,
) -> Vec<(u64, i128, f64)> {
    let seeds: Vec<u64> = seeds.collect();
    let sets = seeds.chunks(64);
    sets.flat_map(|seeds| walk_together(server, rules, seeds, steps))
        .collect()
}

fn walk_together(
    server: &Server,
    rules: (Fault, Kind),
    seeds: &[u64],
    steps: usize,
) -> Vec<(u64, i128, f64)> {
    let mut connection = server.connection();
    let mut load = redis::cmd("SCRIPT");
    let hash: String = load
        .arg("LOAD")
        .arg(Script::DECIDE.source())
        .query(&mut connection)
        .expect("loaded");
    let mut walks: Vec<_> = seeds
        .iter()
        .map(|seed| (*seed, Walk::new(*seed, rules, steps)))
        .collect();
    let mut ended = Vec::new();
    while !walks.is_empty() {
        let mut pipe = redis::pipe();
        let mut going = Vec::new();
        for (seed, mut walk) in walks.drain(..) {
            match walk.next() {
                Some(Command::Call(now, mut arguments)) => {
                    if rules.0 == Fault::IgnoreBorn && arguments[0][0] == b'&' {
                        let report = &mut arguments[1];
                        report[12..16].copy_from_slice(&walk.born.to_be_bytes());
                    }
                    let command = pipe
                        .cmd("EVALSHA")
                        .arg(&hash)
                        .arg(1)
                        .arg(&walk.key)
                        .arg("@")
                        .arg(now);
                    arguments
                        .iter()
                        .fold(command, |command, argument| command.arg(argument));
                    // A short window would end by the real time, if the machine is busy.
                    pipe.cmd("PERSIST").arg(&walk.key).ignore();
                    going.push((seed, walk));
                }
                Some(Command::Delete) => {
                    pipe.cmd("DEL").arg(&walk.key);
                    going.push((seed, walk));
                }
                None => {
                    let [limit, _] = &walk.limits;
                    let (excess, full) = excess(limit, walk.admitted, walk.restarts, walk.losses);
                    ended.push((seed, excess, full));
                }
            }
        }
        if going.is_empty() {
            break;
        }
        let replies: Vec<Value> = pipe.query(&mut connection).expect("replies");
        for ((_, walk), reply) in going.iter_mut().zip(&replies) {
            if let Value::BulkString(_) = reply {
                walk.executed(unpack(reply));
            }
        }
        walks = going;
    }
    ended
}

#[test]
fn no_span_or_window_of_any_walk_exceeds_the_limit() {
    let server = Server::start();
    for kind in KINDS {
        let walks = walk(&server, (Fault::None, kind), 0..512, 2_000);
        for (seed, excess, _) in &walks {
            assert!(*excess <= 0, "{kind:?}, walk {seed}: {excess}");
        }
        let reaching = |part: f64| walks.iter().filter(|(_, _, full)| *full > part).count();
        let (reached, ahead) = (reaching(0.95), reaching(1.1));
        assert!(
            reached > walks.len() / 2,
            "{kind:?}: {reached} walks reach the limit"
        );
        assert!(
            ahead > walks.len() / 32,
            "{kind:?}: {ahead} walks use an overshoot of 20 % or more"
        );
    }
}

#[test]
fn walks_find_each_fault() {
    let server = Server::start();
    let faults = FAULTS
        .into_iter()
        .flat_map(|fault| KINDS.map(|kind| (fault, kind)));
    for (fault, kind) in faults.filter(|(fault, kind)| fault.breaks(*kind)) {
        let found = (0..200).find(|set| {
            let walks = walk(&server, (fault, kind), 64 * set..64 * (set + 1), 2_000);
            walks.iter().any(|(_, excess, _)| *excess > 0)
        });
        println!("{fault:?}, {kind:?}: {found:?}");
        assert!(found.is_some(), "{fault:?}, {kind:?}");
    }
}
