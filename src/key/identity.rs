//! The identity that is counted.

use std::{fmt, net::IpAddr, sync::LazyLock};

use super::{hash_key::HashSecret, spelling::Buffer};

/// Who is counted: an address, a user, an API key, a route, or several of them together.
///
/// A key holds its *canonical identity*: 1 to 46 ASCII characters that two keys share only when they were made
/// from the same bytes in the same way. Plain bytes stand for themselves, others are escaped as `%XX`; what does
/// not fit is replaced by 128 bits of its BLAKE3 hash. So no key is empty, holds a brace, or costs memory by its
/// length, whatever a client sends. [`Key::secret`] always hashes: the secret itself leaves at once.
///
/// `Debug` does not show the identity, so that a log line does not leak it; [`as_str`](Self::as_str) does.
///
/// # Examples
///
/// ```
/// use tollgate::Key;
///
/// assert_eq!(Key::new("user:42").as_str(), "user:42");
/// assert_eq!(Key::new("{a b}").as_str(), "%7Ba%20b%7D");
/// assert_eq!(Key::new("").as_str(), "%");
/// assert_eq!(Key::new([0xFF; 1_000_000]).as_str().len(), 33);
/// assert_ne!(Key::secret("k-1"), Key::new("k-1"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub(super) length: u8,
    pub(super) bytes: [u8; Key::MAX_LENGTH],
}

impl Key {
    /// The longest identity, in characters.
    pub const MAX_LENGTH: usize = 46;

    /// Everybody: the key of a policy that counts all requests together.
    pub const GLOBAL: Self = Self::marker(b'*');

    /// Everybody whose key could not be told, counted together.
    pub const UNIDENTIFIED: Self = Self::marker(b'?');

    /// A key from any bytes.
    ///
    /// Over 46 characters when escaped, they are replaced by 128 bits of BLAKE3 under a constant that is part of
    /// tollgate (derive-key context `tollgate v1 long key`), so every instance finds the same key and nobody can
    /// build two inputs that collide.
    #[must_use]
    pub fn new(identity: impl AsRef<[u8]>) -> Self {
        Self::plain(identity.as_ref())
    }

    /// A key from a secret such as an API key or a session cookie, hashed under tollgate's constant.
    ///
    /// The hash keeps the secret out of Redis, logs and memory dumps. A secret that can be guessed can be guessed
    /// against the hash too: give the fleet a [`HashSecret`] of its own and use [`secret_with`](Self::secret_with).
    #[must_use]
    pub fn secret(secret: impl AsRef<[u8]>) -> Self {
        Self::secret_with(&SECRET_KEY, secret)
    }

    /// A key from a secret, hashed under the fleet's own key.
    #[must_use]
    pub fn secret_with(hash_key: &HashSecret, secret: impl AsRef<[u8]>) -> Self {
        Self::digest(b'$', hash_key, secret.as_ref())
    }

    /// The key of both together, in this order. Two keys joined of the same number of parts in the same way are equal
    /// only when all parts are. Joining is associative as long as the whole fits and nothing is hashed.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        // `|` is in neither part unless it too was joined, and joining is associative: a|b|c is one triple.
        self.joined(b'|', other)
    }

    /// The same identity in a name space of its own, so that no other kind of key can pass for it.
    ///
    /// `or_else` does this: a client whose header reads `192.0.2.1` must not spend that address' quota. Who labels
    /// many keys makes the label a key once.
    #[must_use]
    pub fn labelled(&self, label: impl Into<Self>) -> Self {
        label.into().joined(b'!', self)
    }

    /// The key as that of a first choice, which no [`labelled`](Self::labelled) key can be.
    pub(crate) fn first_choice(&self) -> Self {
        // Without a label there is no `!` in it, nor in what it may be the hash of: it stays as it is and can be read.
        // Any other gets a beginning that no label has, since none is empty.
        let may_be_labelled = self.bytes[0] == b'&' || self.as_bytes().contains(&b'!');
        match may_be_labelled {
            true => Self::marker(b'!').joined(b'!', self),
            false => *self,
        }
    }

    /// The identity as it is counted, and as it stands in Redis: not for logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("a key is ASCII")
    }

    /// The identity as bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    #[inline]
    fn plain(identity: &[u8]) -> Self {
        let is_plain =
            !identity.is_empty() && identity.iter().all(|byte| PLAIN[usize::from(*byte)]);
        let fitting = is_plain.then(|| Self::fitting(identity)).flatten();
        if let Some(key) = fitting {
            return key;
        }
        Self::escaped(identity).unwrap_or_else(|| Self::digest(b'#', &LONG_KEY, identity))
    }

    #[inline]
    fn fitting(identity: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LENGTH];
        bytes.get_mut(..identity.len())?.copy_from_slice(identity);
        let length = u8::try_from(identity.len()).ok()?;
        Some(Self { length, bytes })
    }

    fn escaped(identity: &[u8]) -> Option<Self> {
        let mut buffer = Buffer::default();
        if identity.is_empty() {
            // A lone `%` is no escape, so no other key looks like it.
            buffer.push(b'%')?;
        }
        for byte in identity {
            if PLAIN[usize::from(*byte)] {
                buffer.push(*byte)?;
            } else {
                buffer.push(b'%')?;
                buffer.push_hex(*byte)?;
            }
        }
        Some(buffer.key)
    }

    fn joined(&self, joint: u8, other: &Self) -> Self {
        let (left, right) = (self.as_bytes(), other.as_bytes());
        let mut both = [0; 2 * Self::MAX_LENGTH + 1];
        both[..left.len()].copy_from_slice(left);
        both[left.len()] = joint;
        both[left.len() + 1..][..right.len()].copy_from_slice(right);
        let both = &both[..=left.len() + right.len()];
        Self::fitting(both).unwrap_or_else(|| Self::digest(b'&', &JOINED_KEY, both))
    }

    fn digest(marker: u8, hash_key: &HashSecret, bytes: &[u8]) -> Self {
        let hash = blake3::keyed_hash(&hash_key.0, bytes);
        let mut buffer = Buffer::default();
        let fits = buffer.push(marker).is_some()
            && hash.as_bytes()[..16]
                .iter()
                .all(|byte| buffer.push_hex(*byte).is_some());
        debug_assert!(fits, "33 characters fit in 46");
        buffer.key
    }

    const fn marker(marker: u8) -> Self {
        let mut bytes = [0; Self::MAX_LENGTH];
        bytes[0] = marker;
        Self { length: 1, bytes }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl From<&str> for Key {
    fn from(identity: &str) -> Self {
        Self::plain(identity.as_bytes())
    }
}

impl From<String> for Key {
    fn from(identity: String) -> Self {
        Self::plain(identity.as_bytes())
    }
}

impl From<u64> for Key {
    fn from(identity: u64) -> Self {
        Self::written(identity)
    }
}

impl From<IpAddr> for Key {
    /// The address in its usual notation; an IPv4 address mapped into IPv6 is the IPv4 address.
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::dotted(address.octets()),
            IpAddr::V6(address) => Self::coloned(address.segments()),
        }
    }
}

/// Bytes that stand for themselves. Not among them: braces (they end a hash tag), `%` (it escapes), `|` and `!` (they
/// join) and the markers `* ? # $ &`.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "byte < 256")]
        let character = byte as u8;
        plain[byte] = character.is_ascii_alphanumeric()
            || matches!(
                character,
                b'.' | b'_' | b'-' | b'@' | b'/' | b'+' | b'=' | b'~' | b':' | b','
            );
        byte += 1;
    }
    plain
};

static LONG_KEY: LazyLock<HashSecret> =
    LazyLock::new(|| HashSecret(blake3::derive_key("tollgate v1 long key", &[])));
static JOINED_KEY: LazyLock<HashSecret> =
    LazyLock::new(|| HashSecret(blake3::derive_key("tollgate v1 joined key", &[])));
static SECRET_KEY: LazyLock<HashSecret> =
    LazyLock::new(|| HashSecret(blake3::derive_key("tollgate v1 secret", &[])));
