//! Random walks of the real script and the real leases: instances spend, report, crash and lose messages at the worst moments, and
//! every span of what they admitted is within the limit.
//!
//! The time is an argument of both, so it is moved and not waited for. Holders have clocks of their own, which are off by hours and
//! run up to 500 ppm apart. With [`Fault`], a holder breaks one of its rules: the walks find each.

use std::sync::{Arc, atomic::AtomicU64};

use redis::Value;
use tollgate::{
    Consistency, Key, Percent, Policy, Quota,
    algorithm::TokenBucket,
    clock::Timestamp,
    remote::{LeaseTrial, Script, TrialTaken},
};

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
}

const FAULTS: [Fault; 6] = [
    Fault::ChargeOnly,
    Fault::SpendPastTheEnd,
    Fault::ReportTwice,
    Fault::IgnoreBorn,
    Fault::HeldAsSpent,
    Fault::ResetDeletes,
];

/// The numbers of a bucket, as the script takes them.
struct Bucket {
    policy: Policy,
    bucket: TokenBucket,
    units: u64,
    micros: u64,
    capacity: u64,
    span: u64,
    tag: [u8; 4],
    /// By how much leased units may exceed the limit, in 1/1000.
    overshoot: u16,
}

impl Bucket {
    fn random(random: &mut Random) -> Self {
        let more = 16 << random.below(5);
        let capacity = 32 + random.below(more);
        // Full again after 0.5 to 10 s: leases last about as long.
        let tenths = [5, 10, 20, 50, 100][index(random, 5)];
        let per_second = (capacity * 10 / tenths + random.below(2)).max(1);
        let overshoot = [0, 0, 0, 0, 1, 20, 200, 1_000][index(random, 8)];
        Self::new(Quota::per_second(per_second).burst(capacity), overshoot)
    }

    fn new(quota: Quota, overshoot: u16) -> Self {
        let consistency = Consistency::Delayed {
            overshoot: Percent::new(f64::from(overshoot) / 10.0),
        };
        let bucket = TokenBucket::new(quota).expect("a usable quota");
        let (units, micros) = bucket.refill();
        Self {
            policy: Policy::new("walk", quota).consistency(consistency),
            units,
            micros,
            capacity: bucket.capacity(),
            span: bucket.span(),
            tag: bucket.quota_tag().to_be_bytes(),
            overshoot,
            bucket,
        }
    }

    /// The arguments of a plain charge.
    fn charge(&self, units: u64) -> Vec<Vec<u8>> {
        if self.units == 1 && units == 1 {
            return vec![self.tagged(b'w'), text(self.micros), text(self.span)];
        }
        let numbers = [units, self.span, self.units, self.micros];
        let numbers = numbers.map(text).into_iter();
        std::iter::once(self.tagged(b'l')).chain(numbers).collect()
    }

    fn report(&self, report: &[u8; 37]) -> Vec<Vec<u8>> {
        let numbers = [self.span, self.units, self.micros].map(text).into_iter();
        let head = std::iter::once(self.tagged(b'&')).chain(numbers);
        head.chain([report.to_vec()]).collect()
    }

    fn refund(&self, units: u64, taken: &TrialTaken, total: u64) -> Vec<Vec<u8>> {
        vec![
            b"-".to_vec(),
            text(taken.reset_at.as_micros()),
            text(total),
            self.tagged(b'w'),
            text(units * self.micros / self.units),
            text(self.span),
        ]
    }

    fn tagged(&self, letter: u8) -> Vec<u8> {
        [&[letter], self.tag.as_slice()].concat()
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
    /// Units that were charged in advance.
    bank: u64,
    /// How often the key was lost when its units were leased.
    losses: usize,
    /// Rises when it crashes: replies to before are nobody's.
    life: u32,
}

/// A call to Redis under way.
struct Message {
    holder: usize,
    life: u32,
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

/// Units that were admitted.
struct Admitted {
    at: u64,
    units: u64,
    /// How often the key was lost when they were leased, if it was lost since.
    lost: Option<usize>,
}

struct Walk {
    fault: Fault,
    random: Random,
    bucket: Bucket,
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
    /// When leasing began and the TAT, as the latest replies have them.
    born: u32,
    tat: u64,
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

impl Walk {
    fn new(seed: u64, fault: Fault, steps: usize) -> Self {
        let mut random = Random(seed);
        let bucket = Bucket::random(&mut random);
        let holders = (0..2 + random.below(4)).map(|_| {
            let ids = Arc::default();
            Holder {
                lease: LeaseTrial::new(Arc::clone(&ids)),
                ids,
                offset: random.below(10_000 * SECOND),
                gains: random.below(1_001).cast_signed() - 500,
                hoards: random.below(2) == 0,
                ..Holder::default()
            }
        });
        let holders = holders.collect();
        let may_restart = matches!(fault, Fault::IgnoreBorn | Fault::ResetDeletes)
            || fault == Fault::None && random.below(2) == 0;
        let reports_often = random.below(2) == 0;
        Self {
            fault,
            key: format!("walk:{{{seed}}}:{fault:?}"),
            now: START + random.below(10 * SECOND),
            random,
            bucket,
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
            tat: 0,
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

    /// Returns how long nothing happens: mostly nothing, or until just before or after a turn ends.
    fn pause(&mut self) -> u64 {
        let interval = self.bucket.micros / self.bucket.units;
        let to_turn = SECOND - self.now % SECOND;
        match self.random.below(40) {
            0..20 => 0,
            20..30 => self.random.below(2 * interval + 2),
            30..33 => self.random.below(50_000),
            33 => self.random.below(3 * self.bucket.span),
            34 => to_turn.saturating_sub(self.random.below(5_000)),
            35 => to_turn + self.random.below(5_000),
            36 | 37 => self.random.below(5 * SECOND / 2),
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

    fn admit(&mut self, at: u64, units: u64, lost: Option<usize>) -> usize {
        self.admitted.push(Admitted { at, units, lost });
        self.admitted.len() - 1
    }

    fn cost(&mut self, holder: usize) -> u64 {
        let units = self.holders[holder].lease.units(self.local_time(holder));
        match self.random.below(8) {
            0 => units.max(1),
            1 | 2 => 1 + self.random.below(3),
            3 | 4 => {
                // About as much as there is room for.
                let room = self.now + self.bucket.span
                    - self.tat.clamp(self.now, self.now + self.bucket.span);
                let room = room * self.bucket.units / self.bucket.micros;
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
            self.admit(self.now, cost, None);
            return;
        }
        if self.fault == Fault::SpendPastTheEnd {
            local = Timestamp::from_micros(local.as_micros() - SECOND);
        }
        let charge = self.bucket.policy.charge(Key::GLOBAL).cost(cost);
        let keeps = self.holders[holder].hoards && self.random.below(16) > 0;
        let lease = &mut self.holders[holder].lease;
        let taken = (!keeps)
            .then(|| lease.take(&charge, false, local))
            .flatten();
        match taken {
            Some(taken) => {
                let event = self.admit(self.now, cost, self.lost(holder));
                if self.admitted[event].lost.is_none() {
                    self.holders[holder].spent.push((event, cost, taken));
                }
            }
            None if self.is_busy => {
                self.send(holder, Job::Charge(cost), self.bucket.charge(cost));
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
        let charge = self.bucket.policy.charge(Key::GLOBAL).cost(cost);
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
            self.admit(at, units, lost);
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
            let arguments = self.bucket.refund(units, &taken, total);
            self.send(holder, Job::Refund, arguments);
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

    fn report(&mut self, holder: usize) {
        if self.fault == Fault::ChargeOnly {
            let units = self.bucket.capacity / 4;
            return self.send(holder, Job::Charge(units), self.bucket.charge(units));
        }
        let local = self.local_time(holder);
        let gives_back = self.random.below(2) == 0;
        let Holder { lease, held, .. } = &mut self.holders[holder];
        if lease.has_report() {
            return;
        }
        let gives_back = gives_back && lease.is_at_rest(local);
        let mut report = lease.begin_report(gives_back, self.bucket.overshoot, local);
        // As if it were alone and busy. Small leases leave some for others.
        let most = self.bucket.capacity >> self.random.below(5);
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
        let arguments = self.bucket.report(&report);
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
            report[31..33].copy_from_slice(&self.bucket.overshoot.to_be_bytes());
            let arguments = self.bucket.report(&report);
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
        self.tat = reply[3].cast_unsigned();
        if message.job == Job::Report {
            self.born = u32::try_from(reply[7]).expect("milliseconds");
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
                    self.admit(self.now, units, None);
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
                let numbers: Vec<u64> = message.reply[3..]
                    .iter()
                    .map(|n| n.cast_unsigned())
                    .collect();
                let numbers = numbers.try_into().expect("the reply to a report");
                let decided_at = Timestamp::from_micros(message.reply[0].cast_unsigned());
                holder
                    .lease
                    .end_report(&self.bucket.bucket, decided_at, numbers, local);
                holder.losses = message.losses;
            }
            Job::Charge(units) if self.fault == Fault::ChargeOnly => {
                if message.reply.get(1) == Some(&1) {
                    holder.bank += units;
                }
            }
            Job::Charge(_) | Job::Refund | Job::Reset => {}
        }
    }

    /// Returns the microseconds by which the fullest moment of a bucket that admits the same is beyond its span and the overshoot,
    /// and how full it was, as a part of the span.
    fn excess(mut self) -> (i128, f64) {
        self.admitted.sort_by_key(|admitted| admitted.at);
        let scale = |number: u64| i128::from(number) * i128::from(self.bucket.units);
        let cost = |units: u64| i128::from(units) * i128::from(self.bucket.micros);
        // Charges walk a lattice of whole microseconds, on which a TAT may lose one.
        let ahead = |number: u64| number * u64::from(self.bucket.overshoot) / 1_000;
        let span = scale(self.bucket.span);
        let room =
            scale(self.bucket.span + ahead(self.bucket.span) + u64::from(self.bucket.units > 1));
        let most_leased = self.bucket.capacity / 4 + ahead(self.bucket.capacity);
        let (mut level, mut worst) = (0, i128::MIN);
        let mut lost = vec![0; self.losses];
        let mut restarts = self.restarts.into_iter().peekable();
        for admitted in &self.admitted {
            while restarts.next_if(|at| *at <= admitted.at).is_some() {
                level = 0;
            }
            if let Some(losses) = admitted.lost {
                // On top of what Redis knows: at most what it had leased.
                lost[losses] += admitted.units;
                worst = worst.max(cost(lost[losses]) - cost(most_leased));
                continue;
            }
            level = level.max(scale(admitted.at)) + cost(admitted.units);
            worst = worst.max(level - scale(admitted.at) - room);
        }
        (worst, (worst + room) as f64 / span as f64)
    }
}

fn index(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a usize")
}

fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn number_at(report: &[u8; 37], place: usize) -> u32 {
    u32::from_be_bytes(report[place..place + 4].try_into().expect("four bytes"))
}

/// Walks, 64 side by side, so that their commands share round trips, and a walk ends long before the real time ends a key.
///
/// Returns the excess of each, and how full its bucket was.
fn walk(
    server: &Server,
    fault: Fault,
    seeds: std::ops::Range<u64>,
    steps: usize,
) -> Vec<(u64, i128, f64)> {
    let seeds: Vec<u64> = seeds.collect();
    let sets = seeds.chunks(64);
    sets.flat_map(|seeds| walk_together(server, fault, seeds, steps))
        .collect()
}

fn walk_together(
    server: &Server,
    fault: Fault,
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
        .map(|seed| (*seed, Walk::new(*seed, fault, steps)))
        .collect();
    let mut ended = Vec::new();
    while !walks.is_empty() {
        let mut pipe = redis::pipe();
        let mut going = Vec::new();
        for (seed, mut walk) in walks.drain(..) {
            match walk.next() {
                Some(Command::Call(now, mut arguments)) => {
                    if fault == Fault::IgnoreBorn && arguments[0][0] == b'&' {
                        let report = arguments.last_mut().expect("a report");
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
                    going.push((seed, walk));
                }
                Some(Command::Delete) => {
                    pipe.cmd("DEL").arg(&walk.key);
                    going.push((seed, walk));
                }
                None => {
                    let (excess, full) = walk.excess();
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
fn no_span_of_any_walk_exceeds_the_limit() {
    let server = Server::start();
    let walks = walk(&server, Fault::None, 0..512, 2_000);
    for (seed, excess, _) in &walks {
        assert!(*excess <= 0, "walk {seed}: {excess}");
    }
    let reaching = |part: f64| walks.iter().filter(|(_, _, full)| *full > part).count();
    let (reached, ahead) = (reaching(0.95), reaching(1.1));
    assert!(reached > walks.len() / 2, "{reached} walks reach the limit");
    assert!(
        ahead > walks.len() / 32,
        "{ahead} walks use an overshoot of 20 % or more"
    );
}

#[test]
fn walks_find_each_fault() {
    let server = Server::start();
    for fault in FAULTS {
        let found = (0..200).find(|set| {
            let walks = walk(&server, fault, 64 * set..64 * (set + 1), 2_000);
            walks.iter().any(|(_, excess, _)| *excess > 0)
        });
        println!("{fault:?}: {found:?}");
        assert!(found.is_some(), "{fault:?}");
    }
}

// === Refunds, step by step ===

/// A lease of a bucket of 100 units, one a second, and its key in Redis.
struct Steps {
    bucket: Bucket,
    lease: LeaseTrial,
    server: Server,
}

impl Steps {
    fn new(overshoot: u16) -> Self {
        Self {
            bucket: Bucket::new(Quota::per_second(1).burst(100), overshoot),
            lease: LeaseTrial::default(),
            server: Server::start(),
        }
    }

    /// Returns the reply at this second: the time, the outcome, whether it fits, and the TAT.
    fn call(&self, second: u64, arguments: Vec<Vec<u8>>) -> Vec<i64> {
        let mut command = redis::cmd("EVAL");
        command.arg(Script::DECIDE.source()).arg(1).arg("key");
        command.arg("@").arg(START + second * SECOND).arg(arguments);
        let reply: Value = command
            .query(&mut self.server.connection())
            .expect("a reply");
        unpack(&reply)
    }

    fn charge(&self, second: u64, units: u64) -> bool {
        self.call(second, self.bucket.charge(units))[1] == 1
    }

    /// Reports, and leases as many units; or gives those back that are left.
    fn report(&mut self, want: Option<u32>) {
        let now = Timestamp::from_micros(START);
        let mut report = self
            .lease
            .begin_report(want.is_none(), self.bucket.overshoot, now);
        report[20..24].copy_from_slice(&want.unwrap_or(0).to_be_bytes());
        let reply = self.call(0, self.bucket.report(&report));
        let numbers: Vec<u64> = reply[3..].iter().map(|n| n.cast_unsigned()).collect();
        let numbers = numbers.try_into().expect("the reply to a report");
        self.lease
            .end_report(&self.bucket.bucket, now, numbers, now);
    }

    fn spend(&mut self) -> TrialTaken {
        let charge = self.bucket.policy.charge(Key::GLOBAL);
        let now = Timestamp::from_micros(START);
        let taken = self.lease.take(&charge, false, now);
        taken.expect("a leased unit")
    }

    /// Refunds a unit that was reported. Returns the TAT then.
    fn refund(&mut self, second: u64, taken: &TrialTaken) -> i64 {
        let total = self.lease.refund(1, taken.token);
        let total = total.expect_err("it was reported");
        self.call(second, self.bucket.refund(1, taken, total))[3]
    }
}

// Regression: a refund of units that were not reported left the ends of later charges where they were, so that refunds of these in
// Redis gave back units of others.
#[test]
fn refunds_here_move_later_charges_back() {
    let mut steps = Steps::new(0);
    steps.report(Some(25));
    let taken: Vec<_> = (0..24).map(|_| steps.spend()).collect();
    for taken in &taken[..12] {
        assert_eq!(steps.lease.refund(1, taken.token), Ok(()));
    }
    steps.report(Some(0));
    // The twelve others are paid off, and somebody takes all but the 13 that are leased.
    assert!(steps.charge(12, 87));
    for taken in &taken[12..] {
        steps.refund(12, taken);
    }
    assert!(!steps.charge(12, 1), "nothing came back");
}

// Regression: the refund of the last charge in Redis moved leased charges behind it, whose ends did not show that.
#[test]
fn refund_of_the_last_charge_moves_leased_ones_back() {
    let mut steps = Steps::new(0);
    assert!(steps.charge(0, 60));
    steps.report(Some(10));
    let taken = steps.spend();
    let last = TrialTaken {
        reset_at: Timestamp::from_micros(START + 60 * SECOND),
        ..taken
    };
    steps.call(0, steps.bucket.refund(10, &last, 0));
    steps.report(None);
    // All is paid off, and somebody takes 20 units.
    assert!(steps.charge(51, 20));
    let after = START + 71 * SECOND;
    assert_eq!(steps.refund(55, &taken), after.cast_signed());
}

// Regression: a change of the limit cut the debt to one span, so that the overshoot could be used again after each.
#[test]
fn change_of_the_limit_keeps_what_is_ahead_of_it() {
    let mut steps = Steps::new(200);
    steps.report(Some(10));
    assert!(steps.charge(0, 100) && steps.charge(0, 10));
    assert!(!steps.charge(0, 1), "120 are charged or leased");
    let other = Bucket::new(Quota::per_second(1).burst(50), 200);
    assert_eq!(steps.call(0, other.charge(1))[1], 0);
    assert!(!steps.charge(0, 1), "under the limit of before");
}
