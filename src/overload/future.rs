//! The future of a request that may be shed.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pin_project::pin_project;

use crate::{clock::Timestamp, middleware::ResponseBody, rejection::Rejection};

use super::overload::InFlight;

/// Future of [`Shedding`](super::Shedding).
///
/// If it is dropped, the place of the request is given back.
#[pin_project]
#[derive(Debug)]
pub struct SheddingFuture<F, B> {
    #[pin]
    pub(super) state: State<F, B>,
}

#[pin_project(project = StateProjection)]
#[derive(Debug)]
pub(super) enum State<F, B> {
    Running {
        /// Dropped before the place is given back.
        #[pin]
        future: F,
        place: Option<InFlight>,
        turn: Turn,
    },
    Shed(Option<Response<ResponseBody<B>>>),
}

/// Whether the request goes to the end of the run queue first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Now,
    AfterOthers,
    /// It is there since then.
    Awaited(Timestamp),
}

impl<F, B> State<F, B> {
    #[inline]
    pub fn running(place: Option<InFlight>, future: F) -> Self {
        let gives_way = place.as_ref().is_some_and(InFlight::gives_way);
        let turn = match gives_way {
            true => Turn::AfterOthers,
            false => Turn::Now,
        };
        Self::Running {
            future,
            place,
            turn,
        }
    }
}

impl<F, B, E> Future for SheddingFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Running {
                future,
                place,
                turn,
            } => {
                if let (Some(place), Turn::AfterOthers | Turn::Awaited(_)) = (&*place, &*turn) {
                    if let Turn::Awaited(since) = *turn {
                        place.note_lag(since);
                    } else {
                        *turn = Turn::Awaited(place.now());
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    *turn = Turn::Now;
                }
                let outcome = ready!(future.poll(context));
                let place = place.take();
                Poll::Ready(outcome.map(|response| {
                    if let Some(place) = place {
                        end(place, &response);
                    }
                    response.map(ResponseBody::from)
                }))
            }
            StateProjection::Shed(response) => Poll::Ready(Ok(response.take().expect(POLLED_ONCE))),
        }
    }
}

/// Gives the place back by the head of the response.
fn end<B>(place: InFlight, response: &Response<B>) {
    if response.extensions().get::<Rejection>().is_some() {
        return place.not_run();
    }
    match (response.status(), grpc_status(response.headers())) {
        (StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT, _)
        | (_, Some(DEADLINE_EXCEEDED)) => place.timed_out(),
        // Something behind is full or down, which says nothing of how quick it is.
        (StatusCode::SERVICE_UNAVAILABLE, _) | (_, Some(UNAVAILABLE)) => drop(place),
        _ => place.answered(),
    }
}

/// Returns the status of a gRPC call that failed before it sent a message.
fn grpc_status(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get("grpc-status").map(HeaderValue::as_bytes)
}

const DEADLINE_EXCEEDED: &[u8] = b"4";
const UNAVAILABLE: &[u8] = b"14";
const POLLED_ONCE: &str = "a future must not be polled after it completed";
