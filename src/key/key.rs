//! Keys: the identities that are counted.
//!
//! A key is a short text, since it becomes part of a Redis key. Its first character, or a joining one inside it, shows
//! how it was made, so keys that were made in different ways are never equal:
//!
//! ```text
//! user:42          plain bytes, unchanged
//! %7Ba%20b%7D      plain bytes and escaped ones; a lone % is the empty identity
//! #0F3A..          hash of bytes that are too long
//! $0F3A..          hash of a secret
//! a|b              two keys joined by `and`
//! label!a          a key in the namespace of a label; !!a is a key that no label can produce
//! &0F3A..          hash of a joined or labelled key that is too long
//! * and ?          Key::GLOBAL and Key::UNIDENTIFIED
//! aB3^a|b          a key that was put in the slot of another one, whose tag is aB3
//! ```
//!
//! # Why are keys canonical, 46 characters at most?
//!
//! Clients choose the content of many keys. Without a canonical form, a key could be empty, one megabyte long, or contain the
//! braces that decide its cluster slot. Two keys are equal only if they were made from the same bytes in the same way.
//! 46 characters hold any address, a UUID, a hash and most names, so operators can read keys in Redis. A key is stored inline,
//! and copied instead of allocated.
//!
//! ```rust
//! use tollgate::Key;
//!
//! assert_eq!(Key::new("2001:db8::1").as_str(), "2001:db8::1");
//! assert_eq!(Key::new("{a}").as_str(), "%7Ba%7D");
//! assert_eq!(Key::new("GET").and(&Key::new("/users/{id}")).as_str(), "GET|/users/%7Bid%7D");
//! ```
//!
//! # Why are keys not compared in constant time?
//!
//! Input is never compared with a secret of the server. A client's own bytes are hashed, and the hash is looked up. The time of
//! that reveals nothing about the secrets of others. (Tokens of the dashboard are compared: `src/dashboard/guard.rs`.)

#[cfg(feature = "top-keys")]
use std::hash::{BuildHasher, RandomState};
use std::{fmt, net::IpAddr, ops::Range, sync::LazyLock};

use super::{
    address,
    slot::{slot_of, tag_of},
};

/// The identity that is counted: an address, a user, an API key, a route, or several of them together.
///
/// A key holds its *canonical identity*, 1 to 46 ASCII characters. Two keys are equal only if they were made from the
/// same bytes in the same way. Letters, digits and common punctuation are kept, other bytes are escaped as `%XX`, and an
/// identity that does not fit is replaced by 128 bits of its BLAKE3 hash. So no key is empty, contains a brace, or uses
/// more memory because of its length, whatever a client sends. [`Key::secret`] always hashes.
///
/// `Debug` hides the identity, so that log lines do not leak it; [`as_str`](Self::as_str) returns it.
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
// Aligned, so that copies move whole words: a key is written in small pieces, and unaligned copies would wait for them.
#[repr(align(8))]
pub struct Key {
    /// The identity, zeros, and its length in the last byte, so that equal keys have equal bytes.
    bytes: [u8; SIZE],
}

impl Key {
    /// The longest identity, in characters.
    pub const MAX_LENGTH: usize = 46;

    /// The number of 64-bit words in a key.
    pub(crate) const WORDS: usize = 6;

    /// The key of a policy that counts all requests together.
    pub const GLOBAL: Self = Self::marker(b'*');

    /// The key that all requests without a key of their own share.
    pub const UNIDENTIFIED: Self = Self::marker(b'?');

    /// Makes a key from any bytes.
    ///
    /// An identity of more than 46 characters, escapes included, is replaced by 128 bits of its BLAKE3 hash. The hash
    /// uses a constant of tollgate (derive-key context `tollgate v1 long key`): every instance makes the same key, and
    /// nobody can build two inputs that collide.
    #[must_use]
    pub fn new(identity: impl AsRef<[u8]>) -> Self {
        Self::from_bytes(identity.as_ref())
    }

    /// Makes a key from a secret such as an API key or a session cookie, hashed with tollgate's constant.
    ///
    /// The hash keeps the secret out of Redis, logs and memory dumps. A guessable secret can still be found by hashing
    /// guesses: for those, give the fleet its own [`HashSecret`] and use [`secret_with`](Self::secret_with).
    #[must_use]
    pub fn secret(secret: impl AsRef<[u8]>) -> Self {
        Self::secret_with(&DEFAULT_SECRET, secret)
    }

    /// Makes a key from a secret, hashed with the fleet's own [`HashSecret`].
    #[must_use]
    pub fn secret_with(hash_secret: &HashSecret, secret: impl AsRef<[u8]>) -> Self {
        Self::hashed(b'$', hash_secret, secret.as_ref())
    }

    /// Makes a key of the address of a network, in its usual notation.
    #[inline]
    pub(crate) fn of_network(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::from_ipv4(address.octets()),
            IpAddr::V6(address) => Self::from_ipv6(address.segments()),
        }
    }

    /// Joins two keys into one, in this order.
    ///
    /// Keys joined from the same number of parts in the same way are equal only if all parts are. Joining is
    /// associative as long as the result fits and is not hashed.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        // `|` is in neither part unless that part was joined too, and joining is associative: a|b|c is one triple.
        self.joined(b'|', other)
    }

    /// Puts the key in the slot of another one, so that one script on one node of a Redis cluster decides both.
    ///
    /// Otherwise keys that differ are usually in different slots, and are charged separately: see
    /// [Redis Cluster](crate::remote#redis-cluster). All keys in one slot are on one node, so put together only what is
    /// asked for together, such as a tenant and its users.
    ///
    /// The result differs from the same key without it, and is four characters longer. Keys that are joined or labelled
    /// afterwards stay in the slot.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// let tenant = Key::new("acme");
    /// let user = Key::new("acme").and(&Key::new("ada")).co_located_with(&tenant);
    /// assert!(user.as_str().ends_with("^acme|ada"));
    /// ```
    #[must_use]
    pub fn co_located_with(&self, other: &Self) -> Self {
        Self::in_slot(&tag_of(other.slot()), self.without_slot())
    }

    /// Returns the key with this identity, as [`as_str`](Self::as_str) returned it. `None` if that is not an identity.
    #[cfg(feature = "redis")]
    pub(crate) fn from_identity(identity: &str) -> Option<Self> {
        let is_usable = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        (!identity.is_empty() && identity.bytes().all(is_usable))
            .then(|| Self::unchanged(identity.as_bytes()))
            .flatten()
    }

    /// Moves the key to the namespace of a label, where no key of another kind can equal it.
    ///
    /// [`or_else`](crate::extract::KeyExtractor::or_else) does this: a client that sends `192.0.2.1` in a header must
    /// not use up the quota of that address. To label many keys, convert the label to a [`Key`] once.
    #[must_use]
    pub fn labelled(&self, label: impl Into<Self>) -> Self {
        label.into().joined(b'!', self)
    }

    /// Returns the key with this canonical identity, as [`as_str`](Self::as_str) returns it; `None` if it has none.
    #[cfg(feature = "dashboard")]
    pub(crate) fn of_identity(identity: &str) -> Option<Self> {
        let is_written = |byte: &u8| PLAIN[usize::from(*byte)] || b"%#$&|!*?^".contains(byte);
        let is_identity = !identity.is_empty() && identity.bytes().all(|byte| is_written(&byte));
        is_identity.then(|| Self::unchanged(identity.as_bytes()))?
    }

    /// Returns the key in a form that no [`labelled`](Self::labelled) key equals.
    pub(crate) fn unlabelled(&self) -> Self {
        // A key without `!` was not labelled, unless it is the hash of one that was: it stays readable. Other keys get
        // an empty label, which no labelled key has.
        let identity = self.without_slot();
        let may_be_labelled = identity.starts_with(b"&") || identity.contains(&b'!');
        if may_be_labelled {
            Self::marker(b'!').joined(b'!', self)
        } else {
            *self
        }
    }

    /// Returns the identity as it is counted and as it appears in Redis. Do not log it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("a key is ASCII")
    }

    /// Returns the identity as bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length()]
    }

    /// Returns the identity in words, without those after its end. Different keys have different words.
    #[inline]
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let (words, _) = self.bytes.as_chunks();
        let words = words.iter().take(self.length().div_ceil(8));
        words.map(|word| u64::from_le_bytes(*word))
    }

    #[inline]
    fn length(&self) -> usize {
        self.bytes[SIZE - 1].into()
    }

    /// Returns the text that determines the slot of the key in a Redis cluster.
    #[inline]
    pub(crate) fn hash_tag(&self) -> &[u8] {
        &self.as_bytes()[..self.tag_length().unwrap_or(self.length())]
    }

    /// Returns the slot of the key in a Redis cluster.
    #[inline]
    pub(crate) fn slot(&self) -> u16 {
        slot_of(self.hash_tag())
    }

    /// Returns the identities that were joined into this one.
    #[cfg(feature = "redis")]
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.without_slot().split(|byte| *byte == b'|')
    }

    /// Returns the length of the tag, if the key was put in the slot of another one.
    #[inline]
    fn tag_length(&self) -> Option<usize> {
        (self.bytes[TAG_LENGTH] == b'^').then_some(TAG_LENGTH)
    }

    /// Returns the identity without the tag of a slot.
    pub(crate) fn without_slot(&self) -> &[u8] {
        &self.as_bytes()[self.tag_length().map_or(0, |length| length + 1)..]
    }

    #[cold]
    fn in_slot(tag: &[u8], identity: &[u8]) -> Self {
        let with_tag = |identity: &[u8]| Self::unchanged(&[tag, b"^", identity].concat());
        let hashed = || with_tag(Self::hashed(b'&', &JOINED_KEY_SECRET, identity).as_bytes());
        with_tag(identity)
            .or_else(hashed)
            .expect("a tag and a hash fit in 46 characters")
    }

    /// Returns whether no byte must be escaped.
    #[inline]
    pub(crate) fn is_plain(identity: &[u8]) -> bool {
        // Without a branch for each byte: nearly all keys are plain to their end.
        let bytes = identity.iter();
        bytes.fold(true, |all, byte| all & PLAIN[usize::from(*byte)])
    }

    #[inline]
    fn from_bytes(identity: &[u8]) -> Self {
        let fits = (1..=Self::MAX_LENGTH).contains(&identity.len());
        if fits && Self::is_plain(identity) {
            // Built where it is returned, because this runs for each request.
            let mut key = KeyWriter::new().0;
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_LENGTH")]
            let length = identity.len() as u8;
            key.bytes[SIZE - 1] = length;
            key.bytes[..identity.len()].copy_from_slice(identity);
            return key;
        }
        Self::escaped(identity).unwrap_or_else(|| Self::hashed(b'#', &LONG_KEY_SECRET, identity))
    }

    /// Escapes an identity that is not plain. `None` when the result is longer than a key.
    fn escaped(identity: &[u8]) -> Option<Self> {
        if identity.is_empty() {
            // A lone `%` is not an escape, so no other key equals it.
            return Some(Self::marker(b'%'));
        }
        if identity.len() > Self::MAX_LENGTH {
            return None;
        }
        let is_plain = |byte: &u8| PLAIN[usize::from(*byte)];
        let escapes = identity.iter().filter(|byte| !is_plain(byte)).count();
        if identity.len() + 2 * escapes > Self::MAX_LENGTH {
            return None;
        }
        let mut key = KeyWriter::new();
        for byte in identity {
            if is_plain(byte) {
                key.push(*byte);
            } else {
                key.push(b'%');
                key.push_hex(*byte);
            }
        }
        Some(key.finish())
    }

    /// Takes characters that are valid in a key. `None` when there are too many.
    #[inline]
    fn unchanged(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; SIZE];
        bytes[..Self::MAX_LENGTH]
            .get_mut(..text.len())?
            .copy_from_slice(text);
        bytes[SIZE - 1] = u8::try_from(text.len()).ok()?;
        Some(Self { bytes })
    }

    fn joined(&self, joint: u8, other: &Self) -> Self {
        let (left, right) = (self.as_bytes(), other.as_bytes());
        if let Some(tagged) = [self, other]
            .into_iter()
            .find(|key| key.tag_length().is_some())
        {
            let joined = [self.without_slot(), &[joint], other.without_slot()].concat();
            return Self::in_slot(tagged.hash_tag(), &joined);
        }
        let mut both = [0; 2 * Self::MAX_LENGTH + 1];
        both[..left.len()].copy_from_slice(left);
        both[left.len()] = joint;
        both[left.len() + 1..][..right.len()].copy_from_slice(right);
        let both = &both[..=left.len() + right.len()];
        Self::unchanged(both).unwrap_or_else(|| Self::hashed(b'&', &JOINED_KEY_SECRET, both))
    }

    /// The marker and 128 bits of the hash in hexadecimal: 33 characters.
    fn hashed(marker: u8, hash_secret: &HashSecret, bytes: &[u8]) -> Self {
        let hash = blake3::keyed_hash(&hash_secret.0, bytes);
        let mut key = KeyWriter::new();
        key.push(marker);
        for byte in &hash.as_bytes()[..16] {
            key.push_hex(*byte);
        }
        key.finish()
    }

    /// Writes an IPv4 address as `Display` does, many times as fast: this runs for each request.
    // Not inlined, so that it writes the key where it is needed: a copy would wait for the writes.
    #[inline(never)]
    pub(crate) fn from_ipv4([a, b, c, d]: [u8; 4]) -> Self {
        // Put together in registers: a read of what was just written in smaller pieces would wait for it.
        let (first, first_length) = two_octets(a, b);
        let (second, second_length) = two_octets(c, d);
        let length = first_length + second_length - 1;
        let text = u128::from(first) | u128::from(second) << (8 * first_length);
        let text = text & !(0xFF << (8 * length)); // no dot after the last octet
        let mut bytes = [0; SIZE];
        bytes[..16].copy_from_slice(&text.to_le_bytes());
        let length = u8::try_from(length).expect("an IPv4 address has 15 characters at most");
        bytes[SIZE - 8..].copy_from_slice(&(u64::from(length) << 56).to_le_bytes());
        Self { bytes }
    }

    /// Writes an IPv6 address as `Display` does (RFC 5952, section 4), several times as fast.
    fn from_ipv6(segments: [u16; 8]) -> Self {
        let mut key = KeyWriter::new();
        let zeros = longest_zeros(&segments);
        let mut index = 0;
        while let Some(segment) = segments.get(index) {
            if zeros.contains(&index) {
                key.push(b':');
                index = zeros.end;
                if index == segments.len() {
                    key.push(b':');
                }
                continue;
            }
            if index > 0 {
                key.push(b':');
            }
            key.push_segment(*segment);
            index += 1;
        }
        key.finish()
    }

    fn from_number(mut number: u64) -> Self {
        let mut digits = [0; 20]; // as many as the largest number has
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + u8::try_from(number % 10).expect("a digit is below 10");
            number /= 10;
            if number == 0 {
                break;
            }
        }
        Self::unchanged(&digits[start..]).expect("20 digits fit in 46 characters")
    }

    const fn marker(marker: u8) -> Self {
        let mut bytes = [0; SIZE];
        bytes[0] = marker;
        bytes[SIZE - 1] = 1;
        Self { bytes }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl From<&str> for Key {
    fn from(identity: &str) -> Self {
        Self::from_bytes(identity.as_bytes())
    }
}

impl From<String> for Key {
    fn from(identity: String) -> Self {
        Self::from_bytes(identity.as_bytes())
    }
}

impl From<u64> for Key {
    fn from(identity: u64) -> Self {
        Self::from_number(identity)
    }
}

impl From<IpAddr> for Key {
    /// Makes the key that [`PeerIp`](crate::extract::PeerIp) counts an address by: an IPv4 address, or the /64 network of an
    /// IPv6 address.
    ///
    /// The addresses of one customer share a key, such as `2001:db8:0:1::`. IPv4-mapped addresses, and those of clients behind
    /// NAT64, get the key of their IPv4 address: see [IPv6](crate::extract#ipv6). For keys of single IPv6 addresses, make
    /// them with [`ClientIp::ipv6_prefix`](crate::extract::ClientIp::ipv6_prefix).
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address {
            // Of the whole address nothing is cleared.
            IpAddr::V4(address) => Self::from_ipv4(address.octets()),
            IpAddr::V6(_) => {
                let (network, _) = address::network_of(address, 32, address::IPV6_PREFIX);
                Self::of_network(network)
            }
        }
    }
}

const SIZE: usize = 8 * Key::WORDS;
/// The length of a [`SlotTag`](crate::key::SlotTag).
const TAG_LENGTH: usize = 3;

// === KeyWriter ===

/// A key that is written character by character. The characters must fit.
struct KeyWriter(Key);

impl KeyWriter {
    fn new() -> Self {
        Self(Key { bytes: [0; SIZE] })
    }

    fn push(&mut self, character: u8) {
        let length = self.0.length();
        self.0.bytes[length] = character;
        self.0.bytes[SIZE - 1] += 1;
    }

    fn push_hex(&mut self, byte: u8) {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        self.push(DIGITS[usize::from(byte >> 4)]);
        self.push(DIGITS[usize::from(byte & 15)]);
    }

    /// Writes a segment of an IPv6 address: lower case, without leading zeros.
    fn push_segment(&mut self, segment: u16) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let bits = u16::BITS - segment.leading_zeros();
        for digit in (0..bits.div_ceil(4).max(1)).rev() {
            self.push(DIGITS[usize::from(segment >> (4 * digit) & 15)]);
        }
    }

    fn finish(self) -> Key {
        self.0
    }
}

/// Returns two octets in decimal with a dot after each, the first character in the lowest byte, and their length.
fn two_octets(first: u8, second: u8) -> (u64, usize) {
    let (first, first_length) = OCTETS[usize::from(first)];
    let (second, second_length) = OCTETS[usize::from(second)];
    let text = u64::from(first) | u64::from(second) << (8 * first_length);
    (text, usize::from(first_length + second_length))
}

/// Returns the longest run of at least two zeros, the first one of several. Empty when there is none.
fn longest_zeros(segments: &[u16; 8]) -> Range<usize> {
    let (mut longest, mut start) = (0..0, 0);
    for (index, segment) in segments.iter().enumerate() {
        if *segment > 0 {
            start = index + 1;
        } else if index + 1 - start > longest.len().max(1) {
            longest = start..index + 1;
        }
    }
    longest
}

// === HashSecret ===

/// The secret that a fleet hashes API keys, session cookies and other credentials with.
///
/// Every instance must get the same 32 bytes, or each counts on its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashSecret([u8; 32]);

impl HashSecret {
    /// Makes a hash secret from 32 random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Makes a hash secret from a passphrase of any length (BLAKE3 derive-key, context `tollgate v1 passphrase`).
    #[must_use]
    pub fn from_passphrase(passphrase: impl AsRef<[u8]>) -> Self {
        Self(blake3::derive_key(
            "tollgate v1 passphrase",
            passphrase.as_ref(),
        ))
    }

    /// Makes a hash secret that only this process has, from the standard library's entropy.
    #[cfg(feature = "top-keys")]
    pub(crate) fn random() -> Self {
        let mut bytes = [0; 32];
        for (index, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&RandomState::new().hash_one(index).to_ne_bytes());
        }
        Self(bytes)
    }

    /// Derives the secret that hashes keys for operators, so that its hashes differ from those of API keys.
    #[cfg(feature = "top-keys")]
    pub(crate) fn for_shown_keys(&self) -> Self {
        Self(blake3::derive_key("tollgate v1 shown key", &self.0))
    }

    /// Returns a number that identifies the secret and does not reveal it. It is never 0.
    #[cfg(feature = "top-keys")]
    pub(crate) fn tag(&self) -> u64 {
        let hash = blake3::derive_key("tollgate v1 secret tag", &self.0);
        let [a, b, c, d, e, f, g, h, ..] = hash;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(..)")
    }
}

/// Bytes that a key holds unescaped. Braces are not among them (they delimit the hash tag of a Redis key), nor `%` (the
/// escape), `|` and `!` (the joints), and the markers `* ? # $ &`.
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

/// Each octet in decimal with a dot after it, the first character in the lowest byte, and its length.
const OCTETS: [(u32, u8); 256] = {
    let mut octets = [(0, 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let zero = b'0' as u32;
        let (hundreds, tens) = (zero + octet / 100, zero + octet / 10 % 10);
        let (ones, dot) = (zero + octet % 10, b'.' as u32);
        octets[octet as usize] = match octet {
            0..10 => (ones | dot << 8, 2),
            10..100 => (tens | ones << 8 | dot << 16, 3),
            _ => (hundreds | tens << 8 | ones << 16 | dot << 24, 4),
        };
        octet += 1;
    }
    octets
};

static DEFAULT_SECRET: LazyLock<HashSecret> =
    LazyLock::new(|| HashSecret(blake3::derive_key("tollgate v1 secret", &[])));
static JOINED_KEY_SECRET: LazyLock<HashSecret> =
    LazyLock::new(|| HashSecret(blake3::derive_key("tollgate v1 joined key", &[])));
static LONG_KEY_SECRET: LazyLock<HashSecret> =
    LazyLock::new(|| HashSecret(blake3::derive_key("tollgate v1 long key", &[])));
