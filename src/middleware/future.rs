//! The future of a limited request.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Method, Request, Response, request::Parts};
use pin_project::pin_project;
use tokio::time::{Sleep, sleep};
use tower::Service;

use crate::{decision::Decision, error::Error};

use super::{
    body::{ResponseBody, answered},
    finding::Stage,
    headers::Fields,
    next::{Admitted, Asking, Charged, Next, Refusal},
    settling::{Tab, run, start},
    shared::Shared,
};

/// Decides, then calls the inner service or answers itself.
///
/// # Cancel safety
///
/// Dropped while keys and tiers are looked up, the charges of the policies that need no lookup stand, and nothing else was
/// charged; what the inner service had reserved is given back. Dropped while it decides, the charge may have been made or not; the inner service was not called, and what it had
/// reserved is given back. Dropped while it waits for its turn in a queue, what was charged is given back, the turn itself
/// if nobody stands behind it; the same while the inner service is not ready at its turn.
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
    /// Waits for keys and tiers, before the policies that need them are charged.
    Finding {
        stage: Option<Box<Stage>>,
        waiting: Option<Box<(S, Request<A>)>>,
        shared: Arc<Shared>,
    },
    /// Waits for the store, with the inner service that is ready for the request.
    Deciding {
        asking: Asking,
        /// Boxed: only a store that is awaited comes here, and the in-process path stays small.
        waiting: Option<Box<(S, Request<A>)>>,
        shared: Arc<Shared>,
    },
    /// Waits for its turn in a queue, with an inner service that is not ready: one that is may keep others out.
    Waiting {
        turn: Pin<Box<Sleep>>,
        waiting: Option<Box<(S, Request<A>, Admitted)>>,
    },
    /// Waits for the inner service to be ready, when its turn has come.
    Readying {
        waiting: Option<Box<(S, Request<A>, Admitted)>>,
    },
    /// Waits for the inner service.
    Calling {
        #[pin]
        future: F,
        fields: Option<Fields>,
        tab: Option<Box<Tab>>,
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
    pub(super) fn finding(
        stage: Box<Stage>,
        ready: S,
        request: Request<A>,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            state: State::finding(stage, ready, request, shared),
        }
    }

    pub(super) fn deciding(
        asking: Asking,
        ready: S,
        request: Request<A>,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            state: State::deciding(asking, ready, request, shared),
        }
    }

    pub(super) fn waiting(unready: S, request: Request<A>, admitted: Admitted) -> Self {
        Self {
            state: State::waiting(unready, request, admitted),
        }
    }

    pub(super) fn calling(
        future: S::Future,
        fields: Option<Fields>,
        tab: Option<Box<Tab>>,
    ) -> Self {
        Self {
            state: State::Calling {
                future,
                fields,
                tab,
            },
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
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    type Output = Result<Response<ResponseBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                // ## Finding => (Finding | Deciding | Waiting | Calling | Rejected)
                StateProjection::Finding {
                    stage,
                    waiting,
                    shared,
                } => {
                    let finding = stage.as_mut().expect("a stage is there until it has ended");
                    ready!(Pin::new(&mut **finding).poll(context));
                    match (stage.take(), waiting.take()) {
                        (Some(stage), Some(waiting)) => found(*stage, *waiting, shared),
                        _ => unreachable!("a future is not polled after it ended"),
                    }
                }
                // ## Deciding => (Finding | Waiting | Calling | Rejected)
                StateProjection::Deciding {
                    asking,
                    waiting,
                    shared,
                } => {
                    let decided = ready!(asking.answer.as_mut().poll(context));
                    let waiting = waiting
                        .take()
                        .expect("a future is not polled after it ended");
                    decided_to((decided, mem::take(&mut asking.charged)), *waiting, shared)
                }
                // ## Waiting => Readying
                StateProjection::Waiting { turn, waiting } => {
                    ready!(turn.as_mut().poll(context));
                    State::Readying {
                        waiting: waiting.take(),
                    }
                }
                // ## Readying => (Calling | end)
                StateProjection::Readying { waiting } => {
                    let inner = waiting.as_mut().map(|waiting| &mut waiting.0);
                    let inner = inner.expect("a future is not polled after it ended");
                    if let Err(error) = ready!(inner.poll_ready(context)) {
                        // What was charged is given back now, however long this future is kept.
                        *waiting = None;
                        return Poll::Ready(Err(error));
                    }
                    let (ready, request, admitted) = *waiting
                        .take()
                        .expect("a future is not polled after it ended");
                    called(ready, request, admitted)
                }
                // ## Calling => end
                StateProjection::Calling {
                    future,
                    fields,
                    tab,
                } => {
                    let answer = ready!(run(tab, || future.poll(context)));
                    let (fields, tab) = (fields.take(), tab.take());
                    // The inner future goes before its tab, which is settled now if there is no body to wait for.
                    state.set(State::Rejected { response: None });
                    return Poll::Ready(answered(answer, fields, tab));
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

impl<S, A, B, F> State<S, A, B, F> {
    fn finding(stage: Box<Stage>, ready: S, request: Request<A>, shared: &Arc<Shared>) -> Self {
        Self::Finding {
            stage: Some(stage),
            waiting: Some(Box::new((ready, request))),
            shared: Arc::clone(shared),
        }
    }

    fn deciding(asking: Asking, ready: S, request: Request<A>, shared: &Arc<Shared>) -> Self {
        Self::Deciding {
            asking,
            waiting: Some(Box::new((ready, request))),
            shared: Arc::clone(shared),
        }
    }

    fn rejected(refusal: Refusal, shared: &Shared, request: &Parts) -> Self {
        Self::Rejected {
            response: Some(shared.reject(refusal, request)),
        }
    }

    fn waiting(unready: S, request: Request<A>, admitted: Admitted) -> Self {
        Self::Waiting {
            turn: Box::pin(sleep(admitted.delay.unwrap_or_default())),
            waiting: Some(Box::new((unready, request, admitted))),
        }
    }
}

/// Goes on with what was found.
fn found<S, A, B>(
    stage: Stage,
    (ready, request): (S, Request<A>),
    shared: &Arc<Shared>,
) -> State<S, A, B, S::Future>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    let (mut parts, body) = request.into_parts();
    let next = shared.resume(stage, &mut parts);
    going_on(next, ready, (parts, body), shared)
}

/// Goes on with a request that was decided on.
fn decided_to<S, A, B>(
    (decided, charged): (Result<Decision, Error>, Charged),
    (ready, request): (S, Request<A>),
    shared: &Arc<Shared>,
) -> State<S, A, B, S::Future>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    let (mut parts, body) = request.into_parts();
    let next = shared.follow(decided, charged, &mut parts);
    going_on(next, ready, (parts, body), shared)
}

/// Waits for what comes next, or drops the ready service and answers.
fn going_on<S, A, B>(
    next: Result<Next, Refusal>,
    ready: S,
    (parts, body): (Parts, A),
    shared: &Arc<Shared>,
) -> State<S, A, B, S::Future>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    let next = match next {
        Ok(next) => next,
        Err(refusal) => return State::rejected(refusal, shared, &parts),
    };
    let request = Request::from_parts(parts, body);
    match next {
        Next::Find(stage) => State::finding(stage, ready, request, shared),
        Next::Go(admitted) => admitted_to(admitted, ready, request),
        Next::Wait(asking) => State::deciding(asking, ready, request, shared),
    }
}

/// Calls the ready service, or lets go of it until its turn comes.
fn admitted_to<S, A, B>(
    admitted: Admitted,
    ready: S,
    request: Request<A>,
) -> State<S, A, B, S::Future>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
{
    match admitted.delay {
        Some(_) => State::waiting(ready.clone(), request, admitted),
        None => called(ready, request, admitted),
    }
}

fn called<S, A, B>(
    mut ready: S,
    mut request: Request<A>,
    admitted: Admitted,
) -> State<S, A, B, S::Future>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    let is_head = request.method() == Method::HEAD;
    let mut tab = start(admitted.tab, is_head, request.extensions_mut());
    State::Calling {
        future: run(&mut tab, || ready.call(request)),
        fields: admitted.fields,
        tab,
    }
}

impl<S, A, B> fmt::Debug for ResponseFuture<S, A, B>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Finding { .. } => "finding",
            State::Deciding { .. } => "deciding",
            State::Waiting { .. } => "waiting",
            State::Readying { .. } => "readying",
            State::Calling { .. } => "calling",
            State::Rejected { .. } => "rejected",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
