//! Extractors, matchers and tiers that an application registers by name.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    extract::{HashSecret, KeyExtractor},
    key::Key,
    matching::Matcher,
    request::RequestHead,
};

/// Any extractor.
pub(super) type DynExtractor = Arc<dyn KeyExtractor>;

/// Any matcher.
pub(super) type DynMatcher = Arc<dyn Matcher>;

/// Extractors, matchers and tiers from code.
#[derive(Clone, Default)]
pub(super) struct Registry {
    pub extractors: BTreeMap<String, DynExtractor>,
    pub matchers: BTreeMap<String, DynMatcher>,
    pub tier_names: BTreeMap<String, Arc<TierName>>,
    /// Hashes API keys and cookies.
    pub hash_secret: Option<HashSecret>,
}

/// Returns the name of a caller's tier.
pub(super) type TierName = dyn Fn(&RequestHead<'_>, &Key) -> Option<String> + Send + Sync;
