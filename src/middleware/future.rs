//! The future of a limited request.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project::pin_project;
use tower::Service;

use crate::{decision::Decision, error::Error, store::Answer};

use super::{body::ResponseBody, headers::Fields, layer::Shared};

/// Decides, then calls the inner service or answers itself.
///
/// # Cancel safety
///
/// Dropped while it decides, the charge may have been made or not; the inner service was not called, and what it had
/// reserved is given back.
#[pin_project]
pub struct ResponseFuture<S, A, B>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    #[pin]
    state: State<S, A, B, S::Future>,
}

#[pin_project(project = StateProjection)]
enum State<S, A, B, F> {
    /// Waits for the store, with the inner service that is ready for the request.
    Deciding {
        answer: Answer<Decision>,
        /// Boxed: only a store that is awaited comes here, and the in-process path stays small.
        waiting: Option<Box<(S, Request<A>)>>,
        shared: Arc<Shared>,
    },
    /// Waits for the inner service.
    Calling {
        #[pin]
        future: F,
        fields: Option<Fields>,
    },
    /// Has the answer.
    Rejected {
        response: Option<Response<ResponseBody<B>>>,
    },
}

impl<S, A, B> ResponseFuture<S, A, B>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    pub(super) fn deciding(
        answer: Answer<Decision>,
        ready: S,
        request: Request<A>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            state: State::Deciding {
                answer,
                waiting: Some(Box::new((ready, request))),
                shared,
            },
        }
    }

    pub(super) fn calling(future: S::Future, fields: Option<Fields>) -> Self {
        Self {
            state: State::Calling { future, fields },
        }
    }

    pub(super) fn rejected(response: Response<ResponseBody<B>>) -> Self {
        Self {
            state: State::Rejected {
                response: Some(response),
            },
        }
    }
}

impl<S, A, B> Future for ResponseFuture<S, A, B>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Output = Result<Response<ResponseBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                // ## Deciding => (Calling | Rejected)
                StateProjection::Deciding {
                    answer,
                    waiting,
                    shared,
                } => {
                    let decided = ready!(Pin::new(answer).poll(context));
                    let (ready, request) = *waiting
                        .take()
                        .expect("a future is not polled after it ended");
                    decided_to(decided, ready, request, shared)
                }
                // ## Calling => end
                StateProjection::Calling { future, fields } => {
                    let mut response = ready!(future.poll(context))?;
                    if let Some(fields) = fields {
                        fields.write(response.headers_mut());
                    }
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                // ## Rejected => end
                StateProjection::Rejected { response } => {
                    let response = response
                        .take()
                        .expect("a future is not polled after it ended");
                    return Poll::Ready(Ok(response));
                }
            };
            state.set(next);
        }
    }
}

/// Calls the ready service, or drops it and answers.
fn decided_to<S, A, B>(
    decided: Result<Decision, Error>,
    mut ready: S,
    mut request: Request<A>,
    shared: &Shared,
) -> State<S, A, B, S::Future>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    match shared.admit(decided, &mut request) {
        Ok(fields) => State::Calling {
            future: ready.call(request),
            fields: Some(fields),
        },
        Err(rejection) => State::Rejected {
            response: Some(shared.reject(rejection)),
        },
    }
}

impl<S, A, B> fmt::Debug for ResponseFuture<S, A, B>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Deciding { .. } => "deciding",
            State::Calling { .. } => "calling",
            State::Rejected { .. } => "rejected",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
