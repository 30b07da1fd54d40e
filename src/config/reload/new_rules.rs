//! Rules that are to be pushed.

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind},
    store::{RulesId, RulesText},
};

use super::{super::rule_set::Format, error::ReloadError, state::RuleVersion};

/// A text of rules to push, with who pushes it and why.
///
/// # Examples
///
/// ```
/// use tollgate::config::{Format, reload::NewRules};
///
/// let rules = NewRules::new(Format::Yaml, "rules: [{ id: api, key: peer_ip, limit: 100/min }]")
///     .author("ada")
///     .comment("half the limit until the database is well again");
/// ```
#[derive(Clone, Debug)]
#[must_use = "rules have no effect until they are pushed"]
pub struct NewRules {
    pub(super) format: Format,
    pub(super) rules: RulesText,
    pub(super) replaced: Option<u64>,
}

impl NewRules {
    /// Takes a text.
    pub fn new(format: Format, text: impl Into<String>) -> Self {
        Self {
            format,
            rules: RulesText {
                format: format.name().to_owned(),
                text: text.into(),
                author: String::new(),
                comment: String::new(),
            },
            replaced: None,
        }
    }

    /// Sets who pushes the rules, of at most 256 bytes without control characters.
    ///
    /// Default: nobody.
    pub fn author(mut self, author: impl Into<String>) -> Self {
        self.rules.author = author.into();
        self
    }

    /// Sets the reason, of at most 1,024 bytes without control characters.
    ///
    /// Default: none.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.rules.comment = comment.into();
        self
    }

    /// Sets the version that the rules replace: if another one is stored by then, nothing is replaced.
    ///
    /// Default: the current version in this process. Set it to the version that the author has seen and edited.
    pub fn replacing(mut self, version: u64) -> Self {
        self.replaced = Some(version);
        self
    }

    /// Returns these rules as the version of this id.
    pub(super) fn into_version(self, id: RulesId) -> RuleVersion {
        RuleVersion {
            id,
            format: self.format,
            rules: Arc::new(self.rules),
        }
    }

    /// # Errors
    ///
    /// [`ReloadError::Source`] for an author or a comment that is too long, or has a control character.
    pub(super) fn validate(&self) -> Result<(), ReloadError> {
        let is_unusable =
            |text: &str, most| text.len() > most || text.chars().any(char::is_control);
        let reason = if is_unusable(&self.rules.author, MAX_AUTHOR) {
            "an author has at most 256 bytes, without control characters"
        } else if is_unusable(&self.rules.comment, MAX_COMMENT) {
            "a comment has at most 1,024 bytes, without control characters"
        } else {
            return Ok(());
        };
        let error = Error::new(ErrorKind::InvalidConfig, reason);
        Err(ReloadError::Source(error))
    }
}

/// The most bytes of an author.
pub(super) const MAX_AUTHOR: usize = 256;
/// The most bytes of a comment.
pub(super) const MAX_COMMENT: usize = 1_024;
