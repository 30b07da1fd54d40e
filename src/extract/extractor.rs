//! What an extractor is.

use std::sync::Arc;

use http::{HeaderValue, StatusCode, request::Parts};

use crate::{diagnosis::Code, error::Error, key::Key};

use super::{
    combine::{And, OrElse},
    extracted::Extracted,
    mapped::{AndThen, Map},
};

/// Tells from the head of a request whom to count.
///
/// Implemented for closures `Fn(&Parts) -> Option<Key>`; write the argument's type, as in `|parts: &Parts| ..`. A closure
/// may return a [`Key`] or an [`Extracted`] as well. Object-safe.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not tell whom to count",
    label = "no key extractor",
    note = "take one of `tollgate::extract`, such as `PeerIp` or `Header::new(\"x-tenant\")`",
    note = "or a closure that names its argument's type: `|parts: &http::request::Parts| Some(Key::new(..))`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key, or whether it is absent or ambiguous.
    ///
    /// The rule chooses how to handle an absent key; an ambiguous one is always rejected. See [`Extracted`].
    fn extract(&self, parts: &Parts) -> Extracted<Key>;

    /// Returns the key to count by when [`extract`](Self::extract) finds none and the rule has no
    /// [`on_missing_key`](crate::rules::Rule::on_missing_key).
    ///
    /// Default: none, so the request is rejected. Extractors that hold another one pass it on.
    fn default_key(&self, parts: &Parts) -> Option<Key> {
        let _ = parts;
        None
    }

    /// What it looks at, for messages: a short word without spaces, such as `x-tenant` or `query:tenant`.
    ///
    /// Clients read that it is missing. Of the words `closure`, `extension`, `key` and `lookup`, which tell a client
    /// nothing, the answer makes "its key". [`or_else`](Self::or_else) keeps keys apart by both labels: who changes one
    /// starts the second's counts afresh.
    fn label(&self) -> &str {
        "key"
    }

    /// Returns the label of what is missing from this request, or ambiguous in it.
    ///
    /// Default: the [`label`](Self::label). Extractors that hold another one pass it on; one that joins several names
    /// the one at fault.
    fn missing_label(&self, parts: &Parts) -> &str {
        let _ = parts;
        self.label()
    }

    /// Returns the status of the response when the key is absent and the rule rejects it. An ambiguous key is
    /// always 400.
    ///
    /// Default: 400, as for something that the client should have sent. Extractors that rely on the server's own
    /// set-up answer 500. One that joins several takes the status of the one that is absent from this request, and of
    /// several the one that a client can mend.
    fn missing_status(&self, parts: &Parts) -> StatusCode {
        let _ = parts;
        StatusCode::BAD_REQUEST
    }

    /// How a client may authenticate, for the `WWW-Authenticate` that an answer of 401 must have (RFC 9110, section
    /// 15.5.2): a scheme such as `Bearer`, with parameters if it has any.
    ///
    /// Default: none. Give it where [`missing_status`](Self::missing_status) is 401. Only answers of 401 carry it, and one
    /// that [`on_rejection`](crate::builder::RateLimitLayerBuilder::on_rejection) has set stays. Those that hold another
    /// extractor pass it on.
    fn challenge(&self, parts: &Parts) -> Option<HeaderValue> {
        let _ = parts;
        None
    }

    /// Whether the extractor's settings can work; asked once, when the layer is built.
    ///
    /// Default: yes. Extractors with settings keep what is wrong with them until here, so that making one needs no
    /// `?`. Those that hold another extractor pass it on.
    ///
    /// # Errors
    ///
    /// What `build()` reports.
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }

    /// What looks wrong about the set-up, judged by this request.
    ///
    /// Default: nothing. It is asked about the first 1,000 requests of each rule, and about the first whose key is
    /// missing; each code is reported once.
    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let _ = parts;
        None
    }

    /// Whether different callers are meant to get different keys.
    ///
    /// Default: yes, and when many get one it is reported as [`Code::OneBucket`].
    fn tells_callers_apart(&self) -> bool {
        true
    }

    /// The key of both together: absent when either is, ambiguous when either is.
    fn and<E: KeyExtractor>(self, other: E) -> And<Self, E>
    where
        Self: Sized,
    {
        And::new(self, other)
    }

    /// Another key for the one found, or none for those that are not to be counted by: to check, to group, to hash.
    ///
    /// What the closure makes equal counts together. It may return an [`Extracted`] too, to call a key ambiguous.
    fn and_then<F, R>(self, change: F) -> AndThen<Self, F>
    where
        F: Fn(Key) -> R + Send + Sync + 'static,
        R: Into<Extracted<Key>>,
        Self: Sized,
    {
        AndThen::new(self, change)
    }

    /// Another key for the one found.
    ///
    /// What the closure makes equal counts together. A key that was hashed stays so: its text cannot be had back.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, extract::{Header, KeyExtractor}};
    ///
    /// // Addresses of people, not to be read in Redis.
    /// let by_user = Header::new("x-user-email").map(|key| Key::secret(key.as_bytes()));
    /// ```
    fn map<F>(self, change: F) -> Map<Self, F>
    where
        F: Fn(Key) -> Key + Send + Sync + 'static,
        Self: Sized,
    {
        Map::new(self, change)
    }

    /// The other extractor's key when this one's is absent. When it is ambiguous, so is the whole.
    ///
    /// Keys found by the second are kept apart from all of the first's, so that a header reading `192.0.2.1` cannot
    /// spend that address' quota. So a client that can be told by either has a count for each.
    fn or_else<E: KeyExtractor>(self, other: E) -> OrElse<Self, E>
    where
        Self: Sized,
    {
        OrElse::new(self, other)
    }
}

impl<F, R> KeyExtractor for F
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: Into<Extracted<Key>>,
{
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        self(parts).into()
    }

    fn label(&self) -> &str {
        "closure"
    }
}

/// Forwards everything but the keys to the extractor that this one holds.
macro_rules! pass_on {
    ($this:ident => $held:expr) => {
        fn label(&$this) -> &str {
            $held.label()
        }

        fn missing_label(&$this, parts: &Parts) -> &str {
            $held.missing_label(parts)
        }

        fn missing_status(&$this, parts: &Parts) -> ::http::StatusCode {
            $held.missing_status(parts)
        }

        fn challenge(&$this, parts: &Parts) -> Option<::http::HeaderValue> {
            $held.challenge(parts)
        }

        fn validate(&$this) -> Result<(), $crate::error::Error> {
            $held.validate()
        }

        fn diagnose(&$this, parts: &Parts) -> Option<$crate::diagnosis::Code> {
            $held.diagnose(parts)
        }

        fn tells_callers_apart(&$this) -> bool {
            $held.tells_callers_apart()
        }
    };
}
pub(super) use pass_on;

// For extractors that are chosen at run time.
macro_rules! point {
    ($($pointer:ty)*) => {
        $(impl KeyExtractor for $pointer {
            fn extract(&self, parts: &Parts) -> Extracted<Key> {
                (**self).extract(parts)
            }

            fn default_key(&self, parts: &Parts) -> Option<Key> {
                (**self).default_key(parts)
            }

            pass_on!(self => (**self));
        })*
    };
}

point!(Arc<dyn KeyExtractor> Box<dyn KeyExtractor>);
