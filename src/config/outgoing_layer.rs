//! Rules of a file in a layer for calls that go out.

use std::borrow::Borrow;

use crate::client::OutgoingLayerBuilder;

use super::rule_set::RuleSet;

impl OutgoingLayerBuilder {
    /// Adds the rules and settings in the `outgoing` part of a [`RuleSet`].
    ///
    /// Default: none. Rules from code can be added beside them. Settings that the file does not have stay as they are here.
    pub fn rules(mut self, set: impl Borrow<RuleSet>) -> Self {
        let Some(outgoing) = set.borrow().outgoing() else {
            return self;
        };
        for rule in &outgoing.rules {
            self = self.policy(rule.clone());
        }
        if let Some(wait) = outgoing.max_wait {
            self = self.max_wait(wait);
        }
        if let Some(pause) = outgoing.max_pause {
            self = self.max_pause(pause);
        }
        if let Some(retries) = outgoing.max_retries {
            self = self.max_retries(retries);
        }
        if let Some(percent) = outgoing.retry_percent {
            self = self.retry_percent(percent);
        }
        match outgoing.retry_only_safe {
            true => self.retry_only_safe(),
            false => self,
        }
    }
}
