//! The keys that were denied most often, as JSON.

use serde_json::{Value, json};

use crate::top_keys::{PolicyTopKeys, Snapshot, TopKey};

/// Returns the lists of all policies. Times are in milliseconds since the Unix epoch.
pub(super) fn top_keys(snapshot: &Snapshot) -> Value {
    let policies: Vec<Value> = snapshot.policies().iter().map(policy).collect();
    json!({
        "since": snapshot.since().as_micros() / 1_000,
        "until": snapshot.until().as_micros() / 1_000,
        // Whether keys are in the form in which they are counted, and can be looked up.
        "is_plain": snapshot.is_plain(),
        "policies": policies,
    })
}

fn policy(list: &PolicyTopKeys) -> Value {
    let keys: Vec<Value> = list.keys().iter().map(key).collect();
    json!({ "policy": list.policy().as_str(), "total": list.total(), "keys": keys })
}

/// The true number is between `count - error` and `count`.
fn key(top: &TopKey) -> Value {
    json!({ "key": top.key(), "count": top.count(), "error": top.error() })
}
