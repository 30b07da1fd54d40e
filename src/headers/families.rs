//! Header names and values of each family.

use std::collections::HashSet;

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};

use crate::{
    clock::{micros, whole_seconds},
    decision::{Decision, Outcome, PolicyName, Usage},
    error::{Error, ErrorKind},
};

use super::{
    choice::{DiscordHeaders, DiscordScope, Family, Headers, LegacyHeaders, ResetFormat},
    drafts::{HeaderInput, LayerTerms, PolicyLists},
    merge::{self, SetClaim, has_any},
    numbers::{number, recurring_number, seconds},
    terms::Draft,
    value_buffer::capped,
};

impl Family {
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the family refers to a policy that the layer does not have.
    pub fn check(&self, terms: &LayerTerms) -> Result<(), Error> {
        let Self::Discord(discord) = self else {
            return Ok(());
        };
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

    /// Names of the headers that describe the narrowest policy. They are written together or not at all.
    pub fn narrowest_headers(&self) -> &[HeaderName] {
        match self {
            Self::Discord(_) => &DISCORD_NAMES,
            Self::Draft06 => &DRAFT06_NAMES,
            Self::Draft11 => &[],
            Self::Legacy(legacy) => legacy_names(legacy),
        }
    }

    /// Names of all headers of the family.
    fn names(&self) -> Vec<HeaderName> {
        let mut names = self.narrowest_headers().to_vec();
        match self {
            Self::Discord(_) | Self::Legacy(_) => {}
            Self::Draft06 => names.push(RATELIMIT_POLICY),
            Self::Draft11 => names.extend([RATELIMIT, RATELIMIT_POLICY]),
        }
        names
    }

    /// Whether the family describes quotas and windows, which a tier may change.
    pub fn has_terms(&self) -> bool {
        matches!(self, Self::Draft06 | Self::Draft11)
    }

    /// Writes the headers of the family.
    pub fn write(
        &self,
        claim: SetClaim,
        values: &mut HeaderValues,
        terms: &LayerTerms,
        headers: &mut HeaderMap,
    ) {
        let narrowest = values.narrowest.filter(|_| claim == SetClaim::Free);
        match self {
            Self::Discord(discord) => {
                if let Some(narrowest) = narrowest {
                    write_discord(discord, &narrowest, values.is_denied, terms, headers);
                }
            }
            Self::Draft06 => {
                if let Some(narrowest) = narrowest {
                    write_draft06(&narrowest, headers);
                }
                if claim != SetClaim::Taken
                    && let Some(policies) = values.policy_list(terms, Draft::Six)
                {
                    merge::add_unnamed(headers, RATELIMIT_POLICY, policies);
                }
            }
            Self::Draft11 => {
                let limits = (RATELIMIT, values.rate_limit.take());
                if let Some(policies) = values.policy_list(terms, Draft::Eleven) {
                    let policies = (RATELIMIT_POLICY, Some(policies));
                    merge::add_named(headers, [policies, limits]);
                } else {
                    // Not beside the list of another format, which a family of this layer has written.
                    merge::add_named(headers, [limits]);
                }
            }
            Self::Legacy(legacy) => {
                if let Some(narrowest) = narrowest {
                    write_legacy(legacy, &narrowest, headers);
                }
            }
        }
    }

    /// Adds the values that only this family needs.
    fn add_values(&self, values: &mut HeaderValues, input: &HeaderInput<'_>) {
        match self {
            Self::Discord(_) => {
                if let (Some(narrowest), Some(state)) =
                    (&mut values.narrowest, input.decision.narrowest())
                {
                    narrowest.policy = input.layer.index_of(state.policy());
                }
            }
            Self::Draft06 => values.policy_lists = input.policy_lists(),
            Self::Draft11 => {
                values.policy_lists = input.policy_lists();
                values.rate_limit = input.rate_limit(values.retry_after);
            }
            Self::Legacy(_) => {}
        }
    }
}

impl Headers {
    /// Returns the names of the headers that responses may carry, to let browsers read them: see the
    /// [module docs](super#browsers-and-cors).
    #[must_use]
    pub fn header_names(&self) -> Vec<HeaderName> {
        let mut names: Vec<_> = self.families.iter().flat_map(Family::names).collect();
        names.extend(self.sends_retry_after.then_some(RETRY_AFTER));
        names.extend(self.reason.map(|_| REASON));
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }
}

/// Inserts the default headers unless one of them is there. Returns whether it did.
#[inline]
pub(super) fn insert_default(headers: &mut HeaderMap, usage: &Usage) -> bool {
    if has_any(headers, &DEFAULT_NAMES) {
        return false;
    }
    headers.insert(LIMIT, recurring_number(usage.limit));
    headers.insert(REMAINING, number(usage.remaining));
    headers.insert(RESET, recurring_number(usage.reset_at.as_secs_ceil()));
    true
}

/// Sets the reason of a rejection.
pub(super) fn write_reason(
    headers: &mut HeaderMap,
    code: &'static str,
    policy: Option<&PolicyName>,
) {
    let value = match policy {
        Some(policy) => HeaderValue::try_from(format!("{code};policy=\"{policy}\"")),
        None => Ok(HeaderValue::from_static(code)),
    };
    set(
        headers,
        REASON,
        value.expect("a policy's name is visible ASCII"),
    );
}

fn write_discord(
    discord: &DiscordHeaders,
    narrowest: &Narrowest,
    is_denied: bool,
    terms: &LayerTerms,
    headers: &mut HeaderMap,
) {
    let usage = narrowest.usage;
    set(headers, LIMIT, recurring_number(usage.limit));
    set(headers, REMAINING, number(usage.remaining));
    set(headers, RESET, seconds(usage.reset_at.as_micros()));
    set(headers, RESET_AFTER, seconds(narrowest.until_reset));
    let Some(policy) = narrowest.policy.and_then(|index| terms.name_at(index)) else {
        return;
    };
    let bucket = HeaderValue::from_str(policy).expect("a policy's name is visible ASCII");
    set(headers, BUCKET, bucket);
    if is_denied {
        let mut scopes = discord.scopes.iter();
        let scope = scopes.find(|(name, _)| name == policy);
        let scope = match scope.map_or(DiscordScope::User, |(_, scope)| *scope) {
            DiscordScope::Global => {
                set(headers, GLOBAL, HeaderValue::from_static("true"));
                "global"
            }
            DiscordScope::Shared => "shared",
            DiscordScope::User => "user",
        };
        set(headers, SCOPE, HeaderValue::from_static(scope));
    }
}

fn write_draft06(narrowest: &Narrowest, headers: &mut HeaderMap) {
    let usage = narrowest.usage;
    let reset = capped(narrowest.seconds_until_reset());
    set(headers, DRAFT_LIMIT, recurring_number(capped(usage.limit)));
    set(headers, DRAFT_REMAINING, number(capped(usage.remaining)));
    set(headers, DRAFT_RESET, number(reset));
}

fn write_legacy(legacy: &LegacyHeaders, narrowest: &Narrowest, headers: &mut HeaderMap) {
    let usage = narrowest.usage;
    let reset_value = match legacy.reset {
        ResetFormat::DeltaSeconds => number(narrowest.seconds_until_reset()),
        ResetFormat::EpochMillis => number(usage.reset_at.as_micros().div_ceil(1_000)),
        ResetFormat::EpochSeconds => recurring_number(usage.reset_at.as_secs_ceil()),
    };
    let [limit, remaining, reset] = legacy_names(legacy).clone();
    set(headers, limit, recurring_number(usage.limit));
    set(headers, remaining, number(usage.remaining));
    set(headers, reset, reset_value);
}

/// Names of limit, remaining and reset.
fn legacy_names(legacy: &LegacyHeaders) -> &[HeaderName; 3] {
    legacy.names.as_deref().unwrap_or(&DEFAULT_NAMES)
}

/// Sets a header. One that is there stays.
#[inline]
fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    headers.entry(name).or_insert(value);
}

// === HeaderValues ===

/// Everything that a decision contributes to headers.
#[derive(Debug)]
pub(super) struct HeaderValues {
    narrowest: Option<Narrowest>,
    /// Whole seconds. `None` if the request was not denied, or if waiting does not help.
    pub retry_after: Option<u64>,
    is_denied: bool,
    /// Whether a layer around this one may write headers too.
    pub is_nested: bool,
    /// Draft 11's `RateLimit`.
    rate_limit: Option<HeaderValue>,
    /// `RateLimit-Policy`, if it is not the layer's full list.
    policy_lists: Option<Box<PolicyLists>>,
    /// Whether a family has taken its `RateLimit-Policy`. Two families have the same header, in two formats.
    is_policy_list_taken: bool,
}

impl HeaderValues {
    pub fn new(families: &[Family], input: &HeaderInput<'_>, is_nested: bool) -> Self {
        let decision = input.decision;
        let mut values = Self {
            narrowest: Narrowest::of(decision),
            retry_after: decision.retry_after().map(whole_seconds),
            is_denied: decision.outcome() == Outcome::Limited,
            is_nested,
            rate_limit: None,
            policy_lists: None,
            is_policy_list_taken: false,
        };
        if let (Some(narrowest), Some(state)) = (&mut values.narrowest, decision.narrowest()) {
            let limit = input.shown_limit(state);
            narrowest.usage.limit = limit.unwrap_or(narrowest.usage.limit);
        }
        for family in families {
            family.add_values(&mut values, input);
        }
        values
    }

    /// Headroom of the narrowest policy; the maximum if none was counted.
    pub fn headroom(&self) -> u128 {
        self.narrowest
            .map_or(u128::MAX, |narrowest| narrowest.headroom)
    }

    /// Returns `RateLimit-Policy` once, for the first family that writes it.
    fn policy_list(&mut self, terms: &LayerTerms, draft: Draft) -> Option<HeaderValue> {
        if self.is_policy_list_taken {
            return None;
        }
        let list = match &self.policy_lists {
            Some(lists) => lists[draft as usize].clone(),
            None => terms.full_list(draft).cloned(),
        };
        self.is_policy_list_taken = list.is_some();
        list
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
        let mut usage = state.header_usage()?;
        let until_reset = usage.reset_at.since(decision.decided_at());
        usage.reset_at = decision.wall_time(usage.reset_at);
        Some(Self {
            usage,
            headroom: if decision.is_allowed() {
                state.headroom()
            } else {
                0
            },
            until_reset: micros(until_reset),
            policy: None,
        })
    }

    /// Whole seconds until all units are back, rounded up.
    fn seconds_until_reset(&self) -> u64 {
        self.until_reset.div_ceil(1_000_000)
    }
}

/// Names of the headers that a layer has by default.
pub(super) static DEFAULT_NAMES: [HeaderName; 3] = [LIMIT, REMAINING, RESET];
static DISCORD_NAMES: [HeaderName; 7] =
    [LIMIT, REMAINING, RESET, RESET_AFTER, BUCKET, GLOBAL, SCOPE];
static DRAFT06_NAMES: [HeaderName; 3] = [DRAFT_LIMIT, DRAFT_REMAINING, DRAFT_RESET];

const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
const DRAFT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const DRAFT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const DRAFT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const GLOBAL: HeaderName = HeaderName::from_static("x-ratelimit-global");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const REASON: HeaderName = HeaderName::from_static("x-ratelimit-reason");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");
const SCOPE: HeaderName = HeaderName::from_static("x-ratelimit-scope");
