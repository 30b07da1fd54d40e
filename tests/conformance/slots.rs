//! The behaviours of all algorithms for requests in flight, and those that only requests in flight have.
//!
//! Slots are free again when they are released, or when their lease ends. In process, held slots have no lease.

use std::time::{Duration, Instant};

use ::redis::Value;
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimiter,
    charge::Receipt,
    decision::{Outcome, Retry, Usage},
};

pub(super) use super::{
    by_itself::{
        concurrent_callers_are_admitted_exactly_the_limit, cost_above_the_limit_can_never_pass,
        denial_by_it_charges_none_of_the_others, keys_and_policies_do_not_touch_each_other,
        peek_takes_nothing_and_opens_no_key, reset_starts_afresh,
    },
    changes::{
        limit_that_is_changed_there_and_back_forgives_nothing,
        peek_by_a_changed_limit_stores_nothing,
    },
    refunds::charge_given_back_at_once_is_all_there_again,
    reserves::{
        others_come_back_when_the_rest_does, others_get_the_rest_and_the_class_all,
        others_give_back_both_counts, request_that_the_whole_denies_takes_nothing_of_the_rest,
        reset_gives_the_rest_back_too, whatever_the_class_has_used_the_others_get_the_rest,
    },
};

use crate::support::Random;

use super::{
    changes::changed,
    place::{MICRO, START, check, usage},
    ways::{LEASE, Trial},
};

on_every_store! { slots, crate::conformance::ways::Trial::of_slots, {
    release_frees_its_own_slots_only
    release_after_the_lease_has_ended_frees_nothing_of_others
    release_of_what_was_forgotten_frees_nothing_of_others
    slots_are_released_at_every_cost_of_a_request
    held_slots_are_given_back_when_the_hold_is_dropped
    slots_whose_holder_is_gone_come_back_by_their_lease
    renewed_slots_stay_taken
} }

// === Behaviours of all algorithms ===

/// A denied request may retry at once: a slot is free when a request ends, and that time is unknown.
pub(super) async fn whole_limit_passes_at_once_and_the_next_request_gets_a_wait(trial: Trial) {
    let (way, ada) = (trial.way, trial.count("ada"));
    let mut receipts = Vec::new();
    for taken in 1..=way.limit {
        let charges = [ada.charge()];
        let decision = check(&ada.limiter, &charges).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.counted_by(), trial.place.counted_by());
        assert_eq!(decision.decided_at(), START);
        let all_back = START + (way.all_back)(taken);
        let stands = Usage::new(way.limit, way.limit - taken, all_back);
        assert_eq!(usage(&decision), stands);
        receipts.extend(Receipt::of(&charges, &decision));
    }
    for passed in [Duration::ZERO, LEASE - MICRO] {
        trial.place.clock.set(START + passed);
        let decision = ada.take(1).await;
        assert_eq!(decision.outcome(), Outcome::Limited);
        assert_eq!(decision.retry_after(), Some(way.next.0));
        let stands = Usage::new(way.limit, 0, START + passed);
        assert_eq!(usage(&decision), stands);
    }
    ada.give_back(receipts.pop()).await;
    assert_eq!(ada.drain().await, way.next.1);
}

/// A caller that takes every free slot has all of the limit, and never more.
pub(super) async fn greedy_caller_gets_exactly_the_quota(trial: Trial) {
    let ada = trial.count("ada");
    let mut held = Vec::new();
    for round in 0..30 {
        while let Some(receipt) = ada.borrow(1).await {
            held.push(receipt);
        }
        assert_eq!(held.len() as u64, trial.way.greedy, "round {round}");
        // The order varies, so that slots are released from every place among the others.
        let ended: Vec<Receipt> = (0..=round % 10)
            .map(|step| held.swap_remove((round * 7 + step) % held.len()))
            .collect();
        ada.give_back(ended).await;
        trial.place.clock.advance(Duration::from_secs(1));
    }
}

pub(super) async fn weighted_cost_takes_that_much(trial: Trial) {
    let (limit, policy) = (trial.way.limit, trial.way.policy("weighed").cost(3));
    let ada = trial.place.count(policy, "ada");
    let charges = [ada.charge()];
    let decision = check(&ada.limiter, &charges).await;
    assert_eq!(
        usage(&decision).remaining,
        limit - 3,
        "the policy's own cost"
    );
    let three = Receipt::of(&charges, &decision).expect("charged");
    assert_eq!(usage(&ada.take(limit - 5).await).remaining, 2);
    let decision = ada.take(3).await;
    assert_eq!(decision.retry_after(), Some(trial.way.next_three));
    assert_eq!(usage(&decision).remaining, 2, "a denial takes nothing");
    assert_eq!(usage(&ada.take(2).await).remaining, 0);
    ada.give_back([three]).await;
    assert!(!ada.take(4).await.is_allowed());
    assert!(ada.take(3).await.is_allowed());
}

/// The reset is unknown, so all report the time of the decision.
pub(super) async fn decisions_on_one_state_agree_on_the_reset(trial: Trial) {
    let (way, ada) = (trial.way, trial.count("ada"));
    let receipts = ada.borrow_each(3).await;
    for part in [0, 1, 2, 500, 999] {
        let now = START + LEASE / 1_000 * part;
        trial.place.clock.set(now);
        let stands = Usage::new(way.limit, way.limit - 3, now);
        assert_eq!(ada.peek().await, stands);
        let denied = ada.take(way.limit - 2).await;
        assert_eq!(usage(&denied), stands);
        assert_eq!(denied.states()[0].retry(), Retry::At(now));
        let other = Policy::new("other", Quota::per_hour(1_000));
        let limiter = trial.place.limiter(&[&ada.policy, &other]);
        let charges = [ada.charge().cost(0), other.charge(ada.key)];
        let decision = check(&limiter, &charges).await;
        assert_eq!(usage(&decision), stands, "with another");
    }
    ada.give_back(receipts).await;
}

/// When all slots are released or their leases have ended, the key is like a new one.
pub(super) async fn state_is_worth_nothing_from_the_reset_on(trial: Trial) {
    let (limit, clock) = (trial.way.limit, &trial.place.clock);
    for (taken, key, newcomer) in [(1, "ada", "bob"), (limit, "eve", "joe")] {
        clock.set(START);
        let (count, newcomer) = (trial.count(key), trial.count(newcomer));
        let _unheld = count.borrow_each(taken).await;
        clock.set(START + LEASE - MICRO);
        assert_eq!(count.left().await, limit - taken);
        clock.set(START + LEASE);
        assert_eq!(count.peek().await, Usage::new(limit, limit, START + LEASE));
        for _ in 0..=limit {
            assert_eq!(count.take(1).await, newcomer.take(1).await);
        }
    }
}

pub(super) async fn clock_that_is_set_back_forgives_no_debt(trial: Trial) {
    let (way, clock, ada) = (trial.way, &trial.place.clock, trial.count("ada"));
    let mut receipts = ada.borrow_each(way.limit).await;
    for back in [30, 86_400].map(Duration::from_secs) {
        clock.set(START - back);
        let decision = ada.take(1).await;
        assert_eq!(decision.retry_after(), Some(way.next.0));
        assert_eq!(usage(&decision).remaining, 0);
    }
    ada.give_back(receipts.pop()).await;
    assert_eq!(ada.drain().await, 1, "given back is given back");

    // Half is taken before the clock is set back. The rest is all that is free at any time.
    clock.set(START);
    let bob = trial.count("bob");
    let held = bob.borrow_each(way.limit / 2).await;
    clock.set(START - Duration::from_secs(30));
    let early = bob.drain().await;
    clock.set(START);
    assert_eq!(early + bob.drain().await, way.limit - way.limit / 2);
    bob.give_back(held).await;
    assert_eq!(bob.left().await, way.limit / 2);
}

/// A denied request is not in flight. To count it is an error of the policy, and retries keep no caller out.
pub(super) async fn denied_attempt_that_counts_keeps_the_caller_out(trial: Trial) {
    let way = trial.way;
    let stern = way.policy("tried").count_denied(true);
    let refused = trial.place.build(&[&stern]).expect_err("it cannot count");
    assert_eq!(refused.kind(), ErrorKind::InvalidPolicy);
    let stranger = trial.place.limiter(&[]);
    let refused = stranger.check(&[stern.charge(Key::new("ada"))]).await;
    let refused = refused.expect_err("neither does it when it was not announced");
    assert_eq!(refused.kind(), ErrorKind::InvalidPolicy);

    for (key, knocks, next) in [("ada", 1, way.knocked[0]), ("bob", 30, way.knocked[1])] {
        let count = trial.count(key);
        let mut receipts = count.borrow_each(way.limit).await;
        for _ in 0..knocks {
            assert_eq!(count.retry(1).await, Retry::At(START + next));
        }
        count.give_back(receipts.pop()).await;
        assert_eq!(count.drain().await, 1);
    }
}

/// Other policies may count a denied attempt, but it takes no slot.
pub(super) async fn attempt_that_another_policy_denies_counts_when_asked_to(trial: Trial) {
    let (limit, ada) = (trial.way.limit, Key::new("ada"));
    let slots = trial.way.policy("slots");
    let stern = Policy::new("stern", Quota::per_day(100)).count_denied(true);
    let narrow = Policy::new("narrow", Quota::per_day(1));
    let limiter = trial.place.limiter(&[&slots, &stern, &narrow]);
    let knock = || [slots.charge(ada), stern.charge(ada), narrow.charge(ada)];
    assert!(check(&limiter, &knock()).await.is_allowed());
    for knocks in 2..=limit + 3 {
        let decision = check(&limiter, &knock()).await;
        let left = |index: usize| decision.states()[index].usage().expect("counted").remaining;
        assert_eq!([left(0), left(1), left(2)], [limit - 1, 100 - knocks, 0]);
        assert_eq!(
            decision.states()[0].outcome(),
            Outcome::Allowed,
            "it fits on its own"
        );
    }
}

pub(super) async fn key_outlives_what_it_owes_and_no_crowd_drives_it_out(trial: Trial) {
    let Trial { way, place } = trial;
    let place = place.crowded();
    let trial = Trial { way, place };
    let (ada, since) = (trial.count("ada"), Instant::now());
    let receipts = ada.borrow_each(way.limit).await;
    if trial.place.is_on_servers() {
        assert_lives(&trial, LEASE, since);
        // A renewal starts the lifetime of the key again.
        let since = Instant::now();
        trial.place.renew(&receipts[0]).await;
        assert_lives(&trial, LEASE, since);
    } else {
        let mut turned_away = 0;
        for number in 0..50 {
            let newcomer = trial.count(&format!("newcomer-{number}"));
            turned_away += u64::from(newcomer.borrow(1).await.is_none());
        }
        assert!(turned_away > 0, "there is room for fewer");
    }
    assert_eq!(ada.left().await, 0);
    ada.give_back(receipts).await;
    assert_eq!(trial.place.values().len(), 0, "no key without a slot");
    assert_eq!(ada.drain().await, way.limit);
}

/// Asserts that the only key on the server lives as long as its state counts, and at most a second longer.
pub(super) fn assert_lives(trial: &Trial, life: Duration, since: Instant) {
    let [(key, server)] = trial.place.keys().try_into().ok().expect("one key");
    let Value::Int(left) = server.command(&["PTTL", &key]) else {
        panic!("PTTL returns a number");
    };
    let (life, took) = (
        life.as_millis() as i64,
        since.elapsed().as_millis() as i64 + 1,
    );
    assert!(
        left + took >= life,
        "{left} ms left of {life}, after {took}"
    );
    assert!(left <= life + 1_001, "{left} ms left of {life}");
}

/// Requests in flight stay in flight under a lower limit. No other one begins until enough of them have ended.
pub(super) async fn changed_limit_keeps_what_was_used(trial: Trial) {
    let limit = trial.way.limit;
    for (number, change) in trial.way.changes.iter().enumerate() {
        let (half, all) = (format!("half-{number}"), format!("all-{number}"));
        trial.count(&half).spend(limit / 2).await;
        let receipts = trial.count(&all).borrow_each(limit).await;
        let (half, all) = (
            changed(&trial, change, &half),
            changed(&trial, change, &all),
        );
        let left = (half.left().await, all.left().await);
        assert_eq!(left, (change.half_left, change.none_left), "{change:?}");
        assert_eq!(half.drain().await, change.half_left, "{change:?}");
        for (held, receipt) in (0..limit).rev().zip(receipts) {
            all.give_back([receipt]).await;
            let left = change.quota.count().saturating_sub(held);
            assert_eq!(all.left().await, left, "{change:?}, {held} in flight");
        }
        assert_eq!(all.drain().await, change.quota.count(), "{change:?}");
    }
}

/// Once the requests in flight have ended, the old limit has no effect.
pub(super) async fn wait_under_a_changed_limit_is_at_most_the_wait_of_the_new_limit(trial: Trial) {
    for (number, change) in trial.way.changes.iter().enumerate() {
        let (old, new) = (format!("old-{number}"), format!("new-{number}"));
        let receipts = trial.count(&old).borrow_each(trial.way.limit).await;
        let (old, new) = (changed(&trial, change, &old), changed(&trial, change, &new));
        assert!(!old.take(u64::MAX).await.is_allowed());
        assert!(old.left().await < change.quota.capacity(), "{change:?}");
        old.give_back(receipts).await;
        for _ in 0..=change.quota.count() {
            assert_eq!(old.take(1).await, new.take(1).await, "{change:?}");
        }
    }
}

/// Denied attempts have no effect under a higher limit, and none after all requests have ended.
pub(super) async fn denied_attempts_that_counted_make_no_debt_beyond_the_limit(trial: Trial) {
    let way = trial.way;
    let ada = trial.count("ada");
    let receipts = ada.borrow_each(way.limit).await;
    let (spent, values) = (ada.peek().await, trial.place.values());
    for _ in 0..30 {
        assert_eq!(usage(&ada.take(1).await), spent);
        assert_eq!(usage(&ada.take(way.limit + 1).await), spent);
    }
    assert_eq!(trial.place.values(), values);
    let raised = &way.changes[0];
    let left = changed(&trial, raised, "ada").left().await;
    assert_eq!(left, raised.none_left);
    ada.give_back(receipts).await;
    assert!(trial.place.values().is_empty());
    assert_eq!(ada.left().await, way.limit);
}

// === Behaviours of requests in flight ===

async fn release_frees_its_own_slots_only(trial: Trial) {
    let (limit, ada, bob) = (trial.way.limit, trial.count("ada"), trial.count("bob"));
    let elsewhere = trial.place.count(trial.way.policy("elsewhere"), "ada");
    bob.spend(limit).await;
    elsewhere.spend(limit).await;
    for order in [[0, 0, 0, 0], [3, 2, 1, 0], [1, 2, 0, 0], [2, 0, 1, 0]] {
        let mut held = Vec::new();
        for cost in 1..=4 {
            held.push((cost, ada.borrow(cost).await.expect("free")));
        }
        let mut free = limit - 10;
        for index in order {
            let (cost, receipt) = held.remove(index);
            ada.give_back([receipt]).await;
            free += cost;
            assert_eq!(ada.left().await, free, "{order:?}");
        }
    }
    assert_eq!((bob.left().await, elsewhere.left().await), (0, 0));
}

async fn release_after_the_lease_has_ended_frees_nothing_of_others(trial: Trial) {
    let ada = trial.count("ada");
    let late = ada.borrow(4).await.expect("free");
    trial.place.clock.set(START + LEASE);
    ada.spend(trial.way.limit).await;
    ada.give_back([late]).await;
    assert_eq!(ada.left().await, 0);
}

// Regression: in process, it released slots that others had taken since.
async fn release_of_what_was_forgotten_frees_nothing_of_others(trial: Trial) {
    let ada = trial.count("ada");
    let forgotten = ada.borrow(4).await.expect("free");
    let reset = ada.limiter.reset(&ada.policy, &ada.key);
    reset.await.expect("reset");
    let held = ada.borrow_each(trial.way.limit).await;
    ada.give_back([forgotten]).await;
    assert_eq!(ada.left().await, 0);
    ada.give_back(held).await;
    assert_eq!(ada.left().await, trial.way.limit);
}

/// The actual cost of a request changes other policies. Its slots are released in any case.
async fn slots_are_released_at_every_cost_of_a_request(trial: Trial) {
    let slots = trial.way.policy("slots");
    let bucket = Policy::new("bucket", Quota::per_day(100));
    let limiter = trial.place.limiter(&[&slots, &bucket]);
    for (key, price, left) in [("ada", 0, 100), ("bob", 4, 96), ("eve", 9, 91)] {
        let key = Key::new(key);
        let charges = [slots.charge(key).cost(4), bucket.charge(key).cost(4)];
        let decision = check(&limiter, &charges).await;
        let receipt = Receipt::of(&charges, &decision).expect("charged");
        assert_eq!(lefts(&limiter, &charges).await, [trial.way.limit - 4, 96]);
        let settled = limiter.settle(receipt.actual_cost(|_, _| price)).await;
        settled.expect("settled");
        assert_eq!(lefts(&limiter, &charges).await, [trial.way.limit, left]);
    }
}

async fn lefts(limiter: &RateLimiter, charges: &[tollgate::Charge<'_>]) -> Vec<u64> {
    let peek = limiter.peek(charges).await.expect("a decision");
    let left = |state: &tollgate::decision::PolicyState| state.usage().expect("counted").remaining;
    peek.states().iter().map(left).collect()
}

async fn held_slots_are_given_back_when_the_hold_is_dropped(trial: Trial) {
    let ada = trial.count("ada");
    let receipts = ada.borrow_each(trial.way.limit).await.into_iter();
    let mut holds: Vec<_> = receipts.map(|receipt| ada.limiter.hold(receipt)).collect();
    assert_eq!(ada.left().await, 0);
    drop(holds.pop());
    frees(&ada, 1).await;
    drop(holds);
    frees(&ada, trial.way.limit).await;
}

/// Polls until this many slots are free.
async fn frees(count: &super::place::Count<'_>, free: u64) {
    let looked = tokio::time::timeout(Duration::from_secs(10), async {
        while count.left().await != free {
            tokio::task::yield_now().await;
        }
    });
    looked.await.expect("the slots come back");
}

/// In process, a holder cannot be gone while the count still exists, so held slots stay taken.
async fn slots_whose_holder_is_gone_come_back_by_their_lease(trial: Trial) {
    let (limit, clock, ada) = (trial.way.limit, &trial.place.clock, trial.count("ada"));
    let mut held = Vec::new();
    let is_kept = !trial.place.is_on_servers();
    for (passed, units) in [(Duration::ZERO, limit - 4), (LEASE / 2, 4)] {
        clock.set(START + passed);
        let receipts = ada.borrow_each(units).await.into_iter();
        // On a server they are dropped, as by a process that dies.
        let receipts = receipts.filter(|_| is_kept);
        held.extend(receipts.map(|receipt| ada.limiter.hold(receipt)));
    }
    for (passed, free) in [
        (LEASE - MICRO, 0),
        (LEASE, limit - 4),
        (LEASE / 2 * 3 - MICRO, limit - 4),
        (LEASE / 2 * 3, limit),
        (LEASE * 2_000, limit),
    ] {
        clock.set(START + passed);
        let free = if is_kept { 0 } else { free };
        assert_eq!(ada.left().await, free, "{passed:?}");
    }
    drop(held);
    assert_eq!(ada.drain().await, limit);
}

async fn renewed_slots_stay_taken(trial: Trial) {
    let (limit, clock, ada) = (trial.way.limit, &trial.place.clock, trial.count("ada"));
    let kept = ada.borrow(limit).await.expect("free");
    if !trial.place.is_on_servers() {
        // In process, held slots need no renewal.
        let hold = ada.limiter.hold(kept);
        clock.set(START + LEASE * 4);
        assert_eq!(ada.left().await, 0);
        drop(hold);
        assert_eq!(ada.left().await, limit);
        return;
    }
    for thirds in 1..=9 {
        clock.set(START + LEASE / 3 * thirds);
        trial.place.renew(&kept).await;
        assert_eq!(ada.left().await, 0);
    }
    clock.set(START + LEASE * 4 - MICRO);
    assert_eq!(ada.left().await, 0);
    clock.set(START + LEASE * 4);
    assert_eq!(ada.left().await, limit);
}

/// Only the present number counts: earlier charges do not.
pub(super) async fn nothing_passes_over_the_limit_in_any_order_of_refunds(trial: Trial) {
    let (limit, ada) = (trial.way.limit, trial.count("ada"));
    let (mut random, mut open, mut in_flight, mut denied) = (Random(7), Vec::new(), 0, 0);
    for _ in 0..600 {
        if random.below(3) == 0 && !open.is_empty() {
            let index = usize::try_from(random.below(open.len() as u64)).expect("an index");
            let (receipt, units) = open.swap_remove(index);
            ada.give_back([receipt]).await;
            in_flight -= units;
        } else {
            let units = 1 + random.below(3);
            match ada.borrow(units).await {
                Some(receipt) => {
                    open.push((receipt, units));
                    in_flight += units;
                }
                None => denied += 1,
            }
        }
        assert!(in_flight <= limit, "{in_flight} in flight");
        assert_eq!(ada.left().await, limit - in_flight);
    }
    assert!(denied > 50, "{denied}");
}

/// Slots whose lease has ended are not released again: others have them now.
pub(super) async fn refund_gives_no_more_than_its_charge_weighs(trial: Trial) {
    let (limit, ada) = (trial.way.limit, trial.count("ada"));
    let early = ada.borrow_each(limit).await;
    trial.place.clock.set(START + LEASE);
    let late = ada.borrow_each(limit).await;
    ada.give_back(early).await;
    assert_eq!(ada.left().await, 0);
    ada.give_back(late).await;
    assert_eq!(ada.left().await, limit);
}
