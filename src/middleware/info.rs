//! What a handler can know about the limits on its request.

#[cfg(feature = "axum")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::{error, fmt, time::Duration};

use http::Extensions;

use crate::{
    clock::Timestamp,
    decision::Decision,
    state::{CountedBy, PolicyState},
};

#[cfg(feature = "axum")]
use crate::log;

#[cfg(feature = "axum")]
use crate::rejection::INTERNAL;

/// What was decided about a request, for its handler: by all layers that it went through.
///
/// With axum it is an extractor, also as `Option<RateLimitInfo>`. Without a layer around the route the extractor answers
/// 500 and logs what to do, and the `Option` is `None`. Elsewhere take it
/// [from the request's extensions](Self::from_extensions).
///
/// A layer that did not count the request (every rule passed it over) leaves an info without decisions.
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
    /// The innermost layer's first.
    decisions: Vec<Decision>,
}

impl RateLimitInfo {
    /// What the layers left in a request's extensions. `None` when there was no layer.
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

    /// The decisions, the innermost layer's first; none when no rule counted the request.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// The states of all policies that were asked, the innermost layer's first.
    pub fn states(&self) -> impl Iterator<Item = &PolicyState> {
        self.decisions.iter().flat_map(Decision::states)
    }

    /// The state of the policy of this name; the innermost one's when layers share the name.
    #[must_use]
    pub fn state(&self, policy: &str) -> Option<&PolicyState> {
        self.decisions
            .iter()
            .find_map(|decision| decision.state(policy))
    }

    /// The policy with the least remaining, of any layer; one on what is in flight only when there is no other. `None` when
    /// nothing was counted.
    #[must_use]
    pub fn narrowest(&self) -> Option<&PolicyState> {
        self.narrowest_at().map(|(state, _)| state)
    }

    /// What the narrowest policy lets pass at once.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.narrowest()?.usage()?.limit)
    }

    /// What the narrowest policy has left.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        Some(self.narrowest()?.usage()?.remaining)
    }

    /// When the narrowest policy has everything back, if nothing more is taken.
    #[must_use]
    pub fn reset_at(&self) -> Option<Timestamp> {
        Some(self.narrowest()?.usage()?.reset_at)
    }

    /// How long after the decision that is, by the clock that counts.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        let (state, decision) = self.narrowest_at()?;
        Some(state.usage()?.reset_at.since(decision.decided_at()))
    }

    /// Who counted for the innermost layer.
    #[must_use]
    pub fn counted_by(&self) -> Option<CountedBy> {
        self.decisions.first().map(Decision::counted_by)
    }

    /// Whether a shared store was away, for any layer: counts are then this instance's own, or there are none.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let mut counted_by = self.decisions.iter().map(Decision::counted_by);
        counted_by.any(|who| matches!(who, CountedBy::Fallback | CountedBy::Nobody))
    }

    fn narrowest_at(&self) -> Option<(&PolicyState, &Decision)> {
        let narrowest = |decision| Some((Decision::narrowest(decision)?, decision));
        let narrowest = self.decisions.iter().filter_map(narrowest);
        narrowest.min_by_key(|(state, _)| state.room())
    }
}

// === MissingRateLimitInfo ===

/// There is no layer around the route: the answer is 500, and the first one is logged with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingRateLimitInfo;

impl fmt::Display for MissingRateLimitInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no rate limit was asked about this request: put a RateLimitLayer around the route, or take \
             Option<RateLimitInfo>",
        )
    }
}

impl error::Error for MissingRateLimitInfo {}

// === axum ===

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for MissingRateLimitInfo {
    fn into_response(self) -> axum::response::Response {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if !WARNED.swap(true, Ordering::Relaxed) {
            log::event!(WARN, "an extractor failed", error = self);
        }
        (http::StatusCode::INTERNAL_SERVER_ERROR, INTERNAL).into_response()
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for RateLimitInfo {
    type Rejection = MissingRateLimitInfo;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, Self::Rejection> {
        Self::from_extensions(&parts.extensions).ok_or(MissingRateLimitInfo)
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::OptionalFromRequestParts<S> for RateLimitInfo {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Option<Self>, Self::Rejection> {
        Ok(Self::from_extensions(&parts.extensions))
    }
}

// === Outer ===

/// The decisions of layers further out, the outermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct Outer {
    decisions: Vec<Decision>,
}

/// Says that a layer was there, though it did not count the request.
#[derive(Clone, Copy, Debug)]
struct Uncounted;

/// Lets the handler know that there is a layer, though no rule counted the request.
pub(super) fn insert_uncounted(extensions: &mut Extensions) {
    extensions.insert(Uncounted);
}

/// Leaves a decision for the handler. What a layer further out had left is told: the two charged one request.
#[inline]
pub(super) fn insert(extensions: &mut Extensions, decision: Decision) -> Option<Nested<'_>> {
    let outer = extensions.insert(decision)?;
    Some(Nested::new(extensions, outer))
}

/// A decision about one request, and those of layers further out.
pub(super) struct Nested<'a> {
    inner: &'a Decision,
    /// The next one's, when it is not among the others.
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
            inner: decision.expect("it was left just now"),
            latest: None,
            outer: others_of(extensions),
        }
    }

    /// Of a decision that is not left, since it denies.
    #[cold]
    pub(super) fn limited(extensions: &'a Extensions, inner: &'a Decision) -> Option<Self> {
        Some(Self {
            inner,
            latest: Some(extensions.get::<Decision>()?),
            outer: others_of(extensions),
        })
    }

    /// The decision of the layer inside.
    pub(super) fn decision(&self) -> &'a Decision {
        self.inner
    }

    /// A policy that both charged, as far as that is known: of decisions with peeks it is not.
    pub(super) fn shared_policy(&self) -> Option<&'a PolicyState> {
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
