//! The future of a call.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use pin_project::pin_project;
use tokio::time::{self, Sleep};
use tower::Service;

use crate::acquire::Acquire;

use super::{
    body::OutgoingBody, call::OutgoingCall, error::OutgoingError, rates::ReadRates, shared::Shared,
};

/// Future of [`Outgoing`](super::Outgoing): waits for a turn, calls the client, and retries.
///
/// # Cancel safety
///
/// A call that is dropped in the line leaves it, and one that is dropped in flight releases its slots.
#[pin_project]
#[must_use = "futures do nothing unless they are awaited"]
pub struct OutgoingFuture<S: Service<Request<B>>, B> {
    client: S,
    call: OutgoingCall<B>,
    #[pin]
    state: State<S::Future>,
}

#[pin_project(project = StateProjection)]
enum State<F> {
    /// The rate of a key is not known.
    Rates(ReadRates),
    /// In the line.
    Turn(#[pin] Acquire),
    /// The call has its turn.
    Ready,
    /// The call has its turn, and the client is not ready. Until the end of the call's wait.
    NotReady(#[pin] Sleep),
    /// The client has the request.
    Sent(#[pin] F),
    /// Before a retry, outside of the line.
    Backoff(#[pin] Sleep),
}

impl<S: Service<Request<B>>, B: 'static> OutgoingFuture<S, B> {
    pub(super) fn new(client: S, shared: Arc<Shared>, request: Request<B>) -> Self {
        let call = OutgoingCall::new(shared, request);
        Self {
            client,
            state: State::next_turn(&call),
            call,
        }
    }
}

impl<F> State<F> {
    fn next_turn<B: 'static>(call: &OutgoingCall<B>) -> Self {
        match call.read_rates() {
            Some(rates) => Self::Rates(rates),
            None => Self::turn(call),
        }
    }

    fn turn<B: 'static>(call: &OutgoingCall<B>) -> Self {
        call.acquire().map_or(Self::Ready, Self::Turn)
    }

    fn backoff(wait: Duration) -> Self {
        Self::Backoff(time::sleep(wait))
    }
}

impl<S, B, R> Future for OutgoingFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: 'static,
    B: 'static,
{
    type Output = Result<Response<OutgoingBody<R>>, OutgoingError<S::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                // ## Rates => Turn | Ready
                StateProjection::Rates(rates) => {
                    ready!(rates.as_mut().poll(context));
                    State::turn(this.call)
                }
                // ## Turn => Ready | end
                StateProjection::Turn(acquire) => match ready!(acquire.poll(context)) {
                    Ok(permit) => {
                        this.call.admitted(permit);
                        State::Ready
                    }
                    Err(error) => {
                        let limited = this.call.limited(error);
                        return Poll::Ready(Err(OutgoingError::Limited(limited)));
                    }
                },
                // ## Ready => Sent | NotReady | end
                StateProjection::Ready => match send(this.client, this.call, context)? {
                    Poll::Ready(response) => State::Sent(response),
                    Poll::Pending => State::NotReady(time::sleep(this.call.time_left())),
                },
                // ## NotReady => Ready | end
                StateProjection::NotReady(sleep) => {
                    if sleep.poll(context).is_ready() {
                        let limited = this.call.not_ready();
                        return Poll::Ready(Err(OutgoingError::Limited(limited)));
                    }
                    State::Sent(ready!(send(this.client, this.call, context)?))
                }
                // ## Sent => Backoff | end
                StateProjection::Sent(future) => match ready!(future.poll(context)) {
                    Ok(response) => match this.call.responded(&response) {
                        Some(wait) => State::backoff(wait),
                        None => return Poll::Ready(Ok(this.call.finish(response))),
                    },
                    Err(error) => match this.call.failed(&error) {
                        Some(wait) => State::backoff(wait),
                        None => return Poll::Ready(Err(OutgoingError::Inner(error))),
                    },
                },
                // ## Backoff => Rates | Turn | Ready
                StateProjection::Backoff(sleep) => {
                    ready!(sleep.poll(context));
                    State::next_turn(this.call)
                }
            };
            this.state.set(next);
        }
    }
}

/// Sends the call once the client is ready. If it fails, the turn is refunded.
fn send<S, B>(
    client: &mut S,
    call: &mut OutgoingCall<B>,
    context: &mut Context<'_>,
) -> Poll<Result<S::Future, OutgoingError<S::Error>>>
where
    S: Service<Request<B>>,
    B: 'static,
{
    let sent = match ready!(client.poll_ready(context)) {
        Ok(()) => Ok(client.call(call.next_request())),
        Err(error) => {
            call.refund();
            Err(OutgoingError::Inner(error))
        }
    };
    Poll::Ready(sent)
}

impl<S: Service<Request<B>>, B> fmt::Debug for OutgoingFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Rates(_) => "rates",
            State::Turn(_) => "turn",
            State::Ready => "ready",
            State::NotReady(_) => "not ready",
            State::Sent(_) => "sent",
            State::Backoff(_) => "backoff",
        };
        f.debug_struct("OutgoingFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
