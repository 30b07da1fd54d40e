//! Extractors whose keys a closure makes into others.

use std::fmt;

use http::request::Parts;

use crate::key::Key;

use super::{
    extracted::Extracted,
    extractor::{KeyExtractor, pass_on},
};

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
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        self.inner.extract(parts).map(&self.change)
    }

    fn default_key(&self, parts: &Parts) -> Option<Key> {
        self.inner.default_key(parts).map(&self.change)
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

impl<E, F, R> KeyExtractor for AndThen<E, F>
where
    E: KeyExtractor,
    F: Fn(Key) -> R + Send + Sync + 'static,
    R: Into<Extracted<Key>>,
{
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        let key = self.inner.extract(parts);
        key.and_then(|key| (self.change)(key).into())
    }

    fn default_key(&self, parts: &Parts) -> Option<Key> {
        // A key that the closure turned down has no default.
        let is_absent = self.inner.extract(parts) == Extracted::Absent;
        let key = is_absent.then(|| self.inner.default_key(parts)).flatten()?;
        (self.change)(key).into().found()
    }

    pass_on!(self => self.inner);
}

impl<E: fmt::Debug, F> fmt::Debug for AndThen<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AndThen").field(&self.inner).finish()
    }
}
