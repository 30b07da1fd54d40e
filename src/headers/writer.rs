//! Values of each family's headers, and the order in which they are written.

use http::{HeaderMap, HeaderName, HeaderValue, Response, header::RETRY_AFTER};
use smallvec::SmallVec;

use crate::{
    charge::Charge,
    clock::whole_seconds,
    decision::Decision,
    error::{Error, ErrorKind},
    policy::Policy,
    state::{Outcome, PolicyState, Usage, headroom},
};

use super::{
    choice::{
        BUCKET, DEFAULT_NAMES, DRAFT_LIMIT, DRAFT_REMAINING, DRAFT_RESET, DiscordHeaders,
        DiscordScope, Family, GLOBAL, Headers, LIMIT, LegacyHeaders, RATELIMIT, RATELIMIT_POLICY,
        REMAINING, RESET, RESET_AFTER, ResetFormat, SCOPE,
    },
    drafts::{LayerTerms, PolicyLists},
    merge::{self, Claim, DefaultDenial, WrittenSets, has_any},
    numbers::{number, recurring_number, seconds},
    terms::{Draft, PolicyTerms},
    value_buffer::capped,
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
    /// [`ErrorKind::InvalidConfig`] if the headers refer to a policy that the layer does not have.
    pub(crate) fn new<'a>(
        headers: Headers,
        policies: impl Iterator<Item = &'a Policy>,
    ) -> Result<Self, Error> {
        let terms = LayerTerms::new(policies);
        for family in &headers.families {
            if let Family::Discord(discord) = family {
                check_scopes(discord, &terms)?;
            }
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
    pub(super) fn is_default(&self) -> bool {
        self.is_default
    }

    /// Whether responses to admitted requests carry headers.
    pub(super) fn writes_on_success(&self) -> bool {
        !self.headers.families.is_empty()
    }

    /// Returns the terms of all charges if a tier changed those of one and the headers contain terms.
    pub(crate) fn tier_terms(&self, charges: &[Charge<'_>]) -> Option<Box<[PolicyTerms]>> {
        let mut families = self.headers.families.iter();
        if families.any(|family| family.draft().is_some()) {
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
        let mut values = HeaderValues {
            narrowest: Narrowest::of(decision),
            retry_after: decision.retry_after().map(whole_seconds),
            is_denied: decision.outcome() == Outcome::Limited,
            is_nested,
            rate_limit: None,
            policy_lists: None,
        };
        for family in &self.headers.families {
            match family {
                Family::Discord(_) => {
                    if let (Some(narrowest), Some(state)) =
                        (&mut values.narrowest, decision.narrowest())
                    {
                        narrowest.policy = self.terms.index_of(state.policy());
                    }
                }
                Family::Draft06 => {
                    let input = self.terms.input(decision, tier_terms);
                    values.policy_lists = input.policy_lists();
                }
                Family::Draft11 => {
                    let input = self.terms.input(decision, tier_terms);
                    values.policy_lists = input.policy_lists();
                    values.rate_limit = input.rate_limit(values.retry_after);
                }
                Family::Legacy(_) => {}
            }
        }
        values
    }

    /// Adds the headers of a decision to a rejection.
    pub(crate) fn write_rejection<B>(
        &self,
        decision: &Decision,
        tier_terms: Option<&[PolicyTerms]>,
        response: &mut Response<B>,
    ) {
        if !(self.is_default && self.write_default_denial(decision, response)) {
            // A rejection may be the response of an inner layer.
            let mut values = self.values(decision, tier_terms, true);
            self.write(&mut values, response);
        }
    }

    /// Writes the default headers of a denial unless the response has one of them. Returns whether it did.
    fn write_default_denial<B>(&self, decision: &Decision, response: &mut Response<B>) -> bool {
        let denying = decision.narrowest().filter(|_| !decision.is_allowed());
        let Some(usage) = denying.and_then(PolicyState::header_usage) else {
            return false;
        };
        let headers = response.headers_mut();
        let is_new = insert_default(headers, &usage);
        if is_new {
            self.set_retry_after(headers, decision.retry_after().map(whole_seconds));
            response.extensions_mut().insert(DefaultDenial);
        }
        is_new
    }

    /// Adds headers to a response, and merges them with those that it has.
    pub(super) fn write<B>(&self, values: &mut HeaderValues, response: &mut Response<B>) {
        let mut written = WrittenSets::take(response.extensions_mut());
        let headers = response.headers_mut();
        let headroom = values.headroom();
        // All sets are claimed before one is written: of two families that share a name, the first writes it.
        let claim = |family| {
            let names = Family::narrowest_headers(family);
            (family, written.claim(names, headroom, headers))
        };
        let families: SmallVec<[_; 4]> = self.headers.families.iter().map(claim).collect();
        let mut has_policies = false;
        for (family, claim) in &families {
            self.write_family(family, *claim, values, headers, &mut has_policies);
        }
        self.set_retry_after(headers, values.retry_after);
        if values.is_nested {
            for (family, claim) in families {
                let names = family.narrowest_headers();
                if claim == Claim::Free && !names.is_empty() {
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

    /// Writes the headers of one family. `has_policies` is set once a family has written `RateLimit-Policy`.
    fn write_family(
        &self,
        family: &Family,
        claim: Claim,
        values: &mut HeaderValues,
        headers: &mut HeaderMap,
        has_policies: &mut bool,
    ) {
        let narrowest = values.narrowest.filter(|_| claim == Claim::Free);
        match family {
            Family::Discord(discord) => {
                if let Some(narrowest) = narrowest {
                    self.write_discord(headers, discord, &narrowest, values.is_denied);
                }
            }
            Family::Draft06 => {
                if let Some(narrowest) = narrowest {
                    write_draft06(headers, &narrowest);
                }
                if claim != Claim::Taken
                    && !*has_policies
                    && let Some(policies) = self.policies(values, Draft::Six)
                {
                    *has_policies = true;
                    merge::add_unnamed(headers, RATELIMIT_POLICY, policies);
                }
            }
            Family::Draft11 => {
                let limits = (RATELIMIT, values.rate_limit.take());
                if *has_policies {
                    merge::add_named(headers, [limits]);
                } else {
                    let policies = (RATELIMIT_POLICY, self.policies(values, Draft::Eleven));
                    *has_policies = policies.1.is_some();
                    merge::add_named(headers, [policies, limits]);
                }
            }
            Family::Legacy(legacy) => {
                if let Some(narrowest) = narrowest {
                    write_legacy(headers, legacy, &narrowest);
                }
            }
        }
    }

    /// `RateLimit-Policy` for a decision.
    fn policies(&self, values: &HeaderValues, draft: Draft) -> Option<HeaderValue> {
        match &values.policy_lists {
            Some(lists) => lists[draft as usize].clone(),
            None => self.terms.full_list(draft).cloned(),
        }
    }

    fn write_discord(
        &self,
        headers: &mut HeaderMap,
        discord: &DiscordHeaders,
        narrowest: &Narrowest,
        is_denied: bool,
    ) {
        let usage = narrowest.usage;
        let policy = narrowest.policy.and_then(|index| self.terms.name_at(index));
        set(headers, LIMIT, recurring_number(usage.limit));
        set(headers, REMAINING, number(usage.remaining));
        set(headers, RESET, seconds(usage.reset_at.as_micros()));
        set(headers, RESET_AFTER, seconds(narrowest.until_reset));
        let Some(policy) = policy else {
            return;
        };
        let bucket = HeaderValue::from_str(policy);
        set(
            headers,
            BUCKET,
            bucket.expect("a policy's name is visible ASCII"),
        );
        if is_denied {
            let scope = discord.scope_of(policy);
            if scope == DiscordScope::Global {
                set(headers, GLOBAL, HeaderValue::from_static("true"));
            }
            set(headers, SCOPE, HeaderValue::from_static(scope.as_str()));
        }
    }
}

fn write_draft06(headers: &mut HeaderMap, narrowest: &Narrowest) {
    let usage = narrowest.usage;
    set(headers, DRAFT_LIMIT, recurring_number(capped(usage.limit)));
    set(headers, DRAFT_REMAINING, number(capped(usage.remaining)));
    let reset = number(capped(narrowest.seconds_until_reset()));
    set(headers, DRAFT_RESET, reset);
}

fn write_legacy(headers: &mut HeaderMap, legacy: &LegacyHeaders, narrowest: &Narrowest) {
    let usage = narrowest.usage;
    let reset = match legacy.reset {
        ResetFormat::DeltaSeconds => number(narrowest.seconds_until_reset()),
        ResetFormat::EpochMillis => number(usage.reset_at.as_micros().div_ceil(1_000)),
        ResetFormat::EpochSeconds => recurring_number(usage.reset_at.as_secs_ceil()),
    };
    let [limit_name, remaining_name, reset_name] = legacy.header_names().clone();
    set(headers, limit_name, recurring_number(usage.limit));
    set(headers, remaining_name, number(usage.remaining));
    set(headers, reset_name, reset);
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
    let mut written = WrittenSets::take(response.extensions_mut());
    let headers = response.headers_mut();
    if written.claim(&DEFAULT_NAMES, headroom, headers) == Claim::Free {
        insert_default(headers, usage);
    }
}

/// Inserts the default headers unless one of them is there. Returns whether it did.
#[inline]
fn insert_default(headers: &mut HeaderMap, usage: &Usage) -> bool {
    if has_any(headers, &DEFAULT_NAMES) {
        return false;
    }
    headers.insert(LIMIT, recurring_number(usage.limit));
    headers.insert(REMAINING, number(usage.remaining));
    headers.insert(RESET, recurring_number(usage.reset_at.as_secs_ceil()));
    true
}

/// Sets a header. One that is there stays.
#[inline]
fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    headers.entry(name).or_insert(value);
}

/// Rejects scopes of policies that the layer does not have.
fn check_scopes(discord: &DiscordHeaders, terms: &LayerTerms) -> Result<(), Error> {
    let is_known = |policy: &str| terms.names().any(|name| name == policy);
    let unknown = discord.scopes.iter().find(|(policy, _)| !is_known(policy));
    let Some((policy, _)) = unknown else {
        return Ok(());
    };
    let known: Vec<_> = terms.names().collect();
    let known = known.join("\", \"");
    Err(Error::new(
        ErrorKind::InvalidConfig,
        format!(
            "Discord's headers have a scope for policy {policy:?}, which is not in the layer; its policies are \"{known}\""
        ),
    ))
}

// === HeaderValues ===

/// Everything that a decision contributes to headers.
#[derive(Debug)]
pub(super) struct HeaderValues {
    narrowest: Option<Narrowest>,
    /// Whole seconds. `None` if the request was not denied, or if waiting does not help.
    retry_after: Option<u64>,
    is_denied: bool,
    /// Whether a layer around this one may write headers too.
    is_nested: bool,
    /// Draft 11's `RateLimit`.
    rate_limit: Option<HeaderValue>,
    /// `RateLimit-Policy`, if it is not the layer's full list.
    policy_lists: Option<Box<PolicyLists>>,
}

impl HeaderValues {
    /// Headroom of the narrowest policy; the maximum if none was counted.
    fn headroom(&self) -> u128 {
        self.narrowest
            .map_or(u128::MAX, |narrowest| narrowest.headroom)
    }
}

/// State of the narrowest policy.
#[derive(Clone, Copy, Debug)]
struct Narrowest {
    usage: Usage,
    /// Orders it among policies of other layers. A policy that denies is narrower than all that admit.
    headroom: u128,
    /// Microseconds from the decision to the reset.
    until_reset: u64,
    /// Index of the policy in the layer, if a family sends its name.
    policy: Option<u16>,
}

impl Narrowest {
    fn of(decision: &Decision) -> Option<Self> {
        let state = decision.narrowest()?;
        let usage = state.header_usage()?;
        let decided_at = decision.decided_at();
        Some(Self {
            usage,
            headroom: if decision.is_allowed() {
                state.headroom()
            } else {
                0
            },
            until_reset: usage
                .reset_at
                .as_micros()
                .saturating_sub(decided_at.as_micros()),
            policy: None,
        })
    }

    /// Whole seconds until all units are back, rounded up.
    fn seconds_until_reset(&self) -> u64 {
        self.until_reset.div_ceil(1_000_000)
    }
}
