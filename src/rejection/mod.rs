//! Responses to requests that may not go on.
//!
//! [`Rejection`] holds the reason, and [`RejectionFormat`] picks the response made from it: JSON by default. Implement
//! [`MakeRejection`] or pass a closure for a custom response.

mod accept;
mod body;
mod format;
#[cfg(feature = "grpc")]
mod grpc;
mod json;
mod make;
#[cfg(feature = "grpc")]
mod protobuf;
mod reason;

pub use self::body::RejectionBody;
pub use self::format::RejectionFormat;
pub use self::make::MakeRejection;
#[cfg(feature = "axum")]
pub(crate) use self::reason::INTERNAL;
pub(crate) use self::reason::MissingKeyDetail;
pub use self::reason::{Reason, Rejection};
