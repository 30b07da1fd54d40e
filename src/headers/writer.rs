//! What a layer's headers say about a decision.

use http::{
    HeaderMap, HeaderName, HeaderValue, Response,
    header::{Entry, RETRY_AFTER},
};
use smallvec::SmallVec;

use crate::{
    charge::Charge,
    decision::Decision,
    error::{Error, ErrorKind},
    policy::Policy,
    state::{Usage, headroom},
};

use super::{
    choice::{
        BUCKET, DRAFT_LIMIT, DRAFT_REMAINING, DRAFT_RESET, DiscordHeaders, DiscordScope, Family,
        GLOBAL, Headers, LIMIT, LegacyHeaders, REMAINING, RESET, RESET_AFTER, ResetFormat, SCOPE,
    },
    drafts::Drafts,
    merge::{self, Place, Written},
    terms::{Draft, PolicyTerms},
    value_buffer::{ValueBuffer, capped, digits},
    values::{HeaderValues, Narrowest},
};

/// The headers chosen, with what is the same for every answer of the layer.
#[derive(Debug)]
pub(crate) struct HeaderWriter {
    headers: Headers,
    drafts: Drafts,
    /// Whether the headers are those that a layer has by default.
    is_default: bool,
}

impl HeaderWriter {
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
            [Family::Legacy(LegacyHeaders {
                names: None,
                unit: ResetFormat::EpochSeconds
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
    pub(crate) fn changed_terms(&self, charges: &[Charge<'_>]) -> Option<Box<[PolicyTerms]>> {
        let tells = |family: &Family| matches!(family, Family::Draft06 | Family::Draft11);
        match self.headers.families.iter().any(tells) {
            true => self.drafts.changed(charges),
            false => None,
        }
    }

    /// Adds to a rejection what there is to tell about its decision.
    pub(crate) fn write_rejection<B>(
        &self,
        decision: &Decision,
        changed: Option<&[PolicyTerms]>,
        response: &mut Response<B>,
    ) {
        let mut told = self.told(decision, changed);
        told.is_inner = true;
        self.write(&mut told, response);
    }

    /// Whether answers to requests that may go on carry anything.
    #[inline]
    pub(super) fn tells_success(&self) -> bool {
        !self.headers.families.is_empty()
    }

    /// Takes from a decision what is to be told.
    #[inline]
    pub(super) fn told(
        &self,
        decision: &Decision,
        changed: Option<&[PolicyTerms]>,
    ) -> HeaderValues {
        let mut told = HeaderValues::of(decision);
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

    /// Adds the headers to a response, and merges them with those that it has.
    pub(super) fn write<B>(&self, told: &mut HeaderValues, response: &mut Response<B>) {
        let inner = response.extensions_mut().remove::<Written>();
        let mut written = inner.unwrap_or_default();
        let headers = response.headers_mut();
        let room = told.narrowest.map_or(u128::MAX, |narrowest| narrowest.room);
        // All look before any writes: of two families that share a name, the first writes it.
        let families = self.headers.families.iter();
        let families: SmallVec<[_; 2]> = families
            .map(|family| (family, written.place(&family.names(), room, headers)))
            .collect();
        let mut has_policy = false;
        for (family, place) in &families {
            self.write_family((family, *place), told, headers, &mut has_policy);
        }
        if told.wait > 0 && self.headers.tells_wait {
            set_number(headers, RETRY_AFTER, told.wait);
        }
        if told.is_inner {
            let free = families.iter().filter(|(_, place)| *place == Place::Free);
            free.for_each(|(family, _)| written.note(family.names(), room));
            response.extensions_mut().insert(written);
        }
    }

    fn write_family(
        &self,
        (family, place): (&Family, Place),
        told: &mut HeaderValues,
        headers: &mut HeaderMap,
        has_policy: &mut bool,
    ) {
        let narrowest = told.narrowest.filter(|_| place == Place::Free);
        match (family, narrowest) {
            (Family::Draft11, _) => {
                let limits = (LIMITS, told.limits.take());
                match *has_policy {
                    true => merge::add_named(headers, [limits]),
                    false => {
                        let policies = (POLICY, self.policies(told, Draft::Eleven));
                        *has_policy = policies.1.is_some();
                        merge::add_named(headers, [policies, limits]);
                    }
                }
            }
            (Family::Draft06, narrowest) => {
                if let Some(narrowest) = narrowest {
                    set_number(headers, DRAFT_LIMIT, capped(narrowest.usage.limit));
                    set_number(headers, DRAFT_REMAINING, capped(narrowest.usage.remaining));
                    set_number(headers, DRAFT_RESET, capped(narrowest.seconds()));
                }
                if place != Place::Taken
                    && !*has_policy
                    && let Some(policies) = self.policies(told, Draft::Six)
                {
                    *has_policy = true;
                    merge::add_unnamed(headers, POLICY, policies);
                }
            }
            (Family::Legacy(family), Some(narrowest)) => legacy(headers, family, &narrowest),
            (Family::Discord(discord), Some(narrowest)) => {
                self.discord(headers, discord, &narrowest, told.is_denied);
            }
            (Family::Legacy(_) | Family::Discord(_), None) => {}
        }
    }

    /// `RateLimit-Policy` for a decision.
    fn policies(&self, told: &HeaderValues, draft: Draft) -> Option<HeaderValue> {
        match &told.policies {
            Some(made) => made[draft as usize].clone(),
            None => self.drafts.usual(draft).cloned(),
        }
    }

    fn discord(
        &self,
        headers: &mut HeaderMap,
        discord: &DiscordHeaders,
        narrowest: &Narrowest,
        is_denied: bool,
    ) {
        let seconds = |micros: u64| {
            ValueBuffer::default()
                .millis(micros.div_ceil(1_000))
                .value()
        };
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
        set(headers, BUCKET, ValueBuffer::default().text(policy).value());
        if is_denied {
            let scope = discord.scope_of(policy);
            if scope == DiscordScope::Global {
                set(headers, GLOBAL, HeaderValue::from_static("true"));
            }
            set(headers, SCOPE, HeaderValue::from_static(scope.word()));
        }
    }
}

/// Adds the headers that a layer has by default.
#[inline]
pub(super) fn write_default<B>(response: &mut Response<B>, usage: &Usage, is_in_flight: bool) {
    let reset = usage.reset_at.as_secs_ceil();
    if !insert_new(response.headers_mut(), usage, reset) {
        write_default_beside(response, usage, is_in_flight);
    }
}

/// The same, where some of them are there already.
#[cold]
fn write_default_beside<B>(response: &mut Response<B>, usage: &Usage, is_in_flight: bool) {
    let room = headroom(usage.remaining, is_in_flight);
    let inner = response.extensions_mut().remove::<Written>();
    let names = LegacyHeaders::default().own_names();
    let headers = response.headers_mut();
    if inner.unwrap_or_default().place(&names, room, headers) == Place::Free {
        write_legacy(headers, usage, usage.reset_at.as_secs_ceil());
    }
}

/// Inserts the usual headers unless one of them is there.
fn insert_new(headers: &mut HeaderMap, usage: &Usage, reset: u64) -> bool {
    if !insert_number(headers, LIMIT, usage.limit) {
        return false;
    }
    if !insert_number(headers, REMAINING, usage.remaining) {
        headers.remove(LIMIT);
        return false;
    }
    let is_new = insert_number(headers, RESET, reset);
    if !is_new {
        headers.remove(LIMIT);
        headers.remove(REMAINING);
    }
    is_new
}

fn insert_number(headers: &mut HeaderMap, name: HeaderName, number: u64) -> bool {
    match headers.entry(name) {
        Entry::Occupied(_) => false,
        Entry::Vacant(place) => {
            place.insert(digits(number));
            true
        }
    }
}

fn legacy(headers: &mut HeaderMap, family: &LegacyHeaders, narrowest: &Narrowest) {
    let usage = narrowest.usage;
    let until = match family.unit {
        ResetFormat::DeltaSeconds => narrowest.seconds(),
        ResetFormat::EpochMillis => usage.reset_at.as_micros().div_ceil(1_000),
        ResetFormat::EpochSeconds => usage.reset_at.as_secs_ceil(),
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
fn verify(discord: &DiscordHeaders, drafts: &Drafts) -> Result<(), Error> {
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

const LIMITS: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
