//! The trait of key extractors.

use std::sync::Arc;

use http::{HeaderValue, StatusCode};

use crate::{
    diagnosis::Code,
    error::Error,
    key::Key,
    request::{BodyFault, BodyLimits, RequestHead},
};

use super::{
    caller_id::CallerId,
    combine::{And, AndThen, CoLocatedWith, Map, OrElse},
    extracted::Extracted,
    into_key::IntoKey,
};

/// Finds the key of a request in its head.
///
/// Implemented for closures `Fn(&RequestHead<'_>) -> Option<Key>`, which may also return a [`Key`], an [`Extracted`] or another
/// [`IntoKey`]. Write the argument's type, as in `|head: &RequestHead| ..`, or use [`Policy::key_fn`](crate::Policy::key_fn), which
/// needs no type. Dyn compatible.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key extractor",
    label = "not a key extractor",
    note = "use one of `tollgate::extract`, such as `PeerIp` or `Header::new(\"x-tenant\")`",
    note = "several make one key by `PeerIp.and(Route)`, or the first that is there by `ApiKey::bearer().or_else(PeerIp)`",
    note = "or a closure: `.key_fn(|head| Some(Key::new(..)))`, or with a type `.key(|head: &tollgate::RequestHead| ..)`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key, or whether it is absent or ambiguous.
    ///
    /// The rule chooses how to handle an absent key; an ambiguous one is always rejected. See [`Extracted`]. It may be called more
    /// than once for a request.
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key>;

    /// Returns the key to use if [`extract`](Self::extract) finds none and the rule has no
    /// [`on_missing_key`](crate::rules::Rule::on_missing_key).
    ///
    /// Default: none, so the request is rejected. Extractors that wrap another one forward the call.
    fn default_key(&self, head: &RequestHead<'_>) -> Option<Key> {
        let _ = head;
        None
    }

    /// Returns a short name for messages, without spaces, such as `x-tenant` or `query:tenant`.
    ///
    /// Clients see it when their key is missing. The words `closure`, `extension`, `key` and `lookup` mean nothing to
    /// clients; messages have "a required value" in their place. [`or_else`](Self::or_else) separates its keys by both
    /// labels, so changing a label resets the counts of the second extractor.
    fn label(&self) -> &str {
        "key"
    }

    /// Returns the label of the value that is missing from this request, or ambiguous in it.
    ///
    /// Default: the [`label`](Self::label). Extractors that wrap another one forward the call; one that joins several
    /// returns the label of the one that found no key.
    fn missing_label(&self, head: &RequestHead<'_>) -> &str {
        let _ = head;
        self.label()
    }

    /// Returns the status of the response if the key is absent and the rule rejects it. An ambiguous key is always a
    /// 400.
    ///
    /// Default: 400, for a value that the client should have sent. Extractors that depend on the server's configuration
    /// return 500. One that joins several returns the status of the absent one; if several are absent, that of the one
    /// that the client can correct.
    fn missing_status(&self, head: &RequestHead<'_>) -> StatusCode {
        let _ = head;
        StatusCode::BAD_REQUEST
    }

    /// Returns the `WWW-Authenticate` challenge that every 401 response needs (RFC 9110, section 15.5.2): a scheme such
    /// as `Bearer`, with its parameters.
    ///
    /// Default: none. Implement it if [`missing_status`](Self::missing_status) is 401; other responses do not carry it. A
    /// challenge set by [`on_rejection`](crate::builder::RateLimitLayerBuilder::on_rejection) takes precedence.
    /// Extractors that wrap another one forward the call.
    fn challenge(&self, head: &RequestHead<'_>) -> Option<HeaderValue> {
        let _ = head;
        None
    }

    /// Returns how much of the body [`extract`](Self::extract) needs; `None` if it needs only the head.
    ///
    /// Default: `None`. `FromBody` (feature `body`) needs the body. Extractors that wrap another one forward the call; one that joins
    /// several returns the larger limits.
    fn body_limits(&self) -> Option<BodyLimits> {
        None
    }

    /// Returns whether [`extract`](Self::extract) needs the body of this request.
    ///
    /// Default: of every request, if there are [`body_limits`](Self::body_limits). One that finds the keys of some requests in their
    /// heads returns `false` for these, so that their bodies are not read. Extractors that wrap another one forward the call.
    fn needs_body(&self, head: &RequestHead<'_>) -> bool {
        let _ = head;
        self.body_limits().is_some()
    }

    /// Returns the reason why the key is ambiguous, if the body could not be read.
    ///
    /// Default: `None`. Extractors that wrap another one forward the call.
    fn body_fault(&self, head: &RequestHead<'_>) -> Option<BodyFault> {
        let _ = head;
        None
    }

    /// Checks the settings; called once, when the layer is built.
    ///
    /// Default: no check. Extractors with settings keep an error until then, so that their constructors need no `?`.
    /// Those that wrap another one forward the call.
    ///
    /// # Errors
    ///
    /// The error that `build()` returns.
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the code of a misconfiguration that this request shows.
    ///
    /// Default: none. Called for the first 1,000 requests of each rule, and for the first one whose key is missing; each
    /// code is reported once.
    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        let _ = head;
        None
    }

    /// Returns whether different callers get different keys.
    ///
    /// Default: yes. If many callers share one key nevertheless, the layer reports [`Code::SingleKey`].
    fn is_per_caller(&self) -> bool {
        true
    }

    /// Returns the keys under which this caller may be counted, for operators who look a caller up or block it.
    ///
    /// Default: the [key](CallerId::key) that most closures make. Return no key for what the extractor does not read, and for
    /// keys that all callers share: an operator would block everybody. An [`or_else`](Self::or_else) returns the keys of both
    /// extractors, and an [`and`](Self::and) none, since one value does not make both.
    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        vec![caller.key()]
    }

    /// Puts the key in the slot of another extractor's, so that one script on one node of a Redis cluster decides both.
    ///
    /// See [`Key::co_located_with`]. A request without the other key has this one's own slot.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::extract::{Header, KeyExtractor};
    ///
    /// let tenant = Header::new("x-tenant");
    /// let user = Header::new("x-tenant").and(Header::new("x-user")).co_located_with(Header::new("x-tenant"));
    /// ```
    fn co_located_with<O: KeyExtractor>(self, other: O) -> CoLocatedWith<Self, O>
    where
        Self: Sized,
    {
        CoLocatedWith::new(self, other)
    }

    /// Joins the keys of both extractors. The result is absent or ambiguous if either key is.
    fn and<E: KeyExtractor>(self, other: E) -> And<Self, E>
    where
        Self: Sized,
    {
        And::new(self, other)
    }

    /// Replaces the key, or drops it: to check, group or hash keys.
    ///
    /// Requests whose keys the closure makes equal are counted together. The closure may also return an [`Extracted`], to
    /// make a key ambiguous.
    fn and_then<F, R>(self, change: F) -> AndThen<Self, F>
    where
        F: Fn(Key) -> R + Send + Sync + 'static,
        R: IntoKey,
        Self: Sized,
    {
        AndThen::new(self, change)
    }

    /// Replaces the key.
    ///
    /// Requests whose keys the closure makes equal are counted together. The closure sees a hashed key as its hash.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, extract::{Header, KeyExtractor}};
    ///
    /// // Email addresses, hidden from readers of Redis.
    /// let by_user = Header::new("x-user-email").map(|key| Key::secret(key.as_bytes()));
    /// ```
    fn map<F>(self, change: F) -> Map<Self, F>
    where
        F: Fn(Key) -> Key + Send + Sync + 'static,
        Self: Sized,
    {
        Map::new(self, change)
    }

    /// Uses the other extractor if this one's key is absent. An ambiguous key stays ambiguous.
    ///
    /// The other extractor's keys are kept separate from this one's, so that a client that sends `192.0.2.1` in a header
    /// cannot use up the quota of that address. A client that both extractors identify therefore has two counts.
    fn or_else<E: KeyExtractor>(self, other: E) -> OrElse<Self, E>
    where
        Self: Sized,
    {
        OrElse::new(self, other)
    }
}

impl<F, R> KeyExtractor for F
where
    F: Fn(&RequestHead<'_>) -> R + Send + Sync + 'static,
    R: IntoKey,
{
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        self(head).into_key()
    }

    fn label(&self) -> &str {
        "closure"
    }
}

/// Forwards every method that does not return a key to the wrapped extractor.
macro_rules! forward_to {
    ($this:ident => $wrapped:expr) => {
        fn label(&$this) -> &str {
            $wrapped.label()
        }

        fn missing_label(&$this, head: &RequestHead<'_>) -> &str {
            $wrapped.missing_label(head)
        }

        fn missing_status(&$this, head: &RequestHead<'_>) -> ::http::StatusCode {
            $wrapped.missing_status(head)
        }

        fn challenge(&$this, head: &RequestHead<'_>) -> Option<::http::HeaderValue> {
            $wrapped.challenge(head)
        }

        fn validate(&$this) -> Result<(), $crate::error::Error> {
            $wrapped.validate()
        }

        fn diagnose(&$this, head: &RequestHead<'_>) -> Option<$crate::diagnosis::Code> {
            $wrapped.diagnose(head)
        }

        fn is_per_caller(&$this) -> bool {
            $wrapped.is_per_caller()
        }
    };
}
pub(super) use forward_to;

/// Implements the methods about the body, for an extractor that wraps another one.
macro_rules! forward_body_to {
    ($this:ident => $wrapped:expr) => {
        fn body_limits(&$this) -> Option<$crate::extract::BodyLimits> {
            $wrapped.body_limits()
        }

        fn needs_body(&$this, head: &RequestHead<'_>) -> bool {
            $wrapped.needs_body(head)
        }

        fn body_fault(&$this, head: &RequestHead<'_>) -> Option<$crate::extract::BodyFault> {
            $wrapped.body_fault(head)
        }
    };
}
pub(super) use forward_body_to;

// Pointers, for extractors that are chosen at run time.
macro_rules! implement_for_pointers {
    ($($pointer:ty)*) => {
        $(impl KeyExtractor for $pointer {
            fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
                (**self).extract(head)
            }

            fn default_key(&self, head: &RequestHead<'_>) -> Option<Key> {
                (**self).default_key(head)
            }

            fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
                (**self).keys_of(caller)
            }

            forward_body_to!(self => (**self));
            forward_to!(self => (**self));
        })*
    };
}

implement_for_pointers!(Arc<dyn KeyExtractor> Box<dyn KeyExtractor>);
