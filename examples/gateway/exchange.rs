//! Exchanges with the backend that go on when their client has left.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::{extract::Request, middleware::Next, response::Response};
use tokio::runtime::Handle;

/// Passes a request on. If the client leaves while the backend works on it, the request keeps its slots until the backend
/// has responded or [the proxy](crate::proxy) gives up.
///
/// Otherwise clients that hang up at once would put any number of requests on the backend: most backends notice neither
/// that their connection is closed nor that the response is for nobody. A client that leaves earlier, or in its upload, or
/// while it reads the response, ends the exchange: the connection to the backend is closed.
pub(crate) async fn keep(mut request: Request, next: Next) -> Response {
    let is_at_backend = IsAtBackend::default();
    request.extensions_mut().insert(is_at_backend.clone());
    let exchange = Exchange {
        response: Some(Box::pin(next.run(request))),
        is_at_backend,
    };
    exchange.await
}

/// Whether a request is on its way to the backend.
#[derive(Clone, Default)]
pub(crate) struct IsAtBackend(Arc<AtomicBool>);

impl IsAtBackend {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Exchange<F: Future<Output: Send> + Send + 'static> {
    /// `None` when it has ended.
    response: Option<Pin<Box<F>>>,
    is_at_backend: IsAtBackend,
}

impl<F: Future<Output: Send> + Send + 'static> Future for Exchange<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let response = self.response.as_mut().expect("it is polled until its end");
        let polled = response.as_mut().poll(context);
        if polled.is_ready() {
            self.response = None;
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Exchange<F> {
    fn drop(&mut self) {
        let response = self.response.take();
        if let Some(response) = response
            && self.is_at_backend.0.load(Ordering::Relaxed)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(response);
        }
    }
}
