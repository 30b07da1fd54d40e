//! The sizes and loads of a store at one moment, for metrics.

use std::time::Duration;

#[cfg(feature = "dashboard")]
use super::durations::DurationCounts;

/// The sizes and loads of a store at one moment.
///
/// A custom [`Store`](crate::store::Store) returns what it knows; the rest stays unknown, and no metric is emitted for it.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    keys: Option<usize>,
    bytes: Option<usize>,
    leased: Option<(usize, u64)>,
    region_units: Option<u64>,
    servers: Vec<ServerStats>,
}

impl Stats {
    /// Sets the number of keys in this process, and the bytes that they take.
    #[must_use]
    pub fn in_process(mut self, keys: usize, bytes: usize) -> Self {
        (self.keys, self.bytes) = (Some(keys), Some(bytes));
        self
    }

    /// Sets the number of busy keys that this process watches or has [leased](crate::Consistency::Leased) units of, and the units
    /// that are left.
    #[must_use]
    pub fn leased(mut self, keys: usize, units: u64) -> Self {
        self.leased = Some((keys, units));
        self
    }

    /// Sets the units that this [region](crate::remote::Regions) holds of keys whose homes are elsewhere.
    #[must_use]
    #[cfg(feature = "redis")]
    pub(crate) fn of_region(mut self, units: u64) -> Self {
        self.region_units = Some(units);
        self
    }

    /// Adds a server.
    #[must_use]
    pub fn server(mut self, server: ServerStats) -> Self {
        self.servers.push(server);
        self
    }

    /// Returns the number of keys in this process; `None` if it is unknown.
    #[must_use]
    pub fn keys(&self) -> Option<usize> {
        self.keys
    }

    /// Returns the bytes that the keys in this process take; `None` if unknown.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        self.bytes
    }

    /// Returns the number of busy keys that this process watches or has leased units of; `None` without a leased policy.
    #[must_use]
    pub fn leased_keys(&self) -> Option<usize> {
        self.leased.map(|(keys, _)| keys)
    }

    /// Returns the leased units that are left; `None` without a leased policy.
    #[must_use]
    pub fn leased_units(&self) -> Option<u64> {
        self.leased.map(|(_, units)| units)
    }

    /// Returns the units that this region had left of keys whose homes are other regions, at the last report of each key by this
    /// process; `None` without regions. Processes of a region see the same units.
    #[must_use]
    pub fn region_units(&self) -> Option<u64> {
        self.region_units
    }

    /// Returns the servers of the store, in a cluster its nodes.
    #[must_use]
    pub fn servers(&self) -> &[ServerStats] {
        &self.servers
    }

    /// Returns the stats behind a breaker: it judges all servers, and keys are counted in `local` too.
    #[cfg(feature = "redis")]
    pub(crate) fn behind_breaker(
        self,
        is_open: bool,
        server: Option<String>,
        local: &Self,
    ) -> Self {
        let mut servers = self.servers;
        if servers.is_empty() {
            servers.push(ServerStats::new(server));
        }
        for server in &mut servers {
            server.is_breaker_open = Some(is_open);
        }
        Self {
            keys: local.keys,
            bytes: local.bytes,
            leased: self.leased,
            region_units: self.region_units,
            servers,
        }
    }

    /// Returns the stats of two nodes that share the local store.
    #[cfg(feature = "redis")]
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.servers.extend(other.servers);
        self
    }
}

// === ServerStats ===

/// The load of one server of a store, as this process sees it.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    address: Option<String>,
    is_breaker_open: Option<bool>,
    calls_in_flight: Option<usize>,
    charges_in_flight: Option<usize>,
    charges_waiting: Option<usize>,
    network: Option<Duration>,
    #[cfg(feature = "dashboard")]
    latency: Option<CallLatency>,
}

/// The latencies of the calls to a server.
#[cfg(feature = "dashboard")]
#[derive(Clone, Debug, Default)]
pub(crate) struct CallLatency {
    /// From the first decision of a call until the call is sent.
    pub queue_wait: DurationCounts,
    /// From sending a call until its reply is read.
    pub round_trip: DurationCounts,
}

impl ServerStats {
    /// Creates the stats of a server with an unknown load. `address` is `None` if it is unknown too.
    #[must_use]
    pub fn new(address: Option<String>) -> Self {
        Self {
            address,
            ..Self::default()
        }
    }

    /// Sets the numbers of calls and of charges that were sent and have no reply yet.
    #[must_use]
    pub fn in_flight(mut self, calls: usize, charges: usize) -> Self {
        (self.calls_in_flight, self.charges_in_flight) = (Some(calls), Some(charges));
        self
    }

    /// Sets the number of charges that wait in this process to be sent.
    #[must_use]
    pub fn waiting(mut self, charges: usize) -> Self {
        self.charges_waiting = Some(charges);
        self
    }

    /// Sets the shortest round trip measured, which is taken as that of the network alone.
    #[must_use]
    pub fn network(mut self, round_trip: Option<Duration>) -> Self {
        self.network = round_trip;
        self
    }

    /// Sets the latencies of all calls so far.
    #[cfg(all(feature = "dashboard", feature = "redis"))]
    pub(crate) fn with_latency(mut self, latency: CallLatency) -> Self {
        self.latency = Some(latency);
        self
    }

    /// Returns the latencies of all calls so far; `None` if they are unknown.
    #[cfg(feature = "dashboard")]
    pub(crate) fn latency(&self) -> Option<&CallLatency> {
        self.latency.as_ref()
    }

    /// Returns the address; `None` if only a pool of the application has it.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Returns whether the breaker in front of the server is open; `None` without a breaker.
    #[must_use]
    pub fn is_breaker_open(&self) -> Option<bool> {
        self.is_breaker_open
    }

    /// Returns the number of calls without a reply so far; `None` if it is unknown.
    #[must_use]
    pub fn calls_in_flight(&self) -> Option<usize> {
        self.calls_in_flight
    }

    /// Returns the number of charges in these calls; `None` if it is unknown.
    #[must_use]
    pub fn charges_in_flight(&self) -> Option<usize> {
        self.charges_in_flight
    }

    /// Returns the number of charges that wait in this process to be sent; `None` if it is unknown.
    #[must_use]
    pub fn charges_waiting(&self) -> Option<usize> {
        self.charges_waiting
    }

    /// Returns the round trip of the network alone; `None` before the first reply.
    #[must_use]
    pub fn network_round_trip(&self) -> Option<Duration> {
        self.network
    }
}
