//! Parts that all random walks of leased limits share: their round trips, their time, and the bounds of limits that change.

use std::ops::{Range, RangeInclusive};

use redis::Value;
use tollgate::{clock::Timestamp, remote::Script};

use super::lease_limits::{Limit, index};
use crate::support::{Random, Server, unpack};

/// A random sequence of events, whose time is moved and not waited for.
pub(super) trait Walk: Sized {
    /// The kind of a walk, and its fault.
    type Rules: Copy;

    /// Returns the source of the script, which is another one under some faults.
    fn script(rules: Self::Rules) -> String;

    fn new(seed: u64, rules: Self::Rules, steps: usize) -> Self;

    /// Walks on to the next command for Redis; `None` at the end.
    fn next(&mut self) -> Option<Command>;

    /// Takes the reply to the command.
    fn executed(&mut self, reply: Vec<i64>);

    /// Returns by how much the fullest moment is beyond a limit, and how full that is, as a part of the limit.
    fn excess(self) -> (i128, f64);
}

/// A command of a walk to Redis.
pub(super) enum Command {
    /// A key, the time of its server, and the arguments.
    Call(String, u64, Vec<Vec<u8>>),
    Delete(String),
}

/// Returns the source of the script with another text in a place.
pub(super) fn script_with(text: &str, other: &str) -> String {
    let script = Script::DECIDE.source();
    assert!(script.contains(text), "not in the script: {text}");
    script.replace(text, other)
}

/// The end of a walk.
pub(super) struct Walked {
    pub seed: u64,
    pub excess: i128,
    pub full: f64,
}

/// Walks, 64 side by side, so that their commands share round trips, and a walk ends long before the real time ends a key.
pub(super) fn walk<W: Walk>(
    server: &Server,
    rules: W::Rules,
    seeds: Range<u64>,
    steps: usize,
) -> Vec<Walked> {
    let seeds: Vec<u64> = seeds.collect();
    let sets = seeds.chunks(64);
    sets.flat_map(|seeds| walk_together::<W>(server, rules, seeds, steps))
        .collect()
}

fn walk_together<W: Walk>(
    server: &Server,
    rules: W::Rules,
    seeds: &[u64],
    steps: usize,
) -> Vec<Walked> {
    let mut connection = server.connection();
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(W::script(rules));
    let hash: String = load.query(&mut connection).expect("loaded");
    let walks = seeds
        .iter()
        .map(|seed| (*seed, W::new(*seed, rules, steps)));
    let mut walks: Vec<_> = walks.collect();
    let mut ended = Vec::new();
    while !walks.is_empty() {
        let mut pipe = redis::pipe();
        let mut going = Vec::new();
        for (seed, mut walk) in walks.drain(..) {
            match walk.next() {
                Some(Command::Call(key, now, arguments)) => {
                    let call = pipe.cmd("EVALSHA").arg(&hash).arg(1).arg(&key);
                    call.arg("@").arg(now).arg(arguments);
                    // A short window would end by the real time, if the machine is busy.
                    pipe.cmd("PERSIST").arg(&key).ignore();
                    going.push((seed, walk));
                }
                Some(Command::Delete(key)) => {
                    pipe.cmd("DEL").arg(key);
                    going.push((seed, walk));
                }
                None => {
                    let (excess, full) = walk.excess();
                    ended.push(Walked { seed, excess, full });
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

/// Checks that no walk exceeds its limits, and that enough of them reach the limit and use the overshoot.
#[track_caller]
pub(super) fn check<W: Walk>(server: &Server, rules: W::Rules, seeds: Range<u64>)
where
    W::Rules: std::fmt::Debug,
{
    let walks = walk::<W>(server, rules, seeds, 2_000);
    for Walked { seed, excess, .. } in &walks {
        assert!(*excess <= 0, "{rules:?}, walk {seed}: {excess}");
    }
    let reaching = |part: f64| walks.iter().filter(|walk| walk.full > part).count();
    let (reached, ahead) = (reaching(0.95), reaching(1.1));
    assert!(
        reached > walks.len() / 2,
        "{rules:?}: {reached} walks reach the limit"
    );
    assert!(
        ahead > walks.len() / 32,
        "{rules:?}: {ahead} walks use an overshoot of 20 % or more"
    );
}

/// Checks that a walk exceeds its limit.
#[track_caller]
pub(super) fn find<W: Walk>(server: &Server, rules: W::Rules)
where
    W::Rules: std::fmt::Debug,
{
    let found = (0..200).find(|set| {
        let walks = walk::<W>(server, rules, 64 * set..64 * (set + 1), 2_000);
        walks.iter().any(|walk| walk.excess > 0)
    });
    println!("{rules:?}: {found:?}");
    assert!(found.is_some(), "{rules:?}");
}

// === Time ===

/// A clock that is off, and runs at another speed.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock {
    offset: u64,
    /// Microseconds that it gains in a second.
    gains: i64,
    /// By how much it was set back.
    is_behind: u64,
}

impl Clock {
    /// Returns a clock that is off by hours, and up to 500 ppm faster or slower.
    pub fn random(random: &mut Random) -> Self {
        Self {
            offset: random.below(10_000 * SECOND),
            gains: random.below(1_001).cast_signed() - 500,
            is_behind: 0,
        }
    }

    pub fn set_back(&mut self, micros: u64) {
        self.is_behind += micros;
    }

    pub fn at(self, now: u64) -> Timestamp {
        let gained = (now - START).cast_signed() * self.gains / 1_000_000;
        Timestamp::from_micros((now + self.offset - self.is_behind).saturating_add_signed(gained))
    }
}

/// Returns how long nothing happens: mostly nothing, or until just before or after a turn ends, or a window, or a debt.
pub(super) fn pause(
    random: &mut Random,
    limit: &Limit,
    now: u64,
    (turn, ends_at): (u64, u64),
) -> u64 {
    let span = limit.span();
    let interval = span / limit.units();
    let to_turn = turn - now % turn;
    let to_end = match ends_at.checked_sub(now) {
        Some(left) if left > 0 => left,
        _ => span,
    };
    match random.below(40) {
        0..20 => 0,
        20..30 => random.below(2 * interval + 2),
        30..33 => random.below(50_000),
        33 => random.below(3 * span),
        34 => to_turn.saturating_sub(random.below(5_000)),
        35 => to_turn + random.below(5_000),
        36 => random.below(5 * turn / 2),
        37 => to_end.saturating_sub(random.below(5_000)),
        38 => to_end + random.below(5_000),
        _ => random.below(interval + 1),
    }
}

/// Returns how long a message is under way.
pub(super) fn delay(random: &mut Random) -> u64 {
    let longest = [0, 0, 0, 200, 5_000, 40_000, 200_000, 3 * SECOND][index(random, 8)];
    random.below(longest + 1)
}

pub(super) const START: u64 = 1_700_000_000_000_000;
pub(super) const SECOND: u64 = 1_000_000;

// === Limits that change ===

/// Two limits, between which a walk changes, and the times in which one of them counts alone.
///
/// Between two limits, a debt keeps its share. A unit takes at least its part of the larger limit, and a debt is paid off within the
/// span of the faster one: so that is the bound of all spans, [`Limit::larger`]. Once nobody and no message has the other limit, the
/// bound is that of the one that is left, from the first charge or lease that Redis admits then: the debt and all leases fit into it.
pub(super) struct Changes {
    pub limits: [Limit; 2],
    pub is_on: bool,
    /// The limit that everybody is to have.
    pub latest: usize,
    /// The limit that everybody has, and when it has admitted the first.
    alone: Option<usize>,
    since: Option<u64>,
    ended: Vec<(usize, u64, u64)>,
    /// How often one began to be alone, or ended.
    times: u64,
}

impl Changes {
    pub fn new(limits: [Limit; 2], is_on: bool) -> Self {
        Self {
            limits,
            is_on,
            latest: 0,
            alone: None,
            since: None,
            ended: Vec::new(),
            times: 0,
        }
    }

    /// Returns a number for the time in which everybody has this limit; `None` while two count.
    pub fn time_alone(&self) -> Option<u64> {
        (!self.is_on || self.alone.is_some()).then_some(self.times)
    }

    /// Changes the limit now and then.
    pub fn change(&mut self, random: &mut Random) {
        if self.is_on && random.below(80) == 0 {
            self.latest = 1 - self.latest;
        }
    }

    /// Notes the limits of everybody and of all messages. Nothing else happens in a microsecond in which one begins to be alone, or
    /// ends.
    pub fn note(&mut self, mut limits: impl Iterator<Item = usize>, now: &mut u64) {
        let first = limits.next();
        let alone = first.filter(|first| limits.all(|limit| limit == *first));
        if self.is_on && alone != self.alone {
            self.end(*now);
            self.alone = alone;
            self.times += 1;
            *now += 1;
        }
    }

    /// Notes that Redis has admitted a charge or leased units.
    pub fn admitted(&mut self, now: u64) {
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: u64) {
        if let (Some(limit), Some(since)) = (self.alone, self.since) {
            self.ended.push((limit, since, now));
        }
        self.since = None;
    }

    /// Returns bounds, and the times in which all spans must be within them.
    pub fn bounds(mut self, now: u64) -> Vec<(Limit, RangeInclusive<u64>)> {
        self.end(now);
        let [limit, other] = &self.limits;
        if !self.is_on {
            return vec![(limit.clone(), 0..=now)];
        }
        let alone = self.ended.iter();
        let alone =
            alone.map(|(limit, since, until)| (self.limits[*limit].clone(), *since..=*until));
        alone.chain([(limit.larger(other), 0..=now)]).collect()
    }
}
