//! The layer whose rules are replaced.

use std::sync::Weak;

use crate::{builder::RateLimitLayerBuilder, error::Error, middleware::current_rules::Replaceable};

#[cfg(feature = "client")]
use crate::client::{OutgoingLayerBuilder, current::ReplaceableSettings};

use super::super::rule_set::RuleSet;

/// A layer whose rules are replaced. It is not kept alive.
pub(super) trait ReloadTarget: Send + Sync {
    /// Replaces the rules of the layer, if it still exists.
    ///
    /// # Errors
    ///
    /// Why the layer cannot have them. Nothing has changed then.
    fn replace(&self, rules: &RuleSet) -> Result<(), Error>;

    /// Checks that [`replace`](Self::replace) would succeed.
    ///
    /// # Errors
    ///
    /// Why not.
    #[cfg(feature = "redis")]
    fn check(&self, rules: &RuleSet) -> Result<(), Error>;
}

/// A layer, and its settings without the rules of the source.
pub(super) struct Target<B, L> {
    pub template: B,
    pub layer: Weak<L>,
}

impl ReloadTarget for Target<RateLimitLayerBuilder, Replaceable> {
    fn replace(&self, rules: &RuleSet) -> Result<(), Error> {
        let template = self.template.clone().rules(rules);
        match self.layer.upgrade() {
            Some(layer) => layer.replace(|old| template.build_successor(old)),
            None => Ok(()),
        }
    }

    #[cfg(feature = "redis")]
    fn check(&self, rules: &RuleSet) -> Result<(), Error> {
        let template = self.template.clone().rules(rules);
        match self.layer.upgrade() {
            Some(layer) => layer.with(|old| template.check_successor(old)),
            None => Ok(()),
        }
    }
}

#[cfg(feature = "client")]
impl ReloadTarget for Target<OutgoingLayerBuilder, ReplaceableSettings> {
    fn replace(&self, rules: &RuleSet) -> Result<(), Error> {
        let template = self.template.clone().rules(rules);
        match self.layer.upgrade() {
            Some(layer) => template.replace(&layer),
            None => Ok(()),
        }
    }

    #[cfg(feature = "redis")]
    fn check(&self, rules: &RuleSet) -> Result<(), Error> {
        let template = self.template.clone().rules(rules);
        match self.layer.upgrade() {
            Some(layer) => template.check_replacement(&layer),
            None => Ok(()),
        }
    }
}
