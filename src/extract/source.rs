//! Where a request comes from, for those who want an address and not a key.

use std::net::IpAddr;

use http::request::Parts;

use crate::{diagnosis::Code, error::Error};

use super::{client_ip::ClientIp, extracted::Extracted, extractor::KeyExtractor, peer::PeerIp};

/// Tells the address that a request comes from: [`PeerIp`], [`ClientIp`], or a closure `Fn(&Parts) -> Option<IpAddr>`.
pub trait AddressSource: Send + Sync + 'static {
    /// Returns the address, or whether it is absent or ambiguous.
    fn locate(&self, parts: &Parts) -> Extracted<IpAddr>;

    /// Says what keeps it from working, when the layer is built.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), with what to do.
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }

    /// What looks wrong about the set-up, seen at this request.
    ///
    /// Default: [`Code::NoPeerAddress`] when neither this nor the server tells an address.
    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let is_absent = self.locate(parts) == Extracted::Absent;
        let is_missing = is_absent && PeerIp.address(parts).is_none();
        is_missing.then_some(Code::NoPeerAddress)
    }
}

impl<F, R> AddressSource for F
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: Into<Extracted<IpAddr>>,
{
    fn locate(&self, parts: &Parts) -> Extracted<IpAddr> {
        self(parts).into()
    }
}

/// For those who know by themselves where a request comes from.
macro_rules! tell {
    ($($extractor:ty: $address:ident),+) => {$(
        impl AddressSource for $extractor {
            fn locate(&self, parts: &Parts) -> Extracted<IpAddr> {
                self.$address(parts).into()
            }

            fn validate(&self) -> Result<(), Error> {
                KeyExtractor::validate(self)
            }

            fn diagnose(&self, parts: &Parts) -> Option<Code> {
                KeyExtractor::diagnose(self, parts)
            }
        }
    )+};
}

tell!(ClientIp: client, PeerIp: address);
