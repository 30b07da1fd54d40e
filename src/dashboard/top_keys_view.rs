//! The keys that were denied most often, as JSON.

use serde::Serialize;

use crate::top_keys::{PolicyTopKeys, Snapshot};

/// The lists of all policies.
#[derive(Serialize)]
pub(super) struct TopKeysView {
    /// Milliseconds since the Unix epoch.
    since: u64,
    until: u64,
    /// Whether keys are in the form in which they are counted, and can be looked up.
    is_plain: bool,
    policies: Vec<PolicyView>,
}

#[derive(Serialize)]
struct PolicyView {
    policy: String,
    total: u64,
    keys: Vec<KeyView>,
}

#[derive(Serialize)]
struct KeyView {
    key: String,
    /// The true number is between `count - error` and `count`.
    count: u64,
    error: u64,
}

impl TopKeysView {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        Self {
            since: snapshot.since().as_micros() / 1_000,
            until: snapshot.until().as_micros() / 1_000,
            is_plain: snapshot.is_plain(),
            policies: snapshot.policies().iter().map(PolicyView::of).collect(),
        }
    }
}

impl PolicyView {
    fn of(list: &PolicyTopKeys) -> Self {
        let keys = list.keys().iter().map(|key| KeyView {
            key: key.key().to_owned(),
            count: key.count(),
            error: key.error(),
        });
        Self {
            policy: list.policy().as_str().to_owned(),
            total: list.total(),
            keys: keys.collect(),
        }
    }
}
