//! Copies of requests, for retries.

use bytes::Bytes;
use http::Request;
use http_body_util::{Empty, Full};

use super::by_type::ByType;

/// Copies bodies of some types, if they are in memory.
#[derive(Clone, Debug)]
pub(super) struct BodyCopies {
    copies: ByType,
}

/// Returns a copy of a body, or `None` if it can be sent only once.
type CopyBody<B> = Box<dyn Fn(&B) -> Option<B> + Send + Sync>;

impl BodyCopies {
    /// Adds bodies of a type. Replaces the closure of the same type.
    pub fn insert<B: 'static>(&mut self, copy: impl Fn(&B) -> Option<B> + Send + Sync + 'static) {
        let copy: CopyBody<B> = Box::new(copy);
        self.copies.insert(copy);
    }

    /// Returns a copy of a request. `None` if its body cannot be copied.
    pub fn copy<B: 'static>(&self, request: &Request<B>) -> Option<Request<B>> {
        let copy_body = self.copies.get::<CopyBody<B>>()?;
        let mut copy = Request::new(copy_body(request.body())?);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        *copy.extensions_mut() = request.extensions().clone();
        Some(copy)
    }
}

impl Default for BodyCopies {
    /// Bodies that are in memory by their type.
    fn default() -> Self {
        let mut copies = Self {
            copies: ByType::default(),
        };
        copies.insert(|body: &Full<Bytes>| Some(body.clone()));
        copies.insert(|body: &Empty<Bytes>| Some(*body));
        copies.insert(|body: &Bytes| Some(body.clone()));
        copies.insert(|body: &String| Some(body.clone()));
        copies.insert(|(): &()| Some(()));
        copies
    }
}
