//! The secret under which secrets are hashed.

use std::fmt;

/// The secret under which a fleet hashes API keys and the like.
///
/// Every instance must be given the same 32 bytes, or each counts on its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashSecret(pub(super) [u8; 32]);

impl HashSecret {
    /// A hash key from 32 random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A hash key from a passphrase of any length (BLAKE3 derive-key, context `tollgate v1 passphrase`).
    #[must_use]
    pub fn from_passphrase(passphrase: impl AsRef<[u8]>) -> Self {
        Self(blake3::derive_key(
            "tollgate v1 passphrase",
            passphrase.as_ref(),
        ))
    }
}

impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(..)")
    }
}
