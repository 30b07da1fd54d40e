//! Responses to rejected requests.

mod denials;
#[cfg(feature = "grpc")]
mod grpc;
mod jitter;
