//! Responses to requests that are not admitted.
//!
//! A [`Rejection`] holds the reason, with its status, code and message. A [`RejectionFormat`] makes the response from it: JSON by
//! default. Implement [`MakeRejection`] or pass a closure for a custom response.
//!
//! | file | role |
//! |---|---|
//! | `reason` | the reason, its status, code and message |
//! | `format` | the response: JSON, problem+json, text or custom, and the headers that all of them have |
//! | `jitter` | spreads the waits of rejected clients |
//! | `accept` | the format that a request prefers |
//! | `body` | bodies of custom responses |
//! | `recent_bodies` | bodies that a thread has made lately |
//! | `grpc`, `protobuf` | responses to gRPC clients |

mod accept;
mod body;
mod format;
#[cfg(feature = "grpc")]
mod grpc;
mod jitter;
#[cfg(feature = "grpc")]
mod protobuf;
mod reason;
mod recent_bodies;

pub use self::body::RejectionBody;
pub use self::format::{MakeRejection, RejectionFormat};
pub(crate) use self::jitter::RetryAfterJitter;
pub(crate) use self::reason::MissingKeyDetail;
pub use self::reason::{Reason, Rejection};
