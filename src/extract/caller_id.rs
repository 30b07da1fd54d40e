//! How an operator identifies a caller.

use std::net::IpAddr;

use crate::key::{HashSecret, Key};

/// A caller as an operator knows it: by an address, an API key, or another text.
///
/// An extractor makes [keys](super::KeyExtractor::keys_of) of it, so that the caller is found under every policy.
///
/// # Examples
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::{Key, extract::{CallerId, Header, KeyExtractor, PeerIp}};
///
/// let address = CallerId::Address(IpAddr::from([203, 0, 113, 7]));
/// assert_eq!(PeerIp.keys_of(&address), [Key::new("203.0.113.7")]);
/// // With `or_else`, addresses are counted apart from the values of the header.
/// let keys = Header::new("x-tenant").or_else(PeerIp).keys_of(&address);
/// assert_eq!(keys[0].as_str(), "x-tenant-or-peer-ip!203.0.113.7");
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CallerId<'a> {
    /// An IP address.
    Address(IpAddr),
    /// An API key, a token or a session cookie.
    #[non_exhaustive]
    Secret {
        /// As the caller sends it.
        secret: &'a str,
        /// The secret that closures hash it with; `None` for tollgate's constant.
        hash_secret: Option<&'a HashSecret>,
    },
    /// Any text: a value that the caller sends, or the identity that the application finds for it.
    Text(&'a str),
}

impl<'a> CallerId<'a> {
    /// Returns the key that most closures make: of an address by [`Key::from`], of a secret by [`Key::secret`], and of a text
    /// by [`Key::new`].
    #[must_use]
    pub fn key(&self) -> Key {
        match *self {
            Self::Address(address) => Key::from(address),
            Self::Secret {
                secret,
                hash_secret: Some(hash_secret),
            } => Key::secret_with(hash_secret, secret),
            Self::Secret { secret, .. } => Key::secret(secret),
            Self::Text(text) => Key::new(text),
        }
    }

    /// Returns the address. `None` for a secret, and for a text that is not an address.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Secret { .. } => None,
            Self::Text(text) => text.parse().ok(),
        }
    }

    /// Returns the text or the secret, as a caller may send it. `None` for an address.
    #[must_use]
    pub fn value(&self) -> Option<&'a str> {
        match *self {
            Self::Address(_) => None,
            Self::Secret { secret, .. } => Some(secret),
            Self::Text(text) => Some(text),
        }
    }
}
