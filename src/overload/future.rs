//! The future of a request that may be shed.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use pin_project::pin_project;

use crate::{clock::Timestamp, middleware::ResponseBody, rejection::Rejection};

use super::{adaptive::End, overload::InFlight};

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
                match (&*place, *turn) {
                    (Some(place), Turn::AfterOthers) => {
                        *turn = Turn::Awaited(place.now());
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    (Some(place), Turn::Awaited(since)) => {
                        place.note_lag(since);
                        *turn = Turn::Now;
                    }
                    _ => {}
                }
                let outcome = ready!(future.poll(context));
                let place = place.take();
                Poll::Ready(outcome.map(|response| {
                    if let Some(place) = place {
                        place.end(end_of(&response));
                    }
                    response.map(ResponseBody::from)
                }))
            }
            StateProjection::Shed(response) => Poll::Ready(Ok(response.take().expect(POLLED_ONCE))),
        }
    }
}

/// Returns how the request has ended, by the head of the response.
fn end_of<B>(response: &Response<B>) -> End {
    if response.extensions().get::<Rejection>().is_some() {
        return End::NotRun;
    }
    match (response.status(), grpc_status(response.headers())) {
        (StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT, _)
        | (_, Some(DEADLINE_EXCEEDED)) => End::TimedOut,
        // Something behind is full or down: the time is not that of a response.
        (StatusCode::SERVICE_UNAVAILABLE, _) | (_, Some(UNAVAILABLE)) => End::Left,
        _ => End::Answered,
    }
}

/// Returns the status of a gRPC call that failed before it sent a message.
fn grpc_status(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(&GRPC_STATUS).map(HeaderValue::as_bytes)
}

/// A static, since the name as a text would be parsed for each response.
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const DEADLINE_EXCEEDED: &[u8] = b"4";
const UNAVAILABLE: &[u8] = b"14";
const POLLED_ONCE: &str = "a future must not be polled after it completed";

#[cfg(test)]
mod tests {
    use crate::error::{Error, ErrorKind};

    use super::*;

    #[test]
    fn response_shows_how_its_request_has_ended() {
        for (status, grpc, end) in [
            (200, "", End::Answered),
            (200, "0", End::Answered),
            (200, "13", End::Answered),
            (404, "", End::Answered),
            (429, "", End::Answered),
            (500, "", End::Answered),
            (503, "", End::Left),
            (200, "14", End::Left),
            (408, "", End::TimedOut),
            (504, "", End::TimedOut),
            (200, "4", End::TimedOut),
        ] {
            let mut response = Response::builder().status(status);
            if !grpc.is_empty() {
                response = response.header("grpc-status", grpc);
            }
            let mut response = response.body(()).expect("a valid response");
            assert_eq!(end_of(&response), end, "{status} {grpc}");
            let denied = Error::new(ErrorKind::InvalidConfig, "denied inside");
            response.extensions_mut().insert(Rejection::from(denied));
            assert_eq!(end_of(&response), End::NotRun, "{status} {grpc}");
        }
    }
}
