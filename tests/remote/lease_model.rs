//! A small model of leases, explored completely: two holders, three units, and every order of what can happen, for any time.
//!
//! It has calls that are late or lost, and holders that crash; a grant takes all that is free, up to two units. `lease_walk.rs` tries
//! the real script and the real leases at random, also with held units, refunds, resets and lost states.
//!
//! ```text
//! a unit comes back in each tick, which is a turn; a lease ends with the turn after its own
//! ```
//!
//! Times are in ticks from now, so that states of different times are the same, and all of them are finite.

use std::{
    collections::HashSet,
    hash::{BuildHasherDefault, Hasher},
};

/// A rule that the model breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Units are charged when they are leased, and spent later.
    ChargeOnly,
    /// A report without a reply is sent again.
    ReportTwice,
    /// Units can be spent in the tick in which their lease has ended.
    SpendPastTheEnd,
}

/// The rules of a model.
#[derive(Clone, Copy, Debug)]
struct Rules {
    broken: Broken,
    capacity: u8,
    /// Units by which charges and leases may exceed the capacity while any are leased.
    overdraft: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    redis: Redis,
    holders: [Holder; 2],
    /// A report that nobody waits for, which Redis may still execute.
    stray: Option<Report>,
    /// The TAT of a bucket that is asked when units are really spent.
    truth: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Redis {
    tat: u8,
    /// Units that were leased in the turn before, and in this one.
    before: u8,
    latest: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    units: u8,
    spent: u8,
    /// How many turns ago the units were leased, at most [`OLD`].
    age: u8,
    report: Option<Report>,
    is_orphaned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Report {
    spent: u8,
    kept: u8,
    age: u8,
    gives_back: bool,
    /// Once Redis has executed it: the units that it leased, their age, and whether it came too late.
    reply: Option<(u8, u8, bool)>,
}

const WANT: u8 = 2;
/// The age at which a lease has ended.
const OLD: u8 = 2;

impl Redis {
    /// Begins the next turn: leases of the one before end, and count as spent.
    fn tick(&mut self) {
        self.tat = self.tat.saturating_sub(1);
        if self.before > 0 {
            self.tat += self.before;
        }
        (self.before, self.latest) = (self.latest, 0);
    }

    /// Returns how many units a charge can have.
    fn room(&self, rules: Rules) -> u8 {
        let leased = self.before + self.latest;
        let overdraft = if leased > 0 { rules.overdraft } else { 0 };
        (rules.capacity + overdraft).saturating_sub(self.tat + leased)
    }

    fn execute(&mut self, report: &mut Report, rules: Rules) {
        let reported = report.spent + report.kept;
        let mut is_late = false;
        if reported > 0 && rules.broken != Broken::ChargeOnly {
            let total = match report.age {
                0 => Some(&mut self.latest),
                1 => Some(&mut self.before),
                _ => None,
            };
            match total.filter(|total| **total >= reported) {
                Some(total) => {
                    *total -= reported;
                    self.tat += report.spent;
                    if !report.gives_back {
                        self.latest += report.kept;
                    }
                }
                None => is_late = true,
            }
        }
        let want = if report.gives_back { 0 } else { WANT };
        let free = rules.capacity + rules.overdraft;
        let granted = want.min(free.saturating_sub(self.tat + self.before + self.latest));
        if rules.broken == Broken::ChargeOnly {
            self.tat += granted;
        } else {
            self.latest += granted;
        }
        report.reply = Some((granted, 0, is_late));
    }
}

impl Report {
    fn tick(&mut self) {
        self.age = OLD.min(self.age + 1);
        if let Some((_, age, _)) = &mut self.reply {
            *age = OLD.min(*age + 1);
        }
    }
}

impl Holder {
    fn can_spend(&self, rules: Rules) -> bool {
        // The model forgets how old the units are, once they are too old: the next tick is one too late.
        self.units > 0
            && (self.age < OLD
                || matches!(rules.broken, Broken::ChargeOnly | Broken::SpendPastTheEnd))
    }

    fn begin_report(&mut self, gives_back: bool, rules: Rules) {
        if rules.broken != Broken::ChargeOnly && (self.age >= OLD || self.is_orphaned) {
            (self.units, self.spent, self.is_orphaned) = (0, 0, false);
        }
        self.report = Some(Report {
            spent: self.spent,
            kept: self.units,
            age: self.age,
            gives_back,
            reply: None,
        });
        if gives_back {
            self.units = 0;
        }
    }

    fn take_reply(&mut self, report: Report, (granted, age, is_late): (u8, u8, bool)) {
        self.report = None;
        if is_late {
            (self.units, self.spent) = (0, 0);
        } else {
            self.spent -= report.spent;
        }
        self.units += granted;
        self.age = age;
    }

    /// Nobody learns what became of the report.
    fn lose_report(&mut self) {
        let gave_back = self.report.take().is_some_and(|report| report.gives_back);
        self.spent = 0;
        self.units = if gave_back { 0 } else { self.units };
        self.is_orphaned = self.units > 0;
    }

    /// Returns the one of holders that behave alike.
    fn normal(self, rules: Rules) -> Self {
        if self.report.is_none() && !self.can_spend(rules) && (self.age >= OLD || self.spent == 0) {
            return Self::default();
        }
        self
    }

    fn packed(self) -> u64 {
        let report = self.report.map_or(0, |report| 1 | report.packed() << 1);
        let own = [self.units, self.spent, self.age, u8::from(self.is_orphaned)];
        own.iter()
            .fold(report, |packed, part| packed << 3 | u64::from(*part))
    }
}

impl Report {
    fn packed(self) -> u64 {
        let (reply, granted, age, is_late) = self
            .reply
            .map_or((0, 0, 0, false), |(granted, age, is_late)| {
                (1, granted, age, is_late)
            });
        let parts = [
            self.spent,
            self.kept,
            self.age,
            u8::from(self.gives_back),
            reply,
            granted,
            age,
            u8::from(is_late),
        ];
        parts
            .iter()
            .fold(0, |packed, part| packed << 3 | u64::from(*part))
    }
}

impl State {
    const START: Self = Self {
        redis: Redis {
            tat: 0,
            before: 0,
            latest: 0,
        },
        holders: [Holder {
            units: 0,
            spent: 0,
            age: 0,
            report: None,
            is_orphaned: false,
        }; 2],
        stray: None,
        truth: 0,
    };

    /// Returns the one of equal states that stands for all: the holders are alike.
    fn normal(mut self, rules: Rules) -> Self {
        self.holders = self.holders.map(|holder| holder.normal(rules));
        self.holders.sort_unstable();
        // One that is late frees nothing.
        self.stray = self.stray.filter(|stray| stray.age < OLD);
        self
    }

    fn packed(&self) -> (u128, u64) {
        let [one, other] = self.holders.map(|holder| u128::from(holder.packed()));
        let Redis {
            tat,
            before,
            latest,
        } = self.redis;
        let stray = self.stray.map_or(0, |report| 1 | report.packed() << 1);
        let parts = [tat, before, latest, self.truth];
        let rest = parts
            .iter()
            .fold(stray, |packed, part| packed << 4 | u64::from(*part));
        (one << 64 | other, rest)
    }

    fn tick(mut self) -> Self {
        self.redis.tick();
        self.truth = self.truth.saturating_sub(1);
        for holder in &mut self.holders {
            holder.age = OLD.min(holder.age + 1);
            holder.report.iter_mut().for_each(Report::tick);
        }
        self.stray.iter_mut().for_each(Report::tick);
        self
    }

    /// Admits a unit. Returns whether the bucket has room for it.
    fn admit(&mut self, rules: Rules) -> bool {
        self.truth += 1;
        self.truth <= rules.capacity + rules.overdraft
    }

    /// Returns all states that can follow.
    ///
    /// # Errors
    ///
    /// The first one in which more is admitted than the limit.
    fn followers(&self, rules: Rules) -> Result<Vec<Self>, Self> {
        let mut followers = vec![self.tick()];
        if self.redis.room(rules) > 0 {
            let mut charged = *self;
            charged.redis.tat += 1;
            if !charged.admit(rules) {
                return Err(charged);
            }
            followers.push(charged);
        }
        for number in 0..2 {
            let holder = self.holders[number];
            let changed = |change: &dyn Fn(&mut Holder)| {
                let mut next = *self;
                change(&mut next.holders[number]);
                next
            };
            if let Some(report) = holder.report {
                // Lost, or it comes later. A holder that crashes is one that does nothing more with its units.
                let is_under_way = report.reply.is_none() && report.age < OLD;
                let mut lost = *self;
                if is_under_way && report.spent + report.kept > 0 && lost.stray.is_none() {
                    lost.stray = Some(report);
                }
                lost.holders[number].lose_report();
                followers.push(lost);
                match report.reply {
                    Some(reply) => {
                        followers.push(changed(&|holder| holder.take_reply(report, reply)));
                        if rules.broken == Broken::ReportTwice {
                            let again = Report {
                                reply: None,
                                ..report
                            };
                            followers.push(changed(&|holder| holder.report = Some(again)));
                        }
                    }
                    None => {
                        let mut executed = *self;
                        if let Some(report) = &mut executed.holders[number].report {
                            executed.redis.execute(report, rules);
                        }
                        followers.push(executed);
                    }
                }
            } else {
                // Without units, nothing is given back.
                for gives_back in [false, holder != Holder::default()] {
                    followers.push(changed(&|holder| holder.begin_report(gives_back, rules)));
                }
            }
            if holder.can_spend(rules) {
                let mut spent = *self;
                spent.holders[number].units -= 1;
                spent.holders[number].spent += 1;
                if !spent.admit(rules) {
                    return Err(spent);
                }
                followers.push(spent);
            }
        }
        if let Some(mut stray) = self.stray {
            let mut executed = *self;
            executed.stray = None;
            executed.redis.execute(&mut stray, rules);
            followers.push(executed);
        }
        Ok(followers)
    }
}

/// Mixes packed states fast: there are millions.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("states are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64((number >> 64) as u64);
        self.write_u64(number as u64);
    }
}

/// Explores all states. Returns how many there are, and the most units that were charged in one.
///
/// # Errors
///
/// A state in which more is admitted than the limit.
fn explore(rules: Rules) -> Result<(usize, u8), State> {
    let mut seen = HashSet::with_hasher(BuildHasherDefault::<Mixer>::default());
    seen.insert(State::START.packed());
    let mut next = vec![State::START];
    let mut most = 0;
    while let Some(state) = next.pop() {
        most = most.max(state.truth);
        for follower in state.followers(rules)? {
            let follower = follower.normal(rules);
            if seen.insert(follower.packed()) {
                next.push(follower);
            }
        }
    }
    Ok((seen.len(), most))
}

#[test]
fn no_order_of_events_exceeds_the_limit_or_the_overshoot() {
    for (capacity, overdraft) in [(3, 0), (2, 1)] {
        let explored = explore(Rules {
            broken: Broken::Nothing,
            capacity,
            overdraft,
        });
        let (states, most) = explored.unwrap_or_else(|state| panic!("over the limit: {state:?}"));
        assert!(states > 1_000_000, "{states} states");
        assert_eq!(most, capacity + overdraft);
    }
}

#[test]
fn each_broken_rule_exceeds_the_limit() {
    for broken in [
        Broken::ChargeOnly,
        Broken::ReportTwice,
        Broken::SpendPastTheEnd,
    ] {
        let rules = Rules {
            broken,
            capacity: 3,
            overdraft: 0,
        };
        assert!(explore(rules).is_err(), "{broken:?}");
    }
}
