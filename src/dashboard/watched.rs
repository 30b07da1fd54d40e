//! The limiter that a dashboard shows, with its layer if it has one.

use std::sync::Arc;

use crate::{
    diagnosis::Warning,
    error::{Error, ErrorKind},
    limiter::RateLimiter,
    middleware::layer::RateLimitLayer,
    policy::Policy,
    rules::{KeySource, Rule, RuleMode},
};

/// A layer with its limiter, or a limiter alone.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    limiter: RateLimiter,
    layer: Option<RateLimitLayer>,
}

impl Watched {
    pub fn layer(layer: &RateLimitLayer) -> Self {
        Self {
            limiter: layer.limiter().clone(),
            layer: Some(layer.clone()),
        }
    }

    pub fn limiter_alone(limiter: &RateLimiter) -> Self {
        Self {
            limiter: limiter.clone(),
            layer: None,
        }
    }

    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Returns the mode of the layer; `None` without a layer.
    pub fn mode(&self) -> Option<RuleMode> {
        self.layer.as_ref().map(RateLimitLayer::mode)
    }

    /// Returns the rules of the layer; `None` without a layer.
    pub fn rules(&self) -> Option<Arc<[Rule]>> {
        self.layer.as_ref().map(RateLimitLayer::present_rules)
    }

    /// Returns the policies that keys can be looked up in: those of the layer with what is counted beside them, or of the limiter.
    pub fn policies(&self) -> Vec<WatchedPolicy> {
        let Some(rules) = self.rules() else {
            let policies = self.limiter.policies().into_iter();
            return policies
                .map(|policy| WatchedPolicy {
                    policy,
                    source: None,
                    has_tiers: false,
                })
                .collect();
        };
        let policies = rules.iter().flat_map(|rule| {
            rule.policies().map(|policy| WatchedPolicy {
                policy: policy.clone(),
                source: rule.source.clone(),
                has_tiers: rule.choice.is_some(),
            })
        });
        policies.collect()
    }

    /// Returns the misconfigurations that were found so far.
    pub fn warnings(&self) -> Vec<Warning> {
        match &self.layer {
            Some(layer) => layer.warnings(),
            None => self.limiter.warnings(),
        }
    }

    /// Returns the layer, whose rules have modes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] without a layer.
    pub fn required_layer(&self) -> Result<&RateLimitLayer, Error> {
        self.layer.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidConfig,
                "this dashboard shows a limiter without a layer: only rules of a layer have modes",
            )
        })
    }
}

// === WatchedPolicy ===

/// A policy, and how its keys are made.
pub(super) struct WatchedPolicy {
    pub policy: Policy,
    /// `None` without a layer.
    pub source: Option<KeySource>,
    pub has_tiers: bool,
}
