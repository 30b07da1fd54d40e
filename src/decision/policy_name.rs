//! Names of policies.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// The name of a policy: 1 to 39 characters of `A-Z a-z 0-9 . _ -`.
///
/// Redis keys, headers and log events contain it. None of them needs to escape these characters. The name is stored
/// inline, so copying a decision changes no reference count.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PolicyName {
    length: u8,
    bytes: [u8; PolicyName::MAX_LENGTH],
}

impl PolicyName {
    /// The length of the longest name, in characters.
    pub const MAX_LENGTH: usize = 39;

    /// Creates a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] if the name is empty, too long, or contains any other character.
    pub fn new(name: &str) -> Result<Self, Error> {
        Self::checked("policy", name)
    }

    /// As [`new`](Self::new) for the name of another `thing`, which the error names.
    pub(crate) fn checked(thing: &str, name: &str) -> Result<Self, Error> {
        if name.is_empty() || name.len() > Self::MAX_LENGTH || !name.bytes().all(is_name_byte) {
            return Err(Error::new(
                ErrorKind::InvalidPolicy,
                format!("{thing} name {name:?} is invalid: use 1 to 39 of A-Z a-z 0-9 . _ -"),
            ));
        }
        let mut bytes = [0; Self::MAX_LENGTH];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        // Invariant: name.len() <= MAX_LENGTH < 256, checked above.
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let length = name.len() as u8;
        Ok(Self { length, bytes })
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("a policy name is ASCII")
    }

    /// Returns the name as bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The empty name, in place of an invalid one. `build()` reports the policy.
    pub(crate) const INVALID: Self = Self {
        length: 0,
        bytes: [0; Self::MAX_LENGTH],
    };
}

impl fmt::Debug for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}
