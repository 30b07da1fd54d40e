//! Homes of keys in regions: fixed ones, and requests for keys of several homes.

use std::time::Duration;

use tollgate::{
    ErrorKind, Key, RateLimiter,
    remote::{RedisStore, Regions},
};

use super::regions::{EAST, WEST, World, check, key_at, limiter, policy, take_all, until_reported};
use crate::support::Server;

#[tokio::test]
async fn one_region_can_be_the_home_of_all_keys() {
    let world = World::start().await;
    let in_east = |regions: Regions| limiter(regions.fixed_home(EAST, |_| true));
    let (west, east) = (in_east(world.west()), in_east(world.east()));
    let policy = policy("fixed", 5);
    for (home, key) in [WEST, EAST].map(|home| (home, key_at(home))) {
        let charge = policy.charge(key);
        assert_eq!(take_all(&west, charge).await, 5, "{home}");
        assert!(!check(&east, &[charge]).await.is_allowed(), "{home}");
        // Leased units would stay charged.
        until_reported(&world.east).await;
        west.reset(&policy, &key).await.expect("a reset");
        assert_eq!(take_all(&east, charge).await, 5, "{home}");
    }
    assert_eq!(
        world.to_west.pieces(),
        0,
        "the home has asked another region"
    );
    assert!(world.to_east.pieces() > 0);
}

#[tokio::test]
async fn keys_of_a_tenant_are_at_its_home_and_are_decided_together_with_others() {
    let names = ["us", "eu", "ap"];
    let servers: [Server; 3] = std::array::from_fn(|_| Server::start());
    let regions = |here: usize| {
        let others = (0..3).filter(|place| *place != here);
        // Longer than the default, so that a loaded machine does not look like an outage.
        let server = RedisStore::builder(servers[here].url()).deadline(Duration::from_secs(5));
        let regions = Regions::here(names[here], server);
        let regions = others.fold(regions, |all, place| {
            all.region(names[place], servers[place].url())
        });
        let regions = regions.fixed_home("eu", |key| key.starts_with("eu-"));
        regions.fixed_home("us", |key| key.starts_with("eu-") || key.starts_with("us-"))
    };
    let tenant = Key::new("eu-acme");
    let user = tenant.and(&Key::new("ada"));
    let keys = [tenant, user, user.co_located_with(&Key::new("us-acme"))];
    for here in 0..3 {
        let homes = keys.map(|key| regions(here).home_of(&key).to_owned());
        assert_eq!(homes, ["eu", "eu", "eu"]);
        assert_eq!(regions(here).home_of(&Key::new("us-acme")), "us");
    }
    let limiters: [RateLimiter; 3] = std::array::from_fn(|here| limiter(regions(here)));
    let (tenants, users, routes) = (policy("tenant", 9), policy("user", 6), policy("route", 7));
    let charges = [
        tenants.charge(tenant),
        users.charge(keys[2]),
        routes.charge(Key::new("us-route")),
    ];
    for limiter in limiters.iter().cycle().take(6) {
        assert!(check(limiter, &charges).await.is_allowed());
    }
    for limiter in &limiters {
        assert!(!check(limiter, &charges).await.is_allowed());
    }
    // Those that were denied have taken nothing of the others. A region may still hold some of what is left.
    for (charge, left) in [(charges[2], 1), (charges[0], 3)] {
        let mut taken = 0;
        for limiter in &limiters {
            taken += take_all(limiter, charge).await;
        }
        assert_eq!(taken, left);
    }
}

#[test]
fn fixed_home_in_an_unknown_region_is_refused() {
    let regions = Regions::here(WEST, "redis://west").region(EAST, "redis://east");
    let built = RateLimiter::builder()
        .regions(regions.fixed_home("north", |_| true))
        .build();
    let error = built.expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("north"), "{error}");
}
