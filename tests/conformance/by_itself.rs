//! Behaviours of a single policy, tested for each algorithm on each store.

use std::time::{Duration, Instant};

use redis::Value;
use tokio::{runtime::Handle, task::JoinSet};
use tollgate::{
    Charge, Key, Policy, Quota,
    decision::{Outcome, PolicyState, Retry, Usage},
};

use super::{
    place::{MICRO, START, check, usage},
    ways::{Trial, WAYS},
};

by_every_way! { by_itself, {
    whole_limit_passes_at_once_and_the_next_request_gets_a_wait
    greedy_caller_gets_exactly_the_quota
    weighted_cost_takes_that_much
    cost_above_the_limit_can_never_pass
    peek_takes_nothing_and_opens_no_key
    reset_starts_afresh
    keys_and_policies_do_not_touch_each_other
    denial_by_it_charges_none_of_the_others
    decisions_on_one_state_agree_on_the_reset
    state_is_worth_nothing_from_the_reset_on
    clock_that_is_set_back_forgives_no_debt
    denied_attempt_that_counts_keeps_the_caller_out
    attempt_that_another_policy_denies_counts_when_asked_to
    concurrent_callers_are_admitted_exactly_the_limit
    key_outlives_what_it_owes_and_no_crowd_drives_it_out
} }

async fn whole_limit_passes_at_once_and_the_next_request_gets_a_wait(trial: Trial) {
    let (way, ada) = (trial.way, trial.count("ada"));
    let stands = |taken| Usage::new(way.limit, way.limit - taken, START + (way.all_back)(taken));
    for taken in 1..=way.limit {
        let decision = ada.take(1).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.counted_by(), trial.place.counted_by());
        assert_eq!(decision.decided_at(), START);
        assert_eq!(usage(&decision), stands(taken));
    }
    let decision = ada.take(1).await;
    assert_eq!(decision.outcome(), Outcome::Limited);
    assert_eq!(decision.retry_after(), Some(way.next.0));
    assert_eq!(usage(&decision), stands(way.limit));
    ada.comes_back(1, way.next.0).await;
    assert_eq!(ada.drain().await, way.next.1 - 1);
}

async fn greedy_caller_gets_exactly_the_quota(trial: Trial) {
    let ada = trial.count("ada");
    let end = START + 5 * trial.way.quota.period();
    let mut admitted = 0;
    loop {
        match ada.retry(1).await {
            Retry::Now => admitted += 1,
            Retry::At(at) if at > end => break,
            Retry::At(at) => {
                trial.place.clock.set(at - MICRO);
                assert_eq!(ada.retry(1).await, Retry::At(at), "after {admitted}");
                trial.place.clock.set(at);
            }
            other => panic!("{other:?}"),
        }
        assert!(
            admitted <= trial.way.greedy,
            "by {:?}",
            trial.place.clock.now()
        );
    }
    assert_eq!(admitted, trial.way.greedy);
}

async fn weighted_cost_takes_that_much(trial: Trial) {
    let (limit, policy) = (trial.way.limit, trial.way.policy("weighed").cost(3));
    let ada = trial.place.count(policy, "ada");
    let decision = check(&ada.limiter, &[ada.charge()]).await;
    assert_eq!(
        usage(&decision).remaining,
        limit - 3,
        "the policy's own cost"
    );
    assert_eq!(usage(&ada.take(limit - 5).await).remaining, 2);
    let decision = ada.take(3).await;
    assert_eq!(decision.retry_after(), Some(trial.way.next_three));
    assert_eq!(usage(&decision).remaining, 2, "a denial takes nothing");
    assert_eq!(usage(&ada.take(2).await).remaining, 0);
    let bob = trial.count("bob");
    assert!(bob.take(limit - 2).await.is_allowed());
    bob.comes_back(3, trial.way.next_three).await;
}

pub(super) async fn cost_above_the_limit_can_never_pass(trial: Trial) {
    let (limit, ada) = (trial.way.limit, trial.count("ada"));
    for taken in [0, 1, limit] {
        while ada.left().await > limit - taken {
            ada.spend(1).await;
        }
        let before = (ada.peek().await, trial.place.values());
        for cost in [limit + 1, 1 << 53, u64::MAX] {
            let decision = ada.take(cost).await;
            assert_eq!(decision.outcome(), Outcome::Limited);
            assert_eq!(decision.states()[0].retry(), Retry::Never, "{cost}");
            assert_eq!(decision.retry_after(), None);
            assert_eq!((usage(&decision), trial.place.values()), before);
        }
    }
}

pub(super) async fn peek_takes_nothing_and_opens_no_key(trial: Trial) {
    let (limit, ada) = (trial.way.limit, trial.count("ada"));
    for _ in 0..20 {
        assert_eq!(ada.peek().await, Usage::new(limit, limit, START));
    }
    assert!(trial.place.values().is_empty());
    ada.spend(limit).await;
    let (values, stands) = (trial.place.values(), ada.peek().await);
    assert_eq!(stands.remaining, 0);
    for _ in 0..20 {
        assert_eq!(ada.peek().await, stands);
    }
    assert_eq!(trial.place.values(), values);
}

pub(super) async fn reset_starts_afresh(trial: Trial) {
    let limit = trial.way.limit;
    let (ada, bob) = (trial.count("ada"), trial.count("bob"));
    ada.spend(limit).await;
    bob.spend(limit).await;
    let reset = ada.limiter.reset(&ada.policy, &ada.key);
    reset.await.expect("reset");
    assert_eq!(ada.peek().await, Usage::new(limit, limit, START));
    assert!(!bob.take(1).await.is_allowed());
    assert_eq!(ada.drain().await, limit);
}

pub(super) async fn keys_and_policies_do_not_touch_each_other(trial: Trial) {
    let limit = trial.way.limit;
    for name in ["one", "other"] {
        for key in ["ada", "bob", "ada:one", "other"] {
            let count = trial.place.count(trial.way.policy(name), key);
            assert!(count.take(limit).await.is_allowed(), "{name}, {key}");
            assert!(!count.take(1).await.is_allowed(), "{name}, {key}");
        }
    }
}

pub(super) async fn denial_by_it_charges_none_of_the_others(trial: Trial) {
    let ada = Key::new("ada");
    let denier = trial.way.policy("denier");
    let mut policies = vec![denier.clone()];
    policies.extend(WAYS.iter().map(|way| way.policy(way.name)));
    let limiter = trial.place.limiter(&policies.iter().collect::<Vec<_>>());
    // They stand at different levels, one unit at least below their limits.
    for (taken, policy) in policies.iter().enumerate().skip(1) {
        let charge = policy.charge(ada).cost(taken as u64);
        assert!(check(&limiter, &[charge]).await.is_allowed());
    }
    assert!(
        check(&limiter, &[denier.charge(ada).cost(trial.way.limit)])
            .await
            .is_allowed()
    );
    let mut charges: Vec<Charge<'_>> = policies.iter().map(|policy| policy.charge(ada)).collect();
    for _ in 0..2 {
        let before = limiter.peek(&charges).await.expect("a decision");
        let values = trial.place.values();
        for (cost, denied) in [(1, 1), (1 << 40, WAYS.len() + 1), (1, 1)] {
            let charges: Vec<_> = charges.iter().map(|charge| charge.cost(cost)).collect();
            let decision = check(&limiter, &charges).await;
            assert_eq!(decision.outcome(), Outcome::Limited);
            let denies = |state: &&PolicyState| state.outcome() == Outcome::Limited;
            assert_eq!(decision.states().iter().filter(denies).count(), denied);
            let usages = |states: &[PolicyState]| -> Vec<_> {
                states.iter().map(PolicyState::usage).collect()
            };
            assert_eq!(usages(decision.states()), usages(before.states()));
            if cost == 1 {
                let narrowest = decision.narrowest().expect("one denied");
                assert_eq!(narrowest.policy().as_str(), "denier");
            }
        }
        let after = limiter.peek(&charges).await.expect("a decision");
        assert_eq!(after, before);
        assert_eq!(trial.place.values(), values);
        // Once more with the one that denies at the end.
        charges.reverse();
    }
    limiter.reset(&denier, &ada).await.expect("reset");
    assert!(check(&limiter, &charges).await.is_allowed());
}

async fn decisions_on_one_state_agree_on_the_reset(trial: Trial) {
    let (way, ada) = (trial.way, trial.count("ada"));
    let all = usage(&ada.take(3).await).reset_at;
    assert_eq!(all, START + (way.all_back)(3));
    let span = all.since(START);
    for part in [0, 1, 2, 500, 999] {
        trial.place.clock.set(START + span / 1_000 * part);
        assert_eq!(ada.peek().await.reset_at, all);
        assert_eq!(
            usage(&ada.take(way.limit + 1).await).reset_at,
            all,
            "denied"
        );
        let other = Policy::new("other", Quota::per_hour(1_000));
        let limiter = trial.place.limiter(&[&ada.policy, &other]);
        let charges = [ada.charge().cost(0), other.charge(ada.key)];
        let decision = check(&limiter, &charges).await;
        assert_eq!(usage(&decision).reset_at, all, "with another");
    }
}

async fn state_is_worth_nothing_from_the_reset_on(trial: Trial) {
    let (limit, clock) = (trial.way.limit, &trial.place.clock);
    for (taken, key, newcomer) in [(1, "ada", "bob"), (limit, "eve", "joe")] {
        clock.set(START);
        let (count, newcomer) = (trial.count(key), trial.count(newcomer));
        count.spend(taken).await;
        let reset_at = count.peek().await.reset_at;
        clock.set(reset_at - MICRO);
        let usage_before = count.peek().await;
        assert!(usage_before.remaining < limit);
        assert_eq!(usage_before.reset_at, reset_at);
        clock.set(reset_at);
        assert_eq!(count.peek().await, Usage::new(limit, limit, reset_at));
        for _ in 0..=limit {
            assert_eq!(count.take(1).await, newcomer.take(1).await);
        }
    }
}

async fn clock_that_is_set_back_forgives_no_debt(trial: Trial) {
    let (way, clock, ada) = (trial.way, &trial.place.clock, trial.count("ada"));
    ada.spend(way.limit).await;
    for back in [30, 86_400].map(Duration::from_secs) {
        clock.set(START - back);
        let decision = ada.take(1).await;
        assert_eq!(decision.retry_after(), Some(way.next.0 + back));
        assert_eq!(usage(&decision).remaining, 0);
    }
    clock.set(START);
    ada.comes_back(1, way.next.0).await;

    // Half before the clock was set back: the rest is all that there is, at whichever time.
    clock.set(START);
    let bob = trial.count("bob");
    bob.spend(way.limit / 2).await;
    clock.set(START - Duration::from_secs(30));
    let early = bob.drain().await;
    clock.set(START);
    assert_eq!(early + bob.drain().await, way.limit - way.limit / 2);
}

async fn denied_attempt_that_counts_keeps_the_caller_out(trial: Trial) {
    let (way, clock) = (trial.way, &trial.place.clock);
    let stern = |key| {
        trial
            .place
            .count(way.policy("tried").count_denied(true), key)
    };
    for (key, knocks, next) in [("ada", 1, way.knocked[0]), ("bob", 30, way.knocked[1])] {
        clock.set(START);
        // A policy of that name that does not count what it denies, to look at the same state.
        let count = trial.count(key);
        count.spend(way.limit).await;
        clock.set(START + way.next.0 - Duration::from_secs(3));
        let mut told = Retry::Now;
        for _ in 0..knocks {
            told = stern(key).retry(1).await;
        }
        assert_eq!(told, Retry::At(START + next), "the answer tells of it");
        count.comes_back(1, next).await;
    }
    clock.set(START);
    let eve = stern("eve");
    let decision = eve.take(way.limit + 1).await;
    assert_eq!(decision.states()[0].retry(), Retry::Never);
    assert_eq!(
        usage(&decision),
        Usage::new(way.limit, 0, START + (way.all_back)(way.limit))
    );
    assert!(
        eve.limiter
            .peek(&[eve.charge()])
            .await
            .expect("a decision")
            .is_allowed()
    );
}

async fn attempt_that_another_policy_denies_counts_when_asked_to(trial: Trial) {
    let (limit, ada) = (trial.way.limit, Key::new("ada"));
    let stern = trial.way.policy("stern").count_denied(true);
    let mild = trial.way.policy("mild");
    let narrow = Policy::new("narrow", Quota::per_day(1));
    let limiter = trial.place.limiter(&[&stern, &mild, &narrow]);
    let charges = [stern.charge(ada), mild.charge(ada), narrow.charge(ada)];
    assert!(check(&limiter, &charges).await.is_allowed());
    for knocks in 2..=limit + 3 {
        let decision = check(&limiter, &charges).await;
        let left = |index: usize| decision.states()[index].usage().expect("counted").remaining;
        assert_eq!(
            [left(0), left(1), left(2)],
            [limit.saturating_sub(knocks), limit - 1, 0]
        );
        let outcome = if knocks > limit {
            Outcome::Limited
        } else {
            Outcome::Allowed
        };
        assert_eq!(
            decision.states()[0].outcome(),
            outcome,
            "it had room by itself"
        );
    }
    // Looking on while another is denied is no attempt.
    limiter.reset(&stern, &ada).await.expect("reset");
    let decision = check(&limiter, &[stern.charge(ada).cost(0), narrow.charge(ada)]).await;
    assert!(!decision.is_allowed());
    assert_eq!(usage(&decision).remaining, limit);
}

pub(super) async fn concurrent_callers_are_admitted_exactly_the_limit(trial: Trial) {
    let (policy, limit) = (trial.way.policy("crowd"), trial.way.limit);
    let limiter = trial.place.limiter(&[&policy]);
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let (limiter, policy, runtime) = (limiter.clone(), policy.clone(), Handle::current());
        // Threads of their own: in process, a decision is made without a single await.
        callers.spawn_blocking(move || {
            let charge = [policy.charge(Key::new("ada"))];
            let asks = (0..8).map(|_| runtime.block_on(check(&limiter, &charge)));
            asks.filter(tollgate::Decision::is_allowed).count() as u64
        });
    }
    assert_eq!(callers.join_all().await.iter().sum::<u64>(), limit);
}

async fn key_outlives_what_it_owes_and_no_crowd_drives_it_out(trial: Trial) {
    let Trial { way, place } = trial;
    let place = place.crowded();
    let trial = Trial { way, place };
    let (ada, since) = (trial.count("ada"), Instant::now());
    ada.spend(way.limit).await;
    if trial.place.is_on_servers() {
        let life = (way.all_back)(way.limit).as_millis() as i64;
        let [(key, server)] = trial.place.keys().try_into().ok().expect("one key");
        let Value::Int(left) = server.command(&["PTTL", &key]) else {
            panic!("PTTL answers a number");
        };
        let took = since.elapsed().as_millis() as i64 + 1;
        assert!(
            left + took >= life,
            "{left} ms left of {life}, after {took}"
        );
        assert!(left <= life + 1_001, "{left} ms left of {life}");
    } else {
        for number in 0..50 {
            trial.count(&format!("newcomer-{number}")).drain().await;
        }
    }
    assert_eq!(ada.left().await, 0);
    ada.comes_back(1, way.next.0).await;
    assert_eq!(ada.drain().await, way.next.1 - 1);
}
