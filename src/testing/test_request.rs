//! A request that is replayed.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

#[cfg(feature = "body")]
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};

/// The body of a replayed request: one that the layer can read, if it reads any.
#[cfg(feature = "body")]
pub(super) type TestBody = axum::body::Body;
#[cfg(not(feature = "body"))]
pub(super) type TestBody = ();

/// A request for [`replay`](super::replay), with the time at which it comes.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::testing::TestRequest;
///
/// let request = TestRequest::post("/login")
///     .peer("203.0.113.7")
///     .header("x-api-key", "k-123")
///     .after(Duration::from_secs(10)); // since the request before it
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is replayed"]
pub struct TestRequest {
    pub(super) request: Request<()>,
    #[cfg(feature = "body")]
    body: Bytes,
    pub(super) after: Duration,
    pub(super) lasting: Duration,
    pub(super) status: StatusCode,
}

impl TestRequest {
    /// Creates a GET request for a path, with its query.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    /// Creates a POST request for a path, with its query.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn post(path: &str) -> Self {
        Self::new(Method::POST, path)
    }

    /// Creates a request.
    ///
    /// # Panics
    ///
    /// Panics if the path is not a URI.
    #[track_caller]
    pub fn new(method: Method, path: &str) -> Self {
        let request = Request::builder().method(method).uri(path).body(());
        Self::from(request.expect("a path that is a URI"))
    }

    /// Adds a header.
    ///
    /// # Panics
    ///
    /// Panics if the name or the value is invalid.
    #[track_caller]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("the name of a header");
        let value = HeaderValue::from_str(value).expect("the value of a header");
        self.request.headers_mut().append(name, value);
        self
    }

    /// Sets the IP address of the peer: the client, or the last proxy.
    ///
    /// Default: none, so that keys by address are missing.
    ///
    /// # Panics
    ///
    /// Panics if it is not an IP address.
    #[track_caller]
    pub fn peer(self, address: &str) -> Self {
        let address: IpAddr = address.parse().expect("an IP address");
        self.extension(SocketAddr::new(address, 50_000))
    }

    /// Adds a value to the extensions of the request, such as the claims of a session.
    pub fn extension(mut self, value: impl Clone + Send + Sync + 'static) -> Self {
        self.request.extensions_mut().insert(value);
        self
    }

    /// Sets the body, for rules that [read it](crate::extract::KeyExtractor::body_limits). Needs the feature `body`.
    ///
    /// Default: empty. A form needs its `Content-Type`, too: `.header("content-type", "application/x-www-form-urlencoded")`.
    #[cfg(feature = "body")]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Returns the request as the layer gets it.
    pub(super) fn into_request(self) -> Request<TestBody> {
        #[cfg(feature = "body")]
        return self.request.map(|()| TestBody::from(self.body));
        #[cfg(not(feature = "body"))]
        self.request
    }

    /// Sets the time since the request before it.
    ///
    /// Default: none.
    pub fn after(mut self, time: Duration) -> Self {
        self.after = time;
        self
    }

    /// Sets how long the request takes, and keeps its slots of [concurrency](crate::Policy::concurrency) policies.
    ///
    /// Default: it ends at once.
    pub fn lasting(mut self, time: Duration) -> Self {
        self.lasting = time;
        self
    }

    /// Sets the status of the handler's response.
    ///
    /// Default: 200.
    pub fn answered(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

impl From<Request<()>> for TestRequest {
    fn from(request: Request<()>) -> Self {
        Self {
            request,
            #[cfg(feature = "body")]
            body: Bytes::new(),
            after: Duration::ZERO,
            lasting: Duration::ZERO,
            status: StatusCode::OK,
        }
    }
}
