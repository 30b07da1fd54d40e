//! Settings of guards, and the state that the guards of all servers of a store share.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use crate::{
    clock::Clock,
    diagnosis::SilencedCodes,
    error::{Error, ErrorKind},
    memory::MemoryStore,
};

use super::{
    all_servers::AllServers,
    calls::Calls,
    fleet::Fleet,
    guard::{Guard, Guards},
    local::LocalCounts,
    primary::Primary,
};

/// Settings of the guards of a store.
#[derive(Debug)]
pub(crate) struct GuardSettings {
    /// Keeps the counts of this process during an outage.
    pub local: MemoryStore,
    pub deadline: Duration,
    /// Times outages.
    pub clock: Clock,
    /// The clock of `local`, if it follows the server's.
    pub server_clock: Option<Clock>,
    pub instances: Option<u64>,
    pub warm_keys: usize,
    /// Whether the primary can be charged for what was admitted here.
    pub takes_merges: bool,
    pub silenced: SilencedCodes,
}

impl GuardSettings {
    /// Returns the default settings over this local store.
    pub fn new(local: MemoryStore) -> Self {
        Self {
            local,
            deadline: Duration::from_millis(50),
            clock: Clock::system(),
            server_clock: None,
            instances: None,
            warm_keys: WARM_KEYS,
            takes_merges: true,
            silenced: SilencedCodes::default(),
        }
    }

    /// Returns the maker of guards. `fleet` has the instances that share the store, unless their number is set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a deadline of zero or above 1 hour, and for 0 instances.
    pub fn build(self, fleet: impl FnOnce() -> Option<Arc<Fleet>>) -> Result<Guards, Error> {
        let refuse = |message| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.deadline.is_zero() {
            return refuse(
                "deadline of zero: no decision could be made in time; the default is 50 ms",
            );
        }
        if self.deadline > LONGEST_DEADLINE {
            return refuse(
                "deadline above 1 hour: no client waits that long; the default is 50 ms",
            );
        }
        let fleet = match self.instances.map(NonZeroU64::new) {
            Some(None) => {
                return refuse("0 instances: count this one too, or leave the number out");
            }
            Some(Some(count)) => Some(Arc::new(Fleet::fixed(count))),
            None => fleet(),
        };
        let server_clock = self.server_clock.unwrap_or_else(|| self.clock.clone());
        let mut local = LocalCounts::new(self.local, fleet, server_clock.clone(), self.warm_keys);
        local.takes_merges = self.takes_merges;
        Ok(Guards {
            deadline: self.deadline,
            all: Arc::new(AllServers::new(self.clock.clone(), self.silenced)),
            clock: self.clock,
            server_clock,
            local: Arc::new(local),
            probes: Arc::default(),
        })
    }
}

impl Guards {
    /// Returns a guard in front of a server, which judges it by its calls, or without `calls` by its decisions.
    pub fn guard(&self, primary: Arc<dyn Primary>, calls: Option<&Calls>) -> Arc<Guard> {
        let guard = Guard::new(primary, self, calls.is_some());
        if let Some(calls) = calls {
            calls.report_to(&guard);
        }
        guard
    }
}

/// The default of [`ResilientStoreBuilder::warm_keys`](super::ResilientStoreBuilder::warm_keys).
const WARM_KEYS: usize = 100_000;
const LONGEST_DEADLINE: Duration = Duration::from_secs(3_600);
