//! The Lua script against its Rust twins: equal answers, step by step.
//!
//! Slots with leases have no twin in the crate, so their twin is here ([`HeldSlots`]): the holders and the ends of
//! their leases. The values that the script stores are compared with it too.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{Config, FileFailurePersistence, TestRunner},
};
use redis::Value;
use tollgate::{
    Quota,
    algorithm::{
        Admitted, Algorithm, BucketState, Concurrency, Counter, Counting, LogState, QueueLimits,
        RefundToken, Refunded, SlidingState, WindowStart, WindowState,
    },
    clock::Timestamp,
    decision::{Retry, Usage},
    policy::{BanRecord, Penalty},
    remote::Script,
};

use crate::support::{Random, Server, unpack};

const START: u64 = 1_700_000_000_000_000;

/// One policy: its counter, whether it counts denied attempts, and its penalty.
type Plan = (Counter, bool, Option<Penalty>);

/// One step of a run.
#[derive(Clone, Debug)]
enum Step {
    /// A policy changes its limit.
    Change(usize, Counter),
    /// A policy changes its penalty.
    ChangePenalty(usize, Option<Penalty>),
    /// The time changes by this much, and these charges are decided together (policy, key, cost).
    Decide(i64, Vec<(usize, usize, u64)>),
    /// Units that were admitted elsewhere are added.
    Merge(Merge),
    /// The time changes by this much, and an earlier charge is corrected: its index from the end, the units, and
    /// whether they are charged or refunded. Slots are renewed or released.
    Settle(i64, usize, u64, bool),
}

/// Units that were admitted elsewhere: the change of the time, the policy and the key, the amount, the least usage
/// before, and until when they count.
type Merge = (i64, usize, usize, u64, u64, i64);

/// A charge to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlannedCharge {
    policy: usize,
    key: usize,
    cost: u64,
    /// The ticket of the slots that it takes.
    ticket: u64,
}

/// A charge that was made, with its mark.
#[derive(Clone, Copy, Debug)]
struct MadeCharge {
    charge: PlannedCharge,
    mark: RefundToken,
    /// Whether a renewal takes missing slots again, and whether a release bars the ticket.
    flag: bool,
}

/// The result of a charge.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ChargeResult {
    has_room: bool,
    /// The units left; for concurrency, the slots in use.
    units: u64,
    /// When all units are back.
    reset_at: u64,
    retry: Retry,
    /// Total units refunded on the key before.
    refunded: u64,
    /// The end of the key's ban, or 0.
    banned_until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bucket,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    Concurrency,
}

const KINDS: [Kind; 5] = [
    Kind::Bucket,
    Kind::FixedWindow,
    Kind::SlidingLog,
    Kind::SlidingWindow,
    Kind::Concurrency,
];

fn any_bucket() -> impl Strategy<Value = Counter> {
    let odd = [
        Quota::per_day(1),
        Quota::per_day(999_983),
        Quota::per_minute(7),
        Quota::per_second(3),
        Quota::per_second(70_000),
        Quota::per_second(999_983),
        Quota::per_second(1_000_000),
        Quota::new(5, Duration::from_nanos(7_777_777)),
    ];
    let plain = (
        prop::sample::select(vec![
            1_000_u64,
            1_000_000,
            60_000_000,
            3_600_000_000,
            86_400_000_000,
        ]),
        0.0_f64..1.0,
    )
        .prop_map(|(period, portion)| {
            let count = (period as f64).powf(portion) as u64;
            Quota::new(count.clamp(1, period), Duration::from_micros(period))
        });
    (
        prop_oneof![prop::sample::select(odd.to_vec()), plain],
        1_u64..500,
        0_u64..30,
    )
        .prop_map(|(quota, burst, dice)| {
            let algorithm = match dice {
                0..10 => Algorithm::TokenBucket,
                10..20 => Algorithm::LeakyBucket,
                length => Algorithm::LeakyQueue(QueueLimits::new(length, Duration::MAX)),
            };
            Counter::new(quota.burst(burst), algorithm).expect("a usable quota")
        })
}

fn any_window(kind: Kind) -> impl Strategy<Value = Counter> {
    let millis = prop_oneof![
        Just(1_u64),
        1_u64..5_000,
        Just(1_000),
        Just(60_000),
        Just(3_600_000),
        Just(86_400_000),
        Just(31 * 86_400_000),
        Just(366 * 86_400_000),
        1_u64..90_000_000,
    ];
    let limit = prop_oneof![4 => 1_u64..20, 2 => 1_u64..1_000, 1 => 1_u64..10_000];
    let opening = prop::sample::select(vec![WindowStart::Clock, WindowStart::FirstHit]);
    (millis, limit, opening, any::<u8>()).prop_map(move |(millis, limit, opening, dice)| {
        let quota = Quota::new(limit, Duration::from_millis(millis));
        let counter = match kind {
            Kind::FixedWindow if dice < 50 => Counter::new(
                Quota::per_month(limit),
                Algorithm::FixedWindow(WindowStart::Month),
            ),
            Kind::FixedWindow => Counter::new(quota, Algorithm::FixedWindow(opening)),
            Kind::SlidingLog => Counter::new(quota, Algorithm::SlidingLog),
            Kind::SlidingWindow => Counter::new(quota, Algorithm::SlidingWindow),
            Kind::Bucket | Kind::Concurrency => unreachable!("they have a strategy of their own"),
        };
        counter.expect("a usable quota")
    })
}

fn any_slots() -> impl Strategy<Value = Counter> {
    let millis = prop_oneof![
        Just(100_u64),
        100_u64..5_000,
        Just(30_000),
        Just(86_400_000),
        100_u64..86_400_000,
    ];
    let limit = prop_oneof![6 => 1_u64..40, 2 => 1_u64..1_000, 1 => 1_u64..=Concurrency::MAX_LIMIT];
    (millis, limit).prop_map(|(millis, limit)| {
        let lease = Duration::from_millis(millis);
        let counter = Counter::new(Quota::in_flight(limit), Algorithm::Concurrency { lease });
        counter.expect("a usable quota")
    })
}

fn any_counter(kind: Kind) -> BoxedStrategy<Counter> {
    match kind {
        Kind::Bucket => any_bucket().boxed(),
        Kind::Concurrency => any_slots().boxed(),
        kind => any_window(kind).boxed(),
    }
}

/// Returns changes of the time in microseconds: mostly small steps forward, sometimes back, sometimes far.
fn any_jump() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => Just(0_i64),
        8 => 0_i64..2_000,
        8 => 0_i64..2_000_000,
        4 => 0_i64..3_600_000_000,
        2 => -2_000_000_i64..0,
        1 => -90_000_000_000_i64..0,
        1 => 0_i64..200_000_000_000,
        1 => 0_i64..5_000_000_000_000,
    ]
}

fn any_cost() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(1_u64), 3 => 0_u64..20, 1 => 0_u64..1_000, 1 => Just(1_u64 << 52)]
}

/// Returns four policies, each of one of these kinds, and steps with them.
fn any_run(
    kinds: &'static [Kind],
    groups: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = (Vec<Plan>, Vec<Step>)> {
    prop::collection::vec(prop::sample::select(kinds), 4).prop_flat_map(move |kinds| {
        let plans: Vec<_> = kinds
            .iter()
            .map(|kind| {
                let plan = (any_counter(*kind), any::<bool>());
                plan.prop_map(|(counter, counts_denied)| (counter, counts_denied, None))
            })
            .collect();
        let changes: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(index, kind)| {
                any_counter(*kind)
                    .prop_map(move |counter| Step::Change(index, counter))
                    .boxed()
            })
            .collect();
        let charge = (0_usize..4, 0_usize..2, any_cost());
        let decide = (any_jump(), prop::collection::vec(charge, groups.clone()))
            .prop_map(|(jump, charges)| Step::Decide(jump, charges));
        let settle = (any_jump(), 0_usize..6, any_cost(), any::<bool>())
            .prop_map(|(jump, charge, units, more)| Step::Settle(jump, charge, units, more));
        let change = prop::strategy::Union::new(changes);
        let step = prop_oneof![24 => decide, 5 => settle, 3 => any_merge(4), 1 => change];
        (plans, prop::collection::vec(step, 300))
    })
}

/// Returns runs whose policies may have penalties, and change them.
fn any_penalised_run() -> impl Strategy<Value = (Vec<Plan>, Vec<Step>)> {
    let penalties = prop::collection::vec(any_penalty(), 4);
    let change = (0_usize..300, 0_usize..4, any_penalty());
    let changes = prop::collection::vec(change, 0..20);
    (any_run(&KINDS, 1..=4), penalties, changes).prop_map(
        |((mut plans, mut steps), penalties, changes)| {
            for (plan, penalty) in plans.iter_mut().zip(penalties) {
                plan.2 = penalty;
            }
            for (place, policy, penalty) in changes {
                steps.insert(place, Step::ChangePenalty(policy, penalty));
            }
            (plans, steps)
        },
    )
}

fn any_penalty() -> impl Strategy<Value = Option<Penalty>> {
    let micros = || {
        let micros = prop_oneof![
            4 => 1_000_u64..10_000_000,
            4 => 1_000_u64..100_000_000_000,
            1 => Just(366 * 86_400_000_000),
        ];
        micros.prop_map(Duration::from_micros)
    };
    let lengths = (micros(), micros(), micros(), micros());
    let penalty = (1_u32..4, lengths, 1_u32..=100).prop_map(|(denials, lengths, factor)| {
        let (within, ban, longest, forgiven_after) = lengths;
        let penalty = Penalty::after(denials, within)
            .ban(ban.min(longest))
            .growing(factor, longest.max(ban))
            .forgiven_after(forgiven_after);
        penalty.validate().expect("usable");
        penalty
    });
    prop::option::weighted(0.8, penalty)
}

/// Returns merges with one of this many policies. Amounts are units or the microseconds of a bucket; 0 restores.
fn any_merge(policies: usize) -> impl Strategy<Value = Step> {
    let amount = prop_oneof![2 => Just(0_u64), 4 => 1_u64..20, 2 => 1_u64..10_000, 2 => 1_u64..10_000_000_000];
    let from = prop_oneof![2 => Just(0_u64), 2 => 0_u64..20, 2 => 0_u64..10_000_000_000];
    let left = prop_oneof![1 => -1_000_i64..1_000, 6 => 0_i64..200_000_000_000];
    (any_jump(), 0..policies, 0_usize..2, amount, from, left).prop_map(Step::Merge)
}

/// Returns runs on queues whose callers leave in any order, so that free turns are kept, joined, lost and taken back.
fn any_queue_run() -> impl Strategy<Value = (Vec<Plan>, Vec<Step>)> {
    let queue = || {
        let quota = prop::sample::select(vec![
            Quota::per_second(10),
            Quota::per_second(3),
            Quota::per_day(999_983),
        ]);
        (quota, 1_u64..4, 1_u64..200).prop_map(|(quota, burst, length)| {
            let queue = Algorithm::LeakyQueue(QueueLimits::new(length, Duration::MAX));
            Counter::new(quota.burst(burst), queue).expect("a usable quota")
        })
    };
    let plan = || (queue(), any::<bool>(), Just(None)).boxed();
    let jump =
        || prop_oneof![9 => 0_i64..2_000, 2 => 0_i64..500_000, 1 => -500_000_i64..30_000_000];
    let decide = (jump(), 0_usize..2, 0_u64..4)
        .prop_map(|(jump, policy, cost)| Step::Decide(jump, vec![(policy, 0, cost)]));
    let leave = (jump(), 0_usize..150, 0_u8..10).prop_map(|(jump, charge, dice)| {
        let units = if dice < 2 { 1 } else { 1 << 52 };
        Step::Settle(jump, charge, units, dice == 1)
    });
    let change = (0_usize..2, queue()).prop_map(|(policy, queue)| Step::Change(policy, queue));
    let step = prop_oneof![50 => decide, 50 => leave, 2 => any_merge(2), 1 => change];
    (vec![plan(), plan()], prop::collection::vec(step, 300))
}

fn any_log(least: u64, millis: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = Counter> {
    let millis = prop_oneof![4 => millis, 1 => Just(366 * 86_400_000)];
    (least..=10_000, millis).prop_map(|(limit, millis)| {
        let quota = Quota::new(limit, Duration::from_millis(millis));
        Counter::new(quota, Algorithm::SlidingLog).expect("a usable quota")
    })
}

/// Returns two policies with logs that grow long and one with a bucket, all under one key. The steps are runs of
/// charges at even paces, with other steps between them.
fn any_long_run() -> impl Strategy<Value = (Vec<Plan>, Vec<Step>)> {
    let plans = vec![
        (any_log(100, 1_000..=90_000), any::<bool>(), Just(None)).boxed(),
        (any_log(300, 60_000..=9_000_000), any::<bool>(), Just(None)).boxed(),
        (any_bucket(), Just(false), Just(None)).boxed(),
    ];
    let pace = prop_oneof![2 => 1_i64..2_000, 6 => 2_000_i64..60_000, 2 => 60_000_i64..5_000_000];
    let cost = prop_oneof![8 => Just(1_u64), 1 => 1_u64..4];
    let which = prop_oneof![
        5 => Just(vec![0_usize]),
        5 => Just(vec![1]),
        3 => Just(vec![0, 1]),
        1 => Just(vec![0, 1, 2]),
    ];
    let charges = (1_usize..700, pace, cost, which).prop_map(|(count, pace, cost, which)| {
        let charges: Vec<_> = which.iter().map(|policy| (*policy, 0, cost)).collect();
        vec![Step::Decide(pace, charges); count]
    });
    let odd = (any_jump(), 0_usize..2, any_cost())
        .prop_map(|(jump, policy, cost)| vec![Step::Decide(jump / 1_000, vec![(policy, 0, cost)])]);
    let settle = (0_i64..2_000, 0_usize..300, 1_u64..4, 0_u8..4)
        .prop_map(|(jump, charge, units, dice)| Step::Settle(jump, charge, units, dice == 0));
    let settle = prop::collection::vec(settle, 1..40);
    let change = prop_oneof![
        any_log(100, 1_000..=90_000).prop_map(|counter| vec![Step::Change(0, counter)]),
        any_log(300, 60_000..=9_000_000).prop_map(|counter| vec![Step::Change(1, counter)]),
    ];
    let merge = any_merge(3).prop_map(|step| match step {
        Step::Merge((jump, policy, _, amount, from, left)) => {
            vec![Step::Merge((jump / 1_000, policy, 0, amount, from, left))]
        }
        other => vec![other],
    });
    let few = prop_oneof![6 => charges, 4 => odd, 4 => settle, 2 => merge, 1 => change];
    let steps = prop::collection::vec(few, 20).prop_map(|few| few.concat());
    (plans, steps)
}

/// How often logs in Redis had each form, and keys were banned.
#[derive(Clone, Copy, Debug, Default)]
struct LogForms {
    /// Decisions about a list, and about a ring.
    list: usize,
    ring: usize,
    /// Decisions about a ring that went round its end, kept its size, became larger, or became smaller.
    wrapped: usize,
    in_place: usize,
    grown: usize,
    shrunk: usize,
    /// A list became a ring, and a ring a list.
    curled: usize,
    straightened: usize,
    /// Charges of banned keys.
    banned: usize,
}

impl LogForms {
    /// Notes a log: the length of its value before and now, and the beginning of the value.
    fn note(&mut self, before: usize, after: usize, value: &[u8]) {
        let is_ring = |length: usize| length > 14 + 6 * 128;
        if !is_ring(after) {
            self.list += 1;
            self.straightened += usize::from(is_ring(before));
            return;
        }
        let number = |at: usize| usize::from(u16::from_be_bytes([value[at], value[at + 1]]));
        let (entries, head, places) = (number(16), number(18), number(20));
        assert_eq!(after, 22 + 6 * places);
        assert!(
            after <= 32 + 8 * entries,
            "{entries} entries in {after} bytes"
        );
        self.ring += 1;
        self.wrapped += usize::from(head + entries > places);
        *match before {
            _ if !is_ring(before) => &mut self.curled,
            _ if before < after => &mut self.grown,
            _ if before > after => &mut self.shrunk,
            _ => &mut self.in_place,
        } += 1;
    }
}

/// The state of one key.
#[derive(Clone, Debug)]
enum State {
    Bucket(BucketState),
    FixedWindow(WindowState),
    SlidingLog(LogState),
    SlidingWindow(SlidingState),
    Concurrency(HeldSlots),
}

/// The slots of a key, as the script stores them.
#[derive(Clone, Debug, Default)]
struct HeldSlots {
    /// All slots that are taken. Those whose lease has ended count until they are removed.
    total: u64,
    /// The end of the lease in milliseconds, by ticket and slots. `by_end` is the reverse.
    taken: BTreeMap<(u64, u64), u64>,
    by_end: BTreeSet<(u64, (u64, u64))>,
    /// Tickets that take no slots until this second.
    bars: BTreeMap<u64, u64>,
}

impl HeldSlots {
    /// Returns leases that have ended, in the order in which the script finds them.
    fn ended(&self, now: u64) -> impl Iterator<Item = (u64, u64)> {
        let ended = self.by_end.range(..(now / 1_000 + 1, (0, 0)));
        ended.map(|(_, taken)| *taken)
    }

    /// Returns the slots in use. If many leases have ended at once, each beyond the first ones counts as one free slot.
    fn used(&self, now: u64) -> u64 {
        let units = self.ended(now).enumerate();
        let units = units.map(|(place, (_, units))| match place < MOST_REMOVED {
            true => units,
            false => 1,
        });
        self.total - units.sum::<u64>()
    }

    fn has_room(&self, slots: &Concurrency, now: u64, cost: u64) -> bool {
        cost == 0 || self.used(now) + cost <= slots.limit()
    }

    /// Removes leases and bars that have ended, as every take does, even a denied one.
    fn remove_ended(&mut self, now: u64) {
        let ended: Vec<_> = self.ended(now).take(MOST_REMOVED).collect();
        ended.into_iter().for_each(|taken| self.remove(taken));
        let bars = self.bars.iter();
        let over = bars.filter(|(_, second)| **second <= now / 1_000_000);
        let mut over: Vec<_> = over.map(|(ticket, second)| (*second, *ticket)).collect();
        over.sort_unstable();
        for (_, ticket) in over.into_iter().take(MOST_REMOVED) {
            self.bars.remove(&ticket);
        }
    }

    fn remove(&mut self, taken: (u64, u64)) {
        if let Some(ends) = self.taken.remove(&taken) {
            self.by_end.remove(&(ends, taken));
            self.total -= taken.1;
        }
    }

    fn take(&mut self, slots: &Concurrency, now: u64, ticket: u64, units: u64) {
        self.remove_ended(now);
        self.put(slots, now, ticket, units);
    }

    fn put(&mut self, slots: &Concurrency, now: u64, ticket: u64, units: u64) {
        let taken = (ticket, units);
        self.remove(taken);
        let ends = now / 1_000 + slots.lease().as_millis() as u64;
        self.taken.insert(taken, ends);
        self.by_end.insert((ends, taken));
        self.total += units;
    }

    /// Returns the slots that were released.
    fn release(
        &mut self,
        slots: &Concurrency,
        now: u64,
        charge: PlannedCharge,
        pending: bool,
    ) -> u64 {
        let before = self.total;
        self.remove((charge.ticket, charge.cost));
        if pending {
            let ends = now / 1_000 + slots.lease().as_millis() as u64;
            self.bars.insert(charge.ticket, ends.div_ceil(1_000));
        }
        before - self.total
    }

    /// Returns whether the slots are missing.
    fn renew(
        &mut self,
        slots: &Concurrency,
        now: u64,
        charge: PlannedCharge,
        take_again: bool,
    ) -> bool {
        let is_missing = !self.taken.contains_key(&(charge.ticket, charge.cost));
        if is_missing && (!take_again || self.bars.contains_key(&charge.ticket)) {
            return true;
        }
        self.put(slots, now, charge.ticket, charge.cost);
        false
    }

    /// Returns members and scores as the script stores them.
    fn stored(&self) -> Vec<(Vec<u8>, u64)> {
        let member = |ticket: u64, units: u64| {
            [ticket.to_be_bytes().as_slice(), &units.to_be_bytes()[5..]].concat()
        };
        let bars = self.bars.iter();
        let mut stored: Vec<_> = bars
            .map(|(ticket, second)| (member(*ticket, 0), *second))
            .collect();
        stored.sort_unstable_by(|(one, first), (other, second)| (first, one).cmp(&(second, other)));
        let taken = self.by_end.iter();
        stored.extend(taken.map(|(ends, (ticket, units))| (member(*ticket, *units), *ends)));
        if !stored.is_empty() {
            stored.insert(0, (Vec::new(), self.total));
        }
        stored
    }
}

/// The most ended leases that a take removes.
const MOST_REMOVED: usize = 32;

/// Returns the result for slots as the script reports them: by the slots in use, which may be above the limit.
fn slots_result(
    slots: &Concurrency,
    used: u64,
    has_room: bool,
    cost: u64,
    now: u64,
) -> ChargeResult {
    let retry = match has_room {
        true => Retry::Now,
        false if cost > slots.limit() => Retry::Never,
        false => Retry::At(Timestamp::from_micros(now)),
    };
    ChargeResult {
        has_room,
        units: used,
        reset_at: now,
        retry,
        refunded: 0,
        banned_until: 0,
    }
}

/// Returns the result of a charge that leaves this usage.
fn charge_result(has_room: bool, usage: Usage, retry: Retry, refunded: u64) -> ChargeResult {
    ChargeResult {
        has_room,
        units: usage.remaining,
        reset_at: usage.reset_at.as_micros(),
        retry,
        refunded,
        banned_until: 0,
    }
}

macro_rules! counted {
    ($counter:expr, $state:expr, ($name:ident, $held:ident) => $body:expr) => {
        match ($counter, $state) {
            (Counter::Bucket($name), State::Bucket($held)) => $body,
            (Counter::FixedWindow($name), State::FixedWindow($held)) => $body,
            (Counter::SlidingLog($name), State::SlidingLog($held)) => $body,
            (Counter::SlidingWindow($name), State::SlidingWindow($held)) => $body,
            (counter, state) => panic!("{counter:?} cannot count {state:?}"),
        }
    };
}

impl State {
    fn fresh(counter: &Counter) -> Self {
        match counter {
            Counter::Bucket(_) => Self::Bucket(BucketState::default()),
            Counter::FixedWindow(_) => Self::FixedWindow(WindowState::default()),
            Counter::SlidingLog(_) => Self::SlidingLog(LogState::default()),
            Counter::SlidingWindow(_) => Self::SlidingWindow(SlidingState::default()),
            Counter::Concurrency(_) => Self::Concurrency(HeldSlots::default()),
            other => panic!("a counter that this test does not know: {other:?}"),
        }
    }
}

/// The state of the twins: one per policy and key.
#[derive(Default)]
struct Twin {
    states: HashMap<(usize, usize), State>,
    /// What is kept of the refunds on each key.
    refunded: HashMap<(usize, usize), Refunded>,
    bans: HashMap<(usize, usize), BanRecord>,
}

impl Twin {
    /// Returns the expected result of each charge.
    fn decide(&mut self, plans: &[Plan], now: u64, charges: &[PlannedCharge]) -> Vec<ChargeResult> {
        let at = Timestamp::from_micros(now);
        let mut rooms = Vec::new();
        for charge in charges {
            let (counter, cost) = (&plans[charge.policy].0, charge.cost);
            let place = (charge.policy, charge.key);
            let state = self
                .states
                .entry(place)
                .or_insert_with(|| State::fresh(counter));
            let turns = &mut self.refunded.entry(place).or_default().turns;
            if let (Counter::Concurrency(slots), State::Concurrency(held)) = (counter, &state) {
                rooms.push(held.has_room(slots, now, cost));
                continue;
            }
            rooms.push(counted!(counter, state, (counter, state) => {
                if cost > 0 {
                    counter.adopt(state, at);
                    let _ = counter.take_turn(state, turns, at, 0);
                }
                counter.take_turn(state, &mut turns.clone(), at, cost).is_some()
                    || counter.admits(state, at, cost)
            }));
        }
        let bans: Vec<u64> = charges
            .iter()
            .map(|charge| self.banned_until(plans, at, charge))
            .collect();
        let all = rooms
            .iter()
            .zip(&bans)
            .all(|(room, ban)| *room && *ban == 0);
        let concluded = charges.iter().zip(rooms.into_iter().zip(bans));
        concluded
            .map(|(charge, (fits, banned_until))| {
                let ((counter, counts_denied, penalty), cost) =
                    (&plans[charge.policy], charge.cost);
                let place = (charge.policy, charge.key);
                let is_queue = is_queue(counter);
                // A denied charge is not refunded, so its reply has no total.
                let kept = self.refunded.get_mut(&place).expect("made above");
                let refunded = if fits { kept.total } else { 0 };
                let has_room = fits && banned_until == 0;
                let state = self.states.get_mut(&place).expect("made above");
                let mut result = if let (Counter::Concurrency(slots), State::Concurrency(held)) =
                    (counter, &mut *state)
                {
                    // A denied request is not in flight, even if other policies count it.
                    let used = held.used(now);
                    if all && cost > 0 {
                        held.take(slots, now, charge.ticket, cost);
                    } else if !fits {
                        held.remove_ended(now);
                    }
                    let used = if all { used + cost } else { used };
                    slots_result(slots, used, has_room, cost, now)
                } else {
                    counted!(counter, state, (counter, state) => {
                        let is_counted = all || *counts_denied && banned_until == 0;
                        let mut free = kept.turns.clone();
                        let turn = counter.take_turn(state, &mut free, at, cost);
                        if turn.is_some() && is_counted {
                            kept.turns = free;
                        } else if all && cost > 0 {
                            counter.charge(state, at, cost);
                        } else if is_counted && cost > 0 {
                            counter.charge_denied(state, at, cost);
                        }
                        let refunded = match turn {
                            Some(over) => over.as_micros(),
                            None if is_queue => 0,
                            None => refunded,
                        };
                        let usage = counter.usage(state, at);
                        let retry = match has_room {
                            true => Retry::Now,
                            false => counter.retry(state, at, cost),
                        };
                        charge_result(has_room, usage, retry, refunded)
                    })
                };
                result.banned_until = banned_until;
                if let (Some(penalty), false, 0) = (penalty, has_room, banned_until) {
                    let state = self.bans.entry(place).or_default();
                    let until = penalty.count_denial(state, at);
                    result.banned_until = until.map_or(0, Timestamp::as_micros);
                }
                result
            })
            .collect()
    }

    /// Returns the end of the ban that denies a charge, or 0.
    fn banned_until(&mut self, plans: &[Plan], at: Timestamp, charge: &PlannedCharge) -> u64 {
        let Some(penalty) = penalty_of(plans, charge) else {
            return 0;
        };
        let Some(state) = self.bans.get_mut(&(charge.policy, charge.key)) else {
            return 0;
        };
        penalty.begin_by(state, at);
        let until = penalty.banned_until(state, at);
        until.map_or(0, Timestamp::as_micros)
    }

    /// Returns the expected result of a merge.
    fn merge(
        &mut self,
        counter: &Counter,
        now: u64,
        place: (usize, usize),
        admitted: Admitted,
    ) -> ChargeResult {
        let at = Timestamp::from_micros(now);
        let refunded = self
            .refunded
            .get(&place)
            .map_or(0, |refunded| refunded.total);
        let state = self.states.entry(place);
        let state = state.or_insert_with(|| State::fresh(counter));
        counted!(counter, state, (counter, state) => {
            counter.adopt(state, at);
            if let Some(refunded) = self.refunded.get_mut(&place) {
                let _ = counter.take_turn(state, &mut refunded.turns, at, 0);
            }
            counter.merge(state, at, admitted);
            charge_result(true, counter.usage(state, at), Retry::Now, refunded)
        })
    }

    /// The slots of each policy and key.
    fn held(&self) -> Vec<(usize, usize, &HeldSlots)> {
        let held = self.states.iter();
        let held = held.filter_map(|((policy, key), state)| match state {
            State::Concurrency(held) => Some((*policy, *key, held)),
            _ => None,
        });
        held.collect()
    }

    /// Returns the expected result of a correction.
    fn settle(
        &mut self,
        counter: &Counter,
        now: u64,
        made: MadeCharge,
        more: bool,
    ) -> ChargeResult {
        let (charge, at) = (made.charge, Timestamp::from_micros(now));
        let place = (charge.policy, charge.key);
        let is_queue = is_queue(counter);
        let refunded = self.refunded.entry(place).or_default();
        let state = self.states.get_mut(&place).expect("it was charged");
        if let (Counter::Concurrency(slots), State::Concurrency(held)) = (counter, &mut *state) {
            let number = match more {
                true => u64::from(held.renew(slots, now, charge, made.flag)),
                false => held.release(slots, now, charge, made.flag),
            };
            return slots_result(slots, number, true, 0, now);
        }
        counted!(counter, state, (counter, state) => {
            if more {
                counter.adopt(state, at);
                let _ = counter.take_turn(state, &mut refunded.turns, at, 0);
                counter.force_charge(state, at, charge.cost);
            } else {
                counter.refund(state, refunded, at, made.mark, charge.cost);
            }
            let usage = counter.usage(state, at);
            let total = if is_queue && !more { 0 } else { refunded.total };
            charge_result(true, usage, Retry::Now, total)
        })
    }
}

fn is_queue(counter: &Counter) -> bool {
    matches!(counter, Counter::Bucket(bucket) if bucket.is_queue())
}

/// Returns the penalty that the script applies to a charge. A peek has none.
fn penalty_of(plans: &[Plan], charge: &PlannedCharge) -> Option<Penalty> {
    plans[charge.policy].2.filter(|_| charge.cost > 0)
}

fn arguments(
    command: &mut redis::Cmd,
    (counter, counts_denied, penalty): &Plan,
    planned: PlannedCharge,
) {
    if let Some(penalty) = penalty.filter(|_| planned.cost > 0) {
        let micros = |time: Duration| time.as_micros() as u64;
        command
            .arg("^")
            .arg(penalty.denials())
            .arg(micros(penalty.within()));
        command
            .arg(micros(penalty.first_ban()))
            .arg(penalty.factor());
        command
            .arg(micros(penalty.longest_ban()))
            .arg(micros(penalty.forgiveness()));
    }
    if *counts_denied {
        command.arg("!");
    }
    charge(command, counter, planned);
}

fn charge(
    command: &mut redis::Cmd,
    counter: &Counter,
    PlannedCharge { cost, ticket, .. }: PlannedCharge,
) {
    let limit = |value: Option<u64>| value.map_or("-1".to_owned(), |value| value.to_string());
    let tag = |letter: u8, shape: &[u8]| [&[letter], shape].concat();
    match counter {
        Counter::Bucket(bucket) => {
            let shape = bucket.quota_tag().to_be_bytes();
            let (units, micros) = bucket.refill();
            let fits = cost <= bucket.capacity();
            if units == 1 && !bucket.is_queue() {
                command
                    .arg(tag(b'w', &shape))
                    .arg(limit(fits.then(|| cost * micros)))
                    .arg(bucket.span())
            } else {
                let letter = if bucket.is_queue() { b'q' } else { b'l' };
                command
                    .arg(tag(letter, &shape))
                    .arg(limit(fits.then_some(cost)))
                    .arg(bucket.span())
                    .arg(units)
                    .arg(micros)
            }
        }
        Counter::FixedWindow(window) => {
            let letter = match window.window_start() {
                WindowStart::Clock => b'f',
                WindowStart::FirstHit => b'o',
                WindowStart::Month => b'm',
                other => panic!("an opening that this test does not know: {other:?}"),
            };
            command
                .arg(tag(letter, &window.quota_tag().to_be_bytes()))
                .arg(cost)
                .arg(window.limit())
                .arg(window.millis())
        }
        Counter::SlidingLog(log) => command
            .arg("g")
            .arg(cost)
            .arg(log.limit())
            .arg(log.millis()),
        Counter::SlidingWindow(window) => command
            .arg("s")
            .arg(cost)
            .arg(window.limit())
            .arg(window.millis())
            .arg(window.tick()),
        Counter::Concurrency(slots) => command
            .arg("c")
            .arg(cost)
            .arg(slots.limit())
            .arg(slots.lease().as_millis() as u64)
            .arg(&ticket.to_be_bytes()),
        other => panic!("a counter that this test does not know: {other:?}"),
    };
}

fn key_of(run: usize, policy: usize, key: usize) -> String {
    format!("run:{{{run}}}:{policy}:{key}")
}

fn command(run: usize, plans: &[Plan], now: u64, charges: &[PlannedCharge]) -> redis::Cmd {
    let mut command = redis::cmd("EVALSHA");
    let penalised = charges
        .iter()
        .filter(|charge| penalty_of(plans, charge).is_some());
    let penalised: Vec<_> = penalised.collect();
    command
        .arg(Script::DECIDE.hash())
        .arg(charges.len() + penalised.len());
    for charge in charges {
        command.arg(key_of(run, charge.policy, charge.key));
    }
    for charge in penalised {
        command.arg(format!("{}#b", key_of(run, charge.policy, charge.key)));
    }
    command.arg("@").arg(now);
    if charges.len() > 1 {
        command.arg("*").arg(charges.len());
    }
    for charge in charges {
        arguments(&mut command, &plans[charge.policy], *charge);
    }
    command
}

/// Returns the command that corrects a charge.
fn settling(run: usize, counter: &Counter, now: u64, made: MadeCharge, more: bool) -> redis::Cmd {
    let MadeCharge {
        charge: planned,
        mark,
        flag,
    } = made;
    let mut command = redis::cmd("EVALSHA");
    command.arg(Script::DECIDE.hash()).arg(1);
    command.arg(key_of(run, planned.policy, planned.key));
    command.arg("@").arg(now);
    if let Counter::Concurrency(slots) = counter {
        upkeep(&mut command, slots, &[planned], more, flag);
        return command;
    }
    match more {
        true => command.arg("+"),
        false => command
            .arg("-")
            .arg(mark.reset_at.as_micros())
            .arg(mark.refunded_before),
    };
    match counter {
        Counter::Bucket(bucket) => {
            let micros = match more {
                true => bucket.micros_up(planned.cost),
                false => bucket.micros_back(mark.reset_at, planned.cost),
            };
            let is_turn = bucket.is_queue() && !more;
            let tag = if is_turn { b"q" } else { b"w" };
            command
                .arg([tag.as_slice(), &bucket.quota_tag().to_be_bytes()].concat())
                .arg(micros)
                .arg(bucket.span());
            if is_turn {
                let (units, micros) = bucket.refill();
                command.arg(units).arg(micros);
            }
        }
        counter => charge(&mut command, counter, planned),
    }
    command
}

/// Returns the command that merges units that were admitted elsewhere.
fn merging(
    run: usize,
    counter: &Counter,
    now: u64,
    place: PlannedCharge,
    admitted: Admitted,
) -> redis::Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(Script::DECIDE.hash()).arg(1);
    command.arg(key_of(run, place.policy, place.key));
    command.arg("@").arg(now);
    command.arg("=").arg(admitted.from);
    command.arg(admitted.until.as_micros());
    match counter {
        Counter::Bucket(bucket) => {
            command
                .arg([b"w".as_slice(), &bucket.quota_tag().to_be_bytes()].concat())
                .arg(admitted.amount)
                .arg(bucket.span());
        }
        counter => charge(
            &mut command,
            counter,
            PlannedCharge {
                cost: admitted.amount,
                ..place
            },
        ),
    }
    command
}

/// Appends the arguments that renew or release slots.
fn upkeep(
    command: &mut redis::Cmd,
    slots: &Concurrency,
    charges: &[PlannedCharge],
    more: bool,
    flag: bool,
) {
    let members = charges.iter().flat_map(|charge| {
        let (ticket, units) = (charge.ticket.to_be_bytes(), charge.cost.to_be_bytes());
        [ticket.as_slice(), &units[5..]].concat()
    });
    command
        .arg(if more { "k" } else { "e" })
        .arg(slots.lease().as_millis() as u64)
        .arg(u64::from(flag))
        .arg(members.collect::<Vec<u8>>());
}

/// Parses the reply of the script.
fn parse_reply(
    reply: &[i64],
    plans: &[Plan],
    now: u64,
    charges: &[PlannedCharge],
) -> Vec<ChargeResult> {
    let reply: Vec<u64> = reply.iter().map(|number| number.cast_unsigned()).collect();
    assert_eq!(reply[0], now);
    let at = Timestamp::from_micros(now);
    let mut numbers = reply[2..].iter().copied();
    let mut next = || numbers.next().expect("a number");
    let mut results: Vec<_> = charges
        .iter()
        .map(|PlannedCharge { policy, cost, .. }| {
            let word = next();
            let has_room = word % 2 == 1;
            let (usage, retry) = match &plans[*policy].0 {
                Counter::Concurrency(slots) => {
                    return slots_result(slots, next(), has_room, *cost, now);
                }
                Counter::Bucket(bucket) => {
                    let state = bucket.state(next());
                    (bucket.usage(&state, at), bucket.retry(&state, at, *cost))
                }
                Counter::FixedWindow(window) => {
                    let state = window.state(Timestamp::from_micros(next()), next());
                    (window.usage(&state, at), window.retry(&state, at, *cost))
                }
                Counter::SlidingWindow(window) => {
                    let state = window.state(next() / 1_000, next(), next());
                    (window.usage(&state, at), window.retry(&state, at, *cost))
                }
                Counter::SlidingLog(log) => {
                    let (used, back, reset) = (next(), next(), next());
                    let usage = tollgate::decision::Usage::new(
                        log.limit(),
                        log.limit().saturating_sub(used),
                        Timestamp::from_micros(reset).max(at),
                    );
                    let retry = match *cost {
                        cost if cost > log.limit() => Retry::Never,
                        // It fits, but the key is banned.
                        cost if used + cost <= log.limit() => Retry::At(at),
                        _ => Retry::At(Timestamp::from_micros(back)),
                    };
                    (usage, retry)
                }
                other => panic!("a counter that this test does not know: {other:?}"),
            };
            let retry = if has_room { Retry::Now } else { retry };
            charge_result(has_room, usage, retry, if word < 2 { 0 } else { next() })
        })
        .collect();
    for (result, charge) in results.iter_mut().zip(charges) {
        if penalty_of(plans, charge).is_some() {
            result.banned_until = numbers.next().expect("a number");
        }
    }
    assert_eq!(numbers.next(), None, "nothing is left over");
    let all = results.iter().all(|result| result.has_room);
    assert_eq!(reply[1], u64::from(all));
    results
}

/// Runs cases of 100,000 steps in all, each on its own keys and in one pipeline. A pipeline is shorter than the second
/// that a key outlives its state, so no key expires by the real clock while the clock of the run does not move.
fn compare(
    name: &'static str,
    runs: impl Strategy<Value = (Vec<Plan>, Vec<Step>)>,
    per_run: u32,
) -> LogForms {
    let steps: u32 = 100_000;
    let server = Server::start();
    let mut connection = server.connection();
    let loaded: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(Script::DECIDE.source())
        .query(&mut connection)
        .expect("the script compiles");
    assert_eq!(loaded, Script::DECIDE.hash());
    let config = Config {
        cases: steps.div_ceil(per_run),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(name))),
        ..Config::default()
    };
    let (run, total, forms) = (Cell::new(0), Cell::new(0), Cell::new(LogForms::default()));
    let result = TestRunner::new(config).run(&runs, |(plans, steps)| {
        run.set(run.get() + 1);
        let mut noted = forms.get();
        let decided = compare_run(
            run.get(),
            &mut server.connection(),
            plans,
            &steps,
            &mut noted,
        )?;
        forms.set(noted);
        total.set(total.get() + decided);
        Ok(())
    });
    println!("{name}: {} steps in {} runs", total.get(), run.get());
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(total.get() >= steps as usize, "{} steps", total.get());
    forms.get()
}

/// Returns one of the latest charges for a correction. A refund is at most the charge. Slots are released or renewed as
/// they were taken.
fn chosen(
    charged: &[MadeCharge],
    plans: &[Plan],
    from_end: usize,
    units: u64,
    more: bool,
) -> Option<MadeCharge> {
    let mut made = charged[charged.len().checked_sub(from_end + 1)?];
    made.flag = units % 2 == 1;
    made.charge.cost = match plans[made.charge.policy].0 {
        Counter::Concurrency(_) => made.charge.cost,
        _ if more => units,
        _ => units.min(made.charge.cost),
    };
    (made.charge.cost > 0).then_some(made)
}

/// Returns the charges without duplicates, each with its own ticket.
fn with_tickets(charges: &[(usize, usize, u64)], tickets: &mut u64) -> Vec<PlannedCharge> {
    let mut distinct = charges.to_vec();
    distinct.sort_unstable();
    distinct.dedup_by_key(|(policy, key, _)| (*policy, *key));
    let planned = distinct.into_iter().map(|(policy, key, cost)| {
        *tickets += 1;
        PlannedCharge {
            policy,
            key,
            cost,
            // Tickets are not in the order of takes.
            ticket: tickets.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    });
    planned.collect()
}

fn compare_run(
    run: usize,
    connection: &mut redis::Connection,
    mut plans: Vec<Plan>,
    steps: &[Step],
    forms: &mut LogForms,
) -> Result<usize, TestCaseError> {
    let (mut twin, mut now, mut tickets) = (Twin::default(), START, 0);
    let mut pipeline = redis::pipe();
    let mut expected = Vec::new();
    let mut charged: Vec<MadeCharge> = Vec::new();
    for step in steps {
        match step {
            Step::Change(policy, counter) => plans[*policy].0 = *counter,
            Step::ChangePenalty(policy, penalty) => plans[*policy].2 = *penalty,
            Step::Settle(jump, from_end, units, more) => {
                now = now.saturating_add_signed(*jump).max(START / 10 * 9);
                let Some(made) = chosen(&charged, &plans, *from_end, *units, *more) else {
                    continue;
                };
                let counter = &plans[made.charge.policy].0;
                pipeline.add_command(settling(run, counter, now, made, *more));
                watch(&mut pipeline, run, &plans, &[made.charge]);
                let result = twin.settle(counter, now, made, *more);
                let peek = PlannedCharge {
                    cost: 0,
                    ..made.charge
                };
                expected.push((plans.clone(), now, vec![peek], vec![result]));
            }
            Step::Merge((jump, policy, key, amount, from, left)) => {
                now = now.saturating_add_signed(*jump).max(START / 10 * 9);
                let counter = &plans[*policy].0;
                let from = match counter {
                    Counter::Concurrency(_) => {
                        // Slots are not merged.
                        let peek = with_tickets(&[(*policy, *key, 0)], &mut tickets);
                        pipeline.add_command(command(run, &plans, now, &peek));
                        let results = twin.decide(&plans, now, &peek);
                        expected.push((plans.clone(), now, peek, results));
                        continue;
                    }
                    Counter::Bucket(_) if *from == 0 => 0,
                    // The TAT may be in the past.
                    Counter::Bucket(_) if *from >= 20 => now + from - 5_000_000_000,
                    Counter::Bucket(_) => now + from,
                    _ => *from,
                };
                let until = Timestamp::from_micros(now.saturating_add_signed(*left));
                let admitted = Admitted::new(*amount, from, until);
                let place = PlannedCharge {
                    policy: *policy,
                    key: *key,
                    cost: 0,
                    ticket: 0,
                };
                pipeline.add_command(merging(run, counter, now, place, admitted));
                watch(&mut pipeline, run, &plans, &[place]);
                let result = twin.merge(counter, now, (*policy, *key), admitted);
                expected.push((plans.clone(), now, vec![place], vec![result]));
            }
            Step::Decide(jump, charges) => {
                now = now.saturating_add_signed(*jump).max(START / 10 * 9);
                let charges = with_tickets(charges, &mut tickets);
                pipeline.add_command(command(run, &plans, now, &charges));
                watch(&mut pipeline, run, &plans, &charges);
                let results = twin.decide(&plans, now, &charges);
                if results.iter().all(|result| result.has_room) {
                    let made = charges.iter().zip(&results);
                    let made = made.filter(|(charge, _)| charge.cost > 0);
                    charged.extend(made.map(|(charge, result)| {
                        let (reset_at, refunded_before) = match result.refunded {
                            over if over > 0 && is_queue(&plans[charge.policy].0) => (over, 0),
                            total => (result.reset_at, total),
                        };
                        MadeCharge {
                            charge: *charge,
                            mark: RefundToken {
                                reset_at: Timestamp::from_micros(reset_at),
                                refunded_before,
                            },
                            flag: false,
                        }
                    }));
                }
                expected.push((plans.clone(), now, charges, results));
            }
        }
    }
    // In the same pipeline, so that no key expires in between.
    let held = twin.held();
    for (policy, key, _) in &held {
        let key = key_of(run, *policy, *key);
        pipeline
            .cmd("ZRANGE")
            .arg(key)
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES");
    }
    let mut replies: Vec<Value> = pipeline.query(connection).expect("the script runs");
    let stored = replies.split_off(replies.len() - held.len());
    let decided = expected.len();
    let (mut replies, mut lengths) = (replies.into_iter(), HashMap::new());
    for (index, (plans, now, charges, expected)) in expected.into_iter().enumerate() {
        let mut next = || replies.next().expect("a reply to each command");
        let reply = next();
        for (policy, key) in logs(&plans, &charges) {
            let length = redis::from_redis_value(next()).expect("a length");
            let value: Vec<u8> = redis::from_redis_value(next()).expect("bytes");
            let before = lengths.insert((policy, key), length);
            forms.note(before.unwrap_or_default(), length, &value);
        }
        let actual = parse_reply(&unpack(&reply), &plans, now, &charges);
        forms.banned += actual
            .iter()
            .filter(|result| result.banned_until > 0)
            .count();
        prop_assert_eq!(
            actual,
            expected,
            "at step {}, {} us, {:?} of {:?}",
            index,
            now,
            charges,
            plans
        );
    }
    for (stored, (policy, key, held)) in stored.into_iter().zip(held) {
        let stored: Vec<(Vec<u8>, u64)> =
            redis::from_redis_value(stored).expect("members and scores");
        prop_assert_eq!(stored, held.stored(), "policy {}, key {}", policy, key);
    }
    Ok(decided)
}

/// Returns policy and key of the charges that are counted in logs.
fn logs(plans: &[Plan], charges: &[PlannedCharge]) -> Vec<(usize, usize)> {
    let is_log = |charge: &&PlannedCharge| matches!(plans[charge.policy].0, Counter::SlidingLog(_));
    let logs = charges.iter().filter(is_log);
    logs.map(|charge| (charge.policy, charge.key)).collect()
}

/// Appends commands that read the logs.
fn watch(pipeline: &mut redis::Pipeline, run: usize, plans: &[Plan], charges: &[PlannedCharge]) {
    for (policy, key) in logs(plans, charges) {
        let key = key_of(run, policy, key);
        pipeline.cmd("STRLEN").arg(&key);
        pipeline.cmd("GETRANGE").arg(&key).arg(0).arg(21);
    }
}

macro_rules! differential {
    ($($name:ident: $kinds:expr, $groups:expr;)*) => {
        $(#[test]
        fn $name() {
            let seeds = concat!("tests/lua/seeds/", stringify!($name), ".txt");
            compare(seeds, any_run(&$kinds, $groups), 285);
        })*
    };
}

differential! {
    script_and_twin_agree_on_buckets: [Kind::Bucket], 1..=1;
    script_and_twin_agree_on_fixed_windows: [Kind::FixedWindow], 1..=1;
    script_and_twin_agree_on_sliding_windows: [Kind::SlidingWindow], 1..=1;
    script_and_twin_agree_on_sliding_logs: [Kind::SlidingLog], 1..=1;
    script_and_twin_agree_on_slots: [Kind::Concurrency], 1..=1;
    script_and_twin_agree_on_charges_decided_together: KINDS, 1..=6;
}

#[test]
fn script_and_twin_agree_on_queues_that_callers_leave() {
    let seeds = "tests/lua/seeds/script_and_twin_agree_on_queues_that_callers_leave.txt";
    compare(seeds, any_queue_run(), 190);
}

#[test]
fn script_and_twin_agree_on_penalties() {
    let seeds = "tests/lua/seeds/script_and_twin_agree_on_penalties.txt";
    let forms = compare(seeds, any_penalised_run(), 285);
    println!("{} charges of banned keys", forms.banned);
    assert!(forms.banned > 1_000, "{forms:?}");
}

#[test]
fn script_and_twin_agree_on_long_logs() {
    let seeds = "tests/lua/seeds/script_and_twin_agree_on_long_logs.txt";
    let forms = compare(seeds, any_long_run(), 2_000);
    println!("{forms:?}");
    let all = [
        forms.list,
        forms.ring,
        forms.wrapped,
        forms.in_place,
        forms.grown,
        forms.shrunk,
        forms.curled,
        forms.straightened,
    ];
    assert!(all.iter().all(|times| *times > 0), "{forms:?}");
}

/// A key with tens of thousands of slots. Many tickets take, renew and release them, and their leases end together.
struct Crowd {
    slots: Concurrency,
    held: HeldSlots,
    now: u64,
    charges: Vec<PlannedCharge>,
    tickets: u64,
    pipeline: redis::Pipeline,
    /// The expected reply to each command: whether the charge fits, and a number.
    expected: Vec<(bool, u64)>,
}

impl Crowd {
    fn new(limit: u64) -> Self {
        let quota = Quota::in_flight(limit);
        Self {
            slots: Concurrency::new(quota, Duration::from_secs(60)).expect("a usable quota"),
            held: HeldSlots::default(),
            now: START,
            charges: Vec::new(),
            tickets: 0,
            pipeline: redis::pipe(),
            expected: Vec::new(),
        }
    }

    fn command(&self) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(Script::DECIDE.hash()).arg(1).arg("crowd");
        command.arg("@").arg(self.now);
        command
    }

    fn take(&mut self, cost: u64) {
        self.tickets += 1;
        let planned = PlannedCharge {
            policy: 0,
            key: 0,
            cost,
            ticket: self.tickets.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        };
        let mut command = self.command();
        charge(&mut command, &Counter::Concurrency(self.slots), planned);
        self.pipeline.add_command(command);
        let used = self.held.used(self.now);
        let has_room = self.held.has_room(&self.slots, self.now, cost);
        if has_room && cost > 0 {
            self.held.take(&self.slots, self.now, planned.ticket, cost);
            self.charges.push(planned);
        } else if !has_room {
            self.held.remove_ended(self.now);
        }
        let used = if has_room { used + cost } else { used };
        self.expected.push((has_room, used));
    }

    /// Renews or releases tickets in a row, at most as many as one command carries.
    fn keep(&mut self, random: &mut Random, more: bool, flag: bool) {
        let from = random.below(1 + self.charges.len() as u64) as usize;
        let most = if more { 50 } else { 7 };
        let to = (from + 1 + random.below(most) as usize).min(self.charges.len());
        let chosen: Vec<PlannedCharge> = match more {
            true => self.charges[from..to].to_vec(),
            false => self.charges.drain(from..to).collect(),
        };
        if chosen.is_empty() {
            return;
        }
        let mut command = self.command();
        upkeep(&mut command, &self.slots, &chosen, more, flag);
        self.pipeline.add_command(command);
        let mut number = 0;
        for (bit, charge) in chosen.into_iter().enumerate() {
            number += match more {
                true => u64::from(self.held.renew(&self.slots, self.now, charge, flag)) << bit,
                false => self.held.release(&self.slots, self.now, charge, flag),
            };
        }
        self.expected.push((true, number));
    }
}

// Regression: a key had at most 10,000 slots, and each operation read all of them.
#[test]
fn script_and_model_agree_on_tens_of_thousands_of_slots() {
    let server = Server::start();
    let mut connection = server.connection();
    server.command(&["SCRIPT", "LOAD", Script::DECIDE.source()]);
    for (seed, limit, largest) in [(1, 30_000, 1), (2, 100_000, 7), (3, 25_000, 2)] {
        server.command(&["FLUSHALL"]);
        let (mut random, mut crowd, mut most) = (Random(seed), Crowd::new(limit), 0);
        for round in 1..=45_000_u64 {
            crowd.now += random.below(500);
            if round % 20_000 == 0 {
                // Some are renewed before the others end at once: more than one take removes.
                crowd.now += 40_000_000;
                for _ in 0..40 {
                    crowd.keep(&mut random, true, false);
                }
                crowd.now += 30_000_000;
            }
            let flag = random.below(3) == 0;
            match random.below(40) {
                0 => crowd.keep(&mut random, true, flag),
                1 => crowd.keep(&mut random, false, flag),
                2 => crowd.take(0),
                3 => {
                    // More than are free.
                    // Renewals take slots again, even beyond the limit.
                    let free = limit.saturating_sub(crowd.held.used(crowd.now));
                    crowd.take(free + 1 + random.below(2_000));
                }
                _ => crowd.take(1 + random.below(largest)),
            }
            most = most.max(crowd.held.taken.len());
        }
        assert!(most > 15_000, "{most} tickets");
        let replies: Vec<Value> = crowd.pipeline.query(&mut connection).expect("it answers");
        for (step, (reply, expected)) in replies.iter().zip(&crowd.expected).enumerate() {
            let numbers = unpack(reply);
            let actual = (numbers[2] == 1, numbers[3].cast_unsigned());
            assert_eq!(actual, *expected, "step {step} of seed {seed}");
        }
        let stored = server.command(&["ZRANGE", "crowd", "0", "-1", "WITHSCORES"]);
        let stored: Vec<(Vec<u8>, u64)> =
            redis::from_redis_value(stored).expect("members and scores");
        assert!(stored == crowd.held.stored(), "what is stored, seed {seed}");
    }
}
