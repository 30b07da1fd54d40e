//! The head of a request, as extractors, matchers and formats see it.
//!
//! # Why not the parts of the `http` crate?
//!
//! [`Parts`] can only be had by taking a request apart. A head borrows, so the request goes to the service as it came. It also has
//! room for what is found out once a request: how its path is spelled.

use std::{fmt, sync::OnceLock};

use http::{Extensions, HeaderMap, Method, Request, Uri, Version, request::Parts};

use super::spelling::Spelling;

/// The head of a request: its method, URI, headers and extensions.
///
/// Extractors, matchers, tier choices and rejection formats get it. The fields have the names of those of [`Parts`].
///
/// # Examples
///
/// ```
/// use http::Request;
/// use tollgate::{Key, RequestHead, extract::KeyExtractor};
///
/// let by_version = |head: &RequestHead| head.uri.path().split('/').nth(1).map(Key::new);
/// let request = Request::get("/v2/users").body(())?;
/// let key = by_version.extract(&RequestHead::from(&request));
/// assert_eq!(key.found(), Some(Key::new("v2")));
/// # Ok::<(), http::Error>(())
/// ```
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The target, usually a path and a query.
    pub uri: &'a Uri,
    /// The version of HTTP.
    pub version: Version,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What other layers have attached.
    pub extensions: &'a Extensions,
    /// Examined when the first path pattern asks for it, however many patterns there are.
    spelling: OnceLock<Spelling>,
}

impl RequestHead<'_> {
    /// Returns how the path is spelled.
    #[inline]
    pub(crate) fn spelling(&self) -> &Spelling {
        let path = self.uri.path().as_bytes();
        self.spelling.get_or_init(|| Spelling::of(path))
    }
}

impl<'a, B> From<&'a Request<B>> for RequestHead<'a> {
    #[inline]
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
            spelling: OnceLock::new(),
        }
    }
}

impl<'a> From<&'a Parts> for RequestHead<'a> {
    fn from(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            version: parts.version,
            headers: &parts.headers,
            extensions: &parts.extensions,
            spelling: OnceLock::new(),
        }
    }
}

impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", &self.method)
            .field("uri", &self.uri)
            .field("version", &self.version)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}
