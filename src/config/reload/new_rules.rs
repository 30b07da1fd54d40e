//! Rules that are to be pushed.

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind},
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
    pub(super) text: String,
    pub(super) author: Option<String>,
    pub(super) comment: Option<String>,
    pub(super) replaced: Option<u64>,
}

impl NewRules {
    /// Takes a text.
    pub fn new(format: Format, text: impl Into<String>) -> Self {
        Self {
            format,
            text: text.into(),
            author: None,
            comment: None,
            replaced: None,
        }
    }

    /// Sets who pushes the rules, of at most 256 bytes without control characters.
    ///
    /// Default: nobody.
    pub fn author(mut self, author: impl Into<String>) -> Self {
        self.author = Some(author.into());
        self
    }

    /// Sets the reason, of at most 1,024 bytes without control characters.
    ///
    /// Default: none.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// Sets the version that the rules replace: if another one is stored by then, nothing is replaced.
    ///
    /// Default: the version in force in this process. Set it to the version that the author has seen and edited.
    pub fn replacing(mut self, version: u64) -> Self {
        self.replaced = Some(version);
        self
    }

    /// Returns the version that these rules are.
    pub(super) fn into_version(self, number: u64, time: Timestamp) -> RuleVersion {
        RuleVersion {
            number,
            format: self.format,
            text: self.text.into(),
            author: self.author.map(Into::into),
            comment: self.comment.map(Into::into),
            time,
        }
    }

    /// # Errors
    ///
    /// [`ReloadError::Source`] for an author or a comment that is too long, or has a control character.
    pub(super) fn validate(&self) -> Result<(), ReloadError> {
        let is_unusable = |text: &Option<String>, most| {
            let text = text.as_deref().unwrap_or_default();
            text.len() > most || text.chars().any(char::is_control)
        };
        let reason = if is_unusable(&self.author, MAX_AUTHOR) {
            "an author has at most 256 bytes, without control characters"
        } else if is_unusable(&self.comment, MAX_COMMENT) {
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
