//! Random walks of the real scripts and the real reports of regions: units are spent, given back, refunded, forced and lost at the
//! worst moments, also without the home, and every span of what all regions admit is within the limit.
//!
//! The time is an argument of the scripts. Each region's server has a clock of its own, which is off by hours, runs up to 500 ppm
//! faster or slower, and may be set back, as may the home's. In some walks the limit changes, and some regions have the one of before
//! for a while. With [`Fault`], a region or a script breaks one of its rules: the walks find each.

use std::collections::HashSet;

use tollgate::{
    Quota,
    algorithm::{Counter, TokenBucket},
    clock::Timestamp,
    remote::{RegionTrial, Script, TrialTaken},
};

use super::{
    lease_limits::{Kind, Limit, index, text},
    region_bounds::{Event, Happened, excess},
    walks::{self, Changes, Clock, Command, SECOND, START},
};
use crate::support::{Random, Server};

/// A rule that regions break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A reset deletes what is leased.
    ResetDeletes,
    /// Units that were reported are refunded here.
    RefundOfReported,
    /// Units are given back, and spent.
    SpendWhatWasGivenBack,
    /// Units are spent after they have ended.
    SpendPastTheEnd,
    /// A change of the limit forgets what is leased.
    ChangeForgetsLeases,
    /// Units that were admitted without the home count as charged there, and are not.
    MergeIsNotSent,
    /// Units that were admitted without the home since a report began are forgotten at its end.
    OwedIsForgotten,
    /// Units are spent after the clock was set back.
    SpendAfterSetBack,
    /// Units are spent after the clock was set back to a time since the last report.
    SpendAfterSetBackSinceReport,
    /// A forced charge of the home is not made.
    ForcedIsFree,
}

const FAULTS: [Fault; 10] = [
    Fault::ResetDeletes,
    Fault::RefundOfReported,
    Fault::SpendWhatWasGivenBack,
    Fault::SpendPastTheEnd,
    Fault::ChangeForgetsLeases,
    Fault::MergeIsNotSent,
    Fault::OwedIsForgotten,
    Fault::SpendAfterSetBack,
    Fault::SpendAfterSetBackSinceReport,
    Fault::ForcedIsFree,
];

/// A region that is not the home.
struct Region {
    clock: Clock,
    /// Which of the limits it has.
    limit: usize,
    /// Charges that may be refunded.
    spent: Vec<Spent>,
    /// The latest token.
    token: u64,
    /// By how much the home's clock is ahead at least, as the latest report has it.
    ahead: Option<i64>,
    /// When the report under way began, by its server. Instances that die leave it so.
    reports: Option<Timestamp>,
    is_cut_off: bool,
    /// When the key was asked for or a report began the last time, by its server.
    seen_at: Timestamp,
    /// Units that it has admitted without the home; `None` if that is not known.
    owed: Option<u64>,
    /// Those of them that the home was charged for, which the region has not noted.
    unnoted: u64,
}

/// A charge that may be refunded.
#[derive(Clone, Copy)]
struct Spent {
    event: usize,
    units: u64,
    limit: usize,
    token: u64,
    /// The TAT in its reply.
    tat: u64,
    /// When one limit was alone.
    alone: Option<u64>,
}

/// A call between a region and the home, or back.
struct Message {
    region: usize,
    limit: usize,
    due_at: u64,
    step: Step,
}

enum Step {
    Report(Box<Report>),
    /// To the home: the arguments.
    Refund(Vec<Vec<u8>>),
}

/// A report under way: it goes to the home, and owed units with it, before or after; then back to the region.
#[derive(Clone)]
struct Report {
    trial: RegionTrial,
    is_merged: bool,
    /// Whether it has ended at the home, and whether it may have been executed there.
    has_ended: bool,
    was_sent: bool,
    paid: u64,
    /// When the home decided, and its reply.
    reply: Option<(u64, [u64; 8])>,
}

/// What a reply is for.
enum Waiting {
    Nothing,
    Home {
        units: u64,
        is_forced: bool,
    },
    Take {
        region: usize,
        units: u64,
        is_forced: bool,
    },
    Refund {
        region: usize,
        spent: Spent,
        units: u64,
    },
    Begin {
        region: usize,
        gives_back: bool,
    },
    Merge {
        region: usize,
        limit: usize,
        report: Box<Report>,
        from: u64,
        is_in_time: bool,
    },
    Report {
        region: usize,
        limit: usize,
        report: Box<Report>,
    },
    End {
        region: usize,
        paid: u64,
        is_noted: bool,
    },
}

struct Walk {
    fault: Fault,
    random: Random,
    changes: Changes,
    seed: u64,
    now: u64,
    steps: usize,
    /// By how much the home's clock was set back, and which limit its instances have.
    home_is_behind: u64,
    home_limit: usize,
    regions: Vec<Region>,
    /// The part of the limit that each admits without the home, in 1/1000.
    share: u64,
    messages: Vec<Message>,
    /// Merges that the home knows.
    merged: HashSet<u64>,
    waiting: Waiting,
    events: Vec<Event>,
    is_busy: bool,
    /// The TAT at the home, as the latest reply has it.
    tat: u64,
    /// Whether a region owed other units than those that it has admitted without the home.
    owes_others: bool,
}

/// That of a key which regions lease.
const TURN: u64 = 5 * SECOND;
const HOME: usize = 9;

impl walks::Walk for Walk {
    type Rules = Fault;

    fn script(fault: Fault) -> String {
        let turns = "turn_micros = turn < SHORT_TURNS and REGION_TURN or TURN";
        match fault {
            Fault::ChangeForgetsLeases => {
                let forget = "if sub(stored, 8, 11) ~= quota_tag then leases = nil end";
                walks::script_with(turns, &format!("{turns} {forget}"))
            }
            Fault::OwedIsForgotten => walks::script_with("owed > paid and owed - paid or 0", "0"),
            Fault::SpendAfterSetBack => walks::script_with(
                "began > now or asked_at > now or ends > now + 2 * REGION_TURN",
                "false",
            ),
            Fault::SpendAfterSetBackSinceReport => walks::script_with("asked_at > now", "false"),
            _ => Script::DECIDE.source().to_owned(),
        }
    }

    fn new(seed: u64, fault: Fault, steps: usize) -> Self {
        let mut random = Random(seed);
        let limit_changes = match fault {
            Fault::ChangeForgetsLeases => true,
            Fault::None => random.below(3) == 0,
            _ => false,
        };
        let mut limits = Limit::pair(Kind::Bucket, &mut random);
        if !limit_changes {
            let more = 4 << random.below(7);
            let capacity = 3 + random.below(more);
            let tenths = [5, 10, 20, 50, 100][index(&mut random, 5)];
            let per_second = (capacity * 10 / tenths + random.below(2)).max(1);
            let limit = limits[0].with(Quota::per_second(per_second).burst(capacity));
            limits = [limit.clone(), limit];
        }
        let clocks = (0..1 + random.below(3)).map(|_| Clock::random(&mut random));
        let regions = clocks.map(|clock| Region {
            clock,
            limit: 0,
            spent: Vec::new(),
            token: 0,
            ahead: None,
            reports: None,
            is_cut_off: false,
            seen_at: clock.at(START),
            owed: Some(0),
            unnoted: 0,
        });
        let regions: Vec<_> = regions.collect();
        let even = 1_000 / (regions.len() as u64 + 1);
        Self {
            fault,
            changes: Changes::new(limits, limit_changes),
            seed,
            now: START + random.below(10 * SECOND),
            share: [even, even, u16::MAX.into()][index(&mut random, 3)],
            random,
            steps,
            home_is_behind: 0,
            home_limit: 0,
            regions,
            messages: Vec::new(),
            merged: HashSet::new(),
            waiting: Waiting::Nothing,
            events: Vec::new(),
            is_busy: true,
            tat: 0,
            owes_others: false,
        }
    }

    fn next(&mut self) -> Option<Command> {
        while self.steps > 0 {
            self.steps -= 1;
            let region = index(&mut self.random, self.regions.len());
            self.learn(region);
            let limits = self.regions.iter().map(|region| region.limit);
            let limits = limits.chain(self.messages.iter().map(|message| message.limit));
            let limits = limits.chain([self.home_limit]);
            self.changes.note(limits, &mut self.now);
            let limit = &self.changes.limits[0];
            let full_at = self.tat + self.home_is_behind;
            let until = self.now + walks::pause(&mut self.random, limit, self.now, (TURN, full_at));
            let due = self.messages.iter().enumerate();
            let due = due.filter(|(_, message)| message.due_at <= until);
            let first = due.min_by_key(|(_, message)| message.due_at);
            let first = first.map(|(index, _)| index);
            let command = if let Some(index) = first {
                let message = self.messages.swap_remove(index);
                self.now = self.now.max(message.due_at);
                self.deliver(message)
            } else {
                self.now = until;
                self.act()
            };
            if command.is_some() {
                return command;
            }
        }
        None
    }

    fn executed(&mut self, reply: Vec<i64>) {
        let is_admitted = reply[1] == 1;
        let numbers: Vec<u64> = reply[3..].iter().map(|n| n.cast_unsigned()).collect();
        if let Waiting::Home { .. } | Waiting::Report { .. } | Waiting::Merge { .. } = self.waiting
        {
            self.tat = numbers[0];
        }
        match std::mem::replace(&mut self.waiting, Waiting::Nothing) {
            Waiting::Nothing => {}
            Waiting::Home { units, is_forced } => {
                if is_forced {
                    self.note(Happened::Forced(units));
                } else if is_admitted {
                    self.note(Happened::Admitted {
                        units,
                        at_home: true,
                    });
                    self.changes.admitted(self.now);
                }
            }
            Waiting::Take {
                region,
                units,
                is_forced,
            } => {
                let [tat, number, refunded] = [0, 1, 2].map(|place| numbers[place]);
                let token = RegionTrial::token(number, refunded);
                self.regions[region].token = token;
                if is_forced {
                    // Some of it was in the pot.
                    self.regions[region].owed = None;
                } else if is_admitted {
                    self.taken(region, units, (token, tat), number & 4 > 0);
                }
            }
            Waiting::Refund {
                region,
                spent,
                units,
            } => self.refunded(region, spent, units, (numbers[1], numbers[2])),
            Waiting::Begin { region, gives_back } => {
                self.check_owed(region, numbers[8]);
                let at = Timestamp::from_micros(reply[0].cast_unsigned());
                let numbers = numbers.try_into().expect("the reply to a step");
                let limit = self.regions[region].limit;
                if let Some(trial) =
                    RegionTrial::begin(&self.bucket(limit), at, numbers, gives_back)
                {
                    self.regions[region].reports = Some(at);
                    self.regions[region].seen_at = at;
                    let report = Report {
                        is_merged: trial.owed() == 0,
                        trial,
                        has_ended: false,
                        was_sent: false,
                        paid: 0,
                        reply: None,
                    };
                    self.post(region, limit, Step::Report(Box::new(report)));
                }
            }
            Waiting::Merge {
                region: index,
                limit,
                mut report,
                from,
                is_in_time,
            } => {
                let units = report.trial.owed();
                let region = &mut self.regions[index];
                // The rest is charged twice: the reply to an earlier merge was lost.
                let new = units.saturating_sub(region.unnoted);
                region.unnoted = region.unnoted.max(units);
                if is_in_time {
                    self.note(Happened::Merged(new, from));
                }
                if self.random.below(8) > 0 {
                    report.paid = units;
                }
                self.post(index, limit, Step::Report(report));
            }
            Waiting::Report {
                region,
                limit,
                mut report,
            } => {
                let numbers: [u64; 8] = numbers.try_into().expect("the reply to a report");
                // Twice the units that are leased now.
                if numbers[3] > 1 {
                    self.note(Happened::Admitted {
                        units: 0,
                        at_home: true,
                    });
                    self.changes.admitted(self.now);
                }
                if self.random.below(15) > 0 {
                    report.reply = Some((reply[0].cast_unsigned(), numbers));
                }
                self.post(region, limit, Step::Report(report));
            }
            Waiting::End {
                region: index,
                paid,
                is_noted,
            } => {
                let region = &mut self.regions[index];
                if is_noted {
                    region.owed = region.owed.map(|owed| owed.saturating_sub(paid));
                    region.unnoted = region.unnoted.saturating_sub(paid);
                }
                self.check_owed(index, numbers[8]);
            }
        }
    }

    fn excess(self) -> (i128, f64) {
        if self.owes_others {
            return (i128::MAX, 0.0);
        }
        // While the limit changes, the share does.
        let share = (self.share <= 1_000 && !self.changes.is_on).then_some(self.share);
        let (mut worst, mut fullest) = (i128::MIN, 0.0_f64);
        for (limit, times) in self.changes.bounds(self.now) {
            let events = self.events.iter().filter(|event| times.contains(&event.at));
            let (excess, full) = excess(&limit, share, events);
            (worst, fullest) = (worst.max(excess), fullest.max(full));
        }
        (worst, fullest)
    }
}

impl Walk {
    fn key(&self, place: usize) -> String {
        format!("regions:{{{}}}:{:?}:{place}", self.seed, self.fault)
    }

    fn time_at(&self, region: usize) -> u64 {
        self.regions[region].clock.at(self.now).as_micros()
    }

    fn bucket(&self, limit: usize) -> TokenBucket {
        match self.changes.limits[limit].policy.counter() {
            Counter::Bucket(bucket) => *bucket,
            other => unreachable!("{other:?}"),
        }
    }

    fn note(&mut self, happened: Happened) {
        let at = self.now;
        self.events.push(Event { at, happened });
    }

    fn at_home(&self, arguments: Vec<Vec<u8>>) -> Command {
        Command::Call(self.key(HOME), self.now - self.home_is_behind, arguments)
    }

    fn at_region(&self, region: usize, arguments: Vec<Vec<u8>>) -> Command {
        Command::Call(self.key(region), self.time_at(region), arguments)
    }

    fn act(&mut self) -> Option<Command> {
        let phase = if self.is_busy { 20 } else { 60 };
        if self.random.below(phase) == 0 {
            self.is_busy = !self.is_busy;
        }
        let region = index(&mut self.random, self.regions.len());
        match self.random.below(102) {
            0..58 if self.is_busy => Some(self.take(region, false)),
            58..72 if self.is_busy => Some(self.charge_at_home(false)),
            // A cost that turned out to be higher.
            72..74 if self.regions[region].is_cut_off => Some(self.take(region, true)),
            72..74 => Some(self.charge_at_home(true)),
            74..80 => self.refund(region),
            80..92 => Some(self.begin(region, false)),
            92..97 => Some(self.begin(region, true)),
            97 => {
                // Whoever made the report has died.
                self.messages.retain(|message| message.region != region);
                None
            }
            98 => Some(self.lose(region)),
            99 => self.reset(),
            100 => Some(self.set_back(region)),
            101 => {
                self.home_is_behind += self.random.below(5 * SECOND);
                None
            }
            _ => None,
        }
    }

    /// Changes the limit, those that a region and the home have, and whether the region can reach the home.
    fn learn(&mut self, region: usize) {
        self.changes.change(&mut self.random);
        if self.random.below(8) == 0 {
            self.regions[region].limit = self.changes.latest;
        }
        if self.random.below(8) == 0 {
            self.home_limit = self.changes.latest;
        }
        let phase = if self.regions[region].is_cut_off {
            20
        } else {
            100
        };
        if self.random.below(phase) == 0 {
            self.regions[region].is_cut_off = !self.regions[region].is_cut_off;
        }
    }

    fn cost(&mut self, limit: usize) -> u64 {
        let limit = &self.changes.limits[limit];
        match self.random.below(6) {
            0 => 1 + self.random.below(limit.units()),
            1 => {
                // About as much as there is room for.
                let room = limit.remaining([self.tat, 0, 0], self.now - self.home_is_behind);
                room.saturating_sub(self.random.below(8)).max(1)
            }
            2 | 3 => 1 + self.random.below(3),
            _ => 1,
        }
    }

    fn pot(&self, region: usize, limit: usize, units: u64) -> Vec<Vec<u8>> {
        let bucket = self.bucket(limit);
        let (each, micros) = bucket.refill();
        let is_cut_off = self.regions[region].is_cut_off;
        let share = if is_cut_off { self.share } else { 0 };
        let numbers = [units, bucket.span(), each, micros, share].map(text);
        [vec![b"p".to_vec()], numbers.to_vec()].concat()
    }

    fn take(&mut self, region: usize, is_forced: bool) -> Command {
        let units = self.cost(self.regions[region].limit);
        self.take_units(region, units, is_forced)
    }

    fn take_units(&mut self, region: usize, units: u64, is_forced: bool) -> Command {
        self.waiting = Waiting::Take {
            region,
            units,
            is_forced,
        };
        let mut arguments = self.pot(region, self.regions[region].limit, units);
        if is_forced {
            arguments.insert(0, b"+".to_vec());
        } else {
            self.regions[region].seen_at = Timestamp::from_micros(self.time_at(region));
        }
        self.at_region(region, arguments)
    }

    /// Notes units that were admitted in a region, by the token and the TAT in the reply.
    fn taken(&mut self, index: usize, units: u64, (token, tat): (u64, u64), is_owed: bool) {
        if is_owed {
            let at = self.time_at(index);
            let region = index;
            self.note(Happened::Apart { region, units, at });
        } else {
            let at_home = false;
            self.note(Happened::Admitted { units, at_home });
        }
        let (event, alone) = (self.events.len() - 1, self.changes.time_alone());
        let region = &mut self.regions[index];
        if is_owed {
            region.owed = region.owed.map(|owed| owed + units);
        }
        region.spent.push(Spent {
            event,
            units,
            limit: region.limit,
            token,
            tat,
            alone,
        });
    }

    fn charge_at_home(&mut self, is_forced: bool) -> Command {
        let units = self.cost(self.home_limit);
        self.waiting = Waiting::Home { units, is_forced };
        let mut arguments = self.changes.limits[self.home_limit].charge_in_units(units);
        if is_forced && self.fault != Fault::ForcedIsFree {
            arguments.insert(0, b"+".to_vec());
        }
        self.at_home(arguments)
    }

    fn refund(&mut self, region: usize) -> Option<Command> {
        let spent = &mut self.regions[region].spent;
        if spent.is_empty() {
            return None;
        }
        let newest = spent.len() - 1 - index(&mut self.random, spent.len().min(6));
        let mut spent = spent.remove(newest);
        // A debt that two limits have counted is paid off at two rates, and a refund trusts the end of its charge.
        if spent.alone.is_none() || spent.alone != self.changes.time_alone() {
            return None;
        }
        if self.fault == Fault::RefundOfReported {
            spent.token = self.regions[region].token;
            spent.tat = self.time_at(region) + self.bucket(spent.limit).span();
        }
        let units = 1 + self.random.below(spent.units);
        self.waiting = Waiting::Refund {
            region,
            spent,
            units,
        };
        let mut call = vec![b"-".to_vec(), text(spent.tat), text(spent.token)];
        call.extend(self.pot(region, spent.limit, units));
        Some(self.at_region(region, call))
    }

    fn begin(&mut self, region: usize, gives_back: bool) -> Command {
        self.waiting = Waiting::Begin { region, gives_back };
        let units = self.changes.limits[self.regions[region].limit].units();
        let reserve = self.random.below(4) * self.random.below(units / 2 + 1);
        let step = RegionTrial::first_step(gives_back, reserve);
        self.at_region(region, vec![b"r".to_vec(), step])
    }

    /// A region's server loses its states.
    fn lose(&mut self, index: usize) -> Command {
        let region = &mut self.regions[index];
        region.spent.clear();
        (region.reports, region.owed, region.unnoted) = (None, Some(0), 0);
        self.note(Happened::Lost { region: index });
        self.waiting = Waiting::Nothing;
        Command::Delete(self.key(index))
    }

    /// Sets the clock of a region's server back to before the region has seen the key the last time. The key is asked for, before the
    /// time is again what it was: else nothing shows that it was set back.
    fn set_back(&mut self, index: usize) -> Command {
        let more = [1, 10_000, SECOND, 100 * SECOND][self::index(&mut self.random, 4)];
        let region = &mut self.regions[index];
        let since = region.clock.at(self.now).as_micros() - region.seen_at.as_micros();
        region.clock.set_back(since + 1 + self.random.below(more));
        region.reports = None;
        self.take_units(index, 1, false)
    }

    fn reset(&mut self) -> Option<Command> {
        if self.random.below(4) > 0 {
            return None;
        }
        self.waiting = Waiting::Nothing;
        // Nothing else happens in this microsecond.
        self.now += 1;
        self.note(Happened::Reset);
        self.regions
            .iter_mut()
            .for_each(|region| region.spent.clear());
        // They would be those of later charges.
        self.messages
            .retain(|message| !matches!(message.step, Step::Refund(_)));
        if self.fault == Fault::ResetDeletes {
            return Some(Command::Delete(self.key(HOME)));
        }
        let limit = &self.changes.limits[self.home_limit];
        let mut report = [0; 37];
        report[30] = 2;
        report[31..33].copy_from_slice(&limit.overshoot.to_be_bytes());
        Some(self.at_home(limit.report(&report)))
    }

    fn post(&mut self, region: usize, limit: usize, step: Step) {
        let due_at = self.now + walks::delay(&mut self.random);
        self.messages.push(Message {
            region,
            limit,
            due_at,
            step,
        });
    }

    fn deliver(&mut self, message: Message) -> Option<Command> {
        let Message {
            region,
            limit,
            step,
            ..
        } = message;
        let mut report = match step {
            Step::Report(report) => report,
            Step::Refund(arguments) => {
                self.waiting = Waiting::Nothing;
                return Some(self.at_home(arguments));
            }
        };
        if self.regions[region].is_cut_off && !report.has_ended {
            (report.is_merged, report.has_ended) = (true, true);
            report.was_sent = self.random.below(2) == 0;
        }
        let merges_first = report.has_ended || self.random.below(2) == 0;
        match self.regions[region].ahead {
            Some(ahead) if !report.is_merged && merges_first => {
                report.is_merged = true;
                self.merge(region, limit, report, ahead)
            }
            _ if !report.has_ended => {
                report.has_ended = true;
                self.report(region, limit, report)
            }
            _ => Some(self.end(region, limit, &report)),
        }
    }

    /// Charges the home for what was admitted without it, unless the call is lost.
    fn merge(
        &mut self,
        region: usize,
        limit: usize,
        mut report: Box<Report>,
        ahead: i64,
    ) -> Option<Command> {
        let bucket = self.bucket(limit);
        let (admitted, id) = report.trial.merge(&bucket, ahead);
        let is_lost = self.random.below(8) == 0;
        if is_lost || self.merged.contains(&id) {
            report.paid = if is_lost { 0 } else { report.trial.owed() };
            self.post(region, limit, Step::Report(report));
            return None;
        }
        self.merged.insert(id);
        let tag = self.changes.limits[limit].tag(b'w');
        let (from, until) = (admitted.from, admitted.until.as_micros());
        self.waiting = Waiting::Merge {
            region,
            limit,
            report,
            // Once the home's clock was set back, it seems later than it was.
            from: self.now.min(from + self.home_is_behind),
            is_in_time: self.now - self.home_is_behind < until,
        };
        let amount = if self.fault == Fault::MergeIsNotSent {
            0
        } else {
            admitted.amount
        };
        let numbers = [amount, bucket.span()].map(text);
        let mark = [b"=".to_vec(), text(from), text(until), tag];
        Some(self.at_home([mark.to_vec(), numbers.to_vec()].concat()))
    }

    /// Sends a report to the home, unless it is lost.
    fn report(&mut self, region: usize, limit: usize, mut report: Box<Report>) -> Option<Command> {
        if self.random.below(20) == 0 {
            report.was_sent = self.random.below(2) == 0;
            self.post(region, limit, Step::Report(report));
            return None;
        }
        report.was_sent = true;
        let of = &self.changes.limits[limit];
        let mut bytes = report.trial.to_bytes(of.overshoot);
        if self.fault == Fault::SpendWhatWasGivenBack && bytes[30] == 1 {
            // The reserve too.
            bytes[33..].fill(0);
        }
        // As if it were alone and busy.
        let want = u32::try_from(self.random.below(of.units() + 4));
        if self.random.below(2) == 0 && bytes[30] == 3 {
            bytes[20..24].copy_from_slice(&want.expect("few").to_be_bytes());
            bytes[24..26].copy_from_slice(&1_024_u16.to_be_bytes());
        }
        let arguments = of.report(&bytes);
        self.waiting = Waiting::Report {
            region,
            limit,
            report,
        };
        Some(self.at_home(arguments))
    }

    /// Ends a report in its region.
    fn end(&mut self, index: usize, limit: usize, report: &Report) -> Command {
        let (trial, paid) = (&report.trial, report.paid);
        let now = self.regions[index].clock.at(self.now);
        let step = match report.reply {
            Some((decided_at, numbers)) => {
                let ahead = decided_at.wrapping_sub(now.as_micros()).cast_signed();
                self.regions[index].ahead = Some(ahead);
                let decided_at = Timestamp::from_micros(decided_at);
                let mut step = trial.replied(&self.bucket(limit), decided_at, numbers, paid);
                if self.fault == Fault::SpendPastTheEnd {
                    lengthen(&mut step);
                }
                step
            }
            None => trial.failed(report.was_sent, paid),
        };
        // Later, the region has given it up.
        let at = trial.began_at();
        let is_latest = self.regions[index].reports == Some(at);
        let is_noted = is_latest && now.since(at).as_micros() <= u128::from(2 * SECOND);
        if is_latest {
            self.regions[index].reports = None;
        }
        self.waiting = Waiting::End {
            region: index,
            paid,
            is_noted,
        };
        self.at_region(index, vec![b"r".to_vec(), step])
    }

    /// Compares what a region owes by its server.
    fn check_owed(&mut self, region: usize, owed: u64) {
        let expected = self.regions[region].owed.replace(owed);
        self.owes_others |= expected.is_some_and(|expected| expected != owed);
    }

    /// Takes the reply to a refund: if the home knows of the charge, it is the one to refund it.
    fn refunded(&mut self, index: usize, spent: Spent, units: u64, (number, refunded): (u64, u64)) {
        let (is_of_home, is_reported_now) = (number & 1 > 0, number & 4 > 0);
        let region = &mut self.regions[index];
        if is_of_home && is_reported_now {
            region.spent.push(spent);
            return;
        }
        if spent.token & 4 > 0 {
            region.owed = region.owed.map(|owed| owed.saturating_sub(units));
        }
        // As if they had not been spent.
        self.events[spent.event].refund(units);
        if let Some(ahead) = region.ahead.filter(|_| is_of_home) {
            let of = TrialTaken {
                generation: 0,
                token: spent.token,
                reset_at: Timestamp::from_micros(spent.tat.saturating_add_signed(ahead)),
            };
            let total = RegionTrial::refunded_before(spent.token, refunded);
            let arguments = self.changes.limits[spent.limit].refund(units, &of, total);
            self.post(index, spent.limit, Step::Refund(arguments));
        }
    }
}

/// Lets units end a second later, by the end of a report.
fn lengthen(step: &mut [u8]) {
    let lasts = &mut step[19..26];
    let micros = lasts
        .iter()
        .fold(0, |micros, byte| micros << 8 | u64::from(*byte));
    lasts.copy_from_slice(&(micros + SECOND).to_be_bytes()[1..]);
}

#[test]
fn no_span_of_all_regions_exceeds_the_limit() {
    walks::check::<Walk>(&Server::start(), Fault::None, 0..512);
}

#[test]
fn walks_of_regions_find_each_fault() {
    let server = Server::start();
    for fault in FAULTS {
        walks::find::<Walk>(&server, fault);
    }
}
