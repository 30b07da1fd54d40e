//! How a request ended, for the closure that settles its cost.
//!
//! # Why is a client that went away a separate case in a settle closure?
//!
//! An earlier version passed `status: Option<StatusCode>`, where `None` was an error, a panic, or a client that hung up. It is
//! reasonable to refund failures, so closures returned 0 for `None`, and a client that hung up on every request was never
//! limited: at a quota of 5, 200 of 200 handlers started. So the three cases are variants of an enum. Closures match failures
//! first, and their last arm keeps the charge, also for clients that hung up. A response is settled by its head, whatever happens
//! to its body. Otherwise a client could choose the cheaper of two costs by hanging up.
//!
//! The closure runs when the body has been dropped, and not when the head is sent. A guard often reports the usage as the stream
//! is dropped, so the inner body is dropped first. This costs a copy of the response's headers, only under rules that settle.

use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};

/// A request that has ended, as the closure of [`Rule::settle`](super::Rule::settle) receives it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CompletedRequest<'a> {
    /// Units charged when the request was admitted.
    pub charged: u64,
    /// Method of the request. A request that was not started has `GET`.
    pub method: &'a Method,
    /// Time from the call of the inner service to its response head, or to the end of a request that got none.
    ///
    /// It does not include the body, so a client that reads slowly does not change it.
    pub elapsed: Duration,
    /// Outcome of the request.
    pub outcome: RequestOutcome<'a>,
}

/// Outcome of a request.
///
/// # Charge a client that goes away
///
/// A client can hang up on every request, and the work was done. If [`ClientGone`](Self::ClientGone) costs nothing, the
/// limit holds only for clients that wait for their responses. So let it fall into the arm that keeps the charge:
///
/// ```
/// use tollgate::{rules::{CompletedRequest, RequestOutcome}};
///
/// fn free_if_we_failed(request: &CompletedRequest<'_>) -> u64 {
///     match request.outcome {
///         RequestOutcome::Failed | RequestOutcome::Panicked => 0,
///         RequestOutcome::Responded { status, .. } if status.is_server_error() => 0,
///         _ => request.charged,
///     }
/// }
/// ```
///
/// A client can also cause some failures, for example an error while the service reads a request body that the client
/// stops sending. Refund only failures that a client cannot cause.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RequestOutcome<'a> {
    /// The request was dropped before it had a response: the client went away, or a layer outside, such as a timeout,
    /// gave up. The inner service may not have been called yet, if a key or tier was looked up
    /// [after the charge](crate::middleware#keys-and-tiers-that-are-looked-up).
    ClientGone,
    /// The inner service returned an error.
    Failed,
    /// The inner service panicked.
    Panicked,
    /// The inner service responded, whatever became of the body; or the layer rejected the request although this policy
    /// admitted it, for example since another policy has no key. See [which status](crate::middleware#which-status).
    #[non_exhaustive]
    Responded {
        /// Status of the response.
        status: StatusCode,
        /// Headers of the response as the inner service set them.
        headers: &'a HeaderMap,
        /// Outcome of the body.
        body: BodyOutcome,
    },
}

/// Outcome of the body of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BodyOutcome {
    /// The body was dropped before its end: the client went away.
    ClientGone,
    /// The body was sent whole, there was none to send, or it was [taken out](crate::middleware::ResponseBody::into_inner).
    Complete,
    /// The body returned an error.
    Failed,
    /// The body panicked.
    Panicked,
}
