//! A part of the quota that one class has for itself, and lends while it does not need it.

use std::time::Duration;

use tollgate::{
    Decision, Key, Percent, Policy, Quota, RateLimiter,
    charge::Receipt,
    decision::{Outcome, Usage},
    overload::Priority,
};

use super::{
    place::{MICRO, START, check},
    ways::{Trial, Way},
};

// Windows lend nothing.
by_every_way! { loans, {
    others_get_all_but_a_twentieth
    what_the_class_uses_is_not_lent
    what_comes_back_is_for_the_class_first
    others_come_back_when_a_twentieth_is_free
    denied_others_take_nothing
    others_give_back_what_they_took
    changed_limit_keeps_the_share
    others_are_denied_together_with_other_policies
}, { token_bucket leaky_bucket concurrency } }

on_every_store! { loans, crate::conformance::ways::Trial::of_slots, {
    slots_that_the_class_had_lately_are_kept
} }

/// A policy with a part for critical requests, which it lends, as it counts one key.
struct Lending {
    limiter: RateLimiter,
    policy: Policy,
    /// Units that are lent to others, together with those that the class uses.
    lent: u64,
}

/// Lends the half that is reserved.
fn lending(policy: Policy) -> Policy {
    policy
        .reserve(Priority::Critical, Percent::new(50.0))
        .lend(Duration::from_secs(60))
}

impl Lending {
    fn new(trial: &Trial) -> Self {
        let policy = lending(trial.way.policy("tried"));
        Self {
            limiter: trial.place.limiter(&[&policy]),
            lent: trial.way.limit - trial.way.limit.div_ceil(20),
            policy,
        }
    }

    async fn ask(&self, priority: Priority) -> Decision {
        let charges = self.policy.charges(Key::new("ada"), priority);
        check(&self.limiter, &charges).await
    }

    /// Takes units for a class until one is denied: how many were admitted.
    async fn drain(&self, priority: Priority) -> u64 {
        let mut taken = 0;
        while self.ask(priority).await.is_allowed() {
            taken += 1;
        }
        taken
    }

    /// Takes a unit that can be given back.
    async fn borrow(&self, priority: Priority) -> Receipt {
        let charges = self.policy.charges(Key::new("ada"), priority);
        let decision = check(&self.limiter, &charges).await;
        Receipt::of(&charges, &decision).expect("admitted")
    }

    async fn give_back(&self, receipt: Receipt) {
        let settled = self.limiter.settle(receipt.actual_cost(|_, _| 0)).await;
        settled.expect("given back");
    }
}

/// Whether units come back with whoever took them, and not with time.
fn has_slots(way: &Way) -> bool {
    way.name == "concurrency"
}

fn usage(decision: &Decision) -> Usage {
    let state = decision.states().first().expect("a state");
    state.usage().expect("counted")
}

pub(super) async fn others_get_all_but_a_twentieth(trial: Trial) {
    let (limit, lending) = (trial.way.limit, Lending::new(&trial));
    assert_eq!(lending.drain(Priority::Normal).await, lending.lent);
    for other in [Priority::Sheddable, Priority::Named("paid")] {
        assert!(!lending.ask(other).await.is_allowed(), "{other}");
    }
    let denied = lending.ask(Priority::Normal).await;
    assert_eq!(denied.outcome(), Outcome::Limited);
    let seen = usage(&denied);
    assert_eq!((seen.limit, seen.remaining), (lending.lent, 0));
    assert_eq!(
        lending.drain(Priority::Critical).await,
        limit - lending.lent
    );
    let seen = usage(&lending.ask(Priority::Critical).await);
    assert_eq!((seen.limit, seen.remaining), (limit, 0));
}

pub(super) async fn what_the_class_uses_is_not_lent(trial: Trial) {
    let lending = Lending::new(&trial);
    for _ in 0..3 {
        assert!(lending.ask(Priority::Critical).await.is_allowed());
    }
    // Slots are lent while they are not needed; a rate gets back what it lends.
    let left = match has_slots(trial.way) {
        true => trial.way.limit / 2,
        false => lending.lent - 3,
    };
    assert_eq!(lending.drain(Priority::Normal).await, left);
}

pub(super) async fn what_comes_back_is_for_the_class_first(trial: Trial) {
    let lending = Lending::new(&trial);
    let slot = lending.borrow(Priority::Normal).await;
    assert_eq!(lending.drain(Priority::Normal).await, lending.lent - 1);
    let kept = trial.way.limit - lending.lent;
    assert_eq!(lending.drain(Priority::Critical).await, kept);
    if has_slots(trial.way) {
        lending.give_back(slot).await;
    } else {
        trial.place.clock.advance(trial.way.next.0);
    }
    assert!(!lending.ask(Priority::Normal).await.is_allowed());
    assert_eq!(lending.drain(Priority::Critical).await, 1);
}

/// Slots come back at any time, so their wait is zero.
pub(super) async fn others_come_back_when_a_twentieth_is_free(trial: Trial) {
    let lending = Lending::new(&trial);
    assert_eq!(lending.drain(Priority::Normal).await, lending.lent);
    assert_eq!(lending.drain(Priority::Critical).await, 1);
    let wait = lending.ask(Priority::Normal).await.retry_after();
    let wait = wait.expect("a wait");
    assert_eq!(wait.is_zero(), has_slots(trial.way));
    if !wait.is_zero() {
        assert!(wait >= 2 * trial.way.next.0, "two units must come back");
        trial.place.clock.advance(wait - MICRO);
        assert!(!lending.ask(Priority::Normal).await.is_allowed());
        trial.place.clock.advance(MICRO);
        assert!(lending.ask(Priority::Normal).await.is_allowed());
    }
}

pub(super) async fn denied_others_take_nothing(trial: Trial) {
    let lending = Lending::new(&trial);
    assert_eq!(lending.drain(Priority::Normal).await, lending.lent);
    for _ in 0..20 {
        assert!(!lending.ask(Priority::Normal).await.is_allowed());
    }
    let kept = trial.way.limit - lending.lent;
    assert_eq!(lending.drain(Priority::Critical).await, kept);
}

/// A charge that is given back at once leaves no trace.
pub(super) async fn others_give_back_what_they_took(trial: Trial) {
    let lending = Lending::new(&trial);
    for _ in 0..3 * trial.way.limit {
        let receipt = lending.borrow(Priority::Normal).await;
        lending.give_back(receipt).await;
    }
    assert_eq!(lending.drain(Priority::Normal).await, lending.lent);
}

/// A request of another class, which admits less than the whole, converts the state of the key as one that may use all of it.
pub(super) async fn changed_limit_keeps_the_share(trial: Trial) {
    // The first change of a bucket leaves the span as it is, so that its states need no conversion.
    let change = usize::from(!has_slots(trial.way));
    let quota = trial.way.changes[change].quota;
    let mut seen = Vec::new();
    for (name, lends) in [("lent", true), ("plain", false)] {
        let policy = |policy: Policy| match lends {
            true => lending(policy),
            false => policy,
        };
        let old = policy(trial.way.policy(name));
        let new = policy(Policy::new(name, quota).algorithm(trial.way.algorithm));
        let limiter = trial.place.limiter(&[&old]);
        let half = old.charge(Key::new("ada")).cost(trial.way.limit / 2);
        assert!(check(&limiter, &[half]).await.is_allowed());
        let others = new.charges(Key::new("ada"), Priority::Normal);
        assert!(check(&limiter, &others).await.is_allowed());
        let critical = new.charges(Key::new("ada"), Priority::Critical);
        seen.push(usage(&check(&limiter, &critical).await));
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].reset_at > START || has_slots(trial.way));
}

pub(super) async fn others_are_denied_together_with_other_policies(trial: Trial) {
    let lending = Lending::new(&trial);
    let other = Policy::new("other", Quota::per_hour(100));
    let limiter = trial.place.limiter(&[&lending.policy, &other]);
    let ask = async |class| {
        let mut charges = lending.policy.charges(Key::new("ada"), class);
        charges.push(other.charge(Key::new("ada")));
        check(&limiter, &charges).await
    };
    let mut taken = 0;
    while ask(Priority::Normal).await.is_allowed() {
        taken += 1;
    }
    assert_eq!(taken, lending.lent);
    assert!(ask(Priority::Critical).await.is_allowed());
    let left = check(&limiter, &[other.charge(Key::new("ada")).cost(0)]).await;
    assert_eq!(usage(&left).remaining, 100 - taken - 1);
}

/// Half as many again as it had, within the reserve.
pub(super) async fn slots_that_the_class_had_lately_are_kept(trial: Trial) {
    let lending = Lending::new(&trial);
    let critical = [
        lending.borrow(Priority::Critical).await,
        lending.borrow(Priority::Critical).await,
    ];
    assert!(lending.ask(Priority::Normal).await.is_allowed());
    for slot in critical {
        lending.give_back(slot).await;
    }
    assert_eq!(lending.drain(Priority::Normal).await, lending.lent - 3 - 1);
    // Two periods later. The first reply shows that the class has none.
    trial.place.clock.advance(Duration::from_secs(20));
    assert!(!lending.ask(Priority::Normal).await.is_allowed());
    assert_eq!(lending.drain(Priority::Normal).await, 3);
}
