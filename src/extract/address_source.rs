//! Sources of addresses, for lists of networks.

use std::net::IpAddr;

use http::request::Parts;

use crate::{diagnosis::Code, error::Error};

use super::{extracted::Extracted, extractor::KeyExtractor, peer::PeerIp};

/// Finds the address that a request comes from: [`PeerIp`], [`ClientIp`](super::ClientIp), or a closure
/// `Fn(&Parts) -> Option<IpAddr>`.
///
/// Used by [`AddressList`](crate::matching::AddressList).
pub trait AddressSource: Send + Sync + 'static {
    /// Returns the address, or whether it is absent or ambiguous.
    fn extract_address(&self, parts: &Parts) -> Extracted<IpAddr>;

    /// Checks the settings; called once, when the layer is built.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), whose message contains what to change.
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the code of a misconfiguration that this request shows.
    ///
    /// Default: [`Code::NoPeerAddress`] when the source finds no address and the server does not provide one.
    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let is_absent = self.extract_address(parts) == Extracted::Absent;
        let is_missing = is_absent && PeerIp.address(parts).is_none();
        is_missing.then_some(Code::NoPeerAddress)
    }
}

impl<F, R> AddressSource for F
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: Into<Extracted<IpAddr>>,
{
    fn extract_address(&self, parts: &Parts) -> Extracted<IpAddr> {
        self(parts).into()
    }
}

impl AddressSource for PeerIp {
    fn extract_address(&self, parts: &Parts) -> Extracted<IpAddr> {
        self.address(parts).into()
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        KeyExtractor::diagnose(self, parts)
    }
}
