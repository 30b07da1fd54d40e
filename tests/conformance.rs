//! Each behaviour on each store and server: in process, Redis, Redis 6.2 and Valkey.

use std::{env, sync::Arc, time::Duration};

use tollgate::{
    Decision, ErrorKind, Key, Policy, Quota, RateLimiter,
    clock::{Clock, Timestamp},
    memory::MemoryStore,
    remote::RedisStore,
    state::{CountedBy, Outcome, PolicyState, Retry, Usage},
    store::Charge,
};

use crate::support::Server;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A store to try, with the clock that moves it.
struct Place {
    clock: Clock,
    server: Option<Server>,
}

impl Place {
    fn memory() -> Self {
        Self {
            clock: Clock::manual(START),
            server: None,
        }
    }

    fn server(server: Server) -> Self {
        Self {
            clock: Clock::manual(START),
            server: Some(server),
        }
    }

    /// The server whose binary this variable names; `tests/run.sh` installs it and sets the variable.
    fn named(variable: &str) -> Self {
        let binary = env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run `bash tests/run.sh`, which installs this server")
        });
        Self::server(Server::start_binary(binary, &[]))
    }

    fn limiter(&self, policies: &[&Policy]) -> RateLimiter {
        let policies = policies.iter().copied().cloned();
        match &self.server {
            None => {
                let store = MemoryStore::builder().clock(self.clock.clone()).build();
                RateLimiter::new(store.expect("a usable store"), policies)
            }
            Some(server) => {
                // A deadline that a loaded machine keeps: how deadlines work is tested elsewhere.
                let store = RedisStore::builder(server.url())
                    .deadline(Duration::from_secs(10))
                    .client_time(self.clock.clone())
                    .build();
                RateLimiter::new(store.expect("a usable store"), policies)
            }
        }
        .expect("usable policies")
    }

    fn counted_by(&self) -> CountedBy {
        if self.server.is_some() {
            CountedBy::Shared
        } else {
            CountedBy::Memory
        }
    }
}

macro_rules! conformance {
    ($($behaviour:ident)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::Place::memory()).await;
            })*
        }

        mod redis {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::Place::server(super::Server::start())).await;
            })*
        }

        mod redis_6_2 {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::Place::named("TOLLGATE_REDIS62_SERVER")).await;
            })*
        }

        mod valkey {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::Place::named("TOLLGATE_VALKEY_SERVER")).await;
            })*
        }
    };
}

conformance! {
    burst_passes_at_once_and_the_next_is_told_when_to_come
    quota_comes_back_with_time_and_not_before
    fractions_of_a_microsecond_do_not_add_up
    weighted_cost_takes_that_much
    cost_above_the_burst_can_never_pass
    peek_takes_nothing_and_opens_no_key
    reset_starts_afresh
    denial_by_one_policy_charges_none_of_the_others
    every_policy_tells_its_state_in_order
    sixteen_policies_are_decided_together
    keys_and_policies_do_not_touch_each_other
    hostile_keys_are_counted_apart
    concurrent_callers_are_admitted_exactly_the_burst
    clock_that_is_set_back_forgives_nobody
    answers_about_one_state_agree_on_the_reset
    one_key_charged_twice_in_one_decision_is_refused
    decision_without_charges_is_allowed
}

async fn check(limiter: &RateLimiter, charges: &[Charge<'_>]) -> Decision {
    limiter.check(charges).await.expect("a decision")
}

fn usage(decision: &Decision) -> Usage {
    decision.states()[0].usage().expect("counted")
}

async fn burst_passes_at_once_and_the_next_is_told_when_to_come(place: Place) {
    let policy = Policy::new("ten", Quota::per_minute(10));
    let limiter = place.limiter(&[&policy]);
    for taken in 1..=10 {
        let decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.counted_by(), place.counted_by());
        assert_eq!(decision.decided_at(), START);
        assert_eq!(usage(&decision).remaining, 10 - taken);
        assert_eq!(
            usage(&decision).reset_at,
            START + Duration::from_secs(6 * taken)
        );
    }
    let decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
    assert_eq!(decision.outcome(), Outcome::Deny);
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(6)));
    assert_eq!(
        usage(&decision),
        Usage::new(10, 0, START + Duration::from_secs(60))
    );
}

async fn quota_comes_back_with_time_and_not_before(place: Place) {
    let policy = Policy::new("slow", Quota::per_day(2).burst(1));
    let limiter = place.limiter(&[&policy]);
    let half_a_day = Duration::from_secs(43_200);
    assert!(
        check(&limiter, &[policy.charge(Key::new("ada"))])
            .await
            .is_allowed()
    );
    place.clock.advance(half_a_day - Duration::from_micros(1));
    let decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
    assert_eq!(decision.retry_after(), Some(Duration::from_micros(1)));
    place.clock.advance(Duration::from_micros(1));
    assert!(
        check(&limiter, &[policy.charge(Key::new("ada"))])
            .await
            .is_allowed()
    );
}

async fn fractions_of_a_microsecond_do_not_add_up(place: Place) {
    let policy = Policy::new("thirds", Quota::per_second(3).burst(1));
    let limiter = place.limiter(&[&policy]);
    let mut allowed_at = Vec::new();
    for _ in 0..301 {
        let mut decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        if let Some(wait) = decision.retry_after() {
            place.clock.advance(wait);
            decision = check(&limiter, &[policy.charge(Key::new("ada"))]).await;
        }
        assert!(decision.is_allowed());
        allowed_at.push(decision.decided_at());
    }
    let took = allowed_at[300].since(allowed_at[0]);
    assert!(
        took.abs_diff(Duration::from_secs(100)) <= Duration::from_micros(1),
        "{took:?}"
    );
}

async fn weighted_cost_takes_that_much(place: Place) {
    let policy = Policy::new("weighed", Quota::per_minute(10)).cost(3);
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    assert_eq!(usage(&check(&limiter, &[charge]).await).remaining, 7);
    assert_eq!(
        usage(&check(&limiter, &[charge.cost(5)]).await).remaining,
        2
    );
    let decision = check(&limiter, &[charge]).await;
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(6)));
    assert_eq!(usage(&decision).remaining, 2, "a denial takes nothing");
    assert_eq!(
        usage(&check(&limiter, &[charge.cost(2)]).await).remaining,
        0
    );
}

async fn cost_above_the_burst_can_never_pass(place: Place) {
    for quota in [Quota::per_minute(10), Quota::per_minute(7)] {
        let policy = Policy::new("small", quota);
        let limiter = place.limiter(&[&policy]);
        let decision = check(&limiter, &[policy.charge(Key::new("ada")).cost(11)]).await;
        assert_eq!(decision.outcome(), Outcome::Deny);
        assert_eq!(decision.states()[0].retry(), Retry::Never);
        assert_eq!(decision.retry_after(), None);
        assert_eq!(usage(&decision).remaining, quota.capacity());
    }
}

async fn peek_takes_nothing_and_opens_no_key(place: Place) {
    let policy = Policy::new("peeked", Quota::per_minute(7));
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    for _ in 0..20 {
        let decision = limiter.peek(&[charge]).await.expect("a decision");
        assert!(decision.is_allowed());
        assert_eq!(usage(&decision).remaining, 7);
    }
    if let Some(server) = &place.server {
        assert_eq!(server.keys(), Vec::<String>::new());
    }
    for _ in 0..7 {
        check(&limiter, &[charge]).await;
    }
    let decision = limiter.peek(&[charge]).await.expect("a decision");
    assert!(decision.is_allowed(), "a peek is never denied");
    assert_eq!(usage(&decision).remaining, 0);
}

async fn reset_starts_afresh(place: Place) {
    let policy = Policy::new("forgiven", Quota::per_hour(2));
    let limiter = place.limiter(&[&policy]);
    let (ada, bob) = (Key::new("ada"), Key::new("bob"));
    for key in [ada, ada, bob, bob] {
        assert!(check(&limiter, &[policy.charge(key)]).await.is_allowed());
    }
    limiter.reset(&policy, &ada).await.expect("reset");
    assert_eq!(
        usage(&check(&limiter, &[policy.charge(ada)]).await).remaining,
        1
    );
    assert!(!check(&limiter, &[policy.charge(bob)]).await.is_allowed());
}

async fn denial_by_one_policy_charges_none_of_the_others(place: Place) {
    let wide = Policy::new("wide", Quota::per_hour(100));
    let narrow = Policy::new("narrow", Quota::per_hour(1));
    let limiter = place.limiter(&[&wide, &narrow]);
    let charges = [wide.charge(Key::new("ada")), narrow.charge(Key::new("ada"))];
    assert!(check(&limiter, &charges).await.is_allowed());
    for _ in 0..5 {
        let decision = check(&limiter, &charges).await;
        assert_eq!(decision.outcome(), Outcome::Deny);
        let outcomes: Vec<Outcome> = decision.states().iter().map(PolicyState::outcome).collect();
        assert_eq!(outcomes, [Outcome::Allow, Outcome::Deny]);
        assert_eq!(
            usage(&decision).remaining,
            99,
            "the wide policy was not charged"
        );
        let narrowest = decision.narrowest().expect("one denied");
        assert_eq!(narrowest.policy().as_str(), "narrow");
    }
    let decision = limiter.peek(&charges[..1]).await.expect("a decision");
    assert_eq!(usage(&decision).remaining, 99);
}

async fn every_policy_tells_its_state_in_order(place: Place) {
    let names = ["third", "first", "second"];
    let policies = names.map(|name| Policy::new(name, Quota::per_minute(name.len() as u64)));
    let limiter = place.limiter(&policies.each_ref());
    let charges = policies
        .each_ref()
        .map(|policy| policy.charge(Key::new("ada")));
    let decision = check(&limiter, &charges).await;
    let told: Vec<(&str, u64)> = decision
        .states()
        .iter()
        .map(|state| {
            (
                state.policy().as_str(),
                state.usage().expect("counted").remaining,
            )
        })
        .collect();
    assert_eq!(told, [("third", 4), ("first", 4), ("second", 5)]);
}

async fn sixteen_policies_are_decided_together(place: Place) {
    let policies: Vec<Policy> = (0..17)
        .map(|number| Policy::new(format!("p{number}"), Quota::per_minute(number + 1)))
        .collect();
    let limiter = place.limiter(&policies[..16].iter().collect::<Vec<_>>());
    let charges: Vec<Charge<'_>> = policies
        .iter()
        .map(|policy| policy.charge(Key::new("ada")))
        .collect();
    assert!(check(&limiter, &charges[..16]).await.is_allowed());
    assert!(
        !check(&limiter, &charges[..16]).await.is_allowed(),
        "p0 is used up"
    );
    let left = limiter.peek(&charges[..16]).await.expect("a decision");
    for (number, state) in left.states().iter().enumerate() {
        assert_eq!(state.usage().expect("counted").remaining, number as u64);
    }
    let error = limiter.check(&charges).await.expect_err("seventeen");
    assert_eq!(error.kind(), ErrorKind::InvalidPolicy);
}

async fn keys_and_policies_do_not_touch_each_other(place: Place) {
    let one = Policy::new("one", Quota::per_hour(1));
    let other = Policy::new("other", Quota::per_hour(1));
    let limiter = place.limiter(&[&one, &other]);
    for policy in [&one, &other] {
        for key in ["ada", "bob", "ada:one", "other"] {
            let charge = policy.charge(Key::new(key));
            assert!(check(&limiter, &[charge]).await.is_allowed(), "{key}");
            assert!(!check(&limiter, &[charge]).await.is_allowed(), "{key}");
        }
    }
}

async fn hostile_keys_are_counted_apart(place: Place) {
    let policy = Policy::new("hostile", Quota::per_hour(1));
    let limiter = place.limiter(&[&policy]);
    let megabyte = vec![b'x'; 1_000_000];
    let mut other_megabyte = megabyte.clone();
    other_megabyte[999_999] = b'y';
    let keys: [&[u8]; 14] = [
        b"",
        b"{",
        b"}",
        b"{}",
        b"{a}",
        b"a}:hostile",
        b"a b",
        b"a%20b",
        b"\0",
        b"\0\0",
        b"\xff\xfe",
        b"\r\nDEL x\r\n",
        &megabyte,
        &other_megabyte,
    ];
    for key in keys {
        let charge = policy.charge(Key::new(key));
        assert!(check(&limiter, &[charge]).await.is_allowed());
        assert!(!check(&limiter, &[charge]).await.is_allowed());
    }
    if let Some(server) = &place.server {
        let stored = server.keys();
        assert_eq!(stored.len(), keys.len());
        for key in stored {
            assert!(
                key.starts_with("tollgate:{") && key.ends_with("}:hostile"),
                "{key}"
            );
            assert_eq!(
                (key.matches('{').count(), key.matches('}').count()),
                (1, 1),
                "{key}"
            );
            assert!(key.len() <= 64, "{key}");
        }
    }
}

async fn concurrent_callers_are_admitted_exactly_the_burst(place: Place) {
    let policy = Arc::new(Policy::new("crowd", Quota::per_hour(100)));
    let limiter = place.limiter(&[&policy]);
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (limiter, policy) = (limiter.clone(), Arc::clone(&policy));
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..10 {
                    admitted += u64::from(
                        check(&limiter, &[policy.charge(Key::new("ada"))])
                            .await
                            .is_allowed(),
                    );
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for caller in callers {
        admitted += caller.await.expect("no panic");
    }
    assert_eq!(admitted, 100);
}

async fn clock_that_is_set_back_forgives_nobody(place: Place) {
    let policy = Policy::new("back", Quota::per_minute(10));
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    for _ in 0..10 {
        check(&limiter, &[charge]).await;
    }
    place.clock.set(START - Duration::from_secs(30));
    let decision = check(&limiter, &[charge]).await;
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(36)));
    place.clock.set(START + Duration::from_secs(6));
    assert!(check(&limiter, &[charge]).await.is_allowed());
    assert!(!check(&limiter, &[charge]).await.is_allowed());
}

async fn answers_about_one_state_agree_on_the_reset(place: Place) {
    let policy = Policy::new("stable", Quota::per_second(3));
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    let first = usage(&check(&limiter, &[charge]).await).reset_at;
    for _ in 0..5 {
        place.clock.advance(Duration::from_micros(61_803));
        let later = usage(&limiter.peek(&[charge]).await.expect("a decision")).reset_at;
        assert_eq!(later, first);
    }
}

async fn one_key_charged_twice_in_one_decision_is_refused(place: Place) {
    let policy = Policy::new("twice", Quota::per_second(3));
    let limiter = place.limiter(&[&policy]);
    let charge = policy.charge(Key::new("ada"));
    let error = limiter.check(&[charge, charge]).await.expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::DuplicatePolicy);
    let both = [charge, policy.charge(Key::new("bob"))];
    assert!(
        check(&limiter, &both).await.is_allowed(),
        "two keys under one policy are two counts"
    );
}

async fn decision_without_charges_is_allowed(place: Place) {
    let limiter = place.limiter(&[]);
    let decision = check(&limiter, &[]).await;
    assert!(decision.is_allowed());
    assert_eq!(decision.states(), []);
}
