//! The places of rules.

use super::rule_file::RuleFile;

#[cfg(feature = "redis")]
use std::sync::Arc;

#[cfg(feature = "redis")]
use super::shared_rules::SharedRules;

/// Where a reloader finds new rules.
#[derive(Debug)]
pub(super) enum Place {
    File(RuleFile),
    InProcess,
    #[cfg(feature = "redis")]
    Redis(Arc<SharedRules>),
}

impl Place {
    /// Returns the name of the source in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(file) => file.name(),
            Self::InProcess => "rules".to_owned(),
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis".to_owned(),
        }
    }
}
