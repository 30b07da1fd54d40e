//! What a layer's headers say about a decision.

use http::{HeaderName, HeaderValue};

use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
    policy::{Charge, Policy},
    state::{Outcome, PolicyState, Usage},
};

use super::{
    choice::{Discord, Family, Headers, LIMIT, Legacy, REMAINING, RESET, Reset, Scope},
    drafts::Drafts,
    fields::{Fields, seconds_to},
    terms::Terms,
    text::Text,
};

/// The headers chosen, with what is the same for every answer of the layer.
#[derive(Debug)]
pub(crate) struct Plan {
    headers: Headers,
    drafts: Drafts,
}

impl Plan {
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the headers speak of a policy that is not there.
    pub(crate) fn new<'a>(
        headers: Headers,
        policies: impl Iterator<Item = &'a Policy>,
    ) -> Result<Self, Error> {
        let drafts = Drafts::new(policies);
        for family in &headers.families {
            if let Family::Discord(discord) = family {
                verify(discord, &drafts)?;
            }
        }
        Ok(Self { headers, drafts })
    }

    /// The terms of all charges when a tier made any of them other than the layer's, and the headers tell of terms.
    pub(in crate::middleware) fn changed(&self, charges: &[Charge<'_>]) -> Option<Box<[Terms]>> {
        let tells = |family: &Family| matches!(family, Family::Draft06 | Family::Draft11);
        match self.headers.families.iter().any(tells) {
            true => self.drafts.changed(charges),
            false => None,
        }
    }

    /// What the answer to a request that was decided on will say.
    #[inline]
    pub(in crate::middleware) fn fields(
        &self,
        decision: &Decision,
        changed: Option<&[Terms]>,
    ) -> Fields {
        let mut fields = Fields::default();
        let narrowest = decision
            .narrowest()
            .and_then(|state| Some((state, state.usage()?)));
        for family in &self.headers.families {
            match (family, narrowest) {
                (Family::Legacy(names), Some((_, usage))) => {
                    legacy(&mut fields, names, usage, decision);
                }
                (Family::Draft11, _) => self.drafts.on(decision, changed).eleven(&mut fields),
                (Family::Draft06, _) => {
                    let usage = narrowest.map(|(_, usage)| usage);
                    self.drafts.on(decision, changed).six(&mut fields, usage);
                }
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
fn verify(discord: &Discord, drafts: &Drafts) -> Result<(), Error> {
    match discord.scopes.iter().find(|(name, _)| !drafts.has(name)) {
        Some((name, _)) => Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "Discord's headers are told the scope of policy {name:?}, which the layer does not have"
            ),
        )),
        None => Ok(()),
    }
}

const BUCKET: HeaderName = HeaderName::from_static("x-ratelimit-bucket");
const GLOBAL: HeaderName = HeaderName::from_static("x-ratelimit-global");
const RESET_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-reset-after");
const SCOPE: HeaderName = HeaderName::from_static("x-ratelimit-scope");
