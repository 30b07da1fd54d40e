//! The choice for requests without a key.

/// Choice for requests whose key is absent.
///
/// A request whose key is [ambiguous](crate::extract::Extracted::Ambiguous) is always rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Rejects the request with the extractor's
    /// [`missing_status`](crate::extract::KeyExtractor::missing_status), if the layer's other policies admit it. They are
    /// charged.
    #[default]
    Reject,
    /// Counts all requests without a key together, in one shared bucket.
    Share,
    /// Does not count the request for this policy.
    Skip,
}

impl OnMissingKey {
    /// Returns the effect on such requests, for a warning: "such requests ...".
    pub(crate) fn effect(self) -> &'static str {
        match self {
            Self::Reject => "are rejected",
            Self::Share => "share one count",
            Self::Skip => "are not counted",
        }
    }
}
