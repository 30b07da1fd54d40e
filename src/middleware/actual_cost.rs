//! The real cost of a request, set by its handler.

use std::{fmt, sync::Arc};

use http::Extensions;
use smallvec::SmallVec;

use crate::{
    decision::PolicyName,
    diagnosis::{Code, Warning, WarningLog},
    task::Mutex,
};

/// Sets the real cost of a request, from its handler.
///
/// It can be set until the body of the response is dropped, or the last [`RequestHold`](super::RequestHold). It takes
/// precedence over a closure of the rule, and has no effect if nothing was charged. The rule of the policy needs
/// [`settle_by_handler`](crate::rules::Rule::settle_by_handler), or a [`settle`](crate::rules::Rule::settle) closure for requests
/// whose handler sets no cost.
///
/// With axum it is an extractor, also as `Option<ActualCost>`. Elsewhere, read it
/// [from the request's extensions](Self::from_extensions). It is there if a layer around the handler has a rule that
/// [settles](crate::rules::Rule::settle), also for requests that no rule counts. Otherwise the extractor responds with 500
/// and logs the remedy, the charge is kept, and the `Option` is `None`.
///
/// # Examples
///
/// ```
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp, middleware::ActualCost};
///
/// async fn complete(cost: ActualCost) -> &'static str {
///     cost.set("tokens", 1_234); // tokens of a language model
///     "done"
/// }
///
/// let tokens = Policy::new("tokens", Quota::per_hour(100_000)).cost(1_000); // charged until the cost is known
/// let layer = RateLimitLayer::builder()
///     .policy(tokens.key(PeerIp).settle_by_handler())
///     .build()?;
/// # #[cfg(feature = "axum")]
/// let app: axum::Router = axum::Router::new().route("/", axum::routing::post(complete)).layer(layer);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Default)]
pub struct ActualCost {
    costs: Arc<Mutex<SetCosts>>,
}

/// The costs of a request in its extensions.
// A type of its own, and `ActualCost` is not `Clone`: `Extension<ActualCost>`, whose rejection names the type to clients, does
// not compile.
#[derive(Clone, Default)]
struct SharedCosts(Arc<Mutex<SetCosts>>);

#[derive(Default)]
struct SetCosts {
    set: SmallVec<[(PolicyName, u64); 1]>,
    /// Settled policies of the layers around the handler.
    layers: SmallVec<[Arc<SettledPolicies>; 1]>,
}

/// The policies of a layer whose rules settle, and where a wrong name is reported.
#[derive(Debug)]
pub(crate) struct SettledPolicies {
    pub names: Box<[PolicyName]>,
    pub warnings: Arc<WarningLog>,
}

impl ActualCost {
    /// Returns the handle in a request's extensions; `None` if no layer around the handler has a rule that settles.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<Self> {
        let SharedCosts(costs) = extensions.get()?;
        Some(Self {
            costs: Arc::clone(costs),
        })
    }

    /// Returns the handle in a request's extensions, which all layers around the handler share.
    pub(super) fn shared(extensions: &mut Extensions) -> Self {
        let SharedCosts(costs) = extensions.get_or_insert_with(SharedCosts::default);
        Self {
            costs: Arc::clone(costs),
        }
    }

    /// Sets the units that the request costs under a policy. A later call replaces an earlier one.
    ///
    /// A policy that does not count this request stays uncharged. A policy that no layer settles keeps its charge; the
    /// first call with such a name, or with a misspelled one, is reported as [`Code::UnsettledPolicy`].
    pub fn set(&self, policy: &str, units: u64) {
        let name = PolicyName::new(policy).ok();
        let mut costs = self.costs.lock();
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

    /// Adds a layer around the handler to the handle in the request's extensions.
    pub(super) fn attach(extensions: &mut Extensions, layer: &Arc<SettledPolicies>) {
        let SharedCosts(costs) = extensions.get_or_insert_with(SharedCosts::default);
        costs.lock().layers.push(Arc::clone(layer));
    }

    pub(super) fn of(&self, policy: &PolicyName) -> Option<u64> {
        let costs = self.costs.lock();
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
