//! Rules that all instances share, as a store keeps them.

use crate::clock::Timestamp;

/// A text of rules, and who wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct RulesText {
    /// The name of the format, such as `yaml`.
    pub format: String,
    /// The rules.
    pub text: String,
    /// Empty for nobody.
    pub author: String,
    /// Empty for none.
    pub comment: String,
}

/// Identifies a version. Its time distinguishes it from one of the same number that a failover lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct RulesId {
    /// The number of the version, from 1.
    pub version: u64,
    /// When it was stored.
    pub time: Timestamp,
}
