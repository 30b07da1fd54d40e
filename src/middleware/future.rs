//! The future of a limited request or call.
//!
//! ```text
//! Deciding --> Queued --> Starting --> Running --> end
//!    |  |                                 ^
//!    |  +---------------------------------+   admitted, no queue
//!    +--> Done --> end                        rejected
//! ```

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project::pin_project;
use tokio::time::{Sleep, sleep};
use tower::Service;

use crate::task::Mutex;

use super::held::HeldCharges;

/// Admission control for requests `R` to a service with responses `T` and errors `E`.
///
/// It holds what differs between HTTP and other calls.
pub trait Admit<R, T, E>: Sized {
    /// Response of the limited service.
    type Response;
    /// Lookups or a store's decision that take time.
    type Pending: fmt::Debug;
    /// Kept of an admitted request until it has ended.
    type Admitted: Default;
    /// The reason for a rejection.
    type Rejected;

    /// Begins with a request, and decides on it if nothing must be waited for.
    ///
    /// # Errors
    ///
    /// The reason for a rejection.
    fn begin(&self, request: &mut R) -> Next<Self::Pending, Self::Admitted, Self::Rejected>;

    /// Polls the pending part, and returns the step after it.
    ///
    /// # Errors
    ///
    /// The reason for a rejection.
    fn poll(
        &self,
        pending: &mut Self::Pending,
        request: &mut R,
        context: &mut Context<'_>,
    ) -> Poll<Next<Self::Pending, Self::Admitted, Self::Rejected>>;

    /// Returns the charges that are kept until the request has ended.
    fn held(admitted: &mut Self::Admitted) -> Option<&mut HeldCharges>;

    /// Prepares the request for the service, which is about to be called.
    #[inline]
    fn start(admitted: &mut Self::Admitted, request: &mut R) {
        let _ = (admitted, request);
    }

    /// Returns the response to an admitted request.
    ///
    /// # Errors
    ///
    /// The service's error.
    fn end(admitted: Self::Admitted, outcome: Result<T, E>) -> Result<Self::Response, E>;

    /// Returns the response to a rejected request.
    ///
    /// # Errors
    ///
    /// An error in place of a response, if the limited service rejects with one.
    fn reject(&self, rejected: Self::Rejected, request: R) -> Result<Self::Response, E>;
}

/// The next step of a request, or its rejection.
pub(crate) type Next<P, A, R> = Result<Step<P, A>, R>;

/// The next step of a request that is not rejected.
#[derive(Debug)]
pub enum Step<P, A> {
    /// It goes on now.
    Admitted(A),
    /// It waits for lookups or for the store.
    Pending(P),
    /// It goes on after a wait in the policy's queue.
    Queued(A, Duration),
}

impl<P, A> Step<P, A> {
    /// Returns the step of a request that the store admits, after a delay or now.
    #[inline]
    pub(crate) fn after(delay: Option<Duration>, admitted: A) -> Self {
        match delay {
            Some(delay) => Self::Queued(admitted, delay),
            None => Self::Admitted(admitted),
        }
    }
}

/// Decides, then calls the inner service or rejects.
///
/// # Cancel safety
///
/// If the future is dropped
///
/// - during lookups, the charges of the policies that need no lookup are kept, and nothing else was charged;
/// - while the store decides, the charge may have been made or not;
/// - in a queue, the charges are refunded, and the requests behind it move up;
/// - after the queue, before the inner service is ready, what is left of the charges is refunded.
///
/// In each case the inner service was not called, and what it had reserved is released.
///
/// The inner future is dropped with this one; if charges are settled, as soon as it has completed.
#[pin_project]
pub struct LimitFuture<S, R, A>
where
    S: Service<R>,
    A: Admit<R, S::Response, S::Error>,
{
    #[pin]
    pub(super) state: State<S, R, A>,
}

#[pin_project(project = StateProjection)]
pub(super) enum State<S, R, A>
where
    S: Service<R>,
    A: Admit<R, S::Response, S::Error>,
{
    /// Waits for lookups or the store. Boxed: in process there is nothing to wait for, and that path stays small.
    Deciding(Option<Box<Deciding<S, R, A>>>),
    /// Waits in a queue, with a service that is not ready: a ready one may hold a permit that others need.
    Queued {
        sleep: Pin<Box<Sleep>>,
        queued: Option<Box<Queued<S, R, A>>>,
    },
    /// Waits for the service to become ready, after the queue.
    Starting(Option<Box<Queued<S, R, A>>>),
    /// Waits for the service.
    Running {
        #[pin]
        future: S::Future,
        admitted: A::Admitted,
    },
    /// Has the outcome.
    Done(Option<Result<A::Response, S::Error>>),
}

/// A request without a decision, and the service that is ready for it.
pub(super) struct Deciding<S, R, A>
where
    S: Service<R>,
    A: Admit<R, S::Response, S::Error>,
{
    admission: A,
    service: S,
    request: R,
    /// Locked for `Debug` only: a lookup need not be `Sync` for the future to be.
    pending: Mutex<A::Pending>,
}

/// An admitted request, and the service that will be called for it.
pub(super) struct Queued<S, R, A>
where
    S: Service<R>,
    A: Admit<R, S::Response, S::Error>,
{
    service: S,
    request: R,
    admitted: A::Admitted,
}

impl<S, R, A> LimitFuture<S, R, A>
where
    S: Service<R> + Clone,
    A: Admit<R, S::Response, S::Error> + Clone,
{
    /// Takes the first step; `service` is ready.
    #[inline(never)]
    pub(crate) fn begin(service: &mut S, mut request: R, admission: &A) -> Self {
        match admission.begin(&mut request) {
            Ok(Step::Admitted(admitted)) => Self {
                state: State::running(service, request, admitted),
            },
            first => Self::waiting(first, service, request, admission),
        }
    }

    // Out of line, for the size of the path that calls the service at once.
    #[inline(never)]
    fn waiting(
        first: Next<A::Pending, A::Admitted, A::Rejected>,
        service: &mut S,
        request: R,
        admission: &A,
    ) -> Self {
        // The original was polled ready; the clone that stays was not.
        let unready = service.clone();
        let ready = mem::replace(service, unready);
        Self {
            state: State::after(first, ready, request, admission),
        }
    }
}

impl<S, R, A> Future for LimitFuture<S, R, A>
where
    S: Service<R> + Clone,
    A: Admit<R, S::Response, S::Error> + Clone,
{
    type Output = Result<A::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                // ## Deciding => (Deciding | Queued | Running | Done)
                StateProjection::Deciding(deciding) => {
                    let Deciding {
                        admission,
                        request,
                        pending,
                        ..
                    } = &mut **deciding.as_mut().expect(POLLED_ONCE);
                    let next = ready!(admission.poll(pending.get_mut(), request, context));
                    let deciding = *deciding.take().expect(POLLED_ONCE);
                    let (service, request) = (deciding.service, deciding.request);
                    State::after(next, service, request, &deciding.admission)
                }
                // ## Queued => Starting
                StateProjection::Queued { sleep, queued } => {
                    let admitted = &mut queued.as_mut().expect(POLLED_ONCE).admitted;
                    if let Some(held) = A::held(admitted) {
                        ready!(held.poll_turn(sleep.as_mut(), context));
                    }
                    State::Starting(queued.take())
                }
                // ## Starting => (Running | end)
                StateProjection::Starting(queued) => {
                    let service = &mut queued.as_mut().expect(POLLED_ONCE).service;
                    if let Err(error) = ready!(service.poll_ready(context)) {
                        // The charges are refunded now, however long this future is kept.
                        *queued = None;
                        return Poll::Ready(Err(error));
                    }
                    let queued = *queued.take().expect(POLLED_ONCE);
                    let (mut service, request) = (queued.service, queued.request);
                    State::running(&mut service, request, queued.admitted)
                }
                // ## Running => end
                StateProjection::Running { future, admitted } => {
                    let Some(held) = A::held(admitted) else {
                        let outcome = ready!(future.poll(context));
                        return Poll::Ready(A::end(mem::take(admitted), outcome));
                    };
                    let outcome = ready!(held.run(|| future.poll(context)));
                    let admitted = mem::take(admitted);
                    // The inner future is dropped before the request is settled.
                    state.set(State::Done(None));
                    return Poll::Ready(A::end(admitted, outcome));
                }
                // ## Done => end
                StateProjection::Done(outcome) => {
                    return Poll::Ready(outcome.take().expect(POLLED_ONCE));
                }
            };
            state.set(next);
        }
    }
}

impl<S, R, A> State<S, R, A>
where
    S: Service<R> + Clone,
    A: Admit<R, S::Response, S::Error> + Clone,
{
    fn after(
        next: Next<A::Pending, A::Admitted, A::Rejected>,
        mut service: S,
        request: R,
        admission: &A,
    ) -> Self {
        match next {
            Ok(Step::Admitted(admitted)) => Self::running(&mut service, request, admitted),
            Ok(Step::Pending(pending)) => Self::Deciding(Some(Box::new(Deciding {
                admission: admission.clone(),
                service,
                request,
                pending: Mutex::new(pending),
            }))),
            Ok(Step::Queued(mut admitted, delay)) => {
                if let Some(held) = A::held(&mut admitted) {
                    held.set_delay(delay);
                }
                // The clone is not ready: the original releases what it reserved.
                let queued = Queued {
                    service: service.clone(),
                    request,
                    admitted,
                };
                drop(service);
                Self::Queued {
                    sleep: Box::pin(sleep(delay)),
                    queued: Some(Box::new(queued)),
                }
            }
            Err(rejected) => {
                drop(service);
                Self::Done(Some(admission.reject(rejected, request)))
            }
        }
    }

    #[inline]
    fn running(service: &mut S, mut request: R, mut admitted: A::Admitted) -> Self {
        A::start(&mut admitted, &mut request);
        if let Some(held) = A::held(&mut admitted) {
            held.start();
            held.set_running(true);
        }
        // Not in a closure, which would move the request once more.
        let future = service.call(request);
        if let Some(held) = A::held(&mut admitted) {
            held.set_running(false);
        }
        Self::Running { future, admitted }
    }
}

impl<S, R, A> fmt::Debug for LimitFuture<S, R, A>
where
    S: Service<R>,
    A: Admit<R, S::Response, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LimitFuture");
        match &self.state {
            State::Deciding(Some(deciding)) => debug.field("waits_for", &*deciding.pending.lock()),
            State::Queued { .. } => debug.field("waits_for", &"queue"),
            State::Starting(_) | State::Running { .. } => debug.field("waits_for", &"service"),
            State::Deciding(None) | State::Done(_) => &mut debug,
        };
        debug.finish_non_exhaustive()
    }
}

const POLLED_ONCE: &str = "a future must not be polled after it completed";
