//! Decisions on a request, for its handler.
//!
//! # Why does `RateLimitInfo` contain the decisions of all layers?
//!
//! A handler may need to find out which of two quotas is short. The innermost `Decision` stays in the extensions under its own
//! type, and the outer ones are moved aside only if there are two layers, so a single layer pays nothing. `remaining()` is about
//! the narrowest policy of any layer: the units that the client can really use next. A layer whose rules did not count a request
//! leaves a marker. So the extractor can distinguish that from a missing layer, which is a mistake and gives a 500.

use std::time::Duration;

use http::Extensions;

use crate::{
    clock::Timestamp,
    decision::{CountedBy, Decision, PolicyState},
};

/// Decisions of all layers that a request went through, for its handler.
///
/// With axum it is an extractor, also as `Option<RateLimitInfo>`. Without a layer around the route the extractor
/// responds with 500 and logs the remedy, and the `Option` is `None`. Elsewhere, read it
/// [from the request's extensions](Self::from_extensions).
///
/// It has no decisions if no rule counted the request.
///
/// # Examples
///
/// ```
/// use tollgate::middleware::RateLimitInfo;
///
/// async fn search(info: RateLimitInfo) -> String {
///     match info.remaining() {
///         Some(0) => "that was your last one for now".to_owned(),
///         Some(more) => format!("{more} more"),
///         None => "nobody counts".to_owned(),
///     }
/// }
/// # #[cfg(feature = "axum")]
/// let app: axum::Router = axum::Router::new().route("/", axum::routing::get(search));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitInfo {
    /// From the innermost layer to the outermost.
    decisions: Vec<Decision>,
}

impl RateLimitInfo {
    /// Returns the info in a request's extensions; `None` without a layer.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<Self> {
        let decision = extensions.get::<Decision>();
        if decision.is_none() && extensions.get::<Uncounted>().is_none() {
            return None;
        }
        let outer = extensions.get::<Outer>();
        let outer = outer.into_iter().flat_map(|outer| outer.decisions.iter());
        Some(Self {
            decisions: decision.into_iter().chain(outer.rev()).cloned().collect(),
        })
    }

    /// Returns the decisions, from the innermost layer to the outermost. Empty if no rule counted the request.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns the states of all policies, from the innermost layer to the outermost.
    pub fn states(&self) -> impl Iterator<Item = &PolicyState> {
        self.decisions.iter().flat_map(Decision::states)
    }

    /// Returns the state of a policy by name; the innermost one if layers share the name.
    #[must_use]
    pub fn state(&self, policy: &str) -> Option<&PolicyState> {
        self.decisions
            .iter()
            .find_map(|decision| decision.state(policy))
    }

    /// Returns the policy with the least quota left, of any layer. Returns a concurrency policy only if all are.
    /// `None`
    /// if no count is available.
    #[must_use]
    pub fn narrowest(&self) -> Option<&PolicyState> {
        self.narrowest_decision()?.narrowest()
    }

    /// Returns the limit of the narrowest policy: the units that can be taken at once.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.narrowest_decision()?.limit()
    }

    /// Returns the units that the narrowest policy has left.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.narrowest_decision()?.remaining()
    }

    /// Returns the time at which the narrowest policy is at full quota again, without further requests, by the wall clock.
    #[must_use]
    pub fn reset_at(&self) -> Option<Timestamp> {
        let decision = self.narrowest_decision()?;
        Some(decision.wall_time(decision.narrowest()?.usage()?.reset_at))
    }

    /// Returns the time from the decision to [`reset_at`](Self::reset_at), by the clock of the store.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.narrowest_decision()?.reset_after()
    }

    /// Returns the counter of the innermost layer's decision.
    #[must_use]
    pub fn counted_by(&self) -> Option<CountedBy> {
        self.decisions.first().map(Decision::counted_by)
    }

    /// Returns whether a shared store was unavailable, for any layer: counts are then local or missing.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let mut counted_by = self.decisions.iter().map(Decision::counted_by);
        counted_by.any(|who| matches!(who, CountedBy::Fallback | CountedBy::Uncounted))
    }

    fn narrowest_decision(&self) -> Option<&Decision> {
        let headroom = |decision| Some((Decision::narrowest(decision)?.headroom(), decision));
        let counted = self.decisions.iter().filter_map(headroom);
        Some(counted.min_by_key(|(headroom, _)| *headroom)?.1)
    }
}

// === Outer ===

/// Decisions of outer layers, the outermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct Outer {
    decisions: Vec<Decision>,
}

/// Marks a request that a layer let pass without counting it.
#[derive(Clone, Copy, Debug)]
struct Uncounted;

/// Marks a request that no rule counted, so that its handler finds a layer.
pub(super) fn insert_uncounted(extensions: &mut Extensions) {
    extensions.insert(Uncounted);
}

/// Inserts a decision for the handler. Returns the decisions of outer layers on the same request, if any.
#[inline]
pub(super) fn insert(extensions: &mut Extensions, decision: Decision) -> Option<Nested<'_>> {
    let outer = extensions.insert(decision)?;
    Some(Nested::new(extensions, outer))
}

/// A decision, and those of outer layers on the same request.
pub(super) struct Nested<'a> {
    inner: &'a Decision,
    /// That of the next layer outwards, if it is not in `outer`.
    latest: Option<&'a Decision>,
    outer: &'a [Decision],
}

impl<'a> Nested<'a> {
    #[cold]
    fn new(extensions: &'a mut Extensions, outer: Decision) -> Self {
        let others = extensions.get_or_insert_with(Outer::default);
        others.decisions.push(outer);
        let extensions = &*extensions;
        let decision = extensions.get::<Decision>();
        Self {
            inner: decision.expect("the decision was inserted just now"),
            latest: None,
            outer: others_of(extensions),
        }
    }

    /// For a decision that is not inserted, since it denies.
    #[cold]
    pub fn not_admitted(extensions: &'a Extensions, inner: &'a Decision) -> Option<Self> {
        Some(Self {
            inner,
            latest: Some(extensions.get::<Decision>()?),
            outer: others_of(extensions),
        })
    }

    /// Returns the decision of the inner layer.
    pub fn decision(&self) -> &'a Decision {
        self.inner
    }

    /// Returns a policy that both layers charged. Decisions with peeks are ignored: their states do not show which
    /// policies were charged.
    pub fn shared_policy(&self) -> Option<&'a PolicyState> {
        if self.inner.has_peeks() {
            return None;
        }
        let charges = |state: &PolicyState| state.usage().is_some();
        let mut inner = self.inner.states().iter().filter(|state| charges(state));
        inner.find(|state| {
            let name = state.policy().as_str();
            let outer = self.latest.into_iter().chain(self.outer);
            let outer = outer.filter(|decision| !decision.has_peeks());
            outer
                .filter_map(|decision| decision.state(name))
                .any(charges)
        })
    }
}

fn others_of(extensions: &Extensions) -> &[Decision] {
    let outer = extensions.get::<Outer>();
    outer.map_or(&[], |outer| &outer.decisions)
}
