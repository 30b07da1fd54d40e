//! The cost of a request as its handler knows it.

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{
    diagnosis::{Code, Ledger, Warning},
    state::PolicyName,
    sync::Mutex,
};

/// Lets a handler set what its request really costs. It is in the extensions of all requests that pass a layer of which
/// a rule [settles](crate::rules::Rule::settle).
///
/// It may be set until the body of the response is dropped, and takes precedence over the rule's closure. Where nothing was
/// charged it changes nothing.
///
/// # Examples
///
/// ```
/// use axum::Extension;
/// use tollgate::middleware::ActualCost;
///
/// async fn complete(Extension(cost): Extension<ActualCost>) -> &'static str {
///     // ... so many tokens were used
///     cost.set("tokens", 1_234);
///     "done"
/// }
/// ```
#[derive(Clone, Default)]
pub struct ActualCost {
    inner: Arc<Mutex<Costs>>,
}

#[derive(Default)]
struct Costs {
    set: SmallVec<[(PolicyName, u64); 1]>,
    /// Of the layers around the handler.
    layers: SmallVec<[Arc<SettledPolicies>; 1]>,
}

/// The policies of a layer whose rules settle, and where a wrong name is reported.
#[derive(Debug)]
pub(crate) struct SettledPolicies {
    pub(crate) names: Box<[PolicyName]>,
    pub(crate) warnings: Arc<Ledger>,
}

impl ActualCost {
    /// Sets what the request costs under a policy, in place of what was set before.
    ///
    /// A policy that does not count this request stays uncharged. A policy that no layer around the handler settles keeps its
    /// charge, and so does one whose name is misspelled; the first such call is reported as [`Code::UnsettledPolicy`].
    pub fn set(&self, policy: &str, units: u64) {
        let name = PolicyName::new(policy).ok();
        let mut costs = self.inner.lock();
        let is_settled =
            name.is_some_and(|name| costs.layers.iter().any(|layer| layer.names.contains(&name)));
        if let Some(name) = name {
            costs.set.retain(|(set, _)| *set != name);
            costs.set.push((name, units));
        }
        if !is_settled {
            let layers = costs.layers.clone();
            // The log writer is not ours, so it is not called under the lock.
            drop(costs);
            report(policy, &layers);
        }
    }

    /// Adds a layer around the handler.
    pub(super) fn attach(&self, layer: &Arc<SettledPolicies>) {
        self.inner.lock().layers.push(Arc::clone(layer));
    }

    pub(super) fn of(&self, policy: &PolicyName) -> Option<u64> {
        let costs = self.inner.lock();
        let found = costs.set.iter().find(|(name, _)| name == policy);
        found.map(|(_, units)| *units)
    }
}

impl fmt::Debug for ActualCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActualCost").finish_non_exhaustive()
    }
}

/// Reports a policy that no layer settles. Without a layer there is nobody to report to.
#[cold]
fn report(policy: &str, layers: &[Arc<SettledPolicies>]) {
    let Some(layer) = layers.first() else {
        return;
    };
    let settled = layers.iter().flat_map(|layer| &layer.names);
    let settled: Vec<_> = settled.map(PolicyName::as_str).collect();
    let name: String = policy.chars().take(PolicyName::MAX_LENGTH).collect();
    let detail = format!(
        "a handler set the cost of policy {name:?}, and the layers around it settle \"{}\"",
        settled.join("\", \"")
    );
    // About no policy, so that it is reported once, whatever names follow.
    layer
        .warnings
        .report(Warning::new(Code::UnsettledPolicy, detail));
}
