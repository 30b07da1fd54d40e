//! The clock of a Tokio runtime, which tests pause and advance.

use tokio::{runtime::Handle, time::Instant};

use super::timestamp::Timestamp;

/// The time since a fixed start, by the clock of the runtime that the clock was created on.
///
/// It enters that runtime for each reading. Other threads, such as the one of background work, have clocks of their own, which
/// no test pauses.
#[derive(Debug)]
pub(super) struct RuntimeClock {
    runtime: Handle,
    created: Instant,
}

impl RuntimeClock {
    /// Creates a clock of the current runtime; `None` outside of one.
    pub fn current() -> Option<Self> {
        Some(Self {
            runtime: Handle::try_current().ok()?,
            created: Instant::now(),
        })
    }

    /// Returns the time.
    pub fn now(&self) -> Timestamp {
        let _entered = self.runtime.enter();
        START + Instant::now().saturating_duration_since(self.created)
    }
}

/// Midnight of Monday, 1 January 2024 in UTC: windows of a minute, an hour and a day begin with the test.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_704_067_200_000_000);
