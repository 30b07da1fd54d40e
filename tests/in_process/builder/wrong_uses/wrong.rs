//! Wrong uses, one a function. The lines that begin with `//~` are in the compiler's output for the function below them.

use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use tollgate::{
    Policy, RateLimitLayer, RequestHead, builder::RateLimitLayerBuilder, call::CallLimit,
    middleware::RateLimit, overload::OverloadBuilder, rules::Rule, tiers::Tier,
};
use tower::{Layer, ServiceBuilder, ServiceExt};

#[derive(Clone)]
struct Service;

struct NotClone;

impl tower::Service<u32> for NotClone {
    type Response = u32;
    type Error = ();
    type Future = Ready<Result<u32, ()>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, number: u32) -> Self::Future {
        ready(Ok(number))
    }
}

//~ a builder is not a layer: it has to be built first
//~ call `.build()?` on the builder
fn builder_is_not_built(builder: RateLimitLayerBuilder) {
    let _ = builder.layer(Service);
}

//~ a builder is not a layer: it has to be built first
//~ call `.build()?` on the builder
fn builder_in_a_stack_is_not_built(builder: RateLimitLayerBuilder) {
    let _ = ServiceBuilder::new().layer(builder).service(Service);
}

//~ a builder is not a layer: it has to be built first
//~ call `.build()?` on the builder
fn overload_is_not_built(builder: OverloadBuilder) {
    let _ = builder.layer(Service);
}

//~ `NotClone` is not `Clone`, so a limit cannot be put around it
//~ derive or implement `Clone` for the service
//~ `tower::buffer::BufferLayer`
fn service_is_not_clone(limit: RateLimitLayer) {
    let _ = limit.layer(NotClone);
}

//~ `NotClone` is not `Clone`, so a limit cannot be put around it
fn service_of_a_stack_is_not_clone(limit: RateLimitLayer) {
    let _ = ServiceBuilder::new().layer(limit).service(NotClone);
}

//~ `NotClone` is not `Clone`, so a limit cannot be put around it
fn service_inside_of_another_is_not_clone(limited: CallLimit<NotClone, u32, u32, ()>) {
    let _ = ServiceExt::oneshot(limited, 1);
}

//~ `NotClone` is not `Clone`, so a limit cannot be put around it
fn router_clones_a_service_that_is_not_clone(limited: &RateLimit<NotClone>) {
    let _ = Clone::clone(limited);
}

//~ `&str` is not a key extractor
//~ `Header::new("x-tenant")`
//~ `PeerIp.and(Route)`
//~ `.key_fn(|head| Some(Key::new(..)))`
fn key_is_the_name_of_a_header(policy: Policy) {
    let _ = policy.key("x-tenant");
}

//~ `Option<String>` is not a key: a closure that finds keys returns a `Key` or an `Option<Key>`
//~ `Key::new(text)`
//~ `Key::secret(token)`
//~ `.map(Key::new)`
fn key_is_owned_text(policy: Policy) {
    let _ = policy.key_fn(|head| head.uri.host().map(str::to_owned));
}

//~ `Option<&str>` is not a key: a closure that finds keys returns a `Key` or an `Option<Key>`
//~ `.map(Key::new)`
fn key_is_borrowed_text(policy: Policy) {
    let _ = policy.key_fn(|head| head.uri.host());
}

//~ `Option<String>` is not a key: a closure that finds keys returns a `Key` or an `Option<Key>`
//~ `.map(Key::new)`
fn key_of_a_closure_with_types_is_text(policy: Policy) {
    let _ = policy.key(|head: &RequestHead| head.uri.host().map(str::to_owned));
}

//~ is not a key: a closure that finds keys returns a `Key` or an `Option<Key>`
//~ for a `Result`: `.ok()`
fn key_is_a_result(policy: Policy) {
    let _ = policy.key_fn(|head| head.uri.path().parse::<u64>());
}

//~ `[&str; 2]` does not select requests
//~ use the text of a path such as `"/health"`
//~ `Methods::new([Method::POST])`
//~ call it once for each
//~ `.when_fn(|head| ..)`
fn matcher_is_a_list(builder: RateLimitLayerBuilder) {
    let _ = builder.skip(["/health", "/metrics"]);
}

//~ does not select requests
//~ a closure that returns a `bool`
fn matcher_returns_an_option(rule: Rule) {
    let _ = rule.when(|head: &RequestHead| head.uri.query());
}

//~ does not choose tiers
//~ `.tier_fn(|head, key| None)`
fn choice_of_tiers_is_a_tier(rule: Rule) {
    let _ = rule.tier_by(Tier::unlimited());
}

//~ `&str` does not make the response to a rejected request
//~ `RejectionFormat::json()`
//~ `.on_rejection_fn(|rejection| rejection.response(rejection.message()))`
fn format_of_rejections_is_text(builder: RateLimitLayerBuilder) {
    let _ = builder.on_rejection("too many requests");
}

//~ `&str` is not a store
//~ `.redis("redis://127.0.0.1/")`
fn store_is_a_url(builder: RateLimitLayerBuilder) {
    let _ = builder.store("redis://127.0.0.1/");
}
