//! The form in which keys are shown to operators.

use std::{fmt, sync::LazyLock};

use crate::key::{HashSecret, Key};

/// The form in which a [`Snapshot`](super::Snapshot) shows keys: hashed, or in plain text.
///
/// Keys such as addresses and user names are personal data, so the default is a hash. It is 128 bits of BLAKE3 under a
/// secret. A table of all IPv4 addresses is of no use without the secret, and an operator who knows a key finds it by
/// [`TopKeys::shown`](super::TopKeys::shown), which hashes it in the same way. [`Key::GLOBAL`] and
/// [`Key::UNIDENTIFIED`] identify nobody, and are shown as `*` and `?`.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, extract::HashSecret, top_keys::{ShownKeys, TopKeys}};
///
/// let secret = HashSecret::from_passphrase("from the configuration of the fleet");
/// let top_keys = TopKeys::builder().shown_keys(ShownKeys::hashed(secret)).build()?;
/// let shown = top_keys.shown(&Key::new("203.0.113.7"));
/// assert!(shown.starts_with('$') && shown.len() == 33);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShownKeys {
    /// `None` for plain text.
    secret: Option<HashSecret>,
}

impl ShownKeys {
    /// Shows hashes under the fleet's own secret.
    ///
    /// All instances whose snapshots are [merged](super::Snapshot::merge) need the same secret. It may be the secret of
    /// the fleet's API keys: the hash uses a key that is derived from it.
    #[must_use]
    pub fn hashed(secret: HashSecret) -> Self {
        Self {
            secret: Some(secret.for_shown_keys()),
        }
    }

    /// Shows keys as they are counted, such as `203.0.113.7`. Secrets such as API keys are hashed all the same.
    ///
    /// Everybody who sees a snapshot then sees personal data. So does Redis, if encoded snapshots are stored there.
    #[must_use]
    pub const fn plain() -> Self {
        Self { secret: None }
    }

    /// Returns the shown form of a key with this identity.
    pub(super) fn show(&self, identity: &str) -> String {
        match &self.secret {
            Some(secret) if !is_anonymous(identity) => {
                Key::secret_with(secret, identity).as_str().to_owned()
            }
            _ => identity.to_owned(),
        }
    }

    /// Returns a number that is equal only for forms that show a key in the same way. 0 for plain text.
    pub(super) fn tag(&self) -> u64 {
        self.secret.map_or(0, |secret| secret.tag())
    }
}

impl Default for ShownKeys {
    /// Shows hashes under a random secret of this process: the same key looks different after a restart, and in every
    /// other instance.
    fn default() -> Self {
        Self {
            secret: Some(*PROCESS_SECRET),
        }
    }
}

impl fmt::Debug for ShownKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.secret {
            Some(_) => "ShownKeys::hashed(..)",
            None => "ShownKeys::plain()",
        })
    }
}

static PROCESS_SECRET: LazyLock<HashSecret> = LazyLock::new(HashSecret::random);

/// Returns whether the key is shared: by all callers, or by all callers that have no key.
fn is_anonymous(identity: &str) -> bool {
    [Key::GLOBAL, Key::UNIDENTIFIED].map(|key| key.as_str() == identity) != [false; 2]
}
