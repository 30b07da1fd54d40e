//! Responses to rejected requests.

mod denials;
mod grpc;
