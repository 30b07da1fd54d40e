//! The layer whose rules are replaced.

use std::sync::{Arc, Weak};

use crate::{
    builder::RateLimitLayerBuilder,
    error::Error,
    limiter::Replaceable,
    middleware::{admission::Admission, layer::RateLimitLayer},
    overload::{Overload, OverloadBuilder, Setup},
};

#[cfg(feature = "client")]
use crate::client::{OutgoingLayer, OutgoingLayerBuilder, shared::Shared};

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
pub(super) struct Target<T: Template> {
    pub template: T,
    pub layer: Weak<Replaceable<T::Settings>>,
}

impl<T: Template> ReloadTarget for Target<T> {
    fn replace(&self, rules: &RuleSet) -> Result<(), Error> {
        match self.layer.upgrade() {
            Some(layer) => layer.replace(|old| self.template.with(rules).build_successor(old)),
            None => Ok(()),
        }
    }

    #[cfg(feature = "redis")]
    fn check(&self, rules: &RuleSet) -> Result<(), Error> {
        match self.layer.upgrade() {
            Some(layer) => self.template.with(rules).check_successor(&layer.load()),
            None => Ok(()),
        }
    }
}

/// A layer, and the part of it that is replaced.
type Built<T> = (
    <T as Template>::Layer,
    Arc<Replaceable<<T as Template>::Settings>>,
);

/// A builder of a layer whose rules are replaced.
pub(super) trait Template: Send + Sync + Sized + 'static {
    type Layer;
    /// The part of the layer that is replaced.
    type Settings: Send + Sync + 'static;

    /// Returns these settings with the rules of the source.
    fn with(&self, rules: &RuleSet) -> Self;

    fn build(self) -> Result<Built<Self>, Error>;

    fn build_successor(self, old: &Self::Settings) -> Result<Self::Settings, Error>;

    #[cfg(feature = "redis")]
    fn check_successor(&self, old: &Self::Settings) -> Result<(), Error>;
}

impl Template for RateLimitLayerBuilder {
    type Layer = RateLimitLayer;
    type Settings = Admission;

    fn with(&self, rules: &RuleSet) -> Self {
        self.clone().rules(rules)
    }

    fn build(self) -> Result<Built<Self>, Error> {
        self.build_replaceable()
    }

    fn build_successor(self, old: &Admission) -> Result<Admission, Error> {
        Self::build_successor(self, old)
    }

    #[cfg(feature = "redis")]
    fn check_successor(&self, old: &Admission) -> Result<(), Error> {
        Self::check_successor(self, old)
    }
}

#[cfg(feature = "client")]
impl Template for OutgoingLayerBuilder {
    type Layer = OutgoingLayer;
    type Settings = Shared;

    fn with(&self, rules: &RuleSet) -> Self {
        self.clone().rules(rules)
    }

    fn build(self) -> Result<Built<Self>, Error> {
        self.build_replaceable()
    }

    fn build_successor(self, old: &Shared) -> Result<Shared, Error> {
        Self::build_successor(self, old)
    }

    #[cfg(feature = "redis")]
    fn check_successor(&self, old: &Shared) -> Result<(), Error> {
        Self::check_successor(self, old)
    }
}

impl Template for OverloadBuilder {
    type Layer = Overload;
    type Settings = Setup;

    fn with(&self, rules: &RuleSet) -> Self {
        self.clone().rules(rules)
    }

    fn build(self) -> Result<Built<Self>, Error> {
        self.build_replaceable()
    }

    fn build_successor(self, old: &Setup) -> Result<Setup, Error> {
        Self::build_successor(self, old)
    }

    #[cfg(feature = "redis")]
    fn check_successor(&self, _: &Setup) -> Result<(), Error> {
        self.clone().build_setup().map(drop)
    }
}
