//! The choice for requests without a key.

/// The way to handle a request whose key is absent. One whose key is [ambiguous](crate::extract::Extracted::Ambiguous) is
/// always rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Answer it with the extractor's [`missing_status`](crate::extract::KeyExtractor::missing_status), if the layer's other policies admit
    /// it: they are charged.
    #[default]
    Reject,
    /// Count it with all others that have no key, in one shared bucket.
    Share,
    /// Do not count it for this policy.
    Skip,
}
