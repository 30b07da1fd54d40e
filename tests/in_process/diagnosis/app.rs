//! An application behind a layer, and the warnings of the layer.

use std::collections::BTreeSet;

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use tollgate::{
    Policy, Quota, RateLimitLayer,
    builder::RateLimitLayerBuilder,
    diagnosis::{Code, Warning},
    extract::KeyExtractor,
};
use tower::ServiceExt;

pub(crate) fn builder(extractor: impl KeyExtractor) -> RateLimitLayerBuilder {
    RateLimitLayer::builder().policy(Policy::new("p", PLENTY).key(extractor))
}

pub(crate) fn app(layer: &RateLimitLayer) -> Router {
    Router::new()
        .route("/", get(async || "fine"))
        .layer(layer.clone())
}

pub(crate) async fn ask(app: &Router, request: Request<Body>) -> StatusCode {
    let response = app.clone().oneshot(request).await;
    response.expect("a router does not fail").status()
}

pub(crate) fn get_root() -> Request<Body> {
    Request::new(Body::empty())
}

pub(crate) fn codes(layer: &RateLimitLayer) -> Vec<Code> {
    layer.warnings().iter().map(Warning::code).collect()
}

#[track_caller]
pub(crate) fn warnings<const N: usize>(layer: &RateLimitLayer) -> [Warning; N] {
    let warnings = layer.warnings();
    let distinct: BTreeSet<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(distinct.len(), warnings.len(), "each once");
    warnings.try_into().expect("so many warnings")
}

pub(crate) const PLENTY: Quota = Quota::per_day(1_000_000).burst(1_000_000);
