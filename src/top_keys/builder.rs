//! Settings of the top keys.

use std::time::Duration;

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
};

use super::{shown_keys::ShownKeys, summary::MAX_CAPACITY};

/// Builds [`TopKeys`](super::TopKeys).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct TopKeysBuilder {
    pub(super) capacity: usize,
    pub(super) clock: Clock,
    pub(super) log_interval: Option<Duration>,
    pub(super) max_policies: usize,
    pub(super) shown_keys: ShownKeys,
    pub(super) window: Duration,
}

impl TopKeysBuilder {
    /// Sets the number of keys that are counted at once, for each policy, shard and half of the window.
    ///
    /// Default: 256, so errors are at most 1/256 (0.4 %) of a policy's denied requests. From 1 to 4,096.
    pub fn capacity(mut self, keys: usize) -> Self {
        self.capacity = keys;
        self
    }

    /// Sets the clock.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Logs the ten keys that each policy denied most often in each interval, such as a day. Needs the feature `tracing`.
    ///
    /// Default: nothing is logged. From a second to a day. Intervals begin at multiples of their length since the Unix epoch, so
    /// days begin at midnight UTC. An interval is [logged](super#log) with the first denied request after it: no task runs. Each
    /// record then takes twice the time, and each policy twice the memory.
    pub fn log_every(mut self, interval: Duration) -> Self {
        self.log_interval = Some(interval);
        self
    }

    /// Sets the number of policies that are recorded: the first ones that deny a request.
    ///
    /// Default: 64. From 1 to 1,024. Records of further policies are not counted, but reported by
    /// [`TopKeys::unrecorded`](super::TopKeys::unrecorded).
    pub fn max_policies(mut self, policies: usize) -> Self {
        self.max_policies = policies;
        self
    }

    /// Sets the form in which keys are shown.
    ///
    /// Default: [hashed](ShownKeys::default) under a random secret of this process.
    pub fn shown_keys(mut self, shown_keys: ShownKeys) -> Self {
        self.shown_keys = shown_keys;
        self
    }

    /// Sets the longest time that a snapshot covers. The shortest is half of it.
    ///
    /// Default: 10 minutes. From 2 seconds to 2 days.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when a setting is outside of its range.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let (capacity, max_policies, window) = (self.capacity, self.max_policies, self.window);
        let fault = if !(1..=MAX_CAPACITY).contains(&capacity) {
            format!("capacity of {capacity}: top keys need 1 to {MAX_CAPACITY} counters")
        } else if !(1..=MAX_POLICIES).contains(&max_policies) {
            format!("max_policies of {max_policies}: use 1 to {MAX_POLICIES}")
        } else if !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            format!("window of {window:?}: use {MIN_WINDOW:?} to {MAX_WINDOW:?}")
        } else if let Some(interval) = self.log_interval
            && !(MIN_WINDOW / 2..=MAX_WINDOW / 2).contains(&interval)
        {
            format!("log_every of {interval:?}: use a second to a day")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidConfig, fault))
    }
}

impl Default for TopKeysBuilder {
    fn default() -> Self {
        Self {
            capacity: 256,
            clock: Clock::system(),
            log_interval: None,
            max_policies: 64,
            shown_keys: ShownKeys::default(),
            window: Duration::from_secs(600),
        }
    }
}

/// A search for a policy visits at most this many places.
const MAX_POLICIES: usize = 1_024;
const MIN_WINDOW: Duration = Duration::from_secs(2);
const MAX_WINDOW: Duration = Duration::from_secs(2 * 24 * 60 * 60);
