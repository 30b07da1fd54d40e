//! Extractors made of others: two joined, or one whose keys a closure changes.
//!
//! # Why does `or_else` label keys?
//!
//! With `Header::new("x-user").or_else(PeerIp)`, a client could send another client's address as its user name, and spend that
//! client's quota. So a key from the second extractor begins with the label of the whole chain, joined by a character that a
//! plain key never contains. A closure that calls an extractor hides its label. So a key of the first extractor that may already
//! have a label gets the prefix `!!`, with which no label begins. Other keys stay as they are, readable in Redis.
//!
//! # Why does `and` use the status of the missing half?
//!
//! An earlier version used the larger of both statuses. Any client could then get a 500 by leaving out a header beside `PeerIp`,
//! and a 404 on a route that exists. A client can add what it left out, so the missing half gives the status. If both
//! are missing, a half that the client can add gives the status, credentials first. A server without peer addresses is
//! still reported, as TG001.

use std::fmt;

use http::{HeaderValue, StatusCode};

use crate::{
    diagnosis::Code,
    error::Error,
    key::Key,
    request::{BodyFault, BodyLimits, RequestHead},
};

use super::{
    caller_id::CallerId,
    extracted::Extracted,
    extractor::{KeyExtractor, forward_body_to, forward_to},
    into_key::IntoKey,
};

/// The keys of two extractors, joined: see [`KeyExtractor::and`].
#[derive(Clone, Debug)]
pub struct And<A, B> {
    first: A,
    second: B,
    label: String,
}

impl<A: KeyExtractor, B: KeyExtractor> And<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        let label = format!("{}+{}", first.label(), second.label());
        Self {
            first,
            second,
            label,
        }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        match (self.first.extract(head), self.second.extract(head)) {
            (Extracted::Found(first), Extracted::Found(second)) => {
                Extracted::Found(first.and(&second))
            }
            (Extracted::Ambiguous, _) | (_, Extracted::Ambiguous) => Extracted::Ambiguous,
            (Extracted::Absent, _) | (_, Extracted::Absent) => Extracted::Absent,
        }
    }

    /// Joins both keys, with the default key in place of an absent one.
    fn default_key(&self, head: &RequestHead<'_>) -> Option<Key> {
        let (first, second) = (&self.first, &self.second);
        let first = first
            .extract(head)
            .or_else(|| first.default_key(head).into());
        let second = second
            .extract(head)
            .or_else(|| second.default_key(head).into());
        Some(first.found()?.and(&second.found()?))
    }

    /// None: what an operator knows is one of the head.
    fn keys_of(&self, _: &CallerId<'_>) -> Vec<Key> {
        Vec::new()
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn missing_label(&self, head: &RequestHead<'_>) -> &str {
        self.missing_half(head).0.missing_label(head)
    }

    /// The status of the absent part. If both are absent, that of the part that the client can correct: 401 before 400.
    fn missing_status(&self, head: &RequestHead<'_>) -> StatusCode {
        let (half, status) = self.missing_half(head);
        status.unwrap_or_else(|| half.missing_status(head))
    }

    /// The challenges of the absent head.
    fn challenge(&self, head: &RequestHead<'_>) -> Option<HeaderValue> {
        let is_absent = |key: Extracted<Key>| key == Extracted::Absent;
        let first = is_absent(self.first.extract(head)).then(|| self.first.challenge(head));
        let second = is_absent(self.second.extract(head)).then(|| self.second.challenge(head));
        challenge_list(first.flatten(), second.flatten())
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate().and_then(|()| self.second.validate())
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        let first = self.first.diagnose(head);
        first.or_else(|| self.second.diagnose(head))
    }

    fn is_per_caller(&self) -> bool {
        self.first.is_per_caller() || self.second.is_per_caller()
    }

    fn body_limits(&self) -> Option<BodyLimits> {
        BodyLimits::larger(self.first.body_limits(), self.second.body_limits())
    }

    fn needs_body(&self, head: &RequestHead<'_>) -> bool {
        self.first.needs_body(head) || self.second.needs_body(head)
    }

    fn body_fault(&self, head: &RequestHead<'_>) -> Option<BodyFault> {
        let first = self.first.body_fault(head);
        first.or_else(|| self.second.body_fault(head))
    }
}

impl<A: KeyExtractor, B: KeyExtractor> And<A, B> {
    /// Returns the half that keeps the request from having a key, and its status if that was asked.
    fn missing_half(&self, head: &RequestHead<'_>) -> (&dyn KeyExtractor, Option<StatusCode>) {
        match (self.first.extract(head), self.second.extract(head)) {
            (Extracted::Found(_), _) | (Extracted::Absent, Extracted::Ambiguous) => {
                (&self.second, None)
            }
            (Extracted::Absent, Extracted::Absent) => {
                let (half, status) = self.missing_half_of_both(head);
                (half, Some(status))
            }
            (Extracted::Absent | Extracted::Ambiguous, _) => (&self.first, None),
        }
    }

    /// Chooses between two absent halves: one without a default key first, then one that the client can correct. Returns its
    /// status too.
    ///
    /// Each half is asked once: asked twice, the work would double with each further key that is joined.
    fn missing_half_of_both(&self, head: &RequestHead<'_>) -> (&dyn KeyExtractor, StatusCode) {
        let ranked = |half: &dyn KeyExtractor| {
            let status = half.missing_status(head);
            let by_status = match status {
                StatusCode::UNAUTHORIZED => 0,
                StatusCode::NOT_FOUND => 2,
                status if status.is_client_error() => 1,
                _ => 3,
            };
            ((half.default_key(head).is_some(), by_status), status)
        };
        let (first, second) = (ranked(&self.first), ranked(&self.second));
        if first.0 <= second.0 {
            (&self.first, first.1)
        } else {
            (&self.second, second.1)
        }
    }
}

// === OrElse ===

/// The key of the first extractor, or else of the second: see [`KeyExtractor::or_else`].
#[derive(Clone, Debug)]
pub struct OrElse<A, B> {
    first: A,
    second: B,
    label: String,
    /// The label as a key, made once and not per request.
    namespace: Key,
}

impl<A: KeyExtractor, B: KeyExtractor> OrElse<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        let label = format!("{}-or-{}", first.label(), second.label());
        Self {
            namespace: Key::new(&label),
            first,
            second,
            label,
        }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for OrElse<A, B> {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        match self.first.extract(head) {
            Extracted::Found(key) => Extracted::Found(key.unlabelled()),
            Extracted::Absent => {
                let second = self.second.extract(head);
                second.map(|key| key.labelled(self.namespace))
            }
            // With the second key, a client could choose its count by sending the first one twice.
            Extracted::Ambiguous => Extracted::Ambiguous,
        }
    }

    fn default_key(&self, head: &RequestHead<'_>) -> Option<Key> {
        let first = self.first.default_key(head);
        let second = || Some(self.second.default_key(head)?.labelled(self.namespace));
        first.map(|key| key.unlabelled()).or_else(second)
    }

    /// Those of both, since the operator does not know which one finds the caller.
    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        let first = self.first.keys_of(caller).into_iter();
        let second = self.second.keys_of(caller).into_iter();
        first
            .map(|key| key.unlabelled())
            .chain(second.map(|key| key.labelled(self.namespace)))
            .collect()
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn missing_label(&self, head: &RequestHead<'_>) -> &str {
        if self.first.extract(head).is_ambiguous() {
            self.first.missing_label(head)
        } else if self.second.extract(head).is_ambiguous() {
            self.second.missing_label(head)
        } else {
            &self.label
        }
    }

    /// The status of the second extractor, since the first key is optional.
    fn missing_status(&self, head: &RequestHead<'_>) -> StatusCode {
        self.second.missing_status(head)
    }

    fn challenge(&self, head: &RequestHead<'_>) -> Option<HeaderValue> {
        challenge_list(self.first.challenge(head), self.second.challenge(head))
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate().and_then(|()| self.second.validate())
    }

    /// Asks the extractor that was used: the second one only if the first key is absent.
    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        match self.first.extract(head) {
            Extracted::Absent => self.second.diagnose(head),
            Extracted::Ambiguous | Extracted::Found(_) => self.first.diagnose(head),
        }
    }

    fn is_per_caller(&self) -> bool {
        self.first.is_per_caller() || self.second.is_per_caller()
    }

    fn body_limits(&self) -> Option<BodyLimits> {
        BodyLimits::larger(self.first.body_limits(), self.second.body_limits())
    }

    /// The second extractor needs it only if the first key is absent.
    fn needs_body(&self, head: &RequestHead<'_>) -> bool {
        let is_second = || self.first.extract(head) == Extracted::Absent;
        self.first.needs_body(head) || self.second.needs_body(head) && is_second()
    }

    /// Asks the extractor that was used.
    fn body_fault(&self, head: &RequestHead<'_>) -> Option<BodyFault> {
        match self.first.extract(head) {
            Extracted::Absent => self.second.body_fault(head),
            Extracted::Ambiguous | Extracted::Found(_) => self.first.body_fault(head),
        }
    }
}

/// Joins two challenges into one list, from which the client chooses. Equal challenges are listed once.
fn challenge_list(first: Option<HeaderValue>, second: Option<HeaderValue>) -> Option<HeaderValue> {
    let (first, second) = match (first, second) {
        (Some(first), Some(second)) if first != second => (first, second),
        (first, second) => return first.or(second),
    };
    let both = [first.as_bytes(), second.as_bytes()].join(&b", "[..]);
    HeaderValue::from_bytes(&both).ok()
}

// === CoLocatedWith ===

/// The key of one extractor, in the slot of the key of another: see [`KeyExtractor::co_located_with`].
#[derive(Clone, Copy, Debug)]
pub struct CoLocatedWith<E, O> {
    extractor: E,
    other: O,
}

impl<E, O> CoLocatedWith<E, O> {
    pub(super) const fn new(extractor: E, other: O) -> Self {
        Self { extractor, other }
    }
}

impl<E: KeyExtractor, O: KeyExtractor> CoLocatedWith<E, O> {
    /// Puts the key in the slot of the other key. If the request has no other key, the key stays as it is.
    fn place(&self, key: Key, head: &RequestHead<'_>) -> Key {
        let other = self.other.extract(head).found();
        match other.or_else(|| self.other.default_key(head)) {
            Some(other) => key.co_located_with(&other),
            None => key,
        }
    }
}

impl<E: KeyExtractor, O: KeyExtractor> KeyExtractor for CoLocatedWith<E, O> {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        let key = self.extractor.extract(head);
        key.map(|key| self.place(key, head))
    }

    fn default_key(&self, head: &RequestHead<'_>) -> Option<Key> {
        let key = self.extractor.default_key(head)?;
        Some(self.place(key, head))
    }

    /// Each key in the slot of each key that the other extractor makes.
    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        let others = self.other.keys_of(caller);
        let keys = self.extractor.keys_of(caller).into_iter();
        keys.flat_map(|key| others.iter().map(move |other| key.co_located_with(other)))
            .collect()
    }

    fn body_limits(&self) -> Option<BodyLimits> {
        BodyLimits::larger(self.extractor.body_limits(), self.other.body_limits())
    }

    fn needs_body(&self, head: &RequestHead<'_>) -> bool {
        self.extractor.needs_body(head) || self.other.needs_body(head)
    }

    fn body_fault(&self, head: &RequestHead<'_>) -> Option<BodyFault> {
        self.extractor.body_fault(head)
    }

    forward_to!(self => self.extractor);
}

// === Map ===

/// An extractor whose keys a closure replaces: see [`KeyExtractor::map`].
#[derive(Clone, Copy)]
pub struct Map<E, F> {
    extractor: E,
    change: F,
}

impl<E, F> Map<E, F> {
    pub(super) const fn new(extractor: E, change: F) -> Self {
        Self { extractor, change }
    }
}

impl<E, F> KeyExtractor for Map<E, F>
where
    E: KeyExtractor,
    F: Fn(Key) -> Key + Send + Sync + 'static,
{
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        self.extractor.extract(head).map(&self.change)
    }

    fn default_key(&self, head: &RequestHead<'_>) -> Option<Key> {
        self.extractor.default_key(head).map(&self.change)
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        changed_keys(self.extractor.keys_of(caller), caller, |key| {
            Some((self.change)(key))
        })
    }

    forward_body_to!(self => self.extractor);
    forward_to!(self => self.extractor);
}

impl<E: fmt::Debug, F> fmt::Debug for Map<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Map").field(&self.extractor).finish()
    }
}

// === AndThen ===

/// An extractor whose keys a closure replaces or drops: see [`KeyExtractor::and_then`].
#[derive(Clone, Copy)]
pub struct AndThen<E, F> {
    extractor: E,
    change: F,
}

impl<E, F> AndThen<E, F> {
    pub(super) const fn new(extractor: E, change: F) -> Self {
        Self { extractor, change }
    }
}

impl<E, F, R> KeyExtractor for AndThen<E, F>
where
    E: KeyExtractor,
    F: Fn(Key) -> R + Send + Sync + 'static,
    R: IntoKey,
{
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        let key = self.extractor.extract(head);
        key.and_then(|key| (self.change)(key).into_key())
    }

    fn default_key(&self, head: &RequestHead<'_>) -> Option<Key> {
        // A key that the closure dropped has no default.
        let is_absent = self.extractor.extract(head) == Extracted::Absent;
        let key = is_absent.then(|| self.extractor.default_key(head));
        (self.change)(key.flatten()?).into_key().found()
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        changed_keys(self.extractor.keys_of(caller), caller, |key| {
            (self.change)(key).into_key().found()
        })
    }

    forward_body_to!(self => self.extractor);
    forward_to!(self => self.extractor);
}

impl<E: fmt::Debug, F> fmt::Debug for AndThen<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AndThen").field(&self.extractor).finish()
    }
}

/// Returns the keys that a closure makes of others, but not those that all callers share. A text from which it makes none may
/// be what it makes of a key: the name of the customer that it looks up.
fn changed_keys(
    keys: Vec<Key>,
    caller: &CallerId<'_>,
    change: impl Fn(Key) -> Option<Key>,
) -> Vec<Key> {
    let keys = keys.into_iter().filter_map(change);
    let keys: Vec<Key> = keys
        .filter(|key| ![Key::GLOBAL, Key::UNIDENTIFIED].contains(key))
        .collect();
    match caller {
        CallerId::Text(_) if keys.is_empty() => vec![caller.key()],
        _ => keys,
    }
}
