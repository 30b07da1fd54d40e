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
    decision::{Decision, PolicyName, Usage, headroom},
    error::Error,
    policy::Policy,
};

use super::{
    choice::{Family, Headers, LegacyHeaders, ReasonDetail, ResetFormat},
    drafts::{HeaderInput, LayerTerms},
    families::{DEFAULT_NAMES, HeaderValues, insert_default, write_reason},
    merge::{SetClaim, WrittenSets},
    numbers::recurring_number,
    terms::PolicyTerms,
};

/// Writes the headers that a layer's responses carry.
#[derive(Debug)]
pub(crate) struct HeaderWriter {
    headers: Headers,
    terms: LayerTerms,
    /// Whether the only family is the default one.
    is_default: bool,
}

impl HeaderWriter {
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the headers refer to a policy that the layer does not have.
    pub fn new<'a>(
        headers: Headers,
        policies: impl Iterator<Item = &'a Policy>,
    ) -> Result<Self, Error> {
        let terms = LayerTerms::new(policies);
        for family in &headers.families {
            family.check(&terms)?;
        }
        let is_default = matches!(
            &headers.families[..],
            [Family::Legacy(LegacyHeaders {
                names: None,
                reset: ResetFormat::EpochSeconds
            })]
        );
        Ok(Self {
            headers,
            terms,
            is_default,
        })
    }

    /// Whether [`write_default`] can write the headers of admitted requests.
    #[inline]
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Whether responses to admitted requests carry headers.
    pub fn writes_on_success(&self) -> bool {
        !self.headers.families.is_empty()
    }

    /// Returns the terms of all charges if a tier changed those of one and the headers contain terms.
    pub fn tier_terms(&self, charges: &[Charge<'_>]) -> Option<Box<[PolicyTerms]>> {
        let mut families = self.headers.families.iter();
        if families.any(Family::has_terms) {
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
    pub fn write_rejection(
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
            self.write(&mut values, parts);
        }
    }

    /// Adds the code of a rejection, with the policy that rejects the request, if the layer sends it.
    #[inline]
    pub fn write_reason<'a>(
        &self,
        reason: impl FnOnce() -> (&'static str, Option<&'a PolicyName>),
        parts: &mut Parts,
    ) {
        let Some(detail) = self.headers.reason else {
            return;
        };
        let (code, policy) = reason();
        let policy = match detail {
            ReasonDetail::Code => None,
            ReasonDetail::CodeAndPolicy => policy,
        };
        write_reason(&mut parts.headers, code, policy);
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
    pub(super) fn write(&self, values: &mut HeaderValues, parts: &mut Parts) {
        let mut written = take_written(&mut parts.extensions);
        let headers = &mut parts.headers;
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
            written.put(&mut parts.extensions);
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
