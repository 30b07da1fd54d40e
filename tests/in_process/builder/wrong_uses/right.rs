//! Code that must compile, so that the errors of `wrong.rs` are its own.

use tollgate::{Key, Policy, Quota, RateLimitLayer, extract::PeerIp};
use tower::Layer;

#[derive(Clone)]
struct Service;

fn limited() -> Result<(), tollgate::Error> {
    let policy = Policy::new("p", Quota::per_minute(1));
    let limit = RateLimitLayer::builder()
        .policy(policy.clone().key(PeerIp))
        .policy(policy.key_fn(|head| head.uri.host().map(Key::new)))
        .build()?;
    let _ = limit.layer(Service);
    Ok(())
}
