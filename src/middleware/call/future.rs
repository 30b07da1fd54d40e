//! The future of a limited call.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project::pin_project;
use tokio::time::{Sleep, sleep};
use tower::Service;

use crate::{decision::Decision, error::Error, store::StoreFuture};

use super::{
    layer::{Admitted, Asking, Charged, Shared},
    slip::{Slip, run},
};

/// Decides, then calls the inner service or denies.
///
/// # Cancel safety
///
/// Dropped while it decides, the charge may have been made or not; the inner service was not called. Dropped while it
/// waits for its turn in a queue, or then for the inner service, what was charged is given back, the turn itself if nobody
/// stands behind it.
#[pin_project]
pub struct CallFuture<S, R, T, E>
where
    S: Service<R, Response = T, Error = E>,
{
    #[pin]
    state: State<S, R, T, E, S::Future>,
    shared: Arc<Shared<R, T, E>>,
}

#[pin_project(project = StateProjection)]
enum State<S, R, T, E, F> {
    /// Waits for the store, with the inner service that is ready for the request.
    Deciding {
        answer: StoreFuture<Decision>,
        charged: Charged,
        /// Boxed: only a store that is awaited comes here, and the in-process path stays small.
        waiting: Option<Box<(S, R)>>,
    },
    /// Waits for its turn in a queue, with an inner service that is not ready: one that is may keep others out.
    Waiting {
        turn: Pin<Box<Sleep>>,
        waiting: Option<Box<(S, R)>>,
        slip: Option<Slip<T, E>>,
    },
    /// Waits for the inner service to be ready, when its turn has come.
    Readying {
        waiting: Option<Box<(S, R)>>,
        slip: Option<Slip<T, E>>,
    },
    /// Waits for the inner service.
    Calling {
        #[pin]
        future: F,
        slip: Option<Slip<T, E>>,
    },
    /// Has the answer.
    Denied { answer: Option<Result<T, E>> },
}

impl<S, R, T, E> CallFuture<S, R, T, E>
where
    S: Service<R, Response = T, Error = E>,
{
    pub(super) fn deciding(asking: Asking, waiting: (S, R), shared: Arc<Shared<R, T, E>>) -> Self {
        let state = State::Deciding {
            answer: asking.answer,
            charged: asking.charged,
            waiting: Some(Box::new(waiting)),
        };
        Self { state, shared }
    }

    pub(super) fn waiting(
        waiting: (S, R),
        admitted: Admitted<T, E>,
        shared: Arc<Shared<R, T, E>>,
    ) -> Self {
        let state = State::waiting(waiting, admitted);
        Self { state, shared }
    }

    pub(super) fn calling(
        future: S::Future,
        slip: Option<Slip<T, E>>,
        shared: Arc<Shared<R, T, E>>,
    ) -> Self {
        let state = State::Calling { future, slip };
        Self { state, shared }
    }

    pub(super) fn denied(answer: Result<T, E>, shared: &Arc<Shared<R, T, E>>) -> Self {
        Self {
            state: State::Denied {
                answer: Some(answer),
            },
            shared: Arc::clone(shared),
        }
    }
}

impl<S, R, T, E> Future for CallFuture<S, R, T, E>
where
    S: Service<R, Response = T, Error = E> + Clone,
{
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut state = this.state;
        loop {
            let next = match state.as_mut().project() {
                // ## Deciding => (Waiting | Calling | Denied)
                StateProjection::Deciding {
                    answer,
                    charged,
                    waiting,
                } => {
                    let decided = ready!(Pin::new(answer).poll(context));
                    let waiting = *waiting.take().expect(POLLED_ONCE);
                    decided_to((decided, mem::take(charged)), waiting, this.shared)
                }
                // ## Waiting => Readying
                StateProjection::Waiting {
                    turn,
                    waiting,
                    slip,
                } => {
                    ready!(turn.as_mut().poll(context));
                    State::Readying {
                        waiting: waiting.take(),
                        slip: slip.take(),
                    }
                }
                // ## Readying => (Calling | end)
                StateProjection::Readying { waiting, slip } => {
                    let inner = waiting.as_mut().map(|waiting| &mut waiting.0);
                    let inner = inner.expect(POLLED_ONCE);
                    if let Err(error) = ready!(inner.poll_ready(context)) {
                        // What was charged is given back now, however long this future is kept.
                        *slip = None;
                        *waiting = None;
                        return Poll::Ready(Err(error));
                    }
                    let waiting = *waiting.take().expect(POLLED_ONCE);
                    called(waiting, slip.take())
                }
                // ## Calling => end
                StateProjection::Calling { future, slip } => {
                    let mut outcome = ready!(run(slip, || future.poll(context)));
                    let slip = slip.take();
                    // Ended now, after the inner future is gone, however long this one is kept.
                    state.set(State::Denied { answer: None });
                    this.shared.end(slip, &mut outcome);
                    return Poll::Ready(outcome);
                }
                // ## Denied => end
                StateProjection::Denied { answer } => {
                    return Poll::Ready(answer.take().expect(POLLED_ONCE));
                }
            };
            state.set(next);
        }
    }
}

impl<S, R, T, E, F> State<S, R, T, E, F> {
    fn waiting(waiting: (S, R), admitted: Admitted<T, E>) -> Self {
        Self::Waiting {
            turn: Box::pin(sleep(admitted.delay.unwrap_or_default())),
            waiting: Some(Box::new(waiting)),
            slip: admitted.slip,
        }
    }
}

/// Calls the ready service, now or when its turn comes, or drops it and denies.
fn decided_to<S, R, T, E>(
    (decided, charged): (Result<Decision, Error>, Charged),
    (ready, mut request): (S, R),
    shared: &Shared<R, T, E>,
) -> State<S, R, T, E, S::Future>
where
    S: Service<R, Response = T, Error = E> + Clone,
{
    match shared.admit(decided, charged, &mut request) {
        Ok(admitted) if admitted.delay.is_some() => {
            State::waiting((ready.clone(), request), admitted)
        }
        Ok(admitted) => called((ready, request), admitted.slip),
        Err(rejection) => {
            drop(ready);
            State::Denied {
                answer: Some(shared.deny(request, &rejection)),
            }
        }
    }
}

fn called<S, R, T, E>(
    (mut ready, request): (S, R),
    slip: Option<Slip<T, E>>,
) -> State<S, R, T, E, S::Future>
where
    S: Service<R, Response = T, Error = E>,
{
    let mut slip = slip.map(Slip::start);
    State::Calling {
        future: run(&mut slip, || ready.call(request)),
        slip,
    }
}

impl<S, R, T, E> fmt::Debug for CallFuture<S, R, T, E>
where
    S: Service<R, Response = T, Error = E>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Deciding { .. } => "deciding",
            State::Waiting { .. } => "waiting",
            State::Readying { .. } => "readying",
            State::Calling { .. } => "calling",
            State::Denied { .. } => "denied",
        };
        f.debug_struct("CallFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

const POLLED_ONCE: &str = "a future is not polled after it ended";
