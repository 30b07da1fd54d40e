//! What a layer's headers say about a decision.

use http::{HeaderName, HeaderValue};

use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
    policy::Policy,
    state::{Outcome, PolicyState, Usage},
};

use super::{
    choice::{Discord, Family, Headers, LIMIT, Legacy, REMAINING, RESET, Reset, Scope},
    fields::{Fields, whole_seconds},
    terms::{Draft, Terms, named, write_unknown},
    text::Text,
};

/// The headers chosen, with what is the same for every answer of the layer.
#[derive(Debug)]
pub(crate) struct Plan {
    headers: Headers,
    terms: Box<[Terms]>,
    /// `RateLimit-Policy` when all policies were asked, by draft 11 and by draft 6.
    named: Option<HeaderValue>,
    bare: Option<HeaderValue>,
}

impl Plan {
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the headers speak of a policy that is not there.
    pub(crate) fn new<'a>(
        headers: Headers,
        policies: impl Iterator<Item = &'a Policy>,
    ) -> Result<Self, Error> {
        let terms: Box<[Terms]> = policies.map(Terms::of).collect();
        for family in &headers.families {
            if let Family::Discord(discord) = family {
                verify(discord, &terms)?;
            }
        }
        let joined = |draft: Draft| {
            let text = terms
                .iter()
                .fold(Text::default(), |text, terms| terms.write(draft, text));
            text.some_value()
        };
        Ok(Self {
            named: joined(Draft::Eleven),
            bare: joined(Draft::Six),
            headers,
            terms,
        })
    }

    /// What the answer to a request that was decided on will say.
    #[inline]
    pub(in crate::middleware) fn fields(&self, decision: &Decision) -> Fields {
        let mut fields = Fields::default();
        let narrowest = decision
            .narrowest()
            .and_then(|state| Some((state, state.usage()?)));
        for family in &self.headers.families {
            match (family, narrowest) {
                (Family::Legacy(names), Some((_, usage))) => {
                    legacy(&mut fields, names, usage, decision);
                }
                (Family::Draft11, _) => self.draft11(&mut fields, decision),
                (Family::Draft06, _) => self.draft06(&mut fields, narrowest, decision),
                (Family::Discord(discord), Some(narrowest)) => {
                    discord_fields(&mut fields, discord, narrowest, decision);
                }
                (Family::Legacy(_) | Family::Discord(_), None) => {}
            }
        }
        if let Some(wait) = decision.retry_after().filter(|_| self.headers.tells_wait) {
            fields.push_wait(wait);
        }
        fields
    }

    fn draft11(&self, fields: &mut Fields, decision: &Decision) {
        if let Some(policy) = self.policies(decision, Draft::Eleven) {
            fields.push(POLICY, policy);
        }
        let latest = decision.retry_after().map_or(u64::MAX, whole_seconds);
        let first = decision.narrowest();
        let others = decision.states().iter();
        let others = others.filter(|state| first.is_none_or(|first| !std::ptr::eq(first, *state)));
        let text = first
            .into_iter()
            .chain(others)
            .fold(Text::default(), |text, state| {
                self.limit(text, state, decision, latest)
            });
        if let Some(limits) = text.some_value() {
            fields.push(LIMITS, limits);
        }
    }

    /// `"name";r=..;t=..`, unless nobody counted; without a `t` that lies behind `Retry-After`.
    fn limit(&self, text: Text, state: &PolicyState, decision: &Decision, latest: u64) -> Text {
        let Some(usage) = state.usage() else {
            return text;
        };
        let text = named(text.next(), state.policy());
        let text = text.text(";r=").integer(usage.remaining);
        let now = decision.decided_at();
        let span = match self.terms(state) {
            Some(terms) => terms.effective_window(state, usage, now),
            None => Some(whole_seconds(usage.reset_at.since(now))),
        };
        match span.filter(|span| *span <= latest) {
            Some(span) => text.text(";t=").integer(span),
            None => text,
        }
    }

    fn draft06(
        &self,
        fields: &mut Fields,
        narrowest: Option<(&PolicyState, Usage)>,
        decision: &Decision,
    ) {
        if let Some((_, usage)) = narrowest {
            let integer = |number| Text::default().integer(number).value();
            fields.push(DRAFT_LIMIT, integer(usage.limit));
            fields.push(DRAFT_REMAINING, integer(usage.remaining));
            fields.push(DRAFT_RESET, integer(seconds_to(usage, decision)));
        }
        if let Some(policy) = self.policies(decision, Draft::Six) {
            fields.push(POLICY, policy);
        }
    }

    /// `RateLimit-Policy` with the policies that were asked: made beforehand when these are all, in their own terms.
    fn policies(&self, decision: &Decision, draft: Draft) -> Option<HeaderValue> {
        let states = decision.states();
        let are_all = states.len() == self.terms.len()
            && states
                .iter()
                .zip(&self.terms)
                .all(|(state, terms)| terms.fit(state));
        if are_all {
            let all = match draft {
                Draft::Eleven => &self.named,
                Draft::Six => &self.bare,
            };
            return all.clone();
        }
        let text = states
            .iter()
            .fold(Text::default(), |text, state| match self.terms(state) {
                Some(terms) => terms.write(draft, text),
                None => write_unknown(state, draft, text),
            });
        text.some_value()
    }

    fn terms(&self, state: &PolicyState) -> Option<&Terms> {
        self.terms.iter().find(|terms| terms.fit(state))
    }
}

fn legacy(fields: &mut Fields, names: &Legacy, usage: Usage, decision: &Decision) {
    fields.push_number(names.limit.clone(), usage.limit);
    fields.push_number(names.remaining.clone(), usage.remaining);
    let reset = match names.unit {
        Reset::DeltaSeconds => seconds_to(usage, decision),
        Reset::EpochMillis => usage.reset_at.as_micros().div_ceil(1_000),
        Reset::EpochSeconds => usage.reset_at.as_secs_ceil(),
    };
    fields.push_number(names.reset.clone(), reset);
}

fn discord_fields(
    fields: &mut Fields,
    discord: &Discord,
    (state, usage): (&PolicyState, Usage),
    decision: &Decision,
) {
    let policy = state.policy().as_str();
    let after = usage.reset_at.since(decision.decided_at()).as_micros();
    let after = u64::try_from(after.div_ceil(1_000)).unwrap_or(u64::MAX);
    let at = usage.reset_at.as_micros().div_ceil(1_000);
    fields.push_number(LIMIT, usage.limit);
    fields.push_number(REMAINING, usage.remaining);
    fields.push(RESET, Text::default().millis(at).value());
    fields.push(RESET_AFTER, Text::default().millis(after).value());
    fields.push(BUCKET, Text::default().text(policy).value());
    if decision.outcome() == Outcome::Deny {
        let scope = match discord.scope_of(policy) {
            Scope::Global => {
                fields.push(GLOBAL, HeaderValue::from_static("true"));
                "global"
            }
            Scope::Shared => "shared",
            Scope::User => "user",
        };
        fields.push(SCOPE, HeaderValue::from_static(scope));
    }
}

/// Refuses scopes of policies that are not there.
fn verify(discord: &Discord, terms: &[Terms]) -> Result<(), Error> {
    let is_known = |name: &str| terms.iter().any(|terms| terms.name() == name);
    match discord.scopes.iter().find(|(name, _)| !is_known(name)) {
        Some((name, _)) => Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "Discord's headers are told the scope of policy {name:?}, which the layer does not have"
            ),
        )),
        None => Ok(()),
    }
}

/// Whole seconds until all is back, rounded up.
fn seconds_to(usage: Usage, decision: &Decision) -> u64 {
    let span = usage.reset_at.since(decision.decided_at());
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
const DRAFT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const DRAFT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const DRAFT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const GLOBAL: HeaderName = HeaderName::from_static("x-ratelimit-global");
const LIMITS: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");
const SCOPE: HeaderName = HeaderName::from_static("x-ratelimit-scope");
