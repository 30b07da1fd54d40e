//! Versions of the rules, and which one is current.

use std::{fmt, sync::Arc};

use crate::{
    clock::Timestamp,
    store::{RulesId, RulesText},
};

use super::{
    super::rule_set::{Format, RuleSet},
    error::ReloadError,
};

/// The current rules, and the latest refusal.
#[derive(Clone, Debug)]
pub struct RulesState {
    pub(super) version: RuleVersion,
    pub(super) rules: RuleSet,
    pub(super) last_error: Option<ReloadError>,
}

impl RulesState {
    /// Returns the current version.
    #[must_use]
    pub fn version(&self) -> &RuleVersion {
        &self.version
    }

    /// Returns the current rules.
    #[must_use]
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Returns why the latest rules were refused; `None` if they are current.
    #[must_use]
    pub fn last_error(&self) -> Option<&ReloadError> {
        self.last_error.as_ref()
    }
}

// === RuleVersion ===

/// A text of rules that was current, with its author and its time. Clones are cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct RuleVersion {
    pub(super) id: RulesId,
    pub(super) format: Format,
    pub(super) rules: Arc<RulesText>,
}

impl RuleVersion {
    /// Returns the number of the version. A later version has a higher one.
    ///
    /// Versions of a file are counted by each process, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.id.version
    }

    /// Returns the format of the text.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.rules.text
    }

    /// Returns who pushed it; `None` for a file, and for the rules that a layer was built with.
    #[must_use]
    pub fn author(&self) -> Option<&str> {
        Some(self.rules.author.as_str()).filter(|author| !author.is_empty())
    }

    /// Returns the author's comment.
    #[must_use]
    pub fn comment(&self) -> Option<&str> {
        Some(self.rules.comment.as_str()).filter(|comment| !comment.is_empty())
    }

    /// Returns when it was pushed, or read from a file.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        self.id.time
    }

    /// Returns whether this is the text of the version.
    pub(super) fn has_text(&self, format: Format, text: &str) -> bool {
        self.format() == format && self.text() == text
    }
}

// By hand: the text may be long.
impl fmt::Debug for RuleVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleVersion")
            .field("number", &self.number())
            .field("format", &self.format())
            .field("author", &self.author())
            .field("comment", &self.comment())
            .field("time", &self.time())
            .finish_non_exhaustive()
    }
}
