//! Extractors made of two others.

use http::{HeaderValue, StatusCode, request::Parts};

use crate::{diagnosis::Code, error::Error, key::Key};

use super::{extracted::Extracted, extractor::KeyExtractor};

/// Both keys together: see [`KeyExtractor::and`].
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
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        match (self.first.extract(parts), self.second.extract(parts)) {
            (Extracted::Found(first), Extracted::Found(second)) => {
                Extracted::Found(first.and(&second))
            }
            (Extracted::Ambiguous, _) | (_, Extracted::Ambiguous) => Extracted::Ambiguous,
            (Extracted::Absent, _) | (_, Extracted::Absent) => Extracted::Absent,
        }
    }

    /// Both halves, of which the one that is absent has a default.
    fn default_key(&self, parts: &Parts) -> Option<Key> {
        let (first, second) = (&self.first, &self.second);
        let first = first
            .extract(parts)
            .or_else(|| first.default_key(parts).into());
        let second = second
            .extract(parts)
            .or_else(|| second.default_key(parts).into());
        Some(first.found()?.and(&second.found()?))
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn missing_label(&self, parts: &Parts) -> &str {
        match self.missing_half(parts) {
            Half::First => self.first.missing_label(parts),
            Half::Second => self.second.missing_label(parts),
        }
    }

    /// That of the half which is absent. When both are, that of the one which a client can mend: 401 first, then 400.
    fn missing_status(&self, parts: &Parts) -> StatusCode {
        match self.missing_half(parts) {
            Half::First => self.first.missing_status(parts),
            Half::Second => self.second.missing_status(parts),
        }
    }

    /// Those of the halves that are absent.
    fn challenge(&self, parts: &Parts) -> Option<HeaderValue> {
        let is_absent = |key: Extracted<Key>| key == Extracted::Absent;
        let first = is_absent(self.first.extract(parts)).then(|| self.first.challenge(parts));
        let second = is_absent(self.second.extract(parts)).then(|| self.second.challenge(parts));
        challenges(first.flatten(), second.flatten())
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate().and_then(|()| self.second.validate())
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let first = self.first.diagnose(parts);
        first.or_else(|| self.second.diagnose(parts))
    }

    fn tells_callers_apart(&self) -> bool {
        self.first.tells_callers_apart() || self.second.tells_callers_apart()
    }
}

impl<A: KeyExtractor, B: KeyExtractor> And<A, B> {
    /// Returns which half keeps the request from having a key.
    fn missing_half(&self, parts: &Parts) -> Half {
        match (self.first.extract(parts), self.second.extract(parts)) {
            (Extracted::Found(_), _) | (Extracted::Absent, Extracted::Ambiguous) => Half::Second,
            (Extracted::Absent, Extracted::Absent) => self.missing_of_both(parts),
            (Extracted::Absent | Extracted::Ambiguous, _) => Half::First,
        }
    }

    /// Chooses between two absent halves: the one without a default key, then the one that a client can mend.
    fn missing_of_both(&self, parts: &Parts) -> Half {
        let has_default = |half: &dyn KeyExtractor| half.default_key(parts).is_some();
        let rank = |half: &dyn KeyExtractor| match half.missing_status(parts) {
            StatusCode::UNAUTHORIZED => 0,
            StatusCode::NOT_FOUND => 2,
            status if status.is_client_error() => 1,
            _ => 3,
        };
        let of = |half| (has_default(half), rank(half));
        match of(&self.first) <= of(&self.second) {
            true => Half::First,
            false => Half::Second,
        }
    }
}

enum Half {
    First,
    Second,
}

// === OrElse ===

/// The first key that is there: see [`KeyExtractor::or_else`].
#[derive(Clone, Debug)]
pub struct OrElse<A, B> {
    first: A,
    second: B,
    label: String,
    /// The label as a key: made once and not per request.
    space: Key,
}

impl<A: KeyExtractor, B: KeyExtractor> OrElse<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        let label = format!("{}-or-{}", first.label(), second.label());
        Self {
            space: Key::new(&label),
            first,
            second,
            label,
        }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for OrElse<A, B> {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        match self.first.extract(parts) {
            Extracted::Found(key) => Extracted::Found(key.first_choice()),
            Extracted::Absent => {
                let second = self.second.extract(parts);
                second.map(|key| key.labelled(self.space))
            }
            // The second key would be a count that the client picked by sending the first one twice.
            Extracted::Ambiguous => Extracted::Ambiguous,
        }
    }

    fn default_key(&self, parts: &Parts) -> Option<Key> {
        let first = self.first.default_key(parts).map(|key| key.first_choice());
        let second = || Some(self.second.default_key(parts)?.labelled(self.space));
        first.or_else(second)
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn missing_label(&self, parts: &Parts) -> &str {
        if self.first.extract(parts).is_ambiguous() {
            return self.first.missing_label(parts);
        }
        match self.second.extract(parts).is_ambiguous() {
            true => self.second.missing_label(parts),
            false => &self.label,
        }
    }

    /// That of the second: the first need not be there.
    fn missing_status(&self, parts: &Parts) -> StatusCode {
        self.second.missing_status(parts)
    }

    fn challenge(&self, parts: &Parts) -> Option<HeaderValue> {
        challenges(self.first.challenge(parts), self.second.challenge(parts))
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate().and_then(|()| self.second.validate())
    }

    /// Only what was looked at: the second is not, unless the first is absent.
    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        match self.first.extract(parts) {
            Extracted::Absent => self.second.diagnose(parts),
            Extracted::Ambiguous | Extracted::Found(_) => self.first.diagnose(parts),
        }
    }

    fn tells_callers_apart(&self) -> bool {
        self.first.tells_callers_apart() || self.second.tells_callers_apart()
    }
}

/// Both as one list, from which a client takes what it can; one that is there twice is said once.
fn challenges(first: Option<HeaderValue>, second: Option<HeaderValue>) -> Option<HeaderValue> {
    let (first, second) = match (first, second) {
        (Some(first), Some(second)) if first != second => (first, second),
        (first, second) => return first.or(second),
    };
    let both = [first.as_bytes(), second.as_bytes()].join(&b", "[..]);
    HeaderValue::from_bytes(&both).ok()
}
