//! The real cost of a request, set by its handler.

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{
    diagnosis::{Code, Warning, WarningLog},
    state::PolicyName,
    sync::Mutex,
};

/// Sets the real cost of a request, from its handler.
///
/// It is in the extensions of all requests through a layer with a rule that [settles](crate::rules::Rule::settle). It can
/// be set until the body of the response is dropped, and takes precedence over the rule's closure. It has no effect if
/// nothing was charged.
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
    inner: Arc<Mutex<SetCosts>>,
}

#[derive(Default)]
struct SetCosts {
    set: SmallVec<[(PolicyName, u64); 1]>,
    /// Settled policies of the layers around the handler.
    layers: SmallVec<[Arc<SettledPolicies>; 1]>,
}

/// The policies of a layer whose rules settle, and where a wrong name is reported.
#[derive(Debug)]
pub(crate) struct SettledPolicies {
    pub(crate) names: Box<[PolicyName]>,
    pub(crate) warnings: Arc<WarningLog>,
}

impl ActualCost {
    /// Sets the units that the request costs under a policy. A later call replaces an earlier one.
    ///
    /// A policy that does not count this request stays uncharged. A policy that no layer settles keeps its charge; the
    /// first call with such a name, or with a misspelled one, is reported as [`Code::UnsettledPolicy`].
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
            // A log writer may call back, so it must not run under the lock.
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

/// Reports a policy that no layer settles. Without a layer there is nothing to report to.
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
    // Without a policy, so that it is reported once for all names.
    layer
        .warnings
        .report(Warning::new(Code::UnsettledPolicy, detail));
}
