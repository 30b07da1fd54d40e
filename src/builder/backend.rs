//! The store of a limiter.

use std::sync::Arc;

#[cfg(feature = "redis")]
use std::time::Duration;

use crate::{
    clock::Clock,
    diagnosis::SilencedCodes,
    error::{Error, ErrorKind},
    memory::MemoryStoreBuilder,
    store::Store,
};

#[cfg(feature = "redis")]
use crate::{memory::MemoryStore, remote::RedisStoreBuilder, resilience::ResilientStore};

/// Settings of a limiter's store.
#[derive(Clone, Debug, Default)]
pub(super) struct Backend {
    choice: Choice,
    /// Whether two stores were set, which is a mistake.
    has_two_stores: bool,
    pub(super) max_keys: Option<usize>,
    pub(super) clock: Option<Clock>,
    #[cfg(feature = "redis")]
    pub(super) deadline: Option<Duration>,
    pub(super) silenced: SilencedCodes,
}

#[derive(Clone, Debug, Default)]
pub(super) enum Choice {
    Custom(Arc<dyn Store>),
    #[default]
    Memory,
    #[cfg(feature = "redis")]
    Redis(RedisStoreBuilder),
}

impl Backend {
    pub(super) fn choose(&mut self, choice: Choice) {
        self.has_two_stores |= !matches!(self.choice, Choice::Memory);
        self.choice = choice;
    }

    pub(super) fn build(self) -> Result<Arc<dyn Store>, Error> {
        self.validate()?;
        if let Choice::Custom(store) = self.choice {
            return Ok(store);
        }
        let clock = self.clock.unwrap_or_default();
        let mut memory = MemoryStoreBuilder::default().clock(clock.clone());
        if let Some(keys) = self.max_keys {
            memory = memory.max_keys(keys);
        }
        let memory = memory.build()?;
        #[cfg(feature = "redis")]
        if let Choice::Redis(server) = self.choice {
            let server = server.silence(self.silenced);
            return Ok(Arc::new(resilient(server, memory, self.deadline, clock)?));
        }
        Ok(Arc::new(memory))
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

#[cfg(feature = "redis")]
fn resilient(
    server: RedisStoreBuilder,
    local: MemoryStore,
    deadline: Option<Duration>,
    clock: Clock,
) -> Result<ResilientStore, Error> {
    let deadline = deadline.unwrap_or(server.decision_deadline());
    let primary = server.deadline(deadline).build()?;
    ResilientStore::builder(primary, local)
        .deadline(deadline)
        .primary_keeps_deadline()
        .clock(clock)
        .build()
}
