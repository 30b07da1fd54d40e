//! The order in which a layer's headers are written, beside those of the inner service.
//!
//! # Why does an outage hide the state of a policy, but not its terms?
//!
//! `RateLimit-Policy` has the agreed terms, which hold during an outage. What remains is unknown, so `RateLimit`, limit,
//! remaining, reset and `Retry-After` are left out. When this process counts alone, the headers have its own counts, because
//! these limit the client. A request that no store decided about gets no rate limit headers.

use http::{Extensions, HeaderMap, header::RETRY_AFTER, response::Parts};
use smallvec::SmallVec;

use crate::{
    charge::Charge,
    decision::{Decision, Outcome, PolicyName, PolicyState, Usage, headroom},
    error::Error,
    policy::Policy,
};

use super::{
    choice::{Family, Headers, LegacyHeaders, ReasonDetail, ResetFormat, ShownLimit},
    drafts::{HeaderInput, LayerTerms},
    families::{DEFAULT_NAMES, HeaderValues, insert_default, write_reason},
    merge::{SetClaim, WrittenSets},
    numbers::recurring_number,
    terms::PolicyTerms,
};

/// Writes the rate limit headers of decisions.
///
/// Each layer has one. Make another for decisions outside of layers, once for all responses: it knows the quota and window of each
/// policy, which [`Headers::draft11`] and [`Headers::draft06`] list. For other headers the policies can be left out. The
/// [`Default`] writes [`Headers::legacy`].
///
/// # Examples
///
/// ```
/// use http::HeaderMap;
/// use tollgate::{Key, Policy, Quota, RateLimiter, headers::{HeaderWriter, Headers}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let searches = Policy::new("searches", Quota::per_minute(100).burst(20));
/// let writer = HeaderWriter::new(Headers::draft11(), [&searches])?;
/// let limiter = RateLimiter::builder().policy(searches.clone()).build()?;
///
/// let decision = limiter.check(searches.charge(Key::new("ada"))).await?;
/// let mut headers = HeaderMap::new();
/// writer.write(&decision, &mut headers);
/// assert_eq!(headers["ratelimit-policy"], r#""searches";q=20;w=12"#);
/// assert_eq!(headers["ratelimit"], r#""searches";r=19;t=12"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HeaderWriter {
    headers: Headers,
    terms: LayerTerms,
    /// Whether the only family is the default one.
    is_default: bool,
}

impl HeaderWriter {
    /// Creates a writer for decisions on some of these policies.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the headers refer to a policy that is not among them.
    pub fn new<'a>(
        headers: impl Into<Headers>,
        policies: impl IntoIterator<Item = &'a Policy>,
    ) -> Result<Self, Error> {
        let headers = headers.into();
        let terms = LayerTerms::new(policies.into_iter(), headers.shown_limit);
        for family in &headers.families {
            family.check(&terms)?;
        }
        Ok(Self::of(headers, terms))
    }

    fn of(headers: Headers, terms: LayerTerms) -> Self {
        let is_default = matches!(
            &headers.families[..],
            [Family::Legacy(LegacyHeaders {
                names: None,
                reset: ResetFormat::EpochSeconds,
                ..
            })]
        ) && headers.shown_limit == ShownLimit::AtOnce;
        Self {
            headers,
            terms,
            is_default,
        }
    }

    /// Adds the headers of a decision to a response.
    ///
    /// A denial also has `Retry-After` and the [reason](Headers::reason), if the headers include them. Headers that are there
    /// [stay](Headers#beside-headers-that-are-there-already).
    pub fn write(&self, decision: &Decision, headers: &mut HeaderMap) {
        let mut values = self.values(decision, None, false);
        self.write_beside(&mut values, &mut WrittenSets::default(), headers);
        let code = match decision.outcome() {
            Outcome::Allowed => return,
            Outcome::Limited => "rate_limited",
            Outcome::Unavailable => "unavailable",
        };
        let policy = decision.denying().map(PolicyState::policy);
        let limited = policy.filter(|_| decision.outcome() == Outcome::Limited);
        self.write_reason(|| (code, limited), headers);
    }

    /// Whether [`write_default`] can write the headers of admitted requests.
    #[inline]
    pub(super) fn is_default(&self) -> bool {
        self.is_default
    }

    /// Whether responses to admitted requests carry headers.
    pub(crate) fn writes_on_success(&self) -> bool {
        !self.headers.families.is_empty()
    }

    /// Returns the terms of all charges if a tier changed those of one and the headers depend on terms.
    pub(crate) fn tier_terms(&self, charges: &[Charge<'_>]) -> Option<Box<[PolicyTerms]>> {
        let mut families = self.headers.families.iter();
        let shows_quotas = self.headers.shown_limit != ShownLimit::AtOnce;
        if shows_quotas || families.any(Family::has_terms) {
            self.terms.tier_terms(charges)
        } else {
            None
        }
    }

    /// Returns the values of a decision's headers.
    pub(super) fn values(
        &self,
        decision: &Decision,
        tier_terms: Option<&[PolicyTerms]>,
        is_nested: bool,
    ) -> HeaderValues {
        let input = HeaderInput {
            layer: &self.terms,
            decision,
            tier_terms,
        };
        HeaderValues::new(&self.headers.families, &input, is_nested)
    }

    /// Adds the headers of a decision to a rejection. `retry_after` is at least the decision's wait, in whole seconds.
    pub(crate) fn write_rejection(
        &self,
        (decision, retry_after): (&Decision, Option<u64>),
        tier_terms: Option<&[PolicyTerms]>,
        parts: &mut Parts,
    ) {
        if !(self.is_default && self.write_default_denial(decision, retry_after, parts)) {
            // A layer around this one may write headers too.
            let mut values = self.values(decision, tier_terms, true);
            // Only now: the lists describe the quota, and compare each `t` with the decision's own wait.
            values.retry_after = retry_after;
            self.write_values(&mut values, parts);
        }
    }

    /// Adds the code of a rejection, with the policy that rejects the request, if the layer sends it.
    #[inline]
    pub(crate) fn write_reason<'a>(
        &self,
        reason: impl FnOnce() -> (&'static str, Option<&'a PolicyName>),
        headers: &mut HeaderMap,
    ) {
        let Some(detail) = self.headers.reason else {
            return;
        };
        let (code, policy) = reason();
        let policy = match detail {
            ReasonDetail::Code => None,
            ReasonDetail::CodeAndPolicy => policy,
        };
        write_reason(headers, code, policy);
    }

    /// Writes the default headers of a denial unless the response has one of them. Returns whether it did.
    fn write_default_denial(
        &self,
        decision: &Decision,
        retry_after: Option<u64>,
        parts: &mut Parts,
    ) -> bool {
        let denying = decision.narrowest().filter(|_| !decision.is_allowed());
        let Some(usage) = denying.and_then(|state| decision.header_usage(state)) else {
            return false;
        };
        let headers = &mut parts.headers;
        let is_new = insert_default(headers, &usage);
        if is_new {
            self.set_retry_after(headers, retry_after);
            parts.extensions.insert(DefaultDenial);
        }
        is_new
    }

    /// Adds headers to a response, and merges them with those that it has.
    pub(super) fn write_values(&self, values: &mut HeaderValues, parts: &mut Parts) {
        let mut written = take_written(&mut parts.extensions);
        self.write_beside(values, &mut written, &mut parts.headers);
        if values.is_nested {
            written.put(&mut parts.extensions);
        }
    }

    /// Adds headers, and merges them with those that layers have written.
    fn write_beside(
        &self,
        values: &mut HeaderValues,
        written: &mut WrittenSets,
        headers: &mut HeaderMap,
    ) {
        let headroom = values.headroom();
        // All sets are claimed before one is written: of two families that share a name, the first writes it.
        let claim = |family| {
            let names = Family::narrowest_headers(family);
            (family, written.claim(names, headroom, headers))
        };
        let families: SmallVec<[_; 4]> = self.headers.families.iter().map(claim).collect();
        for (family, claim) in &families {
            family.write(*claim, values, &self.terms, headers);
        }
        self.set_retry_after(headers, values.retry_after);
        if values.is_nested {
            for (family, claim) in families {
                let names = family.narrowest_headers();
                if claim == SetClaim::Free && !names.is_empty() {
                    written.record(names, headroom);
                }
            }
        }
    }

    fn set_retry_after(&self, headers: &mut HeaderMap, seconds: Option<u64>) {
        if let Some(seconds) = seconds.filter(|_| self.headers.sends_retry_after)
            && !headers.contains_key(RETRY_AFTER)
        {
            headers.insert(RETRY_AFTER, recurring_number(seconds));
        }
    }
}

impl Default for HeaderWriter {
    /// Creates a writer of [`Headers::legacy`].
    fn default() -> Self {
        Self::of(
            Headers::default(),
            LayerTerms::new([].iter(), ShownLimit::AtOnce),
        )
    }
}

/// Adds the headers that a layer has by default.
#[inline]
pub(super) fn write_default(parts: &mut Parts, usage: &Usage, is_concurrency: bool) {
    if !insert_default(&mut parts.headers, usage) {
        write_default_beside(parts, usage, is_concurrency);
    }
}

/// Adds the default headers to a response that has some of them.
#[cold]
fn write_default_beside(parts: &mut Parts, usage: &Usage, is_concurrency: bool) {
    let headroom = headroom(usage.remaining, is_concurrency);
    let mut written = take_written(&mut parts.extensions);
    let headers = &mut parts.headers;
    if written.claim(&DEFAULT_NAMES, headroom, headers) == SetClaim::Free {
        insert_default(headers, usage);
    }
}

/// Removes the sets that inner layers have written from a response's extensions.
fn take_written(extensions: &mut Extensions) -> WrittenSets {
    let mut written: WrittenSets = extensions.remove().unwrap_or_default();
    if extensions.remove::<DefaultDenial>().is_some() {
        written.record(&DEFAULT_NAMES, 0);
    }
    written
}

/// Marks the response of a layer that denied the request and wrote the default headers.
///
/// Equivalent to [`WrittenSets`] with that set and headroom 0. A type without a size needs no allocation.
#[derive(Clone, Copy, Debug)]
struct DefaultDenial;
