//! Bans after repeated denials, under every algorithm: they grow, end, and are forgiven.

use std::time::Duration;

use tollgate::{
    Charge, Decision, Key, Policy, Quota,
    charge::Enforcement,
    decision::{DeniedBy, Outcome, PolicyState, Retry},
    memory::MemoryStore,
    policy::Penalty,
};

use crate::support::Random;

use super::{
    place::{MICRO, Place, START, check, usage},
    ways::WAYS,
};

on_every_store! { penalties, std::convert::identity, {
    ban_begins_with_a_denial_and_ends_in_time_under_every_algorithm
    bans_grow_up_to_the_longest_and_are_forgiven
    denials_that_are_too_far_apart_do_not_ban
    request_during_a_ban_charges_no_policy_and_does_not_prolong_it
    policy_that_only_shadows_counts_bans_and_denies_nothing
    reset_ends_a_ban
    peeks_are_not_denied_by_a_ban_and_do_not_count
    clock_that_is_set_back_prolongs_a_ban_by_the_longest_at_most
    changed_penalty_shortens_a_ban
    ban_under_a_shortened_penalty_ends_once_and_not_later_with_each_request
    ban_from_before_the_clock_was_set_back_ends_once_and_not_later_with_each_request
    standing_of_a_key_shows_its_denials_its_bans_and_when_they_are_forgiven
    keys_and_policies_are_banned_apart
    random_requests_are_banned_as_in_process
} }

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Bans for 30 s after 3 denials within 10 s, then for twice as long, up to 100 s.
fn penalty() -> Penalty {
    Penalty::after(3, 10 * SECOND)
        .ban(30 * SECOND)
        .growing(2, 100 * SECOND)
        .forgiven_after(5 * MINUTE)
}

/// One unit in an hour, so that all further requests are denied.
fn tight() -> Policy {
    Policy::new("tight", Quota::per_hour(1)).penalty(penalty())
}

fn state(decision: &Decision) -> PolicyState {
    decision.states()[0]
}

async fn ban_begins_with_a_denial_and_ends_in_time_under_every_algorithm(place: Place) {
    for way in &WAYS {
        let policy = way
            .policy(&format!("banned-{}", way.name))
            .penalty(penalty());
        let limiter = place.limiter(&[&policy]);
        let charge = policy.charge(Key::new("ada"));
        for _ in 0..way.limit {
            let decision = check(&limiter, &[charge]).await;
            assert!(decision.is_allowed(), "{}", way.name);
        }
        for _ in 0..2 {
            let denied = state(&check(&limiter, &[charge]).await);
            assert_eq!(denied.denied_by(), Some(DeniedBy::Quota), "{}", way.name);
        }
        let until = place.clock.now() + 30 * SECOND;
        for _ in 0..5 {
            let decision = check(&limiter, &[charge]).await;
            let banned = state(&decision);
            assert_eq!(banned.denied_by(), Some(DeniedBy::Ban), "{}", way.name);
            assert_eq!(usage(&decision).remaining, 0);
            assert!(usage(&decision).reset_at >= until);
            assert!(banned.retry() >= Retry::At(until), "{banned:?}");
        }
        limiter
            .reset(&policy, &Key::new("ada"))
            .await
            .expect("reset");
    }
}

async fn bans_grow_up_to_the_longest_and_are_forgiven(place: Place) {
    let policy = Policy::new("strict", Quota::new(1, SECOND)).penalty(penalty());
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    for seconds in [30, 60, 100, 100, 100] {
        assert!(check(&limiter, &[charge]).await.is_allowed());
        for _ in 0..2 {
            let denied = state(&check(&limiter, &[charge]).await);
            assert_eq!(denied.denied_by(), Some(DeniedBy::Quota));
        }
        let until = place.clock.now() + seconds * SECOND;
        let banned = state(&check(&limiter, &[charge]).await);
        assert_eq!(banned.denied_by(), Some(DeniedBy::Ban));
        assert_eq!(banned.retry(), Retry::At(until));
        place.clock.set(until - MICRO);
        let decision = check(&limiter, &[charge]).await;
        assert_eq!(state(&decision).retry(), Retry::At(until));
        assert_eq!(decision.retry_after(), Some(MICRO));
        place.clock.set(until);
    }
    // Five minutes without a denial after the end of the last ban.
    let forgiven_at = place.clock.now() + 5 * MINUTE;
    place.clock.set(forgiven_at);
    assert!(check(&limiter, &[charge]).await.is_allowed());
    for _ in 0..2 {
        check(&limiter, &[charge]).await;
    }
    let banned = state(&check(&limiter, &[charge]).await);
    assert_eq!(banned.retry(), Retry::At(forgiven_at + 30 * SECOND));
}

async fn denials_that_are_too_far_apart_do_not_ban(place: Place) {
    let policy = tight();
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    check(&limiter, &[charge]).await;
    for _ in 0..20 {
        // Two denials in each 10 s.
        for _ in 0..2 {
            let denied = state(&check(&limiter, &[charge]).await);
            assert_eq!(denied.denied_by(), Some(DeniedBy::Quota));
        }
        place.clock.set(place.clock.now() + 10 * SECOND);
    }
}

async fn request_during_a_ban_charges_no_policy_and_does_not_prolong_it(place: Place) {
    let policy = tight()
        .penalty(penalty().growing(2, 120 * MINUTE))
        .count_denied(true);
    let other = Policy::new("other", Quota::per_hour(50));
    let limiter = place.limiter(&[&policy, &other]);
    let ada = Key::new("ada");
    let charges = [other.charge(ada), policy.charge(ada)];
    assert!(check(&limiter, &charges).await.is_allowed());
    for _ in 0..3 {
        check(&limiter, &charges).await;
    }
    let until = START + 30 * SECOND;
    for seconds in 0..30 {
        place.clock.set(START + seconds * SECOND);
        let before = place.values();
        let decision = check(&limiter, &charges).await;
        assert_eq!(decision.outcome(), Outcome::Limited);
        let [spared, banned] = decision.states() else {
            panic!("two states")
        };
        assert_eq!(banned.denied_by(), Some(DeniedBy::Ban));
        assert!(banned.retry() >= Retry::At(until), "{banned:?}");
        assert_eq!(spared.outcome(), Outcome::Allowed);
        assert_eq!(spared.usage().expect("counted").remaining, 49);
        assert_eq!(before, place.values(), "nothing is written");
    }
}

async fn policy_that_only_shadows_counts_bans_and_denies_nothing(place: Place) {
    let policy = tight();
    let wide = Policy::new("wide", Quota::per_hour(100));
    let limiter = place.limiter(&[&policy, &wide]);
    let ada = Key::new("ada");
    let shadow = policy.charge(ada).enforcement(Enforcement::Shadow);
    for number in 0..10 {
        let decision = check(&limiter, &[shadow, wide.charge(ada)]).await;
        assert!(decision.is_allowed());
        let expected = match number {
            0 => None,
            1 | 2 => Some(DeniedBy::Quota),
            _ => Some(DeniedBy::Ban),
        };
        assert_eq!(state(&decision).denied_by(), expected, "{number}");
        assert_eq!(decision.would_deny().count(), usize::from(number > 0));
    }
}

async fn reset_ends_a_ban(place: Place) {
    let policy = tight();
    let limiter = place.limiter(&[&policy]);
    let ada = Key::new("ada");
    for _ in 0..4 {
        check(&limiter, &[policy.charge(ada)]).await;
    }
    let banned = state(&check(&limiter, &[policy.charge(ada)]).await);
    assert_eq!(banned.denied_by(), Some(DeniedBy::Ban));
    limiter.reset(&policy, &ada).await.expect("reset");
    assert!(check(&limiter, &[policy.charge(ada)]).await.is_allowed());
    // Its earlier denials are forgotten, too.
    for _ in 0..2 {
        let denied = state(&check(&limiter, &[policy.charge(ada)]).await);
        assert_eq!(denied.denied_by(), Some(DeniedBy::Quota));
    }
}

async fn peeks_are_not_denied_by_a_ban_and_do_not_count(place: Place) {
    let policy = tight();
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    check(&limiter, &[charge]).await;
    for _ in 0..10 {
        let peeked = limiter.peek(&[charge]).await.expect("a decision");
        assert!(peeked.is_allowed());
    }
    for _ in 0..3 {
        check(&limiter, &[charge]).await;
    }
    let banned = state(&check(&limiter, &[charge]).await);
    assert_eq!(banned.denied_by(), Some(DeniedBy::Ban));
    assert!(
        limiter
            .peek(&[charge])
            .await
            .expect("a decision")
            .is_allowed()
    );
}

async fn clock_that_is_set_back_prolongs_a_ban_by_the_longest_at_most(place: Place) {
    let policy = Policy::new("strict", Quota::new(1, SECOND)).penalty(penalty());
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    for _ in 0..4 {
        check(&limiter, &[charge]).await;
    }
    for (back, left) in [(SECOND, 31), (80 * SECOND, 100), (86_400 * SECOND, 100)] {
        place.clock.set(START - back);
        let banned = state(&check(&limiter, &[charge]).await);
        let until = START - back + left * SECOND;
        assert_eq!(banned.denied_by(), Some(DeniedBy::Ban));
        if back < 2 * SECOND {
            assert_eq!(banned.retry(), Retry::At(until.max(START + 30 * SECOND)));
        } else {
            assert!(
                banned.retry() <= Retry::At(until.max(START + SECOND)),
                "{banned:?}"
            );
        }
    }
}

async fn changed_penalty_shortens_a_ban(place: Place) {
    let without = Policy::new("strict", Quota::new(1, SECOND));
    let policy = without.clone().penalty(penalty());
    let limiter = place.limiter(&[&policy]);
    let ada = Key::new("ada");
    for _ in 0..4 {
        check(&limiter, &[policy.charge(ada)]).await;
    }
    place.clock.set(START + SECOND);
    let milder = policy.penalty(penalty().ban(SECOND).growing(1, 2 * SECOND));
    let banned = state(&check(&limiter, &[milder.charge(ada)]).await);
    assert_eq!(banned.retry(), Retry::At(START + 2 * SECOND));
    assert!(check(&limiter, &[without.charge(ada)]).await.is_allowed());
}

// Regression: until the ban ended, each request got the whole longest ban as its wait.
async fn ban_under_a_shortened_penalty_ends_once_and_not_later_with_each_request(place: Place) {
    let policy = Policy::new("strict", Quota::new(1, SECOND)).penalty(penalty());
    let limiter = place.limiter(&[&policy]);
    let ada = Key::new("ada");
    for _ in 0..4 {
        check(&limiter, &[policy.charge(ada)]).await;
    }
    let milder = policy.penalty(penalty().ban(SECOND).growing(2, 10 * SECOND));
    for seconds in [0, 3, 9] {
        place.clock.set(START + seconds * SECOND);
        let banned = state(&check(&limiter, &[milder.charge(ada)]).await);
        assert_eq!(banned.retry(), Retry::At(START + 10 * SECOND));
    }
    place.clock.set(START + 10 * SECOND);
    assert!(check(&limiter, &[milder.charge(ada)]).await.is_allowed());
    // The next ban is the second one.
    for _ in 0..2 {
        check(&limiter, &[milder.charge(ada)]).await;
    }
    let banned = state(&check(&limiter, &[milder.charge(ada)]).await);
    assert_eq!(banned.retry(), Retry::At(START + 12 * SECOND));
}

// Regression: as above.
async fn ban_from_before_the_clock_was_set_back_ends_once_and_not_later_with_each_request(
    place: Place,
) {
    let policy = Policy::new("strict", Quota::new(1, SECOND)).penalty(penalty());
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    for _ in 0..4 {
        check(&limiter, &[charge]).await;
    }
    let back = START - 1_000 * SECOND;
    for seconds in [0, 50, 99] {
        place.clock.set(back + seconds * SECOND);
        let banned = state(&check(&limiter, &[charge]).await);
        assert_eq!(banned.banned_until(), Some(back + 100 * SECOND));
    }
    place.clock.set(back + 100 * SECOND);
    let free = state(&check(&limiter, &[charge]).await);
    assert_eq!(free.banned_until(), None);
}

async fn standing_of_a_key_shows_its_denials_its_bans_and_when_they_are_forgiven(place: Place) {
    let policy = Policy::new("strict", Quota::new(1, SECOND)).penalty(penalty());
    let limiter = place.limiter(&[&policy]);
    let ada = Key::new("ada");
    let ban_status = async || limiter.ban_status(&policy, &ada).await.expect("ban_status");
    assert_eq!(ban_status().await, None);
    check(&limiter, &[policy.charge(ada)]).await;
    assert_eq!(ban_status().await, None, "it was not denied");
    for denials in 1..3 {
        check(&limiter, &[policy.charge(ada)]).await;
        let counted = ban_status().await.expect("denied");
        assert_eq!((counted.denials(), counted.bans()), (denials, 0));
        assert_eq!((counted.is_banned(), counted.banned_since()), (false, None));
        assert_eq!(counted.forgiven_at(), START + 5 * MINUTE);
    }
    for (number, begin, length) in [(1, 0, 30), (2, 30, 60)] {
        place.clock.set(START + begin * SECOND);
        for _ in 0..4 {
            check(&limiter, &[policy.charge(ada)]).await;
        }
        let values = place.values();
        let banned = ban_status().await.expect("banned");
        let (since, until) = (START + begin * SECOND, START + (begin + length) * SECOND);
        assert_eq!((banned.denials(), banned.bans()), (0, number));
        assert_eq!(
            (banned.is_banned(), banned.banned_since()),
            (true, Some(since))
        );
        assert_eq!(banned.banned_until(), Some(until));
        assert_eq!(banned.forgiven_at(), until + 5 * MINUTE);
        assert_eq!(values, place.values(), "nothing is written");
        place.clock.set(until);
        let over = ban_status().await.expect("not forgiven");
        assert_eq!(
            (over.is_banned(), over.denials(), over.bans()),
            (false, 0, number)
        );
    }
    let without = policy.clone().penalty(None);
    assert_eq!(
        limiter.ban_status(&without, &ada).await.expect("none"),
        None
    );
    limiter.reset(&policy, &ada).await.expect("reset");
    assert_eq!(ban_status().await, None);
}

async fn keys_and_policies_are_banned_apart(place: Place) {
    let (one, two) = (
        tight(),
        Policy::new("two", Quota::per_hour(5)).penalty(penalty()),
    );
    let limiter = place.limiter(&[&one, &two]);
    let ada = Key::new("ada");
    for _ in 0..4 {
        check(&limiter, &[two.charge(ada), one.charge(ada)]).await;
    }
    let decision = check(&limiter, &[two.charge(ada), one.charge(ada)]).await;
    let causes = decision.states().iter().map(PolicyState::denied_by);
    let causes: Vec<_> = causes.collect();
    assert_eq!(causes, [None, Some(DeniedBy::Ban)]);
    for key in ["bob", "", "ada#b", "{ada}"] {
        assert!(
            check(&limiter, &[one.charge(Key::new(key))])
                .await
                .is_allowed()
        );
    }
    assert!(check(&limiter, &[two.charge(ada)]).await.is_allowed());
}

/// The place, and a store in process as its twin, decide the same requests at the same times.
async fn random_requests_are_banned_as_in_process(place: Place) {
    let seed = 41;
    let mut random = Random(seed);
    let twin = MemoryStore::builder().clock(place.clock.clone()).build();
    let twin = twin.expect("a usable store");
    let policies: Vec<Policy> = WAYS
        .iter()
        .enumerate()
        .map(|(number, way)| {
            let penalty = Penalty::after(1 + number as u32 % 3, (2 + number as u32) * SECOND)
                .ban((1 + number as u32) * SECOND)
                .growing(1 + number as u32 % 3, 50 * SECOND)
                .forgiven_after(20 * SECOND);
            let policy = way.policy(&format!("p{number}"));
            let counts = number % 2 == 0 && way.name != "concurrency";
            policy
                .count_denied(counts)
                .penalty((number % 4 > 0).then_some(penalty))
        })
        .collect();
    let all: Vec<&Policy> = policies.iter().collect();
    let limiter = place.limiter(&all);
    let twin = tollgate::RateLimiter::new(twin, policies.iter().cloned());
    let twin = twin.expect("a usable limiter");
    let mut causes = [0; 3];
    for round in 0..600 {
        let step = match random.below(20) {
            0 => random.below(100_000_000),
            1..8 => random.below(3_000_000),
            _ => 0,
        };
        place
            .clock
            .set(place.clock.now() + Duration::from_micros(step));
        let key = Key::new(format!("key{}", random.below(2)));
        let mut charges: Vec<Charge<'_>> = Vec::new();
        for policy in &policies {
            if random.below(4) > 0 {
                continue;
            }
            let is_after_enforced = charges.last().is_some_and(|last| !last.is_shadow());
            let enforcement = match random.below(4) {
                0 => Enforcement::Shadow,
                1 if is_after_enforced => Enforcement::Candidate,
                _ => Enforcement::Enforced,
            };
            let charge = policy.charge(key).cost(random.below(7));
            charges.push(charge.enforcement(enforcement));
        }
        let (decision, expected) = (
            check(&limiter, &charges).await,
            check(&twin, &charges).await,
        );
        assert_eq!(decision.outcome(), expected.outcome());
        for (state, expected) in decision.states().iter().zip(expected.states()) {
            let seen = |state: &PolicyState| {
                (
                    state.outcome(),
                    state.denied_by(),
                    state.usage(),
                    state.retry(),
                )
            };
            assert_eq!(
                seen(state),
                seen(expected),
                "seed {seed}, round {round}: {state:?}"
            );
            let policy = policies
                .iter()
                .find(|policy| policy.name() == state.policy());
            let policy = policy.expect("one of them");
            let ban_status = limiter.ban_status(policy, &key).await.expect("ban_status");
            let expected = twin.ban_status(policy, &key).await.expect("ban_status");
            assert_eq!(ban_status, expected, "seed {seed}, round {round}");
            causes[match state.denied_by() {
                None => 0,
                Some(DeniedBy::Ban) => 1,
                Some(_) => 2,
            }] += 1;
        }
    }
    assert!(causes.iter().all(|count| *count > 50), "{causes:?}");
}
