//! The effect of a layer on a request, for an operator who asks why it was limited.

use std::fmt;

use http::request::Parts;

use crate::{
    charge::OwnedCharge,
    error::Error,
    explain::write_health,
    matching::RequestHead,
    rules::{RuleExplanation, RuleMode},
    store::Health,
};

use super::admission::Admission;

/// The effect of a layer on a request, rule by rule. It displays as lines for a terminal.
///
/// [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) returns one.
///
/// ```text
/// store: healthy for 3 h
/// layer (enforce): denies the request
/// rule per-ip (enforce, key peer-address): counted; denies the request
/// per-ip: limited, 0 of 20 units left, all back in 60 s
///   quota: 100 per 60 s, burst 20 by token_bucket, 1 a request
///   counted by: shared
///   last denial: 2 s ago, limited, counted by shared, retry in 598 ms; 17 in 4 min
/// rule login (enforce, key x-user): its conditions do not match
/// ```
#[derive(Clone, Debug)]
pub struct RequestExplanation {
    mode: RuleMode,
    is_forbidden: bool,
    is_skipped: bool,
    rules: Vec<RuleExplanation>,
    health: Health,
}

impl RequestExplanation {
    /// Asks all rules, and then the limiter.
    ///
    /// # Errors
    ///
    /// Those of the limiter.
    pub(super) async fn of(admission: &Admission, parts: &Parts) -> Result<Self, Error> {
        let mode = admission.mode.get().mode();
        let is_on = mode != RuleMode::Off;
        let is_forbidden = is_on && admission.filter.is_forbidden(&RequestHead::new(parts));
        let is_skipped =
            is_on && !is_forbidden && admission.filter.is_skipped(&RequestHead::new(parts));
        let mut traces = Vec::new();
        if !is_forbidden && !is_skipped {
            for rule in &*admission.rules {
                let limiter = (&admission.limiter, admission.lookup_timeout);
                traces.push(rule.trace(mode, parts, limiter).await);
            }
        }
        let charges = traces
            .iter()
            .flat_map(|trace| trace.charges.iter().cloned());
        let charges: Vec<OwnedCharge> = charges.collect();
        let explained = admission.limiter.explain_charges(charges).await?;
        let (health, states) = explained.into_parts();
        let mut states = states.into_iter();
        let rules = traces.into_iter();
        Ok(Self {
            mode,
            is_forbidden,
            is_skipped,
            rules: rules.map(|trace| trace.with_states(&mut states)).collect(),
            health,
        })
    }

    /// Returns the mode of the layer.
    #[must_use]
    pub fn mode(&self) -> RuleMode {
        self.mode
    }

    /// Returns whether the layer's [forbid list](crate::builder::RateLimitLayerBuilder::forbid) contains the request.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.is_forbidden
    }

    /// Returns whether the layer's [skip list](crate::builder::RateLimitLayerBuilder::skip) contains the request.
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        self.is_skipped
    }

    /// Returns whether the layer would deny the request now.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        let is_forbidden = self.is_forbidden && self.mode == RuleMode::Enforce;
        is_forbidden || self.rules.iter().any(RuleExplanation::is_denying)
    }

    /// Returns what each rule does, in the order of the layer; empty if the request is forbidden or skipped.
    #[must_use]
    pub fn rules(&self) -> &[RuleExplanation] {
        &self.rules
    }

    /// Returns the rule whose policy has this name; `None` if the layer has none, or the request is forbidden or skipped.
    #[must_use]
    pub fn rule(&self, policy: &str) -> Option<&RuleExplanation> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.policy().as_str() == policy)
    }

    /// Returns the health of the store: its mode, [since when](Health::mode_since), and its outages.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }
}

impl fmt::Display for RequestExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_health(f, &self.health)?;
        let effect = match self.is_denied() {
            _ if self.is_skipped => "skips the request",
            true if self.is_forbidden => "forbids the request",
            true => "denies the request",
            false if self.is_forbidden => "would forbid the request",
            false => "admits the request",
        };
        write!(f, "\nlayer ({}): {effect}", self.mode.name())?;
        self.rules.iter().try_for_each(|rule| write!(f, "\n{rule}"))
    }
}
