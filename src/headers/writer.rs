//! The order in which a layer's headers are written, beside those of the inner service.
//!
//! # Why does an outage hide the state of a policy, but not its terms?
//!
//! `RateLimit-Policy` has the agreed terms, which hold during an outage. What remains is unknown, so `RateLimit`, limit,
//! remaining, reset and `Retry-After` are left out. When this process counts alone, the headers have its own counts, because
//! these limit the client. A request that no store decided about gets no rate limit headers.

use std::sync::LazyLock;

use http::{
    Extensions, HeaderMap, HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use smallvec::SmallVec;

use crate::{
    charge::Charge,
    clock::whole_seconds,
    decision::{Decision, PolicyName, Usage, headroom},
    error::Error,
    policy::Policy,
};

use super::{
    choice::{Family, Headers, LegacyHeaders, ReasonDetail, ResetFormat},
    drafts::{HeaderInput, LayerTerms},
    families::{DEFAULT_NAMES, HeaderValues, insert_default, write_reason},
    merge::{SetClaim, WrittenSets},
    numbers::{number, recurring_number},
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

    /// Adds the headers of a decision to a rejection.
    pub fn write_rejection<B>(
        &self,
        decision: &Decision,
        tier_terms: Option<&[PolicyTerms]>,
        response: &mut Response<B>,
    ) {
        if !(self.is_default && self.write_default_denial(decision, response)) {
            // A layer around this one may write headers too.
            let mut values = self.values(decision, tier_terms, true);
            self.write(&mut values, response);
        }
    }

    /// Returns all headers of a denial whose rate limit headers are the default ones, but for the content type, which is the
    /// first; `None` for any other one.
    pub fn default_denial(&self, decision: &Decision) -> Option<HeaderMap> {
        let is_default =
            self.is_default && self.headers.sends_retry_after && self.headers.reason.is_none();
        let wait = decision.retry_after().filter(|_| is_default)?;
        let usage = decision.header_usage(decision.narrowest()?)?;
        let mut headers = DENIAL.clone();
        let values = [
            recurring_number(usage.limit),
            number(usage.remaining),
            recurring_number(usage.reset_at.as_secs_ceil()),
            recurring_number(whole_seconds(wait)),
        ];
        for (value, new) in headers.values_mut().skip(1).zip(values) {
            *value = new;
        }
        Some(headers)
    }

    /// Marks the response of a layer that has the [default headers of a denial](Self::default_denial).
    pub fn mark_default_denial(extensions: &mut Extensions) {
        extensions.insert(DefaultDenial);
    }

    /// Adds the code of a rejection, with the policy that rejects the request, if the layer sends it.
    #[inline]
    pub fn write_reason<'a, B>(
        &self,
        reason: impl FnOnce() -> (&'static str, Option<&'a PolicyName>),
        response: &mut Response<B>,
    ) {
        let Some(detail) = self.headers.reason else {
            return;
        };
        let (code, policy) = reason();
        let policy = match detail {
            ReasonDetail::Code => None,
            ReasonDetail::CodeAndPolicy => policy,
        };
        write_reason(response.headers_mut(), code, policy);
    }

    /// Writes the default headers of a denial unless the response has one of them. Returns whether it did.
    fn write_default_denial<B>(&self, decision: &Decision, response: &mut Response<B>) -> bool {
        let denying = decision.narrowest().filter(|_| !decision.is_allowed());
        let Some(usage) = denying.and_then(|state| decision.header_usage(state)) else {
            return false;
        };
        let headers = response.headers_mut();
        let is_new = insert_default(headers, &usage);
        if is_new {
            self.set_retry_after(headers, decision.retry_after().map(whole_seconds));
            Self::mark_default_denial(response.extensions_mut());
        }
        is_new
    }

    /// Adds headers to a response, and merges them with those that it has.
    pub(super) fn write<B>(&self, values: &mut HeaderValues, response: &mut Response<B>) {
        let mut written = take_written(response.extensions_mut());
        let headers = response.headers_mut();
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
            written.put(response.extensions_mut());
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
pub(super) fn write_default<B>(response: &mut Response<B>, usage: &Usage, is_concurrency: bool) {
    if !insert_default(response.headers_mut(), usage) {
        write_default_beside(response, usage, is_concurrency);
    }
}

/// Adds the default headers to a response that has some of them.
#[cold]
fn write_default_beside<B>(response: &mut Response<B>, usage: &Usage, is_concurrency: bool) {
    let headroom = headroom(usage.remaining, is_concurrency);
    let mut written = take_written(response.extensions_mut());
    let headers = response.headers_mut();
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

/// The headers of a denial, in the order in which [`HeaderWriter::default_denial`] sets their values.
///
/// Cloned, because six headers that are inserted one by one take a fifth of the time of a denial: each name is hashed.
static DENIAL: LazyLock<HeaderMap> = LazyLock::new(|| {
    let placeholder = HeaderValue::from_static("");
    let [limit, remaining, reset] = DEFAULT_NAMES.clone();
    let names = [CONTENT_TYPE, limit, remaining, reset, RETRY_AFTER];
    let mut headers: HeaderMap = names
        .into_iter()
        .map(|name| (name, placeholder.clone()))
        .collect();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers
});
