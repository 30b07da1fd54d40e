//! Lists of addresses and of keys, for those who are always let pass or always refused.

use std::{collections::HashSet, fmt, net::IpAddr};

use http::request::Parts;
use ipnet::IpNet;

use crate::{
    diagnosis::Code,
    error::Error,
    extract::{KeyExtractor, PeerIp},
    key::Key,
};

use super::{
    matcher::{Likeness, Matcher},
    ranges::Ranges,
};

/// Requests from addresses in these networks.
///
/// Where the address is not known the request differs: a deny list lets it go on to the rules, and the layer warns of it
/// ([TG001](crate::diagnosis)) when the server tells no addresses. A look-up takes a binary
/// search, so lists of many thousands are fine; networks that touch are joined. IPv4 in IPv6 form is IPv4, in the list and
/// in requests.
#[derive(Clone)]
pub struct AddressList<F> {
    address: F,
    networks: Ranges,
}

impl<F> AddressList<F>
where
    F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
{
    /// The requests whose address, as `address` tells it, lies in one of the networks.
    pub fn new(address: F, networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self {
            address,
            networks: Ranges::new(networks),
        }
    }
}

impl<F> Matcher for AddressList<F>
where
    F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
{
    fn compare(&self, parts: &Parts) -> Likeness {
        let address = (self.address)(parts);
        address
            .is_some_and(|address| self.networks.contains(address))
            .into()
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let is_missing = (self.address)(parts).is_none() && PeerIp.address(parts).is_none();
        is_missing.then_some(Code::NoPeerAddress)
    }
}

impl<F> fmt::Debug for AddressList<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressList")
            .field("networks", &self.networks)
            .finish_non_exhaustive()
    }
}

// === KeyList ===

/// Requests with one of these keys, as an extractor finds them.
///
/// Where the key is missing the request differs; but where it is missing because there is more than one (a header that
/// comes twice), the request resembles, since a handler may take any of them. Browsers send two cookies of one name where
/// two paths set it, so deny by another thing than cookies. A look-up takes the same time however long the list is.
#[derive(Clone)]
pub struct KeyList<E> {
    extractor: E,
    keys: HashSet<Key>,
}

impl<E: KeyExtractor> KeyList<E> {
    /// The requests whose key is one of these. Make them as the extractor does: `Key::secret("..")` for an
    /// [`ApiKey`](crate::extract::ApiKey), `Key::new("..")` for a header.
    pub fn new(extractor: E, keys: impl IntoIterator<Item = Key>) -> Self {
        Self {
            extractor,
            keys: keys.into_iter().collect(),
        }
    }
}

impl<E: KeyExtractor> Matcher for KeyList<E> {
    fn compare(&self, parts: &Parts) -> Likeness {
        let key = self.extractor.extract(parts);
        match key.is_some_and(|key| self.keys.contains(&key)) {
            true => Likeness::Matches,
            false if self.extractor.is_ambiguous(parts) => Likeness::Resembles,
            false => Likeness::Differs,
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.extractor.validate()
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        self.extractor.diagnose(parts)
    }
}

impl<E: KeyExtractor> fmt::Debug for KeyList<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList")
            .field("by", &self.extractor.label())
            .field("keys", &self.keys.len())
            .finish()
    }
}
