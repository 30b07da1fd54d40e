//! The overload part of a file in a limit.

use std::borrow::Borrow;

use crate::overload::OverloadBuilder;

use super::rule_set::RuleSet;

impl OverloadBuilder {
    /// Adds the settings in the `overload` part of a [`RuleSet`].
    ///
    /// Default: none. Settings that the file does not have stay as they are here. Its classes of requests come after those from
    /// code.
    pub fn rules(self, set: impl Borrow<RuleSet>) -> Self {
        match set.borrow().overload() {
            Some(settings) => settings.apply(self),
            None => self,
        }
    }
}
