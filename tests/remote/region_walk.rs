//! Random walks of the real scripts and the real reports of regions: units are spent, given back, refunded and lost at the worst
//! moments, and every span of what all regions admit is within the limit.
//!
//! The time is an argument of the scripts. Each region's server has a clock of its own, which is off by hours and runs up to 500 ppm
//! faster or slower. With [`Fault`], a region breaks one of its rules: the walks find each.

use redis::Value;
use tollgate::{
    Quota,
    algorithm::TokenBucket,
    clock::Timestamp,
    remote::{RegionTrial, Script},
};

use crate::support::{Random, Server, unpack};

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
}

const FAULTS: [Fault; 4] = [
    Fault::ResetDeletes,
    Fault::RefundOfReported,
    Fault::SpendWhatWasGivenBack,
    Fault::SpendPastTheEnd,
];

/// A region that is not the home.
struct Region {
    /// By how much its server's clock is ahead, and how many microseconds a second it gains.
    offset: u64,
    gains: i64,
    /// Charges that may be refunded.
    spent: Vec<Spent>,
    /// The latest token.
    token: u64,
    /// By how much the home's clock is ahead at least, as the latest report has it.
    ahead: Option<i64>,
    /// The report under way. Instances that die leave it so.
    report: Option<RegionTrial>,
}

/// A charge that may be refunded.
#[derive(Clone, Copy)]
struct Spent {
    event: usize,
    units: u64,
    token: u64,
    /// The TAT in its reply.
    tat: u64,
}

/// A call between a region and the home, or back.
struct Message {
    region: usize,
    due_at: u64,
    step: Step,
}

enum Step {
    /// To the home.
    Report(RegionTrial),
    /// To the region: the reply, or none, and when the home decided.
    End(Vec<u8>, Option<u64>),
    /// To the home: the arguments.
    Refund(Vec<Vec<u8>>),
}

/// What a reply is for.
enum Waiting {
    Nothing,
    Home {
        units: u64,
    },
    Take {
        region: usize,
        units: u64,
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
    Report {
        region: usize,
        trial: RegionTrial,
    },
}

struct Walk {
    fault: Fault,
    random: Random,
    bucket: TokenBucket,
    overshoot: u16,
    seed: u64,
    now: u64,
    steps: usize,
    regions: Vec<Region>,
    messages: Vec<Message>,
    waiting: Waiting,
    /// When units were admitted, and how many.
    admitted: Vec<(u64, u64)>,
    resets: Vec<u64>,
    is_busy: bool,
    /// The TAT at the home, as the latest reply has it.
    tat: u64,
}

/// A command of a walk: the place of the key, the time of its server, and the arguments.
enum Command {
    Call(usize, u64, Vec<Vec<u8>>),
    Delete(usize),
}

const START: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;
const HOME: usize = 9;

impl Walk {
    fn new(seed: u64, fault: Fault, steps: usize) -> Self {
        let mut random = Random(seed);
        let more = 4 << random.below(7);
        let capacity = 3 + random.below(more);
        let tenths = [5, 10, 20, 50, 100][index(&mut random, 5)];
        let per_second = (capacity * 10 / tenths + random.below(2)).max(1);
        let quota = Quota::per_second(per_second).burst(capacity);
        let regions = (0..1 + random.below(3)).map(|_| Region {
            offset: random.below(10_000 * SECOND),
            gains: random.below(1_001).cast_signed() - 500,
            spent: Vec::new(),
            token: 0,
            ahead: None,
            report: None,
        });
        let regions = regions.collect();
        Self {
            fault,
            bucket: TokenBucket::new(quota).expect("a usable quota"),
            overshoot: [0, 0, 0, 20, 200, 1_000][index(&mut random, 6)],
            seed,
            now: START + random.below(10 * SECOND),
            random,
            steps,
            regions,
            messages: Vec::new(),
            waiting: Waiting::Nothing,
            admitted: Vec::new(),
            resets: Vec::new(),
            is_busy: true,
            tat: 0,
        }
    }

    fn key(&self, place: usize) -> String {
        format!("regions:{{{}}}:{:?}:{place}", self.seed, self.fault)
    }

    fn time_at(&self, region: usize) -> u64 {
        let Region { offset, gains, .. } = self.regions[region];
        let gained = (self.now - START).cast_signed() * gains / 1_000_000;
        (self.now + offset).saturating_add_signed(gained)
    }

    /// Walks on to the next command; `None` at the end.
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
            let message = self.messages.swap_remove(index);
            self.now = self.now.max(message.due_at);
            return Some(self.deliver(message));
        }
        None
    }

    fn pause(&mut self) -> u64 {
        let (units, micros) = self.bucket.refill();
        let interval = micros / units;
        let to_turn = SECOND - self.now % SECOND;
        match self.random.below(40) {
            0..24 => 0,
            24..30 => self.random.below(2 * interval + 2),
            30..33 => self.random.below(50_000),
            33 => self.random.below(2 * self.bucket.span()),
            34 => to_turn.saturating_sub(self.random.below(5_000)),
            35 => to_turn + self.random.below(5_000),
            36 => self.random.below(5 * SECOND / 2),
            _ => self.random.below(interval + 1),
        }
    }

    fn act(&mut self) -> Option<Command> {
        let phase = if self.is_busy { 20 } else { 60 };
        if self.random.below(phase) == 0 {
            self.is_busy = !self.is_busy;
        }
        let region = index(&mut self.random, self.regions.len());
        match self.random.below(100) {
            0..60 if self.is_busy => Some(self.take(region)),
            60..74 if self.is_busy => Some(self.charge_at_home()),
            74..80 => self.refund(region),
            80..92 => Some(self.begin(region, false)),
            92..97 => Some(self.begin(region, true)),
            97 => {
                // Whoever made the report has died.
                self.regions[region].report = None;
                self.messages.retain(|message| message.region != region);
                None
            }
            98 => Some(self.lose(region)),
            99 => self.reset(),
            _ => None,
        }
    }

    fn cost(&mut self) -> u64 {
        match self.random.below(6) {
            0 => 1 + self.random.below(self.bucket.capacity()),
            1 => {
                // About as much as there is room for.
                let (units, micros) = self.bucket.refill();
                let full = self.now + self.bucket.span();
                let room = (full - self.tat.clamp(self.now, full)) * units / micros;
                room.saturating_sub(self.random.below(8)).max(1)
            }
            2 | 3 => 1 + self.random.below(3),
            _ => 1,
        }
    }

    fn pot(&self, region: usize, units: u64) -> Vec<Vec<u8>> {
        let mut time = self.time_at(region);
        if self.fault == Fault::SpendPastTheEnd {
            time -= SECOND;
        }
        let (each, micros) = self.bucket.refill();
        let numbers = [units, self.bucket.span(), each, micros, 0].map(text);
        [vec![text(time), b"p".to_vec()], numbers.to_vec()].concat()
    }

    fn take(&mut self, region: usize) -> Command {
        let units = self.cost();
        self.waiting = Waiting::Take { region, units };
        let mut arguments = self.pot(region, units);
        let time = arguments.remove(0);
        let time = String::from_utf8(time).expect("digits").parse();
        Command::Call(region, time.expect("a number"), arguments)
    }

    fn charge_at_home(&mut self) -> Command {
        let units = self.cost();
        self.waiting = Waiting::Home { units };
        let (each, micros) = self.bucket.refill();
        let numbers = [units, self.bucket.span(), each, micros].map(text);
        let arguments = [vec![self.tagged(b'l')], numbers.to_vec()].concat();
        Command::Call(HOME, self.now, arguments)
    }

    fn refund(&mut self, region: usize) -> Option<Command> {
        let spent = &mut self.regions[region].spent;
        if spent.is_empty() {
            return None;
        }
        let newest = spent.len() - 1 - index(&mut self.random, spent.len().min(6));
        let mut spent = spent.remove(newest);
        if self.fault == Fault::RefundOfReported {
            spent.token = self.regions[region].token;
            spent.tat = self.time_at(region) + self.bucket.span();
        }
        let units = 1 + self.random.below(spent.units);
        self.waiting = Waiting::Refund {
            region,
            spent,
            units,
        };
        let mut arguments = self.pot(region, units);
        let mut call = vec![b"-".to_vec(), text(spent.tat), text(spent.token)];
        call.extend(arguments.split_off(1));
        Some(Command::Call(region, self.time_at(region), call))
    }

    fn begin(&mut self, region: usize, gives_back: bool) -> Command {
        self.waiting = Waiting::Begin { region, gives_back };
        let gives_back = gives_back && self.fault != Fault::SpendWhatWasGivenBack;
        let step = RegionTrial::first_step(gives_back);
        Command::Call(region, self.time_at(region), vec![b"r".to_vec(), step])
    }

    /// A region's server loses its states.
    fn lose(&mut self, region: usize) -> Command {
        self.regions[region].spent.clear();
        self.waiting = Waiting::Nothing;
        Command::Delete(region)
    }

    fn reset(&mut self) -> Option<Command> {
        if self.random.below(4) > 0 {
            return None;
        }
        self.waiting = Waiting::Nothing;
        // Nothing else happens in this microsecond.
        self.now += 1;
        self.resets.push(self.now);
        self.regions
            .iter_mut()
            .for_each(|region| region.spent.clear());
        // They would be those of later charges.
        self.messages
            .retain(|message| !matches!(message.step, Step::Refund(_)));
        if self.fault == Fault::ResetDeletes {
            return Some(Command::Delete(HOME));
        }
        let mut report = [0; 37];
        report[30] = 2;
        report[31..33].copy_from_slice(&self.overshoot.to_be_bytes());
        Some(Command::Call(HOME, self.now, self.lease(&report)))
    }

    fn lease(&self, report: &[u8; 37]) -> Vec<Vec<u8>> {
        let (units, micros) = self.bucket.refill();
        let numbers = [0, self.bucket.span(), units, micros].map(text);
        let report = vec![b"&".to_vec(), report.to_vec(), self.tagged(b'l')];
        [report, numbers.to_vec()].concat()
    }

    fn tagged(&self, letter: u8) -> Vec<u8> {
        [&[letter], self.bucket.quota_tag().to_be_bytes().as_slice()].concat()
    }

    fn deliver(&mut self, message: Message) -> Command {
        let region = message.region;
        match message.step {
            Step::Report(trial) => {
                let mut report = trial.to_bytes(self.overshoot);
                // As if it were alone and busy.
                let want = u32::try_from(self.random.below(self.bucket.capacity() + 4));
                if self.random.below(2) == 0 && report[30] == 3 {
                    report[20..24].copy_from_slice(&want.expect("few").to_be_bytes());
                    report[24..26].copy_from_slice(&1_024_u16.to_be_bytes());
                }
                let arguments = self.lease(&report);
                self.waiting = Waiting::Report { region, trial };
                Command::Call(HOME, self.now, arguments)
            }
            Step::End(step, decided_at) => {
                let now = self.time_at(region);
                self.regions[region].report = None;
                if let Some(decided_at) = decided_at {
                    let ahead = decided_at.wrapping_sub(now).cast_signed();
                    self.regions[region].ahead = Some(ahead);
                }
                self.waiting = Waiting::Nothing;
                Command::Call(region, now, vec![b"r".to_vec(), step])
            }
            Step::Refund(arguments) => {
                self.waiting = Waiting::Nothing;
                Command::Call(HOME, self.now, arguments)
            }
        }
    }

    fn delay(&mut self) -> u64 {
        let longest = [0, 0, 5_000, 40_000, 200_000, 3 * SECOND][index(&mut self.random, 6)];
        self.random.below(longest + 1)
    }

    /// Takes the reply to the command.
    fn executed(&mut self, reply: &[i64]) {
        let is_admitted = reply[1] == 1;
        if matches!(self.waiting, Waiting::Home { .. } | Waiting::Report { .. }) {
            self.tat = reply[3].cast_unsigned();
        }
        match std::mem::replace(&mut self.waiting, Waiting::Nothing) {
            Waiting::Nothing => {}
            Waiting::Home { units } => {
                if is_admitted {
                    self.admitted.push((self.now, units));
                }
            }
            Waiting::Take { region, units } => {
                let [tat, number, refunded] = [3, 4, 5].map(|place| reply[place].cast_unsigned());
                let token = RegionTrial::token(number, refunded);
                self.regions[region].token = token;
                if is_admitted {
                    self.admitted.push((self.now, units));
                    self.regions[region].spent.push(Spent {
                        event: self.admitted.len() - 1,
                        units,
                        token,
                        tat,
                    });
                }
            }
            Waiting::Refund {
                region,
                spent,
                units,
            } => self.refunded(region, spent, units, reply),
            Waiting::Begin { region, gives_back } => {
                let numbers: Vec<u64> = reply[3..].iter().map(|n| n.cast_unsigned()).collect();
                let numbers = numbers.try_into().expect("the reply to a step");
                let at = Timestamp::from_micros(reply[0].cast_unsigned());
                if let Some(trial) = RegionTrial::begin(&self.bucket, at, numbers, gives_back) {
                    self.regions[region].report = Some(trial.clone());
                    let fate = self.random.below(20);
                    let step = match fate {
                        0 => Step::End(trial.failed(true), None),
                        1 => Step::End(trial.failed(false), None),
                        _ => Step::Report(trial),
                    };
                    self.post(region, step);
                }
            }
            Waiting::Report { region, trial } => {
                let numbers: Vec<u64> = reply[3..].iter().map(|n| n.cast_unsigned()).collect();
                let numbers = numbers.try_into().expect("the reply to a report");
                let decided_at = Timestamp::from_micros(reply[0].cast_unsigned());
                let is_lost = self.random.below(15) == 0;
                let step = if is_lost {
                    Step::End(trial.failed(true), None)
                } else {
                    let step = trial.replied(&self.bucket, decided_at, numbers);
                    Step::End(step, Some(decided_at.as_micros()))
                };
                self.post(region, step);
            }
        }
    }

    fn post(&mut self, region: usize, step: Step) {
        let due_at = self.now + self.delay();
        self.messages.push(Message {
            region,
            due_at,
            step,
        });
    }

    /// Takes the reply to a refund: if the home knows of the charge, it is the one to refund it.
    fn refunded(&mut self, region: usize, spent: Spent, units: u64, reply: &[i64]) {
        let [number, refunded] = [4, 5].map(|place| reply[place].cast_unsigned());
        let (is_of_home, is_reported_now) = (number & 1 > 0, number & 4 > 0);
        if is_of_home && is_reported_now {
            self.regions[region].spent.push(spent);
            return;
        }
        // As if they had not been spent.
        self.admitted[spent.event].1 -= units;
        if let Some(ahead) = self.regions[region].ahead.filter(|_| is_of_home) {
            let (each, micros) = self.bucket.refill();
            let arguments = vec![
                b"-".to_vec(),
                text(spent.tat.saturating_add_signed(ahead)),
                text(RegionTrial::refunded_before(spent.token, refunded)),
                self.tagged(b'w'),
                text(units * micros / each),
                text(self.bucket.span()),
            ];
            self.post(region, Step::Refund(arguments));
        }
    }

    /// Returns the microseconds by which the fullest moment of a bucket that admits the same is beyond its span and the overshoot,
    /// and how full it was, as a part of the span.
    fn excess(self) -> (i128, f64) {
        let (units, micros) = self.bucket.refill();
        let scale = |number: u64| i128::from(number) * i128::from(units);
        let span = self.bucket.span();
        // Charges walk a lattice of whole microseconds, on which a TAT may lose one.
        let ahead = span * u64::from(self.overshoot) / 1_000;
        let room = scale(span + ahead + u64::from(units > 1));
        let (mut level, mut worst) = (0, i128::MIN);
        let mut resets = self.resets.into_iter().peekable();
        for (at, admitted) in self.admitted {
            while resets.next_if(|reset| *reset <= at).is_some() {
                level = 0;
            }
            level = level.max(scale(at)) + i128::from(admitted) * i128::from(micros);
            worst = worst.max(level - scale(at) - room);
        }
        (worst, (worst + room) as f64 / scale(span) as f64)
    }
}

fn index(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a usize")
}

fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// Walks, 64 side by side. Returns the excess of each, and how full its bucket was.
fn walk(
    server: &Server,
    fault: Fault,
    seeds: std::ops::Range<u64>,
    steps: usize,
) -> Vec<(u64, i128, f64)> {
    let mut connection = server.connection();
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(Script::DECIDE.source());
    let hash: String = load.query(&mut connection).expect("loaded");
    let seeds: Vec<u64> = seeds.collect();
    let mut ended = Vec::new();
    for set in seeds.chunks(64) {
        let mut walks: Vec<Walk> = set
            .iter()
            .map(|seed| Walk::new(*seed, fault, steps))
            .collect();
        while !walks.is_empty() {
            let mut pipe = redis::pipe();
            let mut going = Vec::new();
            for mut walk in walks.drain(..) {
                match walk.next() {
                    Some(Command::Call(place, now, arguments)) => {
                        let call = pipe.cmd("EVALSHA").arg(&hash).arg(1).arg(walk.key(place));
                        call.arg("@").arg(now).arg(arguments);
                        going.push(walk);
                    }
                    Some(Command::Delete(place)) => {
                        pipe.cmd("DEL").arg(walk.key(place));
                        going.push(walk);
                    }
                    None => {
                        let seed = walk.seed;
                        let (excess, full) = walk.excess();
                        ended.push((seed, excess, full));
                    }
                }
            }
            if going.is_empty() {
                break;
            }
            let replies: Vec<Value> = pipe.query(&mut connection).expect("replies");
            for (walk, reply) in going.iter_mut().zip(&replies) {
                if let Value::BulkString(_) = reply {
                    walk.executed(&unpack(reply));
                }
            }
            walks = going;
        }
    }
    ended
}

#[test]
fn no_span_of_all_regions_exceeds_the_limit() {
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
        "{ahead} walks use an overshoot of 20 %"
    );
}

#[test]
fn walks_of_regions_find_each_fault() {
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
