//! The reverse proxy: sends a request to the backend, and its response back. Bodies are streamed both ways.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{body::Body, extract::ConnectInfo, response::IntoResponse};
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri, header::CONTENT_TYPE,
    uri::PathAndQuery,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use tollgate::extract::ClientIp;

use crate::{
    exchange::IsAtBackend,
    hop,
    settings::Settings,
    upload::{self, State},
};

/// Passes requests on to one backend. Clones share its connections.
///
/// Upgrades such as WebSocket are not passed on: the backend sees a plain request.
#[derive(Clone)]
pub(crate) struct ReverseProxy {
    client: Client<HttpConnector, Body>,
    backend: Uri,
    trusted_proxies: ClientIp,
    client_timeout: Duration,
    is_down: Arc<AtomicBool>,
}

impl ReverseProxy {
    pub(crate) fn new(backend: Uri, settings: &Settings) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            backend,
            trusted_proxies: settings.trusted_proxies.clone(),
            client_timeout: settings.client_timeout,
            is_down: Arc::default(),
        }
    }

    pub(crate) async fn forward(
        &self,
        ConnectInfo(peer): ConnectInfo<SocketAddr>,
        request: Request<Body>,
    ) -> Response<Body> {
        if request.method() == Method::CONNECT {
            return failure(StatusCode::NOT_IMPLEMENTED, "CONNECT is not supported");
        }
        let is_at_backend = request.extensions().get::<IsAtBackend>().cloned();
        let uri = self.target(request.uri());
        let is_proxy = self.trusted_proxies.trusts(peer.ip());
        let request = match hop::to_backend(request, uri, peer, is_proxy) {
            Ok(request) => request,
            Err(message) => return failure(StatusCode::BAD_REQUEST, message),
        };
        let (parts, body) = request.into_parts();
        let (body, upload) = upload::with_timeout(body, self.client_timeout);
        if let Some(is_at_backend) = is_at_backend {
            is_at_backend.set();
        }
        let response = self.client.request(Request::from_parts(parts, body));
        match (
            tokio::time::timeout(RESPONSE_TIMEOUT, response).await,
            upload.state(),
        ) {
            (Ok(Ok(response)), _) => {
                self.note_up();
                hop::to_client(response.map(Body::new))
            }
            (_, State::Broken) => {
                failure(StatusCode::BAD_REQUEST, "the body of the request is broken")
            }
            (_, State::Stopped) | (Err(_), State::WaitsForClient) => failure(
                StatusCode::REQUEST_TIMEOUT,
                "the body of the request takes too long",
            ),
            (Ok(Err(error)), _) => {
                self.note_failure(&error);
                failure(StatusCode::BAD_GATEWAY, "the backend is not available")
            }
            (Err(_), State::Sent) => {
                failure(StatusCode::GATEWAY_TIMEOUT, "the backend is too slow")
            }
        }
    }

    /// Returns the URL at the backend, with the path and the query that the client asked for.
    fn target(&self, requested: &Uri) -> Uri {
        let mut parts = self.backend.clone().into_parts();
        let path = requested.path_and_query().cloned();
        parts.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        Uri::from_parts(parts).expect("a URL with a scheme, an authority and a path")
    }

    // === The log: when the backend fails, and when it is back, but not for each request ===

    fn note_up(&self) {
        if self.is_down.load(Ordering::Relaxed) && self.is_down.swap(false, Ordering::Relaxed) {
            tracing::info!(backend = %self.backend, "the backend is back");
        }
    }

    fn note_failure(&self, error: &(dyn Error + 'static)) {
        if !self.is_down.swap(true, Ordering::Relaxed) {
            let causes = std::iter::successors(Some(error), |&error| error.source());
            let cause = causes.last().unwrap_or(error);
            tracing::warn!(backend = %self.backend, %cause, "the backend is not available: requests get 502");
        }
    }
}

/// Returns a response in the form of those of the limits.
fn failure(status: StatusCode, message: &str) -> Response<Body> {
    let code = status.canonical_reason().unwrap_or("error");
    let code = code.to_ascii_lowercase().replace(' ', "_");
    let body = format!(r#"{{"error":"{code}","message":"{message}"}}"#);
    let json = HeaderValue::from_static("application/json");
    (status, [(CONTENT_TYPE, json)], body).into_response()
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// From the request to the head of the response. The upload of the request's body is in this time.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
