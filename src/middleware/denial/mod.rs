//! The answer to a request that may not go on.
//!
//! A [`RejectionFormat`] is ready-made; [`MakeRejection`] is for answers of one's own.

mod accept;
mod bodies;
mod form;
#[cfg(feature = "grpc")]
mod grpc;
mod json;
mod make;
#[cfg(feature = "grpc")]
mod protobuf;

pub use self::bodies::RejectionBody;
pub use self::form::RejectionFormat;
pub use self::make::MakeRejection;
