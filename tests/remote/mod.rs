//! The Redis store: its servers, connections, credentials and clusters.

mod cluster;
mod cluster_split;
mod cluster_stuck;
mod credentials;
mod denials;
mod keys;
mod lanes;
mod lease_limits;
#[cfg(feature = "test-util")]
mod lease_model;
mod lease_steps;
mod lease_walk;
mod leases;
mod network;
mod refused;
#[cfg(feature = "test-util")]
mod region_bounds;
mod region_homes;
mod region_outages;
#[cfg(feature = "test-util")]
mod region_walk;
mod regions;
mod registration;
mod sentinel;
pub(crate) mod servers;
mod short_runtimes;
mod tls;
mod walks;
