//! Rules that all instances share, as a store keeps them.

use crate::clock::Timestamp;

/// A version of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct StoredRules {
    /// Identifies the version.
    pub id: RulesId,
    /// The name of the format, such as `yaml`.
    pub format: String,
    /// The rules.
    pub text: String,
    /// Empty for nobody.
    pub author: String,
    /// Empty for none.
    pub comment: String,
}

impl StoredRules {
    /// Returns a version without author and comment.
    #[must_use]
    pub fn new(id: RulesId, format: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            id,
            format: format.into(),
            text: text.into(),
            author: String::new(),
            comment: String::new(),
        }
    }
}

// === RulesId ===

/// Identifies a version. Its time distinguishes it from one of the same number that a failover lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct RulesId {
    /// The number of the version, from 1.
    pub version: u64,
    /// When it was stored.
    pub time: Timestamp,
}

// === RulesToStore ===

/// Rules to store as the next version.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[doc(hidden)]
pub struct RulesToStore {
    /// The name of the format.
    pub format: &'static str,
    /// The rules.
    pub text: String,
    /// Empty for nobody.
    pub author: String,
    /// Empty for none.
    pub comment: String,
    /// The stored version that they replace; 0 for none.
    pub replaced: u64,
    /// A version that is in use. The next one is above it, even if the store has lost it.
    pub floor: u64,
}

// === StoreRulesReply ===

/// The reply of a store to new rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum StoreRulesReply {
    /// Others are stored: nothing has changed.
    Conflict {
        /// Their version; 0 for none.
        stored: u64,
    },
    /// They are stored as this version.
    Stored(RulesId),
}

// === ReadRulesReply ===

/// The reply of a store to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum ReadRulesReply {
    /// The known version is stored.
    Known,
    /// No rules are stored.
    Missing,
    /// Another version is stored.
    Stored(StoredRules),
}
