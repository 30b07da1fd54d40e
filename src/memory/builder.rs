//! Settings of the in-process store.

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
};

use super::store::MemoryStore;

/// Settings of a [`MemoryStore`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct MemoryStoreBuilder {
    pub(super) max_keys: usize,
    pub(super) clock: Clock,
}

impl MemoryStoreBuilder {
    /// Sets how many keys in debt are counted apart, under each way of counting.
    ///
    /// Default: 1,000,000, which takes at most 32 MB of buckets, and more with
    /// [refunds, requests in flight and other algorithms](super#memory); an empty store takes next to nothing.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets the clock to count by.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the store.
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
        Ok(MemoryStore::with(&self))
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
