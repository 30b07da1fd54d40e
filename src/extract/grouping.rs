//! Addresses that count together.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

/// How many leading bits of an address tell clients apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grouping {
    pub(super) ipv4: u8,
    pub(super) ipv6: u8,
}

impl Grouping {
    pub(super) fn validate(self) -> Result<(), Error> {
        let refuse = |message| Err(Error::new(ErrorKind::InvalidConfig, message));
        let Self { ipv4, ipv6 } = self;
        if !(8..=32).contains(&ipv4) {
            return refuse(format!("IPv4 prefix of {ipv4} bits: take 8 to 32"));
        }
        if !(48..=128).contains(&ipv6) {
            return refuse(format!("IPv6 prefix of {ipv6} bits: take 48 to 128"));
        }
        Ok(())
    }

    /// The network that stands for the address. IPv4 in IPv6 form is IPv4.
    pub(super) fn network(self, address: IpAddr) -> IpNet {
        let address = address.to_canonical();
        let prefix = match address {
            IpAddr::V4(_) => self.ipv4.min(32),
            IpAddr::V6(_) => self.ipv6.min(128),
        };
        IpNet::new_assert(address, prefix).trunc()
    }

    /// The network's address as a key.
    #[inline]
    pub(super) fn key(self, address: IpAddr) -> Key {
        match address.to_canonical() {
            // The usual case, and done for each request: an address that stands for itself.
            address @ IpAddr::V4(_) if self.ipv4 >= 32 => address.into(),
            address => self.network(address).addr().into(),
        }
    }
}

impl Default for Grouping {
    /// IPv4 addresses one by one, IPv6 by /64.
    fn default() -> Self {
        Self { ipv4: 32, ipv6: 64 }
    }
}
