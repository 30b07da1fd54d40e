//! Who is believed.

use std::net::IpAddr;

use crate::extract::network::Networks;

/// Who is believed about whom it got a request from.
#[derive(Clone, Debug)]
pub(super) enum Trust {
    /// The nearest proxies, so many.
    Hops(usize),
    /// Whoever has an address in these networks.
    Networks(Networks),
    Nobody,
}

impl Trust {
    /// Whether somebody is believed, by its address and by how many proxies stand between.
    pub(super) fn includes(&self, address: Option<IpAddr>, distance: usize) -> bool {
        match self {
            Self::Hops(hops) => distance < *hops,
            Self::Networks(networks) => address.is_some_and(|address| networks.contains(address)),
            Self::Nobody => false,
        }
    }
}
