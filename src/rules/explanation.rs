//! The effect of a rule on a request, for an operator who asks why it was limited.

use std::{fmt, time::Duration};

use http::request::Parts;

use crate::{
    charge::{Charge, Charges, Enforcement, OwnedCharge},
    decision::{Outcome, PolicyName},
    explain::PolicyExplanation,
    extract::Extracted,
    key::Key,
    limiter::RateLimiter,
    matching::RequestHead,
    task::timer::timeout,
    tiers::{Tier, TierResolution},
};

use super::{
    mode::{ModeSetting, RuleMode},
    on_missing_key::OnMissingKey,
    rule::{KeySource, Rule},
};

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

// === RuleTrace ===

/// The findings of a rule in a request, before the store is asked for the state of its charges.
pub(crate) struct RuleTrace {
    rule: RuleExplanation,
    setting: ModeSetting,
    /// The charges of a request that is counted.
    pub(crate) charges: Vec<OwnedCharge>,
}

impl RuleTrace {
    /// Takes the states of the charges, in their order.
    pub(crate) fn with_states(
        self,
        states: &mut impl Iterator<Item = PolicyExplanation>,
    ) -> RuleExplanation {
        let Self {
            mut rule, charges, ..
        } = self;
        let Some(first) = charges.first() else {
            return rule;
        };
        let is_enforced = !first.borrow().is_shadow();
        let policies: Vec<PolicyExplanation> = states.take(charges.len()).collect();
        let own = policies.first();
        rule.denies = is_enforced && own.is_some_and(|own| own.outcome() != Outcome::Allowed);
        rule.finding = RuleFinding::Counted {
            policies,
            is_enforced,
        };
        rule
    }

    fn finding(mut self, finding: RuleFinding, denies: bool) -> Self {
        (self.rule.finding, self.rule.denies) = (finding, denies);
        self
    }

    /// A finding for which a rule rejects requests, if it is enforced for all keys.
    fn rejecting(self, finding: RuleFinding) -> Self {
        let denies = self.setting.is_enforced();
        self.finding(finding, denies)
    }
}

impl Rule {
    /// Returns what the rule finds in a request, and the charges that it would make.
    ///
    /// Unlike a request, it counts for no warning about misconfigurations. Each of two lookups, of the key and the tier, ends
    /// within `deadline`.
    pub(crate) async fn trace(
        &self,
        layer: RuleMode,
        parts: &Parts,
        (limiter, deadline): (&RateLimiter, Duration),
    ) -> RuleTrace {
        let setting = self.mode.get().within(layer);
        let trace = RuleTrace {
            rule: RuleExplanation {
                policy: *self.policy.name(),
                mode: setting.mode(),
                key_label: self.key_label().into(),
                finding: RuleFinding::NotMatched,
                denies: false,
            },
            setting,
            charges: Vec::new(),
        };
        if setting.is_off() {
            return trace.finding(RuleFinding::Off, false);
        }
        if !self.matchers.counts(&RequestHead::new(parts)) {
            return trace;
        }
        let key = match self.find_key(parts, deadline).await {
            Ok(key) => key,
            Err(RuleFinding::Skipped) => return trace.finding(RuleFinding::Skipped, false),
            Err(finding) => return trace.rejecting(finding),
        };
        let tier = self.find_tier(parts, &key, deadline).await;
        if limiter.has_old_blocks() {
            limiter.renew_old_blocks().await;
        }
        match tier {
            Some(tier) if tier.is_unlimited() && !limiter.is_blocked(&self.policy, &key) => {
                let tier = *tier.name();
                trace.finding(RuleFinding::Unlimited { tier }, false)
            }
            Some(tier) if tier.is_forbidden() => {
                let enforcement = setting.enforcement(self.policy.name().as_bytes(), &key);
                let tier = *tier.name();
                let finding = RuleFinding::Forbidden { tier };
                trace.finding(finding, enforcement == Enforcement::Enforced)
            }
            tier => {
                let tier = tier.filter(|tier| !tier.is_unlimited());
                RuleTrace {
                    charges: self.charges_under(tier.as_ref(), &key, (setting, parts)),
                    ..trace
                }
            }
        }
    }

    /// Returns what the rule charges to a key under a tier, or under its own quota.
    fn charges_under(
        &self,
        tier: Option<&Tier>,
        key: &Key,
        (setting, parts): (ModeSetting, &Parts),
    ) -> Vec<OwnedCharge> {
        let under = tier.map(|tier| tier.policy(&self.policy));
        // A tier that the algorithm cannot count leaves the rule's own quota.
        let policy = under.and_then(Result::ok).unwrap_or(&self.policy);
        let mut charges = Charges::new();
        let head = RequestHead::new(parts);
        self.add_charges(policy, key, (setting, &head), |charge| {
            charges.push(charge);
        });
        charges.iter().map(Charge::to_owned).collect()
    }

    fn key_label(&self) -> &str {
        self.source.as_ref().map_or("", KeySource::label)
    }

    async fn find_key(&self, parts: &Parts, deadline: Duration) -> Result<Key, RuleFinding> {
        let (found, default, missing) = match &self.source {
            Some(KeySource::Extractor(extractor)) => {
                let default = || extractor.default_key(parts);
                let default = self.missing.is_none().then(default).flatten();
                (extractor.extract(parts), default, RuleFinding::MissingKey)
            }
            Some(KeySource::Lookup(extractor)) => {
                let lookup = extractor.extract(parts);
                match timeout(deadline, lookup).await {
                    Some(Ok(found)) => (found, None, RuleFinding::MissingKey),
                    Some(Err(_)) | None => (Extracted::Absent, None, RuleFinding::LookupFailed),
                }
            }
            None => unreachable!("build() fails for a rule without a key"),
        };
        match (found, default, self.on_missing()) {
            (Extracted::Found(key), ..) | (Extracted::Absent, Some(key), _) => Ok(key),
            (Extracted::Ambiguous, ..) => Err(RuleFinding::AmbiguousKey),
            (Extracted::Absent, None, OnMissingKey::Share) => Ok(Key::UNIDENTIFIED),
            (Extracted::Absent, None, OnMissingKey::Skip) => Err(RuleFinding::Skipped),
            (Extracted::Absent, None, OnMissingKey::Reject) => Err(missing),
        }
    }

    async fn find_tier(&self, parts: &Parts, key: &Key, deadline: Duration) -> Option<Tier> {
        if *key == Key::UNIDENTIFIED {
            return None;
        }
        let choice = self.choice.as_ref();
        if let Some(tier) = choice.and_then(|choice| choice.tier(parts, key)) {
            return Some(tier);
        }
        let cache = self.cache.as_ref()?;
        match cache.resolve(parts, key) {
            TierResolution::Known(tier) => tier,
            TierResolution::Pending(lookup) => {
                let found = timeout(deadline, lookup).await;
                found.unwrap_or_else(|| cache.last_known(key))
            }
        }
    }
}
