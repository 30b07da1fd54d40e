//! What a layer's headers say about a decision.

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};

use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
    policy::{Charge, Policy},
    state::Usage,
};

use super::{
    choice::{Discord, Family, Headers, LIMIT, Legacy, REMAINING, RESET, Reset, Scope},
    drafts::Drafts,
    fields::{Narrowest, Told},
    terms::{Draft, Terms},
    text::{Text, capped, digits},
};

/// The headers chosen, with what is the same for every answer of the layer.
#[derive(Debug)]
pub(crate) struct Plan {
    headers: Headers,
    drafts: Drafts,
    /// Whether the headers are those that a layer has by default.
    is_default: bool,
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
        let is_default = matches!(
            &headers.families[..],
            [Family::Legacy(Legacy {
                names: None,
                unit: Reset::EpochSeconds
            })]
        );
        Ok(Self {
            headers,
            drafts,
            is_default,
        })
    }

    /// Whether [`write_default`] writes them for a request that may go on.
    #[inline]
    pub(super) fn is_default(&self) -> bool {
        self.is_default
    }

    /// The terms of all charges when a tier made any of them other than the layer's, and the headers tell of terms.
    pub(in crate::middleware) fn changed(&self, charges: &[Charge<'_>]) -> Option<Box<[Terms]>> {
        let tells = |family: &Family| matches!(family, Family::Draft06 | Family::Draft11);
        match self.headers.families.iter().any(tells) {
            true => self.drafts.changed(charges),
            false => None,
        }
    }

    /// Adds to an answer what there is to tell about a decision.
    pub(in crate::middleware) fn tell(
        &self,
        decision: &Decision,
        changed: Option<&[Terms]>,
        headers: &mut HeaderMap,
    ) {
        self.write(&mut self.told(decision, changed), headers);
    }

    /// Whether answers to requests that may go on carry anything.
    #[inline]
    pub(super) fn tells_success(&self) -> bool {
        !self.headers.families.is_empty()
    }

    /// Takes from a decision what is to be told.
    #[inline]
    pub(super) fn told(&self, decision: &Decision, changed: Option<&[Terms]>) -> Told {
        let mut told = Told::of(decision);
        let narrowest = Narrowest::of(decision);
        told.narrowest = narrowest.map(|(narrowest, _)| narrowest);
        for family in &self.headers.families {
            match family {
                Family::Legacy(_) => {}
                Family::Discord(_) => {
                    if let (Some(told), Some((_, state))) = (&mut told.narrowest, narrowest) {
                        told.place = self.drafts.place(state.policy());
                    }
                }
                Family::Draft06 | Family::Draft11 => {
                    self.drafts.on(decision, changed).told(family, &mut told);
                }
            }
        }
        told
    }

    /// Adds what is told to an answer, but for what is there already.
    pub(super) fn write(&self, told: &mut Told, headers: &mut HeaderMap) {
        for family in &self.headers.families {
            match (family, &told.narrowest) {
                (Family::Legacy(family), Some(narrowest)) => legacy(headers, family, narrowest),
                (Family::Discord(discord), Some(narrowest)) => {
                    self.discord(headers, discord, narrowest, told.is_denied);
                }
                (Family::Draft11, _) => {
                    self.policies(headers, told, Draft::Eleven);
                    if let Some(limits) = told.limits.take() {
                        set(headers, LIMITS, limits);
                    }
                }
                (Family::Draft06, narrowest) => {
                    if let Some(narrowest) = narrowest {
                        set_number(headers, DRAFT_LIMIT, capped(narrowest.usage.limit));
                        set_number(headers, DRAFT_REMAINING, capped(narrowest.usage.remaining));
                        set_number(headers, DRAFT_RESET, capped(narrowest.seconds()));
                    }
                    self.policies(headers, told, Draft::Six);
                }
                (Family::Legacy(_) | Family::Discord(_), None) => {}
            }
        }
        if told.wait > 0 && self.headers.tells_wait {
            set_number(headers, RETRY_AFTER, told.wait);
        }
    }

    fn policies(&self, headers: &mut HeaderMap, told: &Told, draft: Draft) {
        let value = match &told.policies {
            Some(made) => made[draft as usize].as_ref(),
            None => self.drafts.usual(draft),
        };
        if let Some(value) = value {
            set(headers, POLICY, value.clone());
        }
    }

    fn discord(
        &self,
        headers: &mut HeaderMap,
        discord: &Discord,
        narrowest: &Narrowest,
        is_denied: bool,
    ) {
        let seconds = |micros: u64| Text::default().millis(micros.div_ceil(1_000)).value();
        set_number(headers, LIMIT, narrowest.usage.limit);
        set_number(headers, REMAINING, narrowest.usage.remaining);
        set(
            headers,
            RESET,
            seconds(narrowest.usage.reset_at.as_micros()),
        );
        set(headers, RESET_AFTER, seconds(narrowest.until_reset));
        let Some(policy) = narrowest.place.and_then(|place| self.drafts.name(place)) else {
            return;
        };
        set(headers, BUCKET, Text::default().text(policy).value());
        if is_denied {
            let scope = discord.scope_of(policy);
            if scope == Scope::Global {
                set(headers, GLOBAL, HeaderValue::from_static("true"));
            }
            set(headers, SCOPE, HeaderValue::from_static(scope.word()));
        }
    }
}

/// Adds the headers that a layer has by default.
pub(super) fn write_default(headers: &mut HeaderMap, usage: &Usage) {
    write_legacy(headers, usage, usage.reset_at.as_secs_ceil());
}

fn legacy(headers: &mut HeaderMap, family: &Legacy, narrowest: &Narrowest) {
    let usage = narrowest.usage;
    let until = match family.unit {
        Reset::DeltaSeconds => narrowest.seconds(),
        Reset::EpochMillis => usage.reset_at.as_micros().div_ceil(1_000),
        Reset::EpochSeconds => usage.reset_at.as_secs_ceil(),
    };
    match family.names.as_deref() {
        Some([limit, remaining, reset]) => {
            set_number(headers, limit.clone(), usage.limit);
            set_number(headers, remaining.clone(), usage.remaining);
            set_number(headers, reset.clone(), until);
        }
        None => write_legacy(headers, &usage, until),
    }
}

/// Under the usual names.
fn write_legacy(headers: &mut HeaderMap, usage: &Usage, reset: u64) {
    set_number(headers, LIMIT, usage.limit);
    set_number(headers, REMAINING, usage.remaining);
    set_number(headers, RESET, reset);
}

/// Sets a header. One that is there already stays.
#[inline]
fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    headers.entry(name).or_insert(value);
}

/// Sets a header to a number. One that is there already stays.
fn set_number(headers: &mut HeaderMap, name: HeaderName, number: u64) {
    set(headers, name, digits(number));
}

/// Refuses scopes of policies that are not there.
fn verify(discord: &Discord, drafts: &Drafts) -> Result<(), Error> {
    match discord.scopes.iter().find(|(name, _)| !drafts.has(name)) {
        Some((name, _)) => {
            let known: Vec<_> = (0..).map_while(|place| drafts.name(place)).collect();
            let known = known.join("\", \"");
            Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "Discord's headers are told the scope of policy {name:?}, which the layer does not have: it has \
                     \"{known}\""
                ),
            ))
        }
        None => Ok(()),
    }
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
