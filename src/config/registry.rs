//! Extractors, matchers and tiers that an application registers by name.

use std::{collections::BTreeMap, sync::Arc};

use http::request::Parts;

use crate::{
    extract::{HashSecret, KeyExtractor},
    key::Key,
    matching::Matcher,
};

use super::{fields::Faults, node::Place};

/// Any extractor.
pub(super) type DynExtractor = Arc<dyn KeyExtractor>;

/// Extractors, matchers and tiers from code.
#[derive(Clone, Default)]
pub(super) struct Registry {
    pub(super) extractors: BTreeMap<String, DynExtractor>,
    pub(super) matchers: BTreeMap<String, Arc<dyn Matcher>>,
    pub(super) tier_names: BTreeMap<String, Arc<TierName>>,
    /// Hashes API keys and cookies.
    pub(super) hash_secret: Option<HashSecret>,
}

/// Returns the name of a caller's tier.
pub(super) type TierName = dyn Fn(&Parts, &Key) -> Option<String> + Send + Sync;

impl Registry {
    pub(super) fn extractor(
        &self,
        name: &str,
        place: Place,
        faults: &mut Faults,
    ) -> Option<DynExtractor> {
        find(&self.extractors, "extractor", name, place, faults)
    }

    pub(super) fn matcher(
        &self,
        name: &str,
        place: Place,
        faults: &mut Faults,
    ) -> Option<Arc<dyn Matcher>> {
        find(&self.matchers, "matcher", name, place, faults)
    }

    pub(super) fn tier_name(
        &self,
        name: &str,
        place: Place,
        faults: &mut Faults,
    ) -> Option<Arc<TierName>> {
        find(&self.tier_names, "tier_name", name, place, faults)
    }
}

fn find<T: Clone>(
    registered: &BTreeMap<String, T>,
    method: &str,
    name: &str,
    place: Place,
    faults: &mut Faults,
) -> Option<T> {
    let found = registered.get(name);
    if found.is_none() {
        let remedy = if registered.is_empty() {
            format!("register it by RuleSetReader::{method}()")
        } else {
            faults.one_of((name, place), registered.keys().map(String::as_str))
        };
        faults.add(place, format!("{name:?} is not registered"), remedy);
    }
    found.cloned()
}
