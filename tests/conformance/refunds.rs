//! What is given back of earlier charges, in whatever order.

use std::time::Duration;

use tollgate::{Policy, Quota, charge::Receipt, clock::Timestamp};

use crate::support::Random;

use super::{
    place::{Count, Place, START},
    ways::Trial,
};

by_every_way! { refunds, {
    nothing_passes_over_the_limit_in_any_order_of_refunds
    charge_given_back_at_once_is_all_there_again
    refund_gives_no_more_than_its_charge_weighs
} }

on_every_store! { refunds, std::convert::identity, {
    bucket_gives_back_all_in_the_order_of_the_charges_and_in_the_reverse
    charge_is_lighter_by_those_before_it_that_were_given_back
} }

// Regression: a charge was known by when all was to be back after it alone. When one before it was given back, that was
// too late, and giving back the second as well gave back somebody else's.
async fn charge_is_lighter_by_those_before_it_that_were_given_back(place: Place) {
    let count = place.count(Policy::new("tried", Quota::per_minute(100)), "ada");
    let first = taken(&count, 50).await;
    let second = taken(&count, 50).await;
    give_back(&count, first, 50).await;
    // Time has given the second back by now, and nothing is owed.
    place.clock.set(START + Duration::from_secs(30));
    assert_eq!(count.left().await, 100);
    let third = taken(&count, 60).await;
    give_back(&count, second, 50).await;
    assert_eq!(count.left().await, 40, "the third stands");
    give_back(&count, third, 60).await;
    assert_eq!(count.left().await, 100);
}

async fn bucket_gives_back_all_in_the_order_of_the_charges_and_in_the_reverse(place: Place) {
    for is_reverse in [false, true] {
        let count = place.count(Policy::new("tried", Quota::per_minute(100)), "ada");
        let mut receipts = Vec::new();
        for units in [30, 1, 20, 49] {
            receipts.push((taken(&count, units).await, units));
        }
        if is_reverse {
            receipts.reverse();
        }
        let mut left = 0;
        for (receipt, units) in receipts {
            assert_eq!(count.left().await, left);
            give_back(&count, receipt, units).await;
            left += units;
        }
        assert_eq!(count.left().await, 100, "reverse: {is_reverse}");
    }
}

pub(super) async fn charge_given_back_at_once_is_all_there_again(trial: Trial) {
    let (way, count) = (trial.way, trial.count("ada"));
    for _ in 0..30 {
        let receipt = taken(&count, way.limit).await;
        assert_eq!(count.left().await, 0);
        give_back(&count, receipt, way.limit).await;
        assert_eq!(count.left().await, way.limit);
    }
}

async fn refund_gives_no_more_than_its_charge_weighs(trial: Trial) {
    let (way, count) = (trial.way, trial.count("ada"));
    let early = taken(&count, way.limit).await;
    trial.place.clock.set(START + (way.all_back)(way.limit));
    let late = taken(&count, way.limit).await;
    give_back(&count, early, way.limit).await;
    assert_eq!(count.left().await, 0, "the first was back by itself");
    give_back(&count, late, way.limit).await;
    assert_eq!(count.left().await, way.limit);
}

async fn nothing_passes_over_the_limit_in_any_order_of_refunds(trial: Trial) {
    let way = trial.way;
    let count = trial.count("ada");
    let (mut random, mut moment) = (Random(7), START);
    let mut open: Vec<(Receipt, Timestamp, u64)> = Vec::new();
    // What was let through at this moment, less what was given back of that.
    let mut passed = 0;
    let (mut denied, mut given_back) = (0, 0);
    for _ in 0..600 {
        match random.below(12) {
            0 => {
                let part = u32::try_from(1 + random.below(30)).expect("a small number");
                moment = moment + (way.all_back)(way.limit) / part;
                trial.place.clock.set(moment);
                passed = 0;
            }
            1..5 if !open.is_empty() => {
                let index = usize::try_from(random.below(open.len() as u64)).expect("an index");
                let (receipt, made, units) = open.swap_remove(index);
                give_back(&count, receipt, units).await;
                passed -= if made == moment { units } else { 0 };
                given_back += 1;
            }
            _ => {
                let units = 1 + random.below(3);
                let decision = count.take(units).await;
                if let Some(receipt) = Receipt::of(&[count.charge().cost(units)], &decision) {
                    open.push((receipt, moment, units));
                    passed += units;
                    assert!(passed <= way.limit, "{passed} at one moment");
                } else {
                    denied += 1;
                }
            }
        }
    }
    assert!(denied > 50 && given_back > 50, "{denied}, {given_back}");
}

/// The receipt of a charge that was admitted.
async fn taken(count: &Count<'_>, units: u64) -> Receipt {
    let decision = count.take(units).await;
    assert!(decision.is_allowed(), "{units} fit");
    Receipt::of(&[count.charge().cost(units)], &decision).expect("it was charged")
}

/// Gives so many units back of a charge of as many.
async fn give_back(count: &Count<'_>, receipt: Receipt, units: u64) {
    let receipt = receipt.actual_cost(|_, charged| {
        assert_eq!(charged, units);
        0
    });
    count.limiter.settle(receipt).await.expect("it is settled");
}
