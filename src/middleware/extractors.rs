//! Extractors of axum for values that layers put into the extensions of requests.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use crate::limiter::RateLimiter;

use super::{
    actual_cost::ActualCost,
    info::RateLimitInfo,
    missing::{MissingActualCost, MissingRateLimitInfo, MissingRateLimiter, MissingRequestHold},
    request_hold::RequestHold,
};

macro_rules! extract {
    ($value:ty, or $missing:ident) => {
        impl<S: Sync> FromRequestParts<S> for $value {
            type Rejection = $missing;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, $missing> {
                Self::from_extensions(&parts.extensions).ok_or($missing)
            }
        }

        impl<S: Sync> OptionalFromRequestParts<S> for $value {
            type Rejection = Infallible;

            async fn from_request_parts(
                parts: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Infallible> {
                Ok(Self::from_extensions(&parts.extensions))
            }
        }
    };
}

extract!(ActualCost, or MissingActualCost);
extract!(RateLimitInfo, or MissingRateLimitInfo);
extract!(RateLimiter, or MissingRateLimiter);
extract!(RequestHold, or MissingRequestHold);
