//! The prelude beside the other names that people import at once.

#![expect(
    unused_imports,
    reason = "names of the prelude must stay unambiguous beside all of these"
)]

use axum::{extract::*, handler::*, middleware::*, response::*, routing::*};
use http::{header::*, *};
use std::{collections::*, error::*, io::*, net::*, sync::*, time::*};
use tokio::{net::*, task::*, time::*};
use tollgate::prelude::*;
use tower::{buffer::*, util::*, *};

#[test]
fn names_of_the_prelude_are_unambiguous_beside_those_of_other_crates() {
    fn handler(_: ActualCost, _: RateLimitInfo) {}
    fn custom(_: &Rejection, _: &RequestHead<'_>, _: &RateLimiter, _: &TierCache, _: Rule) {}
    let tiers = TierTable::new([(Key::new("acme"), Tier::unlimited())]);
    let limit = RateLimitLayer::builder()
        .policy(
            Policy::new("address", Quota::per_minute(60))
                .key(ApiKey::header("x-api-key").or_else(PeerIp))
                .when(Methods::new([Method::POST]).and(PathPattern::new("/login")))
                .algorithm(Algorithm::TokenBucket)
                .on_missing_key(OnMissingKey::Share)
                .on_outage(OnOutage::Deny)
                .mode(RuleMode::Shadow)
                .tier_by(tiers),
        )
        .policy(Policy::new("global", Quota::per_second(100)).key(Global))
        .policy(Policy::new("client", Quota::per_second(9)).key(ClientIp::behind(["10.0.0.0/8"])))
        .forbid(AddressList::new(PeerIp, ["203.0.113.0/24"]))
        .headers(Headers::legacy().limit(ShownLimit::PerPeriod))
        .on_rejection(RejectionFormat::text())
        .build();
    assert!(limit.is_ok(), "{limit:?}");
    #[cfg(feature = "redis")]
    let _ = RedisStore::builder("redis://localhost/");
    let _ = (handler, custom);
    // Those of the standard library are its own.
    let standard: Option<String> = Some(String::new());
    assert_eq!(Vec::from([standard]).len(), 1);
}
