//! A part of the quota that one class has for itself.

use tollgate::{
    Decision, Key, Percent, Policy, RateLimiter,
    charge::Receipt,
    decision::{Outcome, PolicyState},
    overload::Priority,
};

use super::{
    place::{MICRO, check},
    ways::{Trial, Way},
};

by_every_way! { reserves, {
    others_get_the_rest_and_the_class_all
    whatever_the_class_has_used_the_others_get_the_rest
    request_that_the_whole_denies_takes_nothing_of_the_rest
    others_give_back_both_counts
    others_come_back_when_the_rest_does
    reset_gives_the_rest_back_too
} }

/// A policy with a part for critical requests, as it counts one key.
struct Reserved {
    limiter: RateLimiter,
    policy: Policy,
    /// Units that the others may use.
    rest: u64,
}

impl Reserved {
    /// Reserves a fifth.
    fn new(trial: &Trial) -> Self {
        let policy = trial.way.policy("tried");
        let policy = policy.reserve(Priority::Critical, Percent::new(20.0));
        Self {
            limiter: trial.place.limiter(&[&policy]),
            rest: rest_of(trial.way),
            policy,
        }
    }

    async fn ask(&self, priority: Priority) -> Decision {
        check(
            &self.limiter,
            &self.policy.charges(Key::new("ada"), priority),
        )
        .await
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
    async fn borrow(&self, priority: Priority) -> Option<Receipt> {
        let charges = self.policy.charges(Key::new("ada"), priority);
        let decision = check(&self.limiter, &charges).await;
        Receipt::of(&charges, &decision)
    }

    async fn give_back(&self, receipt: Receipt) {
        let settled = self.limiter.settle(receipt.actual_cost(|_, _| 0)).await;
        settled.expect("given back");
    }
}

/// Returns the rest of a limit of which a fifth, rounded up, is reserved.
fn rest_of(way: &Way) -> u64 {
    way.limit - way.limit.div_ceil(5)
}

pub(super) async fn others_get_the_rest_and_the_class_all(trial: Trial) {
    let (limit, reserved) = (trial.way.limit, Reserved::new(&trial));
    assert_eq!(reserved.drain(Priority::Normal).await, reserved.rest);
    for other in [Priority::Sheddable, Priority::Named("paid")] {
        assert!(!reserved.ask(other).await.is_allowed(), "{other}");
    }
    let denied = reserved.ask(Priority::Normal).await;
    assert_eq!(denied.outcome(), Outcome::Limited);
    let rest = denied
        .state("tried.unreserved")
        .and_then(PolicyState::usage);
    let rest = rest.expect("counted");
    assert_eq!((rest.limit, rest.remaining), (reserved.rest, 0));
    let left = reserved.drain(Priority::Critical).await;
    assert_eq!(left, limit - reserved.rest, "what is reserved");
}

pub(super) async fn whatever_the_class_has_used_the_others_get_the_rest(trial: Trial) {
    let (limit, reserved) = (trial.way.limit, Reserved::new(&trial));
    for taken in 0..limit - reserved.rest {
        let decision = reserved.ask(Priority::Critical).await;
        assert!(decision.is_allowed(), "after {taken}");
        assert_eq!(decision.states().len(), 1, "the rest is not counted");
    }
    assert_eq!(reserved.drain(Priority::Normal).await, reserved.rest);
    assert_eq!(reserved.drain(Priority::Critical).await, 0);
}

pub(super) async fn request_that_the_whole_denies_takes_nothing_of_the_rest(trial: Trial) {
    let (limit, reserved) = (trial.way.limit, Reserved::new(&trial));
    assert_eq!(reserved.drain(Priority::Critical).await, limit);
    let denied = reserved.ask(Priority::Normal).await;
    assert!(!denied.is_allowed());
    let rest = denied
        .state("tried.unreserved")
        .and_then(PolicyState::usage);
    assert_eq!(rest.expect("counted").remaining, reserved.rest);
}

/// A charge that is given back at once leaves no trace in either.
pub(super) async fn others_give_back_both_counts(trial: Trial) {
    let reserved = Reserved::new(&trial);
    for round in 0..3 * trial.way.limit {
        let receipt = reserved.borrow(Priority::Normal).await;
        let receipt = receipt.unwrap_or_else(|| panic!("denied in round {round}"));
        reserved.give_back(receipt).await;
    }
    assert_eq!(reserved.drain(Priority::Normal).await, reserved.rest);
}

/// Slots come back at any time, so their wait is zero.
pub(super) async fn others_come_back_when_the_rest_does(trial: Trial) {
    let reserved = Reserved::new(&trial);
    assert_eq!(reserved.drain(Priority::Normal).await, reserved.rest);
    let wait = reserved.ask(Priority::Normal).await.retry_after();
    let wait = wait.expect("a wait");
    assert_eq!(wait.is_zero(), trial.way.name == "concurrency");
    if !wait.is_zero() {
        trial.place.clock.advance(wait - MICRO);
        assert!(!reserved.ask(Priority::Normal).await.is_allowed());
        trial.place.clock.advance(MICRO);
        assert!(reserved.ask(Priority::Normal).await.is_allowed());
    }
}

// Regression: only the whole was reset, so the others stayed denied.
pub(super) async fn reset_gives_the_rest_back_too(trial: Trial) {
    let reserved = Reserved::new(&trial);
    assert_eq!(reserved.drain(Priority::Normal).await, reserved.rest);
    let reset = reserved.limiter.reset(&reserved.policy, &Key::new("ada"));
    reset.await.expect("reset");
    assert_eq!(reserved.drain(Priority::Normal).await, reserved.rest);
}
