//! Keys that must be awaited.

use std::{error::Error, future::Future, pin::Pin, sync::Arc};

use http::{HeaderValue, StatusCode, request::Parts};

use crate::key::Key;

use super::extracted::Extracted;

/// Looks up whom to count, where that takes waiting: a session, a token, an account.
///
/// A type with fields has its state; a closure `Fn(&Parts) -> impl Future` captures it, and may return `Option<Key>`. The future borrows nothing: take what
/// it needs out of the head, and clone what it shares. Object-safe.
///
/// The future is polled with the request and dropped with it, when the client goes away or when the layer's
/// [`lookup_timeout`](crate::builder::RateLimitLayerBuilder::lookup_timeout) has passed. A late or failed lookup counts as a
/// [missing](crate::rules::OnMissingKey) key, except that the response is 503 with code `unavailable`. An
/// [ambiguous](Extracted::Ambiguous) key is rejected with 400, as that of any extractor.
///
/// A lookup runs only for a request that the layer's other policies admit: see
/// [`middleware`](crate::middleware#keys-and-tiers-that-are-looked-up).
///
/// # Examples
///
/// ```
/// use std::{collections::HashMap, convert::Infallible, sync::Arc};
/// use http::request::Parts;
/// use tokio::sync::RwLock;
/// use tollgate::{Key, Policy, Quota};
/// use tollgate::extract::{AsyncKeyExtractor, Extracted, Header, KeyLookup};
///
/// type Sessions = Arc<RwLock<HashMap<String, u64>>>;
///
/// // A closure.
/// let sessions = Sessions::default();
/// let store = Arc::clone(&sessions);
/// let by_user = Policy::new("user", Quota::per_minute(100)).key_async(move |parts: &Parts| {
///     let store = Arc::clone(&store);
///     let session = parts.headers.get("x-session").and_then(|value| value.to_str().ok());
///     let session = session.map(str::to_owned);
///     async move {
///         let Some(session) = session else { return Ok(None) };
///         Ok::<_, Infallible>(store.read().await.get(&session).copied().map(Key::from))
///     }
/// });
///
/// // A type, for a label and a status of its own. It rejects a session that is sent twice.
/// struct User { header: Header, sessions: Sessions }
/// impl AsyncKeyExtractor for User {
///     fn extract(&self, parts: &Parts) -> KeyLookup {
///         let sessions = Arc::clone(&self.sessions);
///         let session = self.header.value(parts).map(String::from_utf8_lossy).map(String::from);
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
    message = "`{Self}` does not look up whom to count",
    label = "no asynchronous key extractor",
    note = "a closure names its argument's type and answers with a future that borrows nothing: `|parts: &http::request::Parts| async {{ Ok::<_, Infallible>(..) }}`"
)]
pub trait AsyncKeyExtractor: Send + Sync + 'static {
    /// Looks the key up: it may be absent or ambiguous, or the lookup may fail.
    fn extract(&self, parts: &Parts) -> KeyLookup;

    /// What it looks at, for messages: a short word without spaces, as [`KeyExtractor::label`](super::KeyExtractor::label).
    fn label(&self) -> &str {
        "lookup"
    }

    /// The status of the answer when there is no key and the rule says to reject. When the look-up failed or is late, it
    /// is 503 in any case.
    ///
    /// Default: 400, as for something that the client should have sent.
    fn missing_status(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }

    /// How a client may authenticate, for the `WWW-Authenticate` of an answer of 401.
    ///
    /// Default: none. See [`KeyExtractor::challenge`](super::KeyExtractor::challenge).
    fn challenge(&self) -> Option<HeaderValue> {
        None
    }
}

/// A key that is being looked up.
pub type KeyLookup =
    Pin<Box<dyn Future<Output = Result<Extracted<Key>, Box<dyn Error + Send + Sync>>> + Send>>;

impl<F, T, R, E> AsyncKeyExtractor for F
where
    F: Fn(&Parts) -> T + Send + Sync + 'static,
    T: Future<Output = Result<R, E>> + Send + 'static,
    R: Into<Extracted<Key>>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn extract(&self, parts: &Parts) -> KeyLookup {
        let lookup = self(parts);
        Box::pin(async move { lookup.await.map(Into::into).map_err(Into::into) })
    }

    fn label(&self) -> &str {
        "closure"
    }
}

// For extractors that are chosen at run time.
impl AsyncKeyExtractor for Arc<dyn AsyncKeyExtractor> {
    fn extract(&self, parts: &Parts) -> KeyLookup {
        (**self).extract(parts)
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
