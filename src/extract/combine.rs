//! Extractors made of two others.

use http::{HeaderValue, StatusCode, request::Parts};

use crate::{diagnosis::Code, error::Error, key::Key};

use super::extractor::KeyExtractor;

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
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let first = self.first.extract(parts)?;
        Some(first.and(&self.second.extract(parts)?))
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn missing_status(&self) -> StatusCode {
        self.first
            .missing_status()
            .max(self.second.missing_status())
    }

    fn challenge(&self) -> Option<HeaderValue> {
        challenges(self.first.challenge(), self.second.challenge())
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate().and_then(|()| self.second.validate())
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let first = self.first.diagnose(parts);
        first.or_else(|| self.second.diagnose(parts))
    }

    fn is_ambiguous(&self, parts: &Parts) -> bool {
        self.first.is_ambiguous(parts) || self.second.is_ambiguous(parts)
    }

    fn tells_callers_apart(&self) -> bool {
        self.first.tells_callers_apart() || self.second.tells_callers_apart()
    }
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
    fn extract(&self, parts: &Parts) -> Option<Key> {
        match self.first.extract(parts) {
            Some(key) => Some(key.first_choice()),
            None => Some(self.second.extract(parts)?.labelled(self.space)),
        }
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn missing_status(&self) -> StatusCode {
        self.second.missing_status()
    }

    fn challenge(&self) -> Option<HeaderValue> {
        challenges(self.first.challenge(), self.second.challenge())
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate().and_then(|()| self.second.validate())
    }

    /// Only what was looked at: the second is not, when the first has a key.
    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        match self.first.extract(parts) {
            Some(_) => self.first.diagnose(parts),
            None => self.second.diagnose(parts),
        }
    }

    /// Only what was looked at; but a second key does not settle what the first is.
    fn is_ambiguous(&self, parts: &Parts) -> bool {
        self.first.is_ambiguous(parts)
            || self.first.extract(parts).is_none() && self.second.is_ambiguous(parts)
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
