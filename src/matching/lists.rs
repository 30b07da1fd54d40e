//! Lists of addresses and of keys, for those who are always let pass or always refused.

use std::{collections::HashSet, fmt};

use http::request::Parts;

use crate::{
    diagnosis::Code,
    error::Error,
    extract::{AddressSource, Extracted, KeyExtractor, Network, Networks},
    key::Key,
};

use super::{
    matcher::{Match, Matcher},
    ranges::Ranges,
};

/// Requests from addresses in these networks.
///
/// Where the address is ambiguous the request resembles. Where it is absent the request differs: a deny list lets it go on to the rules, and the layer warns of it
/// ([TG001](crate::diagnosis)) when the server provides no addresses. A look-up takes a binary search, so lists of many thousands
/// are fine; networks that touch are joined. IPv4 in IPv6 form is IPv4, in the list and in requests.
#[derive(Clone)]
pub struct AddressList<A> {
    source: A,
    networks: Result<Ranges, Error>,
}

impl<A: AddressSource> AddressList<A> {
    /// The requests whose address, as the source tells it, lies in one of the networks: text such as `"203.0.113.0/24"` or
    /// `"192.0.2.7"`, [`IpAddr`](std::net::IpAddr)s or [`IpNet`](ipnet::IpNet)s. What is no network is reported at `build()`.
    pub fn new<N: Into<Network>>(source: A, networks: impl IntoIterator<Item = N>) -> Self {
        let networks = Networks::new(networks);
        Self {
            source,
            networks: networks.map(|networks| Ranges::new(networks.iter())),
        }
    }
}

impl<A: AddressSource> Matcher for AddressList<A> {
    fn matches(&self, parts: &Parts) -> Match {
        let Ok(networks) = &self.networks else {
            return Match::Miss;
        };
        match self.source.locate(parts) {
            Extracted::Absent => Match::Miss,
            Extracted::Ambiguous => Match::Possible,
            Extracted::Found(address) => networks.contains(address).into(),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        if let Err(error) = &self.networks {
            return Err(error.clone());
        }
        self.source.validate()
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        self.source.diagnose(parts)
    }
}

impl<A> fmt::Debug for AddressList<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressList")
            .field("networks", &self.networks)
            .finish_non_exhaustive()
    }
}

// === KeyList ===

/// Requests with one of these keys, as an extractor finds them.
///
/// Where the key is absent the request differs. Where it is ambiguous (a header that comes twice) the request resembles,
/// since a handler may take any of them. Browsers send two cookies of one name where
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
    fn matches(&self, parts: &Parts) -> Match {
        match self.extractor.extract(parts) {
            Extracted::Absent => Match::Miss,
            Extracted::Ambiguous => Match::Possible,
            Extracted::Found(key) => self.keys.contains(&key).into(),
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
