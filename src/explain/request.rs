//! The effect of a layer on a request, rule by rule.

use std::{fmt, time::Duration};

use crate::{
    charge::{Enforcement, OwnedCharge},
    decision::{Outcome, PolicyName},
    error::Error,
    extract::Extracted,
    key::Key,
    limiter::RateLimiter,
    middleware::layer::RateLimitLayer,
    request::RequestHead,
    rules::{KeySource, ModeSetting, OnMissingKey, Rule, RuleMode},
    store::Health,
    task::timer::timeout,
    tiers::{Tier, TierResolution},
};

use super::explanation::{PolicyExplanation, write_health};

impl RateLimitLayer {
    /// Returns what the layer does with a request, for an operator who asks why it is limited.
    ///
    /// Charges nothing, and counts for no warning. The request need not come from a client: whatever the extractors read is
    /// enough, such as a header, or an address in the extensions. Keys and tiers are looked up as for a request: each lookup
    /// ends within the [`lookup_timeout`](crate::builder::RateLimitLayerBuilder::lookup_timeout), one rule after the other.
    /// Then the limiter is asked as by [`RateLimiter::explain`].
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    ///
    /// # async fn example(layer: tollgate::RateLimitLayer) -> Result<(), tollgate::Error> {
    /// let request = Request::get("/search").header("x-api-key", "k-123").body(()).expect("a request");
    /// println!("{}", layer.explain(&request).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the store, if it could not return the state. A limiter with a fallback always returns it.
    pub async fn explain<'a>(
        &self,
        request: impl Into<RequestHead<'a>>,
    ) -> Result<RequestExplanation, Error> {
        let head = &request.into();
        let admission = self.rules.load();
        let mode = admission.mode.get().mode();
        let is_on = mode != RuleMode::Off;
        let is_forbidden = is_on && admission.filter.is_forbidden(head);
        let is_skipped = is_on && !is_forbidden && admission.filter.is_skipped(head);
        let mut rules = Vec::new();
        let mut charges = Vec::new();
        if !is_forbidden && !is_skipped {
            for rule in &*admission.rules {
                let setting = rule.mode.get().within(mode);
                let limiter = (&admission.limiter, admission.lookup_timeout);
                let charged = find_charges(rule, setting, head, limiter).await;
                rules.push(RuleExplanation::new(rule, setting, &charged));
                charges.push(charged.unwrap_or_default());
            }
        }
        let explained = admission.limiter.explain_charges(charges.concat()).await?;
        let mut states = explained.policies.into_iter();
        for (rule, charges) in rules.iter_mut().zip(&charges) {
            rule.set_states(states.by_ref().take(charges.len()).collect());
        }
        Ok(RequestExplanation {
            mode,
            is_forbidden,
            is_skipped,
            rules,
            health: explained.health,
        })
    }
}

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

// === RuleExplanation ===

/// The effect of a rule on a request. It displays as lines for a terminal.
///
/// [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) returns one for each rule.
#[derive(Clone, Debug)]
pub struct RuleExplanation {
    policy: PolicyName,
    mode: RuleMode,
    key_label: Box<str>,
    finding: RuleFinding,
    denies: bool,
}

/// The reason for the effect of a rule on a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RuleFinding {
    /// The request has the key more than once, or in places that contradict each other.
    AmbiguousKey,
    /// The request is counted.
    #[non_exhaustive]
    Counted {
        /// The state under the rule's policy, and under its candidate if it has one.
        policies: Vec<PolicyExplanation>,
        /// Whether the policy can deny the request: the mode is [`RuleMode::Enforce`], and the key is in the rollout.
        is_enforced: bool,
    },
    /// The tier of the caller is forbidden.
    #[non_exhaustive]
    Forbidden {
        /// The name of the tier.
        tier: PolicyName,
    },
    /// The lookup of the key failed or took too long, and the rule rejects requests without one.
    LookupFailed,
    /// The request has no key, and the rule rejects such requests.
    MissingKey,
    /// The key or the cost is in the body of the request, which an explanation does not have.
    NeedsBody,
    /// The rule's conditions (`when`, `unless`) do not match the request.
    NotMatched,
    /// The rule is off, or its layer is.
    Off,
    /// The request has no key, and the rule does not count such requests.
    Skipped,
    /// The tier of the caller is unlimited.
    #[non_exhaustive]
    Unlimited {
        /// The name of the tier.
        tier: PolicyName,
    },
}

impl RuleExplanation {
    /// `charged` is what the rule charges, or the reason why it charges nothing and whether it denies the request.
    fn new(rule: &Rule, setting: ModeSetting, charged: &Charged) -> Self {
        let (finding, denies) = match charged {
            Ok(charges) => {
                let is_enforced = charges.first().is_some_and(|own| !own.borrow().is_shadow());
                let policies = Vec::new();
                let finding = RuleFinding::Counted {
                    policies,
                    is_enforced,
                };
                (finding, false)
            }
            Err((finding, denies)) => (finding.clone(), *denies),
        };
        Self {
            policy: *rule.policy().name(),
            mode: setting.mode(),
            key_label: rule.source.as_ref().map_or("", KeySource::label).into(),
            finding,
            denies,
        }
    }

    /// Sets the states of the charges if the request is counted: the first one is of the rule's own policy.
    fn set_states(&mut self, states: Vec<PolicyExplanation>) {
        if let RuleFinding::Counted {
            policies,
            is_enforced,
        } = &mut self.finding
        {
            let own = states.first();
            self.denies = *is_enforced && own.is_some_and(|own| own.outcome() != Outcome::Allowed);
            *policies = states;
        }
    }

    /// Returns the name of the rule's policy.
    #[must_use]
    pub fn policy(&self) -> &PolicyName {
        &self.policy
    }

    /// Returns the mode: the weaker of the rule's own and its layer's.
    #[must_use]
    pub fn mode(&self) -> RuleMode {
        self.mode
    }

    /// Returns the label of the extractor that finds the key, such as `x-tenant`.
    #[must_use]
    pub fn key_label(&self) -> &str {
        &self.key_label
    }

    /// Returns what the rule finds in the request.
    #[must_use]
    pub fn finding(&self) -> &RuleFinding {
        &self.finding
    }

    /// Returns whether the rule would deny the request now.
    #[must_use]
    pub fn is_denying(&self) -> bool {
        self.denies
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (policy, mode, label) = (&self.policy, self.mode.name(), &self.key_label);
        write!(f, "rule {policy} ({mode}, key {label}): ")?;
        match &self.finding {
            RuleFinding::AmbiguousKey => f.write_str("the key is in the request more than once")?,
            RuleFinding::Counted { is_enforced, .. } => {
                let is_out = self.mode == RuleMode::Enforce && !is_enforced;
                f.write_str("counted")?;
                f.write_str(if is_out {
                    ", but its key is not in the rollout"
                } else {
                    ""
                })?;
            }
            RuleFinding::Forbidden { tier } => write!(f, "tier {tier} has no access")?,
            RuleFinding::LookupFailed => f.write_str("the lookup of the key failed")?,
            RuleFinding::MissingKey => f.write_str("the request has no key")?,
            RuleFinding::NeedsBody => f.write_str("its key or its cost is in the body")?,
            RuleFinding::NotMatched => f.write_str("its conditions do not match")?,
            RuleFinding::Off => f.write_str("off")?,
            RuleFinding::Skipped => f.write_str("not counted, since the request has no key")?,
            RuleFinding::Unlimited { tier } => write!(f, "not counted in tier {tier}")?,
        }
        if self.denies {
            f.write_str("; denies the request")?;
        }
        if let RuleFinding::Counted { policies, .. } = &self.finding {
            policies
                .iter()
                .try_for_each(|policy| write!(f, "\n{policy}"))?;
        }
        Ok(())
    }
}

// === Charged ===

/// The charges of a rule, or the reason why there are none and whether the rule denies the request.
type Charged = Result<Vec<OwnedCharge>, (RuleFinding, bool)>;

/// Returns what a rule would charge.
///
/// Unlike a request, it counts for no warning about misconfigurations. Each of two lookups, of the key and the tier, ends
/// within `deadline`.
async fn find_charges(
    rule: &Rule,
    setting: ModeSetting,
    head: &RequestHead<'_>,
    (limiter, deadline): (&RateLimiter, Duration),
) -> Charged {
    if setting.is_off() {
        return Err((RuleFinding::Off, false));
    }
    if !rule.matchers.counts(head) {
        return Err((RuleFinding::NotMatched, false));
    }
    if rule.needs_body(head) {
        return Err((RuleFinding::NeedsBody, false));
    }
    let key = find_key(rule, head, deadline).await.map_err(|finding| {
        let denies = setting.is_enforced() && !matches!(finding, RuleFinding::Skipped);
        (finding, denies)
    })?;
    let tier = find_tier(rule, head, &key, deadline).await;
    if limiter.has_old_blocks() {
        limiter.renew_old_blocks().await;
    }
    let policy = rule.policy();
    let policy = match &tier {
        Some(tier) if tier.is_unlimited() && !limiter.is_blocked(policy, &key) => {
            let tier = *tier.name();
            return Err((RuleFinding::Unlimited { tier }, false));
        }
        Some(tier) if tier.is_forbidden() => {
            let enforcement = setting.enforcement(policy.name().as_bytes(), &key);
            let tier = *tier.name();
            let denies = enforcement == Enforcement::Enforced;
            return Err((RuleFinding::Forbidden { tier }, denies));
        }
        // A tier that the algorithm cannot count leaves the rule's own quota.
        Some(tier) if !tier.is_unlimited() => tier.policy(policy).unwrap_or(policy),
        Some(_) | None => policy,
    };
    let mut charges = Vec::new();
    rule.add_charges(policy, &key, (setting, head, None), |charge| {
        charges.push(charge.to_owned());
    });
    Ok(charges)
}

/// Returns the key of a request, or what is found in place of one that is counted.
async fn find_key(
    rule: &Rule,
    head: &RequestHead<'_>,
    deadline: Duration,
) -> Result<Key, RuleFinding> {
    let (found, default, missing) = match &rule.source {
        Some(KeySource::Extractor(extractor)) => {
            let default = || extractor.default_key(head);
            let default = rule.missing.is_none().then(default).flatten();
            (extractor.extract(head), default, RuleFinding::MissingKey)
        }
        Some(KeySource::Lookup(extractor)) => {
            let lookup = extractor.extract(head);
            match timeout(deadline, lookup).await {
                Some(Ok(found)) => (found, None, RuleFinding::MissingKey),
                Some(Err(_)) | None => (Extracted::Absent, None, RuleFinding::LookupFailed),
            }
        }
        None => unreachable!("build() fails for a rule without a key"),
    };
    match (found, default, rule.on_missing()) {
        (Extracted::Found(key), ..) | (Extracted::Absent, Some(key), _) => Ok(key),
        (Extracted::Ambiguous, ..) => Err(RuleFinding::AmbiguousKey),
        (Extracted::Absent, None, OnMissingKey::Share) => Ok(Key::UNIDENTIFIED),
        (Extracted::Absent, None, OnMissingKey::Skip) => Err(RuleFinding::Skipped),
        (Extracted::Absent, None, OnMissingKey::Reject) => Err(missing),
    }
}

async fn find_tier(
    rule: &Rule,
    head: &RequestHead<'_>,
    key: &Key,
    deadline: Duration,
) -> Option<Tier> {
    if *key == Key::UNIDENTIFIED {
        return None;
    }
    let choice = rule.choice.as_ref();
    if let Some(tier) = choice.and_then(|choice| choice.tier(head, key)) {
        return Some(tier);
    }
    let cache = rule.cache.as_ref()?;
    match cache.resolve(head, key) {
        TierResolution::Known(tier) => tier,
        TierResolution::Pending(lookup) => {
            let found = timeout(deadline, lookup).await;
            found.unwrap_or_else(|| cache.last_known(key))
        }
    }
}
