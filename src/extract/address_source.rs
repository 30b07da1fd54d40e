//! Sources of addresses, for lists of networks.

use std::net::IpAddr;

use crate::{diagnosis::Code, error::Error, request::RequestHead};

use super::{extracted::Extracted, extractor::KeyExtractor, peer::PeerIp};

/// Finds the address that a request comes from: [`PeerIp`], [`ClientIp`](super::ClientIp), or a closure
/// `Fn(&RequestHead<'_>) -> Option<IpAddr>`.
///
/// Used by [`AddressList`](crate::matching::AddressList).
pub trait AddressSource: Send + Sync + 'static {
    /// Returns the address, or whether it is absent or ambiguous.
    fn extract_address(&self, head: &RequestHead<'_>) -> Extracted<IpAddr>;

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
    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        let is_absent = self.extract_address(head) == Extracted::Absent;
        let is_missing = is_absent && PeerIp.address(head).is_none();
        is_missing.then_some(Code::NoPeerAddress)
    }
}

impl<F, R> AddressSource for F
where
    F: Fn(&RequestHead<'_>) -> R + Send + Sync + 'static,
    R: Into<Extracted<IpAddr>>,
{
    fn extract_address(&self, head: &RequestHead<'_>) -> Extracted<IpAddr> {
        self(head).into()
    }
}

impl AddressSource for PeerIp {
    fn extract_address(&self, head: &RequestHead<'_>) -> Extracted<IpAddr> {
        self.address(head).into()
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        KeyExtractor::diagnose(self, head)
    }
}
