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
    setup::Setup,
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
        let lane = self.overload.lane();
        let setup = lane.core().setup.load();
        let state = match lane.admit(&setup, &mut request) {
            Ok(place) => State::running(place, self.inner.call(request)),
            Err(rejection) => {
                // A clone was not polled ready: what the original has reserved is released.
                self.inner = self.inner.clone();
                State::Shed(Some(setup.respond(rejection, request)))
            }
        };
        SheddingFuture { state }
    }
}

impl Lane {
    /// Takes a place for a request, and puts its class into its extensions, also if it is not counted: a
    /// [reserve](crate::Policy::reserve) needs it. `None` if it is not counted.
    #[inline]
    fn admit<A>(
        self: &Arc<Self>,
        setup: &Setup,
        request: &mut Request<A>,
    ) -> Result<Option<InFlight>, Rejection> {
        let head = RequestHead::from(&*request);
        let is_counted = !setup.mode.get().is_off() && !setup.rules.skips(&head);
        let needs_key = is_counted || setup.rules.by.is_some();
        let key = needs_key.then(|| setup.rules.key(&head)).flatten();
        let class = setup.rules.class(&head, key.as_ref(), &setup.classes);
        let place = match is_counted {
            false => None,
            true => {
                let key = key.as_ref();
                let weighed = key.map(|key| (key, setup.rules.weight(&head, key)));
                let place = self.enter(setup, class, weighed);
                Some(place.map_err(|shed| setup.rejection(shed))?)
            }
        };
        let extensions = request.extensions_mut();
        // A layer around may have put one there that is not listed here, and counts as `Normal`.
        if setup.classes.place(Priority::of(extensions)) != class {
            match setup.classes.priority(class) {
                // Not inserted, which would allocate.
                Priority::Normal => drop(extensions.remove::<Priority>()),
                priority => drop(extensions.insert(priority)),
            }
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
