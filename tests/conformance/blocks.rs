//! Keys that an operator blocks: denied by every instance, whatever quota is left, and free again afterwards.

use std::time::{Duration, Instant};

use tollgate::{
    Charge, Decision, ErrorKind, Key, Policy, Quota, RateLimiter,
    algorithm::{Algorithm, WindowStart},
    block::{Block, BlockTarget},
    charge::{Enforcement, Receipt},
    decision::{DeniedBy, Outcome, PolicyState, Retry},
};

use super::place::{Place, START, check, usage};

on_every_store! { blocks, std::convert::identity, {
    blocked_key_is_denied_under_every_policy_until_the_block_ends
    block_under_one_policy_leaves_the_others
    request_with_a_blocked_key_charges_no_policy
    unblocked_key_has_the_quota_that_it_had
    later_block_of_a_key_replaces_the_earlier_one
    other_instances_see_a_block_and_its_end_within_a_second
    new_instance_denies_a_blocked_key_with_its_first_decision
    block_in_shadow_denies_nothing_and_is_reported
    block_in_shadow_charges_nothing_and_takes_no_slot
    peek_at_a_blocked_key_passes
    reset_leaves_a_block
    hostile_keys_are_blocked_without_touching_others
    unusable_blocks_are_refused
    unblocking_under_an_invalid_name_is_refused_and_ends_no_block
    refund_gives_units_back_and_no_more_than_were_used
    refund_of_more_units_than_a_key_can_use_gives_back_all_of_them
} }

const MINUTE: Duration = Duration::from_secs(60);

fn api() -> Policy {
    Policy::new("api", Quota::per_hour(10))
}

fn search() -> Policy {
    Policy::new("search", Quota::per_hour(5))
}

async fn block(limiter: &RateLimiter, block: Block) {
    limiter.block(block).await.expect("it is blocked");
}

/// Decides until the outcome is the expected one, at most a second after `since`.
async fn until(
    limiter: &RateLimiter,
    charges: &[Charge<'_>],
    outcome: Outcome,
    since: Instant,
) -> Decision {
    loop {
        let decision = check(limiter, charges).await;
        if decision.outcome() == outcome {
            return decision;
        }
        let waited = since.elapsed();
        assert!(waited < Duration::from_secs(1), "{waited:?}: {decision:?}");
        tokio::task::yield_now().await;
    }
}

async fn blocked_key_is_denied_under_every_policy_until_the_block_ends(place: Place) {
    let (api, search) = (api(), search());
    let limiter = place.instance(&[&api, &search]);
    let ada = Key::new("ada");
    block(&limiter, Block::new(ada, MINUTE)).await;
    for policy in [&api, &search] {
        let decision = check(&limiter, &[policy.charge(ada)]).await;
        let state = decision.states()[0];
        assert_eq!(state.outcome(), Outcome::Limited);
        assert_eq!(state.denied_by(), Some(DeniedBy::Block));
        assert_eq!(state.retry(), Retry::At(START + MINUTE));
        let left = usage(&decision);
        assert_eq!((left.remaining, left.reset_at), (0, START + MINUTE));
        assert_eq!(left.limit, policy.quota().count());
        assert_eq!(decision.retry_after(), Some(MINUTE));
        assert!(
            check(&limiter, &[policy.charge(Key::new("bob"))])
                .await
                .is_allowed()
        );
    }
    place.clock.set(START + MINUTE - Duration::from_micros(1));
    assert!(!check(&limiter, &[api.charge(ada)]).await.is_allowed());
    place.clock.set(START + MINUTE);
    let decision = check(&limiter, &[api.charge(ada)]).await;
    assert!(decision.is_allowed());
    assert_eq!(usage(&decision).remaining, 9, "nothing was charged before");
}

async fn block_under_one_policy_leaves_the_others(place: Place) {
    let (api, search) = (api(), search());
    let limiter = place.instance(&[&api, &search]);
    let ada = Key::new("ada");
    block(&limiter, Block::new(ada, MINUTE).policy(&search)).await;
    assert!(check(&limiter, &[api.charge(ada)]).await.is_allowed());
    assert!(!check(&limiter, &[search.charge(ada)]).await.is_allowed());
}

async fn request_with_a_blocked_key_charges_no_policy(place: Place) {
    let (api, search) = (api(), search());
    let counts_denied = Policy::new("strict", Quota::per_hour(5)).count_denied(true);
    let limiter = place.instance(&[&api, &search, &counts_denied]);
    let (ada, address) = (Key::new("ada"), Key::new("192.0.2.1"));
    block(&limiter, Block::new(ada, MINUTE)).await;
    let charges = [
        api.charge(address),
        search.charge(ada),
        counts_denied.charge(address),
    ];
    for _ in 0..20 {
        let decision = check(&limiter, &charges).await;
        assert_eq!(decision.outcome(), Outcome::Limited);
        let narrowest = decision.narrowest().expect("it denies");
        assert_eq!(narrowest.policy(), search.name());
        let outcomes: Vec<Outcome> = decision.states().iter().map(PolicyState::outcome).collect();
        assert_eq!(
            outcomes,
            [Outcome::Allowed, Outcome::Limited, Outcome::Allowed]
        );
    }
    // Another instance charges nothing either, when its first decision finds the block.
    let other = place.instance(&[&api, &search, &counts_denied]);
    assert!(!check(&other, &charges).await.is_allowed());
    let peeked = limiter.peek(&charges).await.expect("a decision");
    let left: Vec<u64> = peeked
        .states()
        .iter()
        .filter_map(|state| Some(state.usage()?.remaining))
        .collect();
    assert_eq!(left, [10, 5, 5]);
}

async fn unblocked_key_has_the_quota_that_it_had(place: Place) {
    let api = api();
    let limiter = place.instance(&[&api]);
    let ada = Key::new("ada");
    let charge = api.charge(ada);
    check(&limiter, &[charge.cost(4)]).await;
    block(&limiter, Block::new(ada, MINUTE)).await;
    assert!(!check(&limiter, &[charge]).await.is_allowed());
    let of_one_policy = BlockTarget::new(ada, Some(&api));
    limiter.unblock(of_one_policy).await.expect("nothing to do");
    assert!(
        !check(&limiter, &[charge]).await.is_allowed(),
        "another target"
    );
    limiter
        .unblock(BlockTarget::new(ada, None))
        .await
        .expect("unblocked");
    let decision = check(&limiter, &[charge]).await;
    assert_eq!(usage(&decision).remaining, 5);
    assert!(limiter.blocks().is_empty());
}

async fn later_block_of_a_key_replaces_the_earlier_one(place: Place) {
    let api = api();
    let limiter = place.instance(&[&api]);
    let ada = Key::new("ada");
    block(&limiter, Block::new(ada, 5 * MINUTE).reason("abuse")).await;
    block(&limiter, Block::new(ada, 9 * MINUTE).policy(&api)).await;
    place.clock.set(START + MINUTE);
    block(&limiter, Block::new(ada, MINUTE).reason("second: é")).await;
    let blocks = limiter.blocks();
    let [first, second] = blocks.as_slice() else {
        panic!("two blocks: {blocks:?}")
    };
    assert_eq!(*first.target(), BlockTarget::new(ada, None));
    assert_eq!(
        (first.since(), first.until()),
        (START + MINUTE, START + 2 * MINUTE)
    );
    assert_eq!(first.reason(), "second: é");
    assert_eq!(*second.target(), BlockTarget::new(ada, Some(&api)));
    assert_eq!((second.until(), second.reason()), (START + 9 * MINUTE, ""));
    let retry = check(&limiter, &[api.charge(ada)]).await.states()[0].retry();
    assert_eq!(retry, Retry::At(START + 9 * MINUTE), "the later end");
}

async fn other_instances_see_a_block_and_its_end_within_a_second(place: Place) {
    let api = Policy::new("api", Quota::per_hour(1_000_000));
    let instances: Vec<RateLimiter> = (0..3).map(|_| place.instance(&[&api])).collect();
    let charge = api.charge(Key::new("ada")).cost(1);
    for instance in &instances {
        assert!(check(instance, &[charge]).await.is_allowed());
    }
    let since = Instant::now();
    block(&instances[0], Block::new(Key::new("ada"), MINUTE)).await;
    for instance in &instances {
        let decision = until(instance, &[charge], Outcome::Limited, since).await;
        assert_eq!(decision.states()[0].denied_by(), Some(DeniedBy::Block));
    }
    instances[0]
        .reset(&api, &Key::new("ada"))
        .await
        .expect("reset");
    let since = Instant::now();
    let target = BlockTarget::new(Key::new("ada"), None);
    instances[1].unblock(target).await.expect("unblocked");
    for instance in &instances {
        until(instance, &[charge], Outcome::Allowed, since).await;
    }
}

async fn new_instance_denies_a_blocked_key_with_its_first_decision(place: Place) {
    let api = api();
    let ada = Key::new("ada");
    block(&place.instance(&[&api]), Block::new(ada, MINUTE)).await;
    let limiter = place.instance(&[&api]);
    assert!(!check(&limiter, &[api.charge(ada)]).await.is_allowed());
    assert_eq!(limiter.blocks().len(), 1);
    let limiter = place.instance(&[&api]);
    limiter.refresh_blocks().await.expect("the blocks");
    assert_eq!(limiter.blocks().len(), 1);
}

async fn block_in_shadow_denies_nothing_and_is_reported(place: Place) {
    let (api, search) = (api(), search());
    let limiter = place.instance(&[&api, &search]);
    let (ada, bob) = (Key::new("ada"), Key::new("bob"));
    let charges = [
        api.charge(bob),
        search.charge(ada).enforcement(Enforcement::Shadow),
    ];
    block(&limiter, Block::new(ada, MINUTE)).await;
    // By an instance that knows the block, and by one that does not yet.
    for limiter in [limiter, place.instance(&[&api, &search])] {
        let decision = check(&limiter, &charges).await;
        assert!(decision.is_allowed());
        let denying: Vec<_> = decision.would_deny().collect();
        assert_eq!(denying.len(), 1);
        assert_eq!(denying[0].denied_by(), Some(DeniedBy::Block));
    }
}

// Regression: the slots stayed taken until their lease ended, since the receipt of a blocked charge contains none.
async fn block_in_shadow_charges_nothing_and_takes_no_slot(place: Place) {
    let (api, slots) = (api(), Policy::concurrency("slots", 4));
    let limiter = place.instance(&[&api, &slots]);
    let ada = Key::new("ada");
    let charges = [api.charge(ada), slots.charge(ada)];
    let charges = charges.map(|charge| charge.enforcement(Enforcement::Shadow));
    block(&limiter, Block::new(ada, MINUTE)).await;
    // By an instance that knows the block, and by one that does not yet.
    for limiter in [&limiter, &place.instance(&[&api, &slots])] {
        let decision = check(limiter, &charges).await;
        assert_eq!(decision.would_deny().count(), 2);
        assert!(Receipt::of(&charges, &decision).is_none());
        let peek = limiter.peek(&charges).await.expect("a decision");
        let left = peek.states().iter();
        let left = left.map(|state| state.usage().expect("counted").remaining);
        assert_eq!(left.collect::<Vec<_>>(), [10, 4]);
    }
}

async fn peek_at_a_blocked_key_passes(place: Place) {
    let api = api();
    let limiter = place.instance(&[&api]);
    block(&limiter, Block::new(Key::new("ada"), MINUTE)).await;
    let decision = limiter.peek(&[api.charge(Key::new("ada"))]).await;
    let decision = decision.expect("a decision");
    assert!(decision.is_allowed());
    assert_eq!(usage(&decision).remaining, 10);
}

async fn reset_leaves_a_block(place: Place) {
    let api = api();
    let limiter = place.instance(&[&api]);
    let ada = Key::new("ada");
    block(&limiter, Block::new(ada, MINUTE)).await;
    limiter.reset(&api, &ada).await.expect("reset");
    assert!(!check(&limiter, &[api.charge(ada)]).await.is_allowed());
}

async fn hostile_keys_are_blocked_without_touching_others(place: Place) {
    let api = api();
    let keys = [
        Key::new(""),
        Key::new("x".repeat(1_000_000)),
        Key::new([0, 255, b'\n', b'{', b'}', b':']),
        Key::new("user:api:ada"),
        Key::new(":"),
        Key::new("ada").co_located_with(&Key::new("acme")),
        Key::new("ada").labelled("header"),
        Key::secret("s3cret"),
        Key::GLOBAL,
        Key::UNIDENTIFIED,
    ];
    let limiter = place.instance(&[&api]);
    for key in keys {
        block(&limiter, Block::new(key, MINUTE)).await;
        let same = [BlockTarget::new(key, None)];
        let targets: Vec<_> = limiter.blocks().iter().map(|b| *b.target()).collect();
        assert_eq!(targets, same);
        let other = place.instance(&[&api]);
        assert!(!check(&other, &[api.charge(key)]).await.is_allowed());
        let others = keys.iter().filter(|other| **other != key);
        for free in others {
            let peeked = limiter
                .check(&[api.charge(*free)])
                .await
                .expect("a decision");
            assert!(peeked.is_allowed(), "{free:?}");
            limiter.reset(&api, free).await.expect("reset");
        }
        limiter
            .unblock(BlockTarget::new(key, None))
            .await
            .expect("unblocked");
    }
}

async fn unusable_blocks_are_refused(place: Place) {
    let api = api();
    let limiter = place.instance(&[&api]);
    let ada = Key::new("ada");
    let refused = [
        Block::new(ada, Duration::ZERO),
        Block::new(ada, Block::MAX_DURATION + Duration::from_secs(1)),
        Block::new(ada, MINUTE).reason("x".repeat(201)),
        Block::new(ada, MINUTE).reason("two\nlines"),
        Block::new(ada, MINUTE).policy(&Policy::new("", Quota::per_hour(1))),
    ];
    for block in refused {
        let error = limiter
            .block(block.clone())
            .await
            .expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{block:?}");
    }
    block(
        &limiter,
        Block::new(ada, Block::MAX_DURATION).reason("x".repeat(200)),
    )
    .await;
    assert_eq!(limiter.blocks().len(), 1);
}

// Regression: in Redis it ended the block under all policies, since an invalid name is empty there.
async fn unblocking_under_an_invalid_name_is_refused_and_ends_no_block(place: Place) {
    let api = api();
    let limiter = place.instance(&[&api]);
    let ada = Key::new("ada");
    block(&limiter, Block::new(ada, MINUTE)).await;
    let invalid = Policy::new("no name", Quota::per_hour(1));
    let target = BlockTarget::new(ada, Some(&invalid));
    let error = limiter.unblock(target).await.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(!check(&limiter, &[api.charge(ada)]).await.is_allowed());
}

async fn refund_gives_units_back_and_no_more_than_were_used(place: Place) {
    let api = api();
    let limiter = place.instance(&[&api]);
    let ada = Key::new("ada");
    limiter
        .refund(&api, &ada, 3)
        .await
        .expect("nothing to refund");
    let charge = api.charge(ada);
    assert_eq!(
        usage(&check(&limiter, &[charge.cost(8)]).await).remaining,
        2
    );
    limiter.refund(&api, &ada, 3).await.expect("refunded");
    assert_eq!(
        usage(&check(&limiter, &[charge.cost(0)]).await).remaining,
        5
    );
    limiter.refund(&api, &ada, 99).await.expect("refunded");
    assert_eq!(usage(&check(&limiter, &[charge]).await).remaining, 9);
}

async fn refund_of_more_units_than_a_key_can_use_gives_back_all_of_them(place: Place) {
    let ada = Key::new("ada");
    let algorithms = [
        Algorithm::default(),
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow(WindowStart::Clock),
        Algorithm::FixedWindow(WindowStart::FirstHit),
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ];
    for (index, algorithm) in algorithms.into_iter().enumerate() {
        let quota = match algorithm {
            Algorithm::LeakyBucket => Quota::per_hour(7).burst(7),
            _ => Quota::per_hour(7),
        };
        let policy = Policy::new(format!("refund{index}"), quota).algorithm(algorithm);
        let limiter = place.instance(&[&policy]);
        let used = policy.charge(ada).cost(7);
        for units in [u64::MAX, u64::MAX / 2, 1 << 52, 8] {
            assert!(check(&limiter, &[used]).await.is_allowed(), "{algorithm:?}");
            let refunded = limiter.refund(&policy, &ada, units).await;
            refunded.unwrap_or_else(|error| panic!("{algorithm:?}, {units}: {error}"));
            let left = usage(&check(&limiter, &[used.cost(0)]).await).remaining;
            assert_eq!(left, 7, "{algorithm:?}, {units}");
        }
    }
}
