//! Rejections of extractors without the layer that they need.

use std::{error, fmt};

#[cfg(feature = "axum")]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "axum")]
use axum::response::{IntoResponse, Response};

#[cfg(feature = "axum")]
use crate::{diagnosis::log, rejection::Rejection};

/// Rejection of [`ActualCost`](super::ActualCost) without a rule that settles: 500. The first one is logged with the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingActualCost;

impl fmt::Display for MissingActualCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no RateLimitLayer around this route has a rule that settles: add .settle_by_handler() to the policy's rule, or \
             extract Option<ActualCost>",
        )
    }
}

impl error::Error for MissingActualCost {}

/// Rejection of [`RateLimitInfo`](super::RateLimitInfo) without a layer around the route: 500. The first one is logged with
/// the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRateLimitInfo;

impl fmt::Display for MissingRateLimitInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no RateLimitLayer around this route exposes its decision: add one, or extract Option<RateLimitInfo>",
        )
    }
}

impl error::Error for MissingRateLimitInfo {}

/// Rejection of a [`RateLimiter`](crate::RateLimiter) as an extractor without a layer that shares one: 500. The first one is
/// logged with the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRateLimiter;

impl fmt::Display for MissingRateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no RateLimitLayer around this route shares its limiter: add .share_limiter() to its builder, or extract \
             Option<RateLimiter>",
        )
    }
}

impl error::Error for MissingRateLimiter {}

/// Rejection of a [`RequestHold`](super::RequestHold) without a layer that holds slots: 500. The first one is logged with the
/// remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRequestHold;

impl fmt::Display for MissingRequestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no RateLimitLayer around this route has a concurrency policy: add Policy::concurrency(..), or extract \
             Option<RequestHold>",
        )
    }
}

impl error::Error for MissingRequestHold {}

#[cfg(feature = "axum")]
macro_rules! respond {
    ($($missing:ident)*) => {
        $(impl IntoResponse for $missing {
            fn into_response(self) -> Response {
                static WARNED: AtomicBool = AtomicBool::new(false);
                respond(&WARNED, &self)
            }
        })*
    };
}

#[cfg(feature = "axum")]
respond!(MissingActualCost MissingRateLimitInfo MissingRateLimiter MissingRequestHold);

/// Logs the first of these rejections. Clients do not see the reason.
#[cfg(feature = "axum")]
fn respond(warned: &AtomicBool, rejection: &dyn fmt::Display) -> Response {
    if !warned.swap(true, Ordering::Relaxed) {
        log::event!(WARN, "an extractor failed", error = rejection);
    }
    Rejection::internal().into_response()
}
