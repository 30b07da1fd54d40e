//! The store of a limiter.

use std::sync::Arc;

#[cfg(feature = "redis")]
use std::time::Duration;

use crate::{
    clock::Clock,
    diagnosis::SilencedCodes,
    error::{Error, ErrorKind},
    memory::{MemoryStore, MemoryStoreBuilder},
    store::Store,
};

#[cfg(feature = "redis")]
use crate::{
    remote::{RedisStore, RedisStoreBuilder, Regions},
    resilience::GuardSettings,
};

#[cfg(all(feature = "redis", feature = "top-keys"))]
use crate::top_keys::TopKeys;

/// Settings of a limiter's store.
#[derive(Clone, Debug, Default)]
pub(super) struct Backend {
    choice: Choice,
    /// Whether two stores were set, which is a mistake.
    has_two_stores: bool,
    pub max_keys: Option<usize>,
    pub clock: Option<Clock>,
    #[cfg(feature = "redis")]
    pub deadline: Option<Duration>,
    #[cfg(feature = "redis")]
    pub instances: Option<u64>,
    #[cfg(feature = "redis")]
    pub warm_keys: Option<usize>,
    pub silenced: SilencedCodes,
    /// Shared with the other instances.
    #[cfg(all(feature = "redis", feature = "top-keys"))]
    top_keys: Option<TopKeys>,
}

#[derive(Clone, Debug, Default)]
pub(super) enum Choice {
    Custom(Arc<dyn Store>),
    #[default]
    Memory,
    #[cfg(feature = "redis")]
    Redis(RedisStoreBuilder),
    #[cfg(feature = "redis")]
    Regions(Regions),
}

impl Backend {
    pub fn choose(&mut self, choice: Choice) {
        self.has_two_stores |= !matches!(self.choice, Choice::Memory);
        self.choice = choice;
    }

    /// Counts in process by this clock, whatever store was chosen.
    #[cfg(feature = "test-util")]
    pub fn in_process_by(self, clock: Clock) -> Self {
        Self {
            max_keys: self.max_keys,
            clock: Some(clock),
            silenced: self.silenced,
            ..Self::default()
        }
    }

    /// Shares these top keys with the other instances.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if there are none, no Redis, or if other instances would show keys in another form.
    #[cfg(all(feature = "redis", feature = "top-keys"))]
    pub fn sharing(mut self, top_keys: Option<&TopKeys>) -> Result<Self, Error> {
        let invalid = |message: &'static str| Err(Error::new(ErrorKind::InvalidConfig, message));
        let Some(top_keys) = top_keys else {
            return invalid("share_top_keys without top keys: add top_keys(TopKeys)");
        };
        if !matches!(self.choice, Choice::Redis(_) | Choice::Regions(_)) {
            return invalid("share_top_keys without redis: call redis(), or leave it out");
        }
        if !top_keys.has_common_form() {
            return invalid(
                "share_top_keys with keys that are hashed under a secret of this process: give all instances ShownKeys::hashed(..) with the same secret",
            );
        }
        self.top_keys = Some(top_keys.clone());
        Ok(self)
    }

    pub fn build(self) -> Result<Arc<dyn Store>, Error> {
        self.validate()?;
        if let Choice::Custom(store) = self.choice {
            return Ok(store);
        }
        #[cfg(feature = "redis")]
        if let Choice::Redis(server) = self.choice.clone() {
            return Ok(Arc::new(self.resilient(server)?));
        }
        #[cfg(feature = "redis")]
        if let Choice::Regions(regions) = self.choice.clone() {
            let here = self.resilient(regions.own_server())?;
            return Ok(Arc::new(regions.build(here)?));
        }
        let clock = self.clock.clone().unwrap_or_default();
        Ok(Arc::new(self.memory(clock)?))
    }

    /// Returns the in-process store.
    fn memory(&self, clock: Clock) -> Result<MemoryStore, Error> {
        let mut memory = MemoryStoreBuilder::default().clock(clock);
        if let Some(keys) = self.max_keys {
            memory = memory.max_keys(keys);
        }
        memory.build()
    }

    /// Returns the Redis store, with a breaker for each node, and one local store in the time of the servers.
    #[cfg(feature = "redis")]
    fn resilient(self, server: RedisStoreBuilder) -> Result<RedisStore, Error> {
        let clock = self.clock.clone().unwrap_or_default();
        let server_clock = Clock::of_server(clock.clone());
        let local = self.memory(server_clock.clone())?;
        let deadline = self.deadline.unwrap_or(server.decision_deadline());
        let server = server.silence(self.silenced).deadline(deadline);
        #[cfg(feature = "top-keys")]
        let server = match self.top_keys.clone() {
            Some(top_keys) => server.share_top_keys(top_keys),
            None => server,
        };
        let mut settings = GuardSettings {
            deadline,
            clock,
            server_clock: Some(server_clock),
            instances: self.instances,
            silenced: self.silenced,
            ..GuardSettings::new(local)
        };
        if let Some(count) = self.warm_keys {
            settings.warm_keys = count;
        }
        server.build_with(Some(settings))
    }

    fn validate(&self) -> Result<(), Error> {
        let invalid = |message: &'static str| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.has_two_stores {
            return invalid("two stores: a limiter has one, so call store() or redis() once");
        }
        #[cfg(feature = "redis")]
        if self.deadline.is_some_and(|deadline| deadline.is_zero()) {
            return invalid(
                "deadline of zero: no decision could end in time; the default is 50 ms",
            );
        }
        #[cfg(feature = "redis")]
        let has_deadline = self.deadline.is_some();
        #[cfg(not(feature = "redis"))]
        let has_deadline = false;
        let is_set = has_deadline || self.max_keys.is_some() || self.clock.is_some();
        if is_set && matches!(self.choice, Choice::Custom(_)) {
            return invalid(
                "a custom store has its own deadline, clock and max_keys: set them on the store",
            );
        }
        Ok(())
    }
}
