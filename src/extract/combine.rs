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
}

impl<A: KeyExtractor, B: KeyExtractor> OrElse<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        let label = format!("{}-or-{}", first.label(), second.label());
        Self {
            first,
            second,
            label,
        }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for OrElse<A, B> {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        self.first.extract(parts).or_else(|| {
            let key = self.second.extract(parts)?.labelled(self.second.label());
            Some(match self.first.alternatives() {
                1 => key,
                // Two alternatives of one chain may bear one label: the later ones are numbered too.
                before => key.labelled(&(before + 1).to_string()),
            })
        })
    }

    fn alternatives(&self) -> usize {
        self.first.alternatives() + 1
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn missing_status(&self) -> StatusCode {
        self.second.missing_status()
    }
}
