//! The layer, and the service whose requests are shed.
//!
//! # Why is the service called before its request gives way?
//!
//! A request that gave way would have to be kept with the service that was polled ready for it. Handlers of axum and tonic run when
//! their future is polled, and not in `call`. So the future is made at once, and is polled for the first time after the request
//! has given way.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{Layer, Service};

use crate::{
    middleware::{CloneService, ResponseBody},
    priority::priority::Priority,
    rejection::Rejection,
    request::RequestHead,
};

use super::{
    future::{SheddingFuture, State},
    overload::{InFlight, Lane, Overload},
};

// The bound is needed to call the service. Here, the compiler names it where the service is given.
impl<S: CloneService> Layer<S> for Overload {
    type Service = Shedding<S>;

    fn layer(&self, inner: S) -> Shedding<S> {
        Shedding {
            inner,
            overload: self.clone(),
        }
    }
}

/// A service whose requests are shed under overload. Made by [`Overload`].
pub struct Shedding<S> {
    inner: S,
    overload: Overload,
}

impl<S, A, B> Service<Request<A>> for Shedding<S>
where
    S: Service<Request<A>, Response = Response<B>> + CloneService,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = SheddingFuture<S::Future, B>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let state = match self.overload.lane().admit(&mut request) {
            Ok(place) => State::running(place, self.inner.call(request)),
            Err(rejection) => {
                // A clone was not polled ready: what the original has reserved is released.
                self.inner = self.inner.clone();
                State::Shed(Some(self.overload.core().respond(rejection, request)))
            }
        };
        SheddingFuture { state }
    }
}

impl Lane {
    /// Takes a place for a request, and puts its class into its extensions, also if it is not counted: a
    /// [reserve](crate::Policy::reserve) needs it. `None` if it is not counted.
    #[inline]
    fn admit<A>(self: &Arc<Self>, request: &mut Request<A>) -> Result<Option<InFlight>, Rejection> {
        let core = self.core();
        let head = RequestHead::from(&*request);
        let key = core.rules.key(&head);
        let priority = core.rules.priority(&head, key.as_ref(), &core.classes);
        let place = match core.mode.get().is_off() || core.rules.skips(&head) {
            true => None,
            false => {
                let place = self.enter(priority, key.as_ref());
                Some(place.map_err(|shed| core.rejection(shed))?)
            }
        };
        let extensions = request.extensions_mut();
        match priority {
            // Not inserted, which would allocate. A layer around this one may have put another class there.
            Priority::Normal => drop(extensions.remove::<Priority>()),
            priority => drop(extensions.insert(priority)),
        }
        Ok(place)
    }
}

// Not derived: where a router asks for it, the compiler then names the service inside, and the remedy.
impl<S: CloneService> Clone for Shedding<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            overload: self.overload.clone(),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Shedding<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shedding")
            .field("inner", &self.inner)
            .field("overload", &self.overload)
            .finish()
    }
}
