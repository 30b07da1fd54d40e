//! Slots on a server, where their holder may be gone and other programs may write.

use std::time::Instant;

use tollgate::{ErrorKind, Policy, algorithm::Algorithm};

use super::{
    place::{MICRO, START},
    slots::assert_lives,
    ways::{LEASE, Trial},
};

on_every_server! { leases, crate::conformance::ways::Trial::of_slots, {
    lease_that_is_changed_counts_from_the_next_renewal
    renewal_after_the_lease_has_ended_counts_the_holder_in_again
    foreign_value_is_an_error_and_stays
} }

/// Each slot keeps the lease that it was taken with, and the key lives as long as the longest of them.
async fn lease_that_is_changed_counts_from_the_next_renewal(trial: Trial) {
    let (limit, clock) = (trial.way.limit, &trial.place.clock);
    let leased = |lease| {
        let policy = Policy::new("tried", trial.way.quota);
        let policy = policy.algorithm(Algorithm::Concurrency { lease });
        trial.place.count(policy, "ada")
    };
    let (long, short) = (leased(LEASE), leased(LEASE / 6));
    let since = Instant::now();
    long.spend(2).await;
    short.spend(3).await;
    assert_lives(&trial, LEASE, since);
    clock.set(START + LEASE / 6 - MICRO);
    assert_eq!(long.left().await, limit - 5);
    clock.set(START + LEASE / 6);
    assert_eq!(short.left().await, limit - 2);
    let renewed = short.borrow(1).await.expect("free");
    clock.set(START + LEASE / 4);
    trial.place.renew(&renewed).await;
    clock.set(START + LEASE / 4 + LEASE / 6 - MICRO);
    assert_eq!(long.left().await, limit - 3);
    clock.set(START + LEASE / 4 + LEASE / 6);
    assert_eq!(long.left().await, limit - 2);
    clock.set(START + LEASE);
    assert_eq!(short.left().await, limit);
}

/// A holder that was stopped for longer than its lease counts again, besides those that took its slots.
async fn renewal_after_the_lease_has_ended_counts_the_holder_in_again(trial: Trial) {
    let (limit, ada) = (trial.way.limit, trial.count("ada"));
    let late = ada.borrow(4).await.expect("free");
    trial.place.clock.set(START + LEASE);
    let mut others = ada.borrow_each(limit).await;
    trial.place.renew(&late).await;
    for ended in 1..=4 {
        ada.give_back(others.pop()).await;
        assert_eq!(ada.left().await, 0, "{ended} of them have ended");
    }
    ada.give_back(others.pop()).await;
    assert_eq!(ada.left().await, 1);
    ada.give_back([late]).await;
    assert_eq!(ada.left().await, 5);
}

async fn foreign_value_is_an_error_and_stays(trial: Trial) {
    let ada = trial.count("ada");
    let (renewed, released) = (ada.borrow(1).await, ada.borrow(1).await);
    let [(key, server)] = trial.place.keys().try_into().ok().expect("one key");
    server.command(&["SET", &key, "none of ours"]);
    let values = trial.place.values();
    let refused = ada.limiter.check(&[ada.charge()]).await;
    assert_eq!(
        refused.map_err(|error| error.kind()),
        Err(ErrorKind::ForeignValue)
    );
    let refused = trial.place.try_renew(&renewed.expect("free")).await;
    assert_eq!(
        refused.map_err(|error| error.kind()),
        Err(ErrorKind::ForeignValue)
    );
    let refused = ada.limiter.settle(released.expect("free")).await;
    assert_eq!(
        refused.map_err(|error| error.kind()),
        Err(ErrorKind::ForeignValue)
    );
    assert_eq!(trial.place.values(), values);
}
