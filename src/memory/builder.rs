//! Settings of the in-process store.

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
};

use super::store::MemoryStore;

/// Builds a [`MemoryStore`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct MemoryStoreBuilder {
    max_keys: usize,
    clock: Clock,
}

impl MemoryStoreBuilder {
    /// Sets the number of keys in debt that have a state of their own, under each algorithm.
    ///
    /// Default: 1,000,000. Buckets then take at most 32 MB, and
    /// [refunds, requests in flight and other algorithms](super#memory) take more. An empty store takes almost nothing.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets the clock.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when `max_keys` is 0.
    pub fn build(self) -> Result<MemoryStore, Error> {
        if self.max_keys == 0 {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "max_keys of 0: the store must hold at least one key",
            ));
        }
        Ok(MemoryStore::with(self.max_keys, self.clock))
    }
}

impl Default for MemoryStoreBuilder {
    fn default() -> Self {
        Self {
            max_keys: 1_000_000,
            clock: Clock::system(),
        }
    }
}

// === MemoryStore ===

impl MemoryStore {
    /// Returns a store with the default settings.
    #[must_use]
    pub fn new() -> Self {
        let MemoryStoreBuilder { max_keys, clock } = MemoryStoreBuilder::default();
        Self::with(max_keys, clock)
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::default()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}
