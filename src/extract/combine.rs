//! Extractors made of two others.

use http::{StatusCode, request::Parts};

use crate::key::Key;

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
}
