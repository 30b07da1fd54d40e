//! Extractors whose keys a closure makes into others.

use std::fmt;

use http::request::Parts;

use crate::key::Key;

use super::extractor::{KeyExtractor, pass_on};

/// Another key for each key: see [`KeyExtractor::map`].
#[derive(Clone, Copy)]
pub struct Map<E, F> {
    inner: E,
    change: F,
}

impl<E, F> Map<E, F> {
    pub(super) const fn new(inner: E, change: F) -> Self {
        Self { inner, change }
    }
}

impl<E, F> KeyExtractor for Map<E, F>
where
    E: KeyExtractor,
    F: Fn(Key) -> Key + Send + Sync + 'static,
{
    fn extract(&self, parts: &Parts) -> Option<Key> {
        self.inner.extract(parts).map(&self.change)
    }

    pass_on!(self => self.inner);
}

impl<E: fmt::Debug, F> fmt::Debug for Map<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Map").field(&self.inner).finish()
    }
}

// === AndThen ===

/// Another key, or none, for each key: see [`KeyExtractor::and_then`].
#[derive(Clone, Copy)]
pub struct AndThen<E, F> {
    inner: E,
    change: F,
}

impl<E, F> AndThen<E, F> {
    pub(super) const fn new(inner: E, change: F) -> Self {
        Self { inner, change }
    }
}

impl<E, F> KeyExtractor for AndThen<E, F>
where
    E: KeyExtractor,
    F: Fn(Key) -> Option<Key> + Send + Sync + 'static,
{
    fn extract(&self, parts: &Parts) -> Option<Key> {
        self.inner.extract(parts).and_then(&self.change)
    }

    pass_on!(self => self.inner);
}

impl<E: fmt::Debug, F> fmt::Debug for AndThen<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AndThen").field(&self.inner).finish()
    }
}
