//! Fleets of random sizes through random faults: what all instances admit together, against the limit.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tollgate::{Key, Policy, RateLimiter, charge::Receipt, decision::CountedBy};

use crate::{
    fleet::shares::{
        HUNG, fleet, idle, rate_policies, until_acquainted, until_degraded, until_merged,
        until_shared,
    },
    support::{Random, Server},
};

/// Units of each policy and key.
const LIMIT: u64 = 60;
const KEYS: [&str; 2] = ["ada", "bob"];
const FAULTS: usize = 8;
/// A bucket is rounded against the client, by less than a unit on each of up to four instances.
const ROUNDING: u64 = 4;

#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The server is down until all instances have noticed, and comes back without its data.
    LongOutage,
    /// The server is down for some requests, and comes back without its data.
    ShortOutage,
    Restart,
    LongStall,
    /// The server stalls for one request.
    ShortStall,
}

const ALL: [Fault; 6] = [
    Fault::None,
    Fault::LongOutage,
    Fault::ShortOutage,
    Fault::Restart,
    Fault::LongStall,
    Fault::ShortStall,
];

/// Units that all instances have admitted, at the settled prices.
#[derive(Default)]
struct Admitted {
    units: BTreeMap<(String, &'static str), u64>,
    requests: Vec<String>,
}

fn one_of<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    let place = usize::try_from(random.below(all.len() as u64));
    &all[place.expect("below the length")]
}

/// Decides on a random instance, policy and key, and settles some of what is admitted at a lower or higher price.
async fn request(
    random: &mut Random,
    fleet: &[RateLimiter],
    policies: &[Policy],
    all: &mut Admitted,
) {
    let one = one_of(random, fleet);
    let policy = one_of(random, policies);
    let name = *one_of(random, &KEYS);
    let (cost, price) = (1 + random.below(3), random.below(6));
    let charges = [policy.charge(Key::new(name)).cost(cost)];
    let decision = one.check(&charges).await.expect("a decision");
    if !decision.is_allowed() {
        return;
    }
    let mut units = cost;
    if random.below(3) == 0 {
        let receipt = Receipt::of(&charges, &decision).expect("it is charged");
        let settled = one.settle(receipt.actual_cost(|_, _| price)).await;
        // Without Redis, a charge that it made cannot be settled.
        units = settled.map_or(cost, |()| price);
    }
    let counted_by = decision.counted_by();
    all.requests.push(format!(
        "{} {name} {cost} -> {units} by {counted_by:?}",
        policy.name()
    ));
    let place = (policy.name().to_string(), name);
    *all.units.entry(place).or_default() += units;
}

/// Takes what is left on every instance. Returns the units.
async fn exhaust(fleet: &[RateLimiter], policy: &Policy, key: Key) -> u64 {
    let (started, mut units) = (Instant::now(), 0);
    for one in fleet {
        loop {
            assert!(started.elapsed() < HUNG, "{:?}", one.health());
            let decision = one.check(&[policy.charge(key)]).await.expect("a decision");
            units += u64::from(decision.is_allowed());
            // In the first seconds after an outage, the own share ends before the limit does.
            match (decision.is_allowed(), decision.counted_by()) {
                (false, CountedBy::Shared) => break,
                (false, _) => tokio::time::sleep(Duration::from_millis(5)).await,
                _ => {}
            }
        }
    }
    units
}

async fn check(seed: u64) {
    let mut random = Random(seed);
    let mut server = Server::start();
    let fleet = fleet(&server, *one_of(&mut random, &[1, 2, 3, 4]));
    until_acquainted(&fleet).await;
    let mut policies = rate_policies(LIMIT);
    // Only the last request in a queue can be refunded.
    policies.retain(|policy| policy.name().as_str() != "leaky-queue");
    let mut all = Admitted::default();
    for _ in 0..FAULTS {
        for _ in 0..random.below(10) {
            request(&mut random, &fleet, &policies, &mut all).await;
        }
        // An instance that has not seen a key for long grants a share of the whole limit.
        for one in &fleet {
            for policy in &policies {
                for key in KEYS.map(Key::new) {
                    one.peek(&[policy.charge(key)]).await.expect("a decision");
                }
            }
        }
        let fault = *one_of(&mut random, &ALL);
        all.requests.push(format!("{fault:?}"));
        match fault {
            Fault::None => {}
            Fault::LongOutage => {
                server.kill();
                until_degraded(&fleet).await;
            }
            Fault::ShortOutage => server.kill(),
            Fault::Restart => {
                server.restart();
                for one in &fleet {
                    until_shared(one).await;
                }
            }
            Fault::LongStall => {
                server.pause();
                until_degraded(&fleet).await;
            }
            Fault::ShortStall => {
                server.pause();
                let idle = idle();
                let decision = fleet[0].check(&[idle.charge(Key::GLOBAL)]).await;
                decision.expect("a decision");
                server.resume();
            }
        }
        for _ in 0..random.below(10) {
            request(&mut random, &fleet, &policies, &mut all).await;
        }
        match fault {
            Fault::None | Fault::Restart | Fault::ShortStall => {}
            Fault::LongOutage | Fault::ShortOutage => server.restart(),
            Fault::LongStall => server.resume(),
        }
        for one in &fleet {
            until_shared(one).await;
        }
        until_merged(&fleet).await;
    }
    for policy in &policies {
        for name in KEYS {
            let left = exhaust(&fleet, policy, Key::new(name)).await;
            let place = (policy.name().to_string(), name);
            let sum = left + all.units.get(&place).copied().unwrap_or_default();
            let expected = LIMIT - ROUNDING..=LIMIT;
            assert!(
                expected.contains(&sum),
                "{place:?}: {sum}, {:#?}",
                all.requests
            );
        }
    }
}

#[tokio::test]
async fn faults_of_a_random_kind_neither_add_to_a_limit_nor_take_from_it_1() {
    check(1).await;
}

#[tokio::test]
async fn faults_of_a_random_kind_neither_add_to_a_limit_nor_take_from_it_2() {
    check(2).await;
}

#[tokio::test]
async fn faults_of_a_random_kind_neither_add_to_a_limit_nor_take_from_it_3() {
    check(3).await;
}
