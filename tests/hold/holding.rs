//! What is held: renewed while it is, given back once, and by nobody else.

use std::{
    future::{self, Future},
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::Poll,
    time::{Duration, Instant},
};

use tokio::{runtime, sync::Semaphore, time};
use tollgate::{
    Charge, Decision, Error, ErrorKind, Hold, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, Counter},
    charge::{Correction, OwnedCharge, Receipt, Settlement},
    clock::{Clock, Timestamp},
    decision::{CountedBy, PolicyState, Retry, Ticket, Usage},
    memory::MemoryStore,
    remote::RedisStore,
    resilience::ResilientStore,
    store::{Store, StoreFuture},
    testing::ScriptedStore,
};

use crate::support::{Server, logged};

const LEASE: Duration = Duration::from_secs(30);
/// Renewals of it come soon.
const BRIEF_LEASE: Duration = Duration::from_millis(600);

/// A shared store as far as leases go: it admits everything, and a renewal takes slots again that are not there.
#[derive(Clone, Debug)]
struct Fleet {
    slots: Arc<Mutex<Vec<Ticket>>>,
    /// Renewals that were asked for.
    renewals: Arc<Mutex<Vec<Ticket>>>,
    /// Through which renewals go one at a time.
    gate: Arc<Semaphore>,
    life: Arc<()>,
}

impl Fleet {
    fn new() -> Self {
        Self {
            slots: Arc::default(),
            renewals: Arc::default(),
            gate: Arc::new(Semaphore::new(1)),
            life: Arc::default(),
        }
    }

    fn slots(&self) -> Vec<Ticket> {
        self.slots.lock().expect("nobody panics with it").clone()
    }

    fn renewals(&self) -> Vec<Ticket> {
        self.renewals.lock().expect("nobody panics with it").clone()
    }
}

impl Store for Fleet {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let now = Clock::system().now();
        let mut slots = self.slots.lock().expect("nobody panics with it");
        slots.extend(charges.iter().filter_map(Charge::ticket));
        let state = |charge: &Charge<'_>| {
            let usage = Usage::new(100, 50, now);
            PolicyState::counted(*charge.policy().name(), usage, Retry::Now)
        };
        let states = charges.iter().map(state);
        StoreFuture::ready(Ok(Decision::new(CountedBy::Shared, now, states)))
    }

    fn reset(&self, _: &Policy, _: &Key) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let mut slots = self.slots.lock().expect("nobody panics with it");
        for settlement in receipt.settlements() {
            let ticket = settlement.charge().ticket().expect("slots have one");
            if let Some(index) = slots.iter().position(|slot| *slot == ticket) {
                slots.remove(index);
            }
        }
        StoreFuture::ready(Ok::<(), Error>(()))
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let tickets = charges.iter().filter_map(Charge::ticket);
        let mut renewals = self.renewals.lock().expect("nobody panics with it");
        renewals.extend(tickets);
        drop(renewals);
        let charges: Vec<OwnedCharge> = charges.iter().map(Charge::to_owned).collect();
        let fleet = self.clone();
        StoreFuture::boxed(async move {
            let _through = fleet.gate.acquire().await;
            let mut slots = fleet.slots.lock().expect("nobody panics with it");
            for charge in &charges {
                let ticket = charge.borrow().ticket().expect("slots have one");
                if !slots.contains(&ticket) {
                    slots.push(ticket);
                }
            }
            Ok(())
        })
    }
}

fn slots(limit: u64) -> Policy {
    slots_leased(limit, LEASE)
}

fn slots_leased(limit: u64, lease: Duration) -> Policy {
    Policy::new("uploads", Quota::in_flight(limit)).algorithm(Algorithm::Concurrency { lease })
}

fn over(store: impl Store, policy: &Policy) -> RateLimiter {
    RateLimiter::new(store, [policy.clone()]).expect("a usable policy")
}

fn take(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Option<Receipt> {
    let decided = limiter.check(charges).take_ready();
    let decision = decided.expect("at once").expect("a decision");
    Receipt::of(charges, &decision)
}

fn hold(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Hold {
    limiter.hold(take(limiter, charges).expect("there is room"))
}

/// A runtime without timers.
fn runtime() -> runtime::Runtime {
    let mut builder = runtime::Builder::new_current_thread();
    builder.build().expect("a runtime")
}

fn timed_runtime() -> runtime::Runtime {
    let mut builder = runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// Waits, by looking again and without timers, until it is so.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LEASE, "in vain: {what}");
        tokio::task::yield_now().await;
    }
}

// === Over a shared store ===

// Regression: a renewal that was under way when the slot was given back took it again, until the lease ended.
#[tokio::test]
async fn renewal_under_way_does_not_take_a_slot_again_that_was_given_back() {
    let policy = slots_leased(100, BRIEF_LEASE);
    let fleet = Fleet::new();
    let shut = fleet.gate.acquire().await.expect("it is not closed");
    let limiter = over(fleet.clone(), &policy);
    let key = Key::new("ada");
    let holds: Vec<Hold> = (0..100)
        .map(|_| hold(&limiter, &[policy.charge(key)]))
        .collect();
    until("a renewal is under way", || !fleet.renewals().is_empty()).await;
    drop(holds);
    assert_eq!(fleet.slots(), []);
    drop(shut);
    // The limiter's and the test's own: no renewal has one any more.
    until("it is through", || Arc::strong_count(&fleet.gate) == 2).await;
    until("all slots are given back", || fleet.slots().is_empty()).await;
    let renewals = fleet.renewals().len();
    assert!(renewals < 100, "{renewals}: what has ended is not renewed");
}

// Regression: two decisions on one charge took slots under one ticket, and the end of the first ended the renewals of both.
#[tokio::test]
async fn charge_that_is_made_twice_takes_two_slots() {
    let policy = slots_leased(100, BRIEF_LEASE);
    let fleet = Fleet::new();
    let limiter = over(fleet.clone(), &policy);
    let charges = [policy.charge(Key::new("ada"))];
    let first = hold(&limiter, &charges);
    let second = hold(&limiter, &charges);
    let [one, other] = fleet.slots()[..] else {
        panic!("two slots");
    };
    assert_ne!(one, other);
    drop(first);
    // A renewal on its way takes the slot again, and then it is released again.
    until("the first is released", || fleet.slots() == [other]).await;
    until("the second is renewed", || {
        fleet.renewals().contains(&other)
    })
    .await;
    drop(second);
    until("the second is released", || fleet.slots().is_empty()).await;
}

// Regression: what was to renew a slot held outside of a runtime never ran.
#[test]
fn slot_held_outside_of_a_runtime_is_renewed() {
    logged();
    let policy = slots_leased(100, BRIEF_LEASE);
    let fleet = Fleet::new();
    let limiter = over(fleet.clone(), &policy);
    let outside = hold(&limiter, &[policy.charge(Key::new("ada"))]);
    runtime().block_on(until("it is renewed", || fleet.renewals().len() >= 2));
    drop(outside);
    assert_eq!(fleet.slots(), []);
    assert_eq!(logged(), Vec::<String>::new());
}

// Regression: the task that renews panicked on a runtime without timers.
#[test]
fn runtime_without_timers_renews_slots() {
    let policy = slots_leased(100, BRIEF_LEASE);
    let fleet = Fleet::new();
    let limiter = over(fleet.clone(), &policy);
    runtime().block_on(async {
        let held = hold(&limiter, &[policy.charge(Key::new("ada"))]);
        until("it is renewed twice", || fleet.renewals().len() >= 2).await;
        drop(held);
    });
}

// Regression: after a runtime had ended, what was held on another was not renewed for a while, or never.
#[test]
fn runtime_that_ends_takes_no_renewals_with_it() {
    let policy = slots_leased(100, BRIEF_LEASE);
    let fleet = Fleet::new();
    let limiter = over(fleet.clone(), &policy);
    let first = runtime();
    let early = first.block_on(async { hold(&limiter, &[policy.charge(Key::new("ada"))]) });
    drop(first);
    runtime().block_on(async {
        let late = hold(&limiter, &[policy.charge(Key::new("ada"))]);
        until("both are renewed", || fleet.renewals().len() >= 2).await;
        drop(late);
    });
    drop(early);
}

// Regression: one runtime renewed for all, and when it ended, or was driven no more, what was held on others lost its slots.
#[test]
fn slots_are_renewed_when_the_runtime_that_renewed_them_is_gone_or_stands_still() {
    for is_gone in [true, false] {
        let policy = slots_leased(100, BRIEF_LEASE);
        let fleet = Fleet::new();
        let limiter = over(fleet.clone(), &policy);
        let (first, second) = (runtime(), runtime());
        let ada = [policy.charge(Key::new("ada"))];
        let early = first.block_on(async { hold(&limiter, &ada) });
        let late = second.block_on(async { hold(&limiter, &ada) });
        let first = (!is_gone).then_some(first);
        second.block_on(async {
            until("both are renewed", || {
                let renewals = fleet.renewals();
                fleet.slots().iter().all(|slot| renewals.contains(slot))
            })
            .await;
        });
        drop((early, late, first));
    }
}

// Regression: each hold whose runtime had to renew put the next renewal off, and none lived long enough to make it.
#[test]
fn slots_are_renewed_while_runtimes_come_and_go() {
    let lease = BRIEF_LEASE * 4;
    let policy = slots_leased(100, lease);
    let fleet = Fleet::new();
    let limiter = over(fleet.clone(), &policy);
    let ada = [policy.charge(Key::new("ada"))];
    let first = runtime();
    let early = first.block_on(async { hold(&limiter, &ada) });
    let lasting = runtime();
    let kept = lasting.block_on(async { hold(&limiter, &ada) });
    let slot = *fleet.slots().last().expect("it is held");
    drop((early, first));
    let started = Instant::now();
    while started.elapsed() < lease && !fleet.renewals().contains(&slot) {
        let brief = runtime();
        drop(brief.block_on(async { hold(&limiter, &ada) }));
        drop(brief);
        lasting.block_on(tokio::task::yield_now());
    }
    assert!(fleet.renewals().contains(&slot), "its lease has ended");
    drop(kept);
}

// Regression: the hold of a day made the slots of a second wait for hours.
#[test]
fn brief_lease_is_renewed_though_a_long_one_is_held_after_its_runtime_ended() {
    let brief = slots_leased(100, BRIEF_LEASE);
    let long = slots_leased(100, BRIEF_LEASE * 1_000);
    let fleet = Fleet::new();
    let limiter = over(fleet.clone(), &brief);
    let (first, second) = (runtime(), runtime());
    let early = first.block_on(async { hold(&limiter, &[brief.charge(Key::new("ada"))]) });
    let slot = *fleet.slots().last().expect("it is held");
    drop(first);
    let late = second.block_on(async {
        let late = hold(&limiter, &[long.charge(Key::new("bob"))]);
        until("it is renewed", || fleet.renewals().contains(&slot)).await;
        late
    });
    drop((early, late));
}

/// A shared store that cannot renew the slots of one key, and notes which releases a renewal may come after.
#[derive(Clone, Debug)]
struct Spoilt {
    fleet: Fleet,
    key: Key,
    fault: Fault,
    /// The key of each release, and whether a renewal may still be on its way.
    released: Arc<Mutex<Vec<(Key, bool)>>>,
}

/// The end of a renewal of the spoilt key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Fails,
    Hangs,
    PanicsAtFirst,
}

impl Spoilt {
    fn new(key: Key, fault: Fault) -> Self {
        Self {
            fleet: Fleet::new(),
            key,
            fault,
            released: Arc::default(),
        }
    }

    /// Returns how often the slots of the spoilt key, which are the first, were to be renewed.
    fn renewals_of_first(&self) -> usize {
        let first = self.fleet.slots()[0];
        let renewals = self.fleet.renewals();
        renewals.iter().filter(|slot| **slot == first).count()
    }
}

impl Store for Spoilt {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.fleet.decide(charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.fleet.reset(policy, key)
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let mut released = self.released.lock().expect("nobody panics with it");
        let settlements = receipt.settlements().iter();
        released.extend(settlements.map(|one| (*one.charge().key(), one.is_acquire_pending())));
        StoreFuture::ready(Ok(()))
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let tickets = charges.iter().filter_map(Charge::ticket);
        let mut renewals = self.fleet.renewals.lock().expect("nobody panics with it");
        let is_first = renewals.is_empty();
        renewals.extend(tickets);
        drop(renewals);
        if charges.iter().all(|charge| *charge.key() != self.key) {
            return StoreFuture::ready(Ok(()));
        }
        match self.fault {
            Fault::Fails => {
                StoreFuture::ready(Err(Error::new(ErrorKind::ForeignValue, "not ours")))
            }
            Fault::Hangs => StoreFuture::boxed(future::pending()),
            Fault::PanicsAtFirst if is_first => panic!("as a broken store may"),
            Fault::PanicsAtFirst => StoreFuture::ready(Ok(())),
        }
    }
}

// Regression: one key that could not be renewed left the renewals of all others of its batch unconfirmed, so that they were
// sent again four times as often, and each release left a bar.
#[tokio::test]
async fn key_that_cannot_be_renewed_leaves_no_other_unconfirmed() {
    let policy = slots_leased(1_000, BRIEF_LEASE);
    let (ada, bob) = (Key::new("ada"), Key::new("bob"));
    // A release may find a renewal on its way, but not each time.
    for _ in 0..50 {
        let store = Spoilt::new(bob, Fault::Fails);
        let limiter = over(store.clone(), &policy);
        // So many that some are due together.
        let holds: Vec<Hold> = (0..100)
            .flat_map(|_| [ada, bob])
            .map(|key| hold(&limiter, &[policy.charge(key)]))
            .collect();
        until("all are renewed", || {
            let renewals = store.fleet.renewals();
            let slots = store.fleet.slots();
            slots.iter().all(|slot| renewals.contains(slot))
        })
        .await;
        drop(holds);
        let released = store.released.lock().expect("nobody panics with it");
        assert_eq!(released.len(), 200);
        let is_pending = |of: Key| released.iter().filter(move |(key, _)| *key == of);
        assert!(is_pending(bob).all(|(_, is_pending)| *is_pending));
        if is_pending(ada).all(|(_, is_pending)| !is_pending) {
            return;
        }
    }
    panic!("each time, a renewal of another key is not confirmed");
}

// Regression: a renewal without a reply left those of all other keys unconfirmed.
#[tokio::test]
async fn key_whose_renewal_hangs_leaves_no_other_unconfirmed() {
    let policy = slots_leased(1_000, BRIEF_LEASE);
    let (ada, bob) = (Key::new("ada"), Key::new("bob"));
    let store = Spoilt::new(bob, Fault::Hangs);
    let limiter = over(store.clone(), &policy);
    // So many that each batch has some of them.
    let hanging = [(); 100].map(|()| hold(&limiter, &[policy.charge(bob)]));
    // A release may find a renewal on its way, but not each time.
    for _ in 0..50 {
        let held = hold(&limiter, &[policy.charge(ada)]);
        let slot = *store.fleet.slots().last().expect("it is held");
        until("it is renewed", || store.fleet.renewals().contains(&slot)).await;
        let before = store.renewals_of_first();
        until("the other one is given up", || {
            store.renewals_of_first() > before + 1
        })
        .await;
        drop(held);
        let released = store.released.lock().expect("nobody panics with it");
        if released.last() == Some(&(ada, false)) {
            drop(released);
            drop(hanging);
            return;
        }
    }
    panic!("it was never confirmed");
}

// Regression: a store that panicked once ended the renewals of all slots.
#[tokio::test]
async fn store_that_panics_ends_no_renewals() {
    let policy = slots_leased(100, BRIEF_LEASE);
    let store = Spoilt::new(Key::new("ada"), Fault::PanicsAtFirst);
    let limiter = over(store.clone(), &policy);
    let held = hold(&limiter, &[policy.charge(Key::new("ada"))]);
    until("it is renewed again", || store.renewals_of_first() > 2).await;
    drop(held);
}

#[tokio::test]
async fn brief_lease_is_renewed_though_a_long_one_was_held_before() {
    let (brief, long) = (
        slots_leased(100, BRIEF_LEASE),
        slots_leased(100, BRIEF_LEASE * 1_000),
    );
    let fleet = Fleet::new();
    let limiter = over(fleet.clone(), &brief);
    let early = hold(&limiter, &[long.charge(Key::new("bob"))]);
    for _ in 0..2 {
        let late = hold(&limiter, &[brief.charge(Key::new("ada"))]);
        let slot = *fleet.slots().last().expect("it is held");
        let held_at = Instant::now();
        until("it is renewed", || fleet.renewals().contains(&slot)).await;
        assert!(held_at.elapsed() < BRIEF_LEASE, "its lease has ended");
        drop(late);
        // Afterwards nothing is due but the long lease, so the task sleeps.
        time::sleep(BRIEF_LEASE).await;
    }
    drop(early);
}

// Regression: the task that renews kept the store, with its connections, for a third of a lease.
#[tokio::test]
async fn nothing_keeps_the_store_when_nothing_is_held() {
    let policy = slots_leased(100, BRIEF_LEASE);
    let fleet = Fleet::new();
    let life: Weak<()> = Arc::downgrade(&fleet.life);
    let limiter = over(fleet, &policy);
    let hold = hold(&limiter, &[policy.charge(Key::new("ada"))]);
    drop(limiter);
    tokio::task::yield_now().await;
    assert!(life.upgrade().is_some(), "it is held");
    drop(hold);
    // The task may be about to sleep, for which it lets go of the store.
    let dropped = Instant::now();
    while life.upgrade().is_some() {
        assert!(dropped.elapsed() < BRIEF_LEASE / 6, "it is kept");
        tokio::task::yield_now().await;
    }
}

/// A store of which every settlement after the first hangs.
#[derive(Clone, Debug, Default)]
struct Hanging {
    fleet: Option<Fleet>,
    asked: Arc<Mutex<Vec<Correction>>>,
}

impl Store for Hanging {
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.fleet.as_ref().expect("a fleet").decide(charges)
    }

    fn reset(&self, _: &Policy, _: &Key) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let mut asked = self.asked.lock().expect("nobody panics with it");
        let is_first = asked.is_empty();
        asked.extend(receipt.settlements().iter().map(Settlement::correction));
        match is_first {
            true => StoreFuture::ready(Err(Error::new(ErrorKind::Unavailable, "away"))),
            false => StoreFuture::boxed(future::pending()),
        }
    }
}

// Regression: a price whose try ended with its runtime was sent again, though it may have arrived.
#[test]
fn settlement_is_not_repeated_while_its_result_is_unknown() {
    let tokens = Policy::new("tokens", Quota::per_hour(1_000));
    let store = Hanging {
        fleet: Some(Fleet::new()),
        ..Hanging::default()
    };
    let limiter = over(store.clone(), &tokens);
    let asked = || store.asked.lock().expect("nobody panics with it").len();
    let charges = [tokens.charge(Key::new("ada"))];
    let priced = || {
        let receipt = take(&limiter, &charges).expect("it is admitted");
        receipt.actual_cost(|_, _| 7)
    };
    runtime().block_on(async {
        let settled = limiter.settle(priced()).await;
        settled.expect_err("the store is away");
        until("it is told again", || asked() == 2).await;
    });
    runtime().block_on(async {
        // It resumes what waits, and hangs itself.
        let mut settling = limiter.settle(priced());
        let began = future::poll_fn(|context| Poll::Ready(Pin::new(&mut settling).poll(context)));
        assert!(began.await.is_pending());
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(300) {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(asked(), 3);
}

// === In process ===

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn in_process(policy: &Policy) -> (RateLimiter, Clock) {
    let clock = Clock::manual(START);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (over(store.expect("a usable store"), policy), clock)
}

// Regression: slots that nobody held were taken for as long as the process lived.
#[test]
fn abandoned_slot_comes_back_by_its_lease_in_process_too() {
    let policy = slots(2);
    let (limiter, clock) = in_process(&policy);
    let ada = [policy.charge(Key::new("ada")).cost(2)];
    drop(take(&limiter, &ada).expect("there is room"));
    clock.advance(LEASE - Duration::from_micros(1));
    assert!(take(&limiter, &ada).is_none());
    clock.advance(Duration::from_micros(1));
    assert!(take(&limiter, &ada).is_some());
}

#[test]
fn slot_that_is_held_has_no_lease_in_process() {
    let policy = slots(1);
    let (limiter, clock) = in_process(&policy);
    let ada = [policy.charge(Key::new("ada"))];
    let held = hold(&limiter, &ada);
    clock.advance(LEASE * 1_000);
    assert!(take(&limiter, &ada).is_none());
    drop(held);
    assert!(take(&limiter, &ada).is_some());
}

// Regression: the slot stayed taken for as long as the process lived.
#[test]
fn closure_that_panics_ends_the_hold_at_what_was_charged() {
    let (uploads, tokens) = (slots(1), Policy::new("tokens", Quota::per_hour(10)));
    let limiter = RateLimiter::new(MemoryStore::new(), [uploads.clone(), tokens.clone()]);
    let limiter = limiter.expect("usable policies");
    let key = Key::new("ada");
    let charges = [tokens.charge(key).cost(4), uploads.charge(key)];
    let held = hold(&limiter, &charges);
    let settled = panic::catch_unwind(AssertUnwindSafe(|| {
        held.settle(|policy, _| match policy.counter() {
            Counter::Concurrency(_) => panic!("a closure of the caller's"),
            _ => 0,
        });
    }));
    settled.expect_err("it panics");
    let again = take(&limiter, &charges).expect("the slot is free");
    assert!(take(&limiter, &[tokens.charge(key).cost(3)]).is_none());
    drop(again);
}

#[test]
fn slot_settled_after_its_lease_releases_no_other_slot_in_process() {
    let policy = slots(1);
    let (limiter, clock) = in_process(&policy);
    let ada = [policy.charge(Key::new("ada"))];
    let late = take(&limiter, &ada).expect("there is room");
    clock.advance(LEASE);
    let held = hold(&limiter, &ada);
    let settled = limiter.settle(late).take_ready();
    settled.expect("at once").expect("settled");
    assert!(take(&limiter, &ada).is_none(), "the other is still there");
    drop(held);
}

// Regression: whoever was in flight when its key was reset gave back the slot of somebody who came later.
#[test]
fn slot_from_before_a_reset_gives_no_other_back_in_process() {
    let policy = slots(1);
    let (limiter, _) = in_process(&policy);
    let ada = [policy.charge(Key::new("ada"))];
    let before = hold(&limiter, &ada);
    let reset = limiter.reset(&policy, ada[0].key()).take_ready();
    reset.expect("at once").expect("reset");
    let after = hold(&limiter, &ada);
    drop(before);
    assert!(take(&limiter, &ada).is_none(), "the later one is in flight");
    drop(after);
    assert!(take(&limiter, &ada).is_some());
}

#[test]
fn receipt_that_is_made_twice_gives_back_once_in_process() {
    let policy = slots(2);
    let (limiter, _) = in_process(&policy);
    let ada = [policy.charge(Key::new("ada"))];
    let decided = limiter.check(&ada).take_ready();
    let decision = decided.expect("at once").expect("a decision");
    let other = hold(&limiter, &ada);
    for _ in 0..2 {
        drop(limiter.hold(Receipt::of(&ada, &decision).expect("it was charged")));
    }
    let two = [policy.charge(Key::new("ada")).cost(2)];
    assert!(take(&limiter, &two).is_none(), "the other is in flight");
    drop(other);
    assert!(take(&limiter, &two).is_some());
}

// Slots that nobody holds must not turn newcomers away for good when there is room for no more keys.
#[test]
fn forgotten_slots_leave_room_for_new_keys_in_process() {
    let policy = slots(1);
    let clock = Clock::manual(START);
    let store = MemoryStore::builder()
        .max_keys(1)
        .clock(clock.clone())
        .build();
    let limiter = over(store.expect("a usable store"), &policy);
    let key = |number: u32| Key::new(number.to_string());
    let mut number = 0;
    while let Some(receipt) = take(&limiter, &[policy.charge(key(number))]) {
        drop(receipt);
        number += 1;
        assert!(number < 10_000, "it never fills up");
    }
    clock.advance(LEASE);
    assert!(take(&limiter, &[policy.charge(key(number))]).is_some());
}

// Regression: a policy that no builder had seen took a slot in Redis for a request that was denied.
#[test]
fn policy_that_would_count_denied_requests_as_in_flight_is_refused_at_once() {
    let policy = slots(1);
    let (limiter, _) = in_process(&policy);
    let unseen = Policy::concurrency("unseen", 1).count_denied(true);
    let refused = limiter
        .check(&[unseen.charge(Key::new("ada"))])
        .take_ready();
    let error = refused.expect("at once").expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
}

// === In an outage ===

#[tokio::test]
async fn slot_held_in_an_outage_has_no_lease_and_is_given_back_where_it_was_taken() {
    let policy = slots(1);
    let clock = Clock::manual(START);
    let local = MemoryStore::builder().clock(clock.clone()).build();
    let away = ScriptedStore::failing(ErrorKind::Unavailable, "away");
    let store = ResilientStore::builder(away, local.expect("a usable store")).build();
    let limiter = over(store.expect("a usable store"), &policy);
    let ada = [policy.charge(Key::new("ada"))];
    let decision = limiter.check(&ada).await.expect("a decision");
    assert_eq!(decision.counted_by(), CountedBy::Fallback);
    let held = limiter.hold(Receipt::of(&ada, &decision).expect("it was charged"));
    clock.advance(LEASE * 10);
    let second = limiter.check(&ada).await.expect("a decision");
    assert!(!second.is_allowed(), "the first is in flight");
    drop(held);
    let third = limiter.check(&ada).await.expect("a decision");
    assert!(third.is_allowed());
}

// === Decisions that nobody hears of ===

fn on(server: &Server, policy: &Policy, deadline: Duration) -> RateLimiter {
    let store = RedisStore::builder(server.url()).deadline(deadline);
    over(
        store.connections(1).build().expect("a usable store"),
        policy,
    )
}

async fn left(limiter: &RateLimiter, policy: &Policy) -> u64 {
    let peek = limiter.peek(&[policy.charge(Key::new("ada"))]).await;
    let decision = peek.expect("a decision");
    decision.states()[0].usage().expect("counted").remaining
}

/// Waits, by looking again, until the server has run the script so often. A new connection sends its text.
async fn is_asked(server: &Server, times: u64) {
    let looked = time::timeout(LEASE / 2, async {
        let scripts = || {
            let calls = server.command_calls();
            let calls_of = |command| calls.get(command).copied().unwrap_or_default();
            calls_of("eval") + calls_of("evalsha")
        };
        while scripts() < times {
            tokio::task::yield_now().await;
        }
    });
    looked.await.expect("it is asked");
}

/// Waits, by looking again, until all slots are free, long before their lease ends.
async fn all_come_back(limiter: &RateLimiter, policy: &Policy) {
    let looked = time::timeout(LEASE / 2, async {
        while left(limiter, policy).await != policy.quota().count() {}
    });
    looked.await.expect("the slots come back");
}

// Regression: a slot whose hold was dropped on a thread without a runtime stayed taken until its lease ended.
#[test]
fn hold_that_is_dropped_outside_of_a_runtime_gives_its_slot_back() {
    logged();
    let server = Server::start();
    let policy = slots(5);
    let limiter = on(&server, &policy, LEASE);
    let charges = [policy.charge(Key::new("ada"))];
    let taken = async || {
        let decision = limiter.check(&charges).await.expect("a decision");
        limiter.hold(Receipt::of(&charges, &decision).expect("there is room"))
    };
    let runtime = timed_runtime();
    drop(runtime.block_on(taken()));
    runtime.block_on(all_come_back(&limiter, &policy));
    // Also if no runtime lives.
    let held = runtime.block_on(taken());
    drop(runtime);
    drop(held);
    timed_runtime().block_on(all_come_back(&limiter, &policy));
    assert_eq!(logged(), Vec::<String>::new());
}

// Regression: who went away while the decision was on its way left its slots taken until their lease ended.
#[tokio::test]
async fn slots_of_a_decision_that_was_dropped_on_its_way_come_back() {
    let server = Server::start();
    let policy = slots(5);
    let limiter = on(&server, &policy, LEASE);
    assert_eq!(
        left(&limiter, &policy).await,
        5,
        "and there is a connection"
    );
    let charges = [policy.charge(Key::new("ada"))];
    // The first carries itself, the second waits for it. Both are on their way when they are dropped.
    let mut first = limiter.check(&charges);
    let mut second = limiter.check(&charges);
    server.pause();
    for _ in 0..100 {
        future::poll_fn(|context| {
            assert!(Pin::new(&mut first).poll(context).is_pending());
            assert!(Pin::new(&mut second).poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
    }
    drop((first, second));
    server.resume();
    is_asked(&server, 3).await;
    all_come_back(&limiter, &policy).await;
}

// Regression: slots that were taken after the deadline, when the decision had been made elsewhere, were nobody's.
#[tokio::test]
async fn slots_of_a_decision_that_came_too_late_come_back() {
    let server = Server::start();
    let policy = slots(5);
    let limiter = on(&server, &policy, Duration::from_secs(1));
    assert_eq!(
        left(&limiter, &policy).await,
        5,
        "and there is a connection"
    );
    server.pause();
    let late = limiter.check(&[policy.charge(Key::new("ada"))]).await;
    let error = late.expect_err("it is too late");
    assert!(matches!(error.kind(), ErrorKind::Timeout(_)), "{error:?}");
    server.resume();
    is_asked(&server, 2).await;
    all_come_back(&limiter, &policy).await;
}
