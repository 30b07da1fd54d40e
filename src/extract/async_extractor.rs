//! The trait of asynchronous key extractors.
//!
//! # Why do the futures of lookups borrow nothing?
//!
//! The request owns its head, and moves on to the inner service. A future that borrows from the head would have to own the
//! request, and the layer would need a box around body and service, and bounds on both. A future that copies its input leaves the
//! request where it is, closures can return it without lifetimes, and the lookup of a tier can outlive its request.

use std::{error::Error, future::Future, pin::Pin, sync::Arc};

use http::{HeaderValue, StatusCode};

use crate::{key::Key, request::RequestHead};

use super::{extracted::Extracted, into_key::IntoKey};

/// Looks up the key of a request asynchronously, such as in a session store.
///
/// Implemented for closures `Fn(&RequestHead<'_>) -> impl Future`, whose future may resolve to an `Option<Key>`. The future must not
/// borrow: copy what it needs from the request head, and clone shared state, before it starts. Dyn compatible.
///
/// The future is polled with the request. It is dropped when the client disconnects or the layer's
/// [`lookup_timeout`](crate::builder::RateLimitLayerBuilder::lookup_timeout) has passed. A late or failed lookup counts as a
/// [missing](crate::rules::OnMissingKey) key, except that the response is 503 with code `unavailable`. An
/// [ambiguous](Extracted::Ambiguous) key is rejected with 400, as with any extractor.
///
/// A lookup runs only for requests that the layer's other policies admit: see
/// [`middleware`](crate::middleware#keys-and-tiers-that-are-looked-up).
///
/// # Examples
///
/// ```
/// use std::{collections::HashMap, convert::Infallible, sync::Arc};
/// use tokio::sync::RwLock;
/// use tollgate::{Key, Policy, Quota, RequestHead};
/// use tollgate::extract::{AsyncKeyExtractor, Extracted, Header, KeyLookup};
///
/// type Sessions = Arc<RwLock<HashMap<String, u64>>>;
///
/// // A closure.
/// let sessions = Sessions::default();
/// let store = Arc::clone(&sessions);
/// let by_user = Policy::new("user", Quota::per_minute(100)).key_async(move |head: &RequestHead| {
///     let store = Arc::clone(&store);
///     let session = head.headers.get("x-session").and_then(|value| value.to_str().ok());
///     let session = session.map(str::to_owned);
///     async move {
///         let Some(session) = session else { return Ok(None) };
///         Ok::<_, Infallible>(store.read().await.get(&session).copied().map(Key::from))
///     }
/// });
///
/// // A type, with its own label. It rejects a session that is sent twice.
/// struct User { header: Header, sessions: Sessions }
/// impl AsyncKeyExtractor for User {
///     fn extract(&self, head: &RequestHead<'_>) -> KeyLookup {
///         let sessions = Arc::clone(&self.sessions);
///         let session = self.header.value(head).map(String::from_utf8_lossy).map(String::from);
///         Box::pin(async move {
///             let session = match session {
///                 Extracted::Found(session) => session,
///                 Extracted::Absent => return Ok(Extracted::Absent),
///                 Extracted::Ambiguous => return Ok(Extracted::Ambiguous),
///             };
///             let user = sessions.read().await.get(&session).copied();
///             Ok(user.map(Key::from).into())
///         })
///     }
///
///     fn label(&self) -> &str {
///         "session"
///     }
/// }
/// let by_user = Policy::new("user", Quota::per_minute(100)).key_async(User {
///     header: Header::new("x-session"),
///     sessions,
/// });
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an async key extractor",
    label = "not an async key extractor",
    note = "use a closure with the type of its argument that returns a future without borrows: `|head: &tollgate::RequestHead| async {{ Ok::<_, Infallible>(..) }}`"
)]
pub trait AsyncKeyExtractor: Send + Sync + 'static {
    /// Looks the key up: it may be absent or ambiguous, or the lookup may fail.
    fn extract(&self, head: &RequestHead<'_>) -> KeyLookup;

    /// Returns a short name for messages, without spaces, as [`KeyExtractor::label`](super::KeyExtractor::label).
    fn label(&self) -> &str {
        "lookup"
    }

    /// Returns the status of the response if the key is absent and the rule rejects it. If the lookup failed or timed out,
    /// the status is 503.
    ///
    /// Default: 400, for a value that the client should have sent.
    fn missing_status(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }

    /// Returns the `WWW-Authenticate` challenge of a 401 response.
    ///
    /// Default: none. See [`KeyExtractor::challenge`](super::KeyExtractor::challenge).
    fn challenge(&self) -> Option<HeaderValue> {
        None
    }
}

/// The future that resolves to a key.
pub type KeyLookup =
    Pin<Box<dyn Future<Output = Result<Extracted<Key>, Box<dyn Error + Send + Sync>>> + Send>>;

impl<F, T, R, E> AsyncKeyExtractor for F
where
    F: Fn(&RequestHead<'_>) -> T + Send + Sync + 'static,
    T: Future<Output = Result<R, E>> + Send + 'static,
    R: IntoKey,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn extract(&self, head: &RequestHead<'_>) -> KeyLookup {
        let lookup = self(head);
        Box::pin(async move { lookup.await.map(IntoKey::into_key).map_err(Into::into) })
    }

    fn label(&self) -> &str {
        "closure"
    }
}

// A pointer, for extractors that are chosen at run time.
impl AsyncKeyExtractor for Arc<dyn AsyncKeyExtractor> {
    fn extract(&self, head: &RequestHead<'_>) -> KeyLookup {
        (**self).extract(head)
    }

    fn label(&self) -> &str {
        (**self).label()
    }

    fn missing_status(&self) -> StatusCode {
        (**self).missing_status()
    }

    fn challenge(&self) -> Option<HeaderValue> {
        (**self).challenge()
    }
}
