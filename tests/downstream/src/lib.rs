//! Every trait of tollgate, implemented with its required methods only, and every type that users name.
//!
//! If a feature adds a required method or a type parameter, this no longer compiles.

use std::{convert::Infallible, error::Error as StdError};

use bytes::Bytes;
use http::{Request, Response};
use tollgate::{Charge, RequestHead, Decision, Error, Key, OnOutage, Policy, Quota, RateLimitLayer, RateLimiter, call::{CallLimit, CallLimitLayer}, diagnosis::Code, extract::{Extracted, Global, Header, KeyExtractor}, middleware::{RateLimit, RateLimitInfo, ResponseBody}, rejection::{MakeRejection, Rejection}, rules::OnMissingKey, store::{Store, StoreFuture}};
use tower::{Layer, Service, ServiceBuilder, service_fn, util::BoxCloneService};

/// An extractor with its single required method.
pub struct Tenant;

impl KeyExtractor for Tenant {
    fn extract(&self, head: &RequestHead) -> Extracted<Key> {
        let tenant = head.headers.get("x-tenant");
        tenant.map(|tenant| Key::new(tenant.as_bytes())).into()
    }
}

/// A store with its two required methods.
#[derive(Debug)]
pub struct Nothing;

impl Store for Nothing {
    fn decide(&self, _: &[Charge<'_>]) -> StoreFuture<Decision> {
        StoreFuture::ready(Err(Error::new(tollgate::ErrorKind::Unavailable, "nothing")))
    }

    fn reset(&self, _: &Policy, _: &Key) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}

/// A custom rejection, without a body.
pub struct Silent;

impl MakeRejection for Silent {
    fn make(&self, rejection: &Rejection, _: &RequestHead) -> Response<Bytes> {
        rejection.response(Bytes::new())
    }
}

/// A body that implements no trait.
pub struct Bare;

/// A request type that is not `Send`, `Clone` or `Debug`.
pub struct Job(pub *const u8);

/// An error type without traits.
pub struct Rejected;

/// The types as fields, without type parameters that the user did not choose.
pub struct Application<S> {
    pub layer: RateLimitLayer,
    pub service: RateLimit<S>,
    pub boxed: BoxCloneService<Request<()>, Response<ResponseBody<Bare>>, Infallible>,
    pub jobs: CallLimitLayer<Job, (), Rejected>,
    pub worker: CallLimit<S, Job, (), Rejected>,
    pub limiter: RateLimiter,
}

/// # Errors
///
/// If tollgate rejects the configuration.
pub fn layer() -> Result<RateLimitLayer, Box<dyn StdError + Send + Sync>> {
    let limiter = RateLimiter::new(Nothing, [])?;
    Ok(RateLimitLayer::builder()
        .policy(
            Policy::new("tenant", Quota::per_minute(1)).key(Tenant.or_else(Header::new("host"))),
        )
        .policy(
            Policy::new("all", Quota::per_second(1))
                .on_outage(OnOutage::Deny)
                .key(Global)
                .on_missing_key(OnMissingKey::Skip),
        )
        .policy(Policy::concurrency("slots", 1).key(|_: &RequestHead| Some(Key::GLOBAL)))
        .limiter(&limiter)
        .on_rejection(Silent)
        .silence(Code::SingleKey)
        .build()?)
}

/// # Errors
///
/// If tollgate rejects the configuration.
pub fn jobs(limiter: &RateLimiter) -> Result<CallLimitLayer<Job, (), Rejected>, Error> {
    CallLimitLayer::builder(limiter, |_: Job, _: &Rejection| Err(Rejected))
        .policy(Policy::new("jobs", Quota::per_minute(1)).key_of(|_| Some(Key::GLOBAL)))
        .build()
}

/// The layer around a service without requirements.
pub fn around(
    layer: &RateLimitLayer,
) -> impl Service<Request<Bare>, Response = Response<ResponseBody<Bare>>, Error = Infallible> + Clone
{
    let handler = |request: Request<Bare>| async move {
        let info = RateLimitInfo::from_extensions(request.extensions());
        let _ = info.is_some_and(|info| info.is_degraded());
        Ok(Response::new(Bare))
    };
    ServiceBuilder::new()
        .layer(layer.clone())
        .service(service_fn(handler))
}

/// The layer as a [`Layer`] around services that are [`Clone`].
pub fn is_layer<S: Clone>(layer: &RateLimitLayer, service: S) -> RateLimit<S> {
    layer.layer(service)
}
