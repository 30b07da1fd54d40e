//! Faults of a rule file.

use std::{error::Error, fmt};

use crate::error as limiter;

use super::node::Place;

/// One fault of a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(super) place: Place,
    pub(super) rule: Option<String>,
    pub(super) reason: String,
    pub(super) remedy: String,
}

impl Fault {
    pub(super) fn new(place: Place, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            place,
            rule: None,
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns the line, from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.place.line
    }

    /// Returns the column in characters, from 1.
    #[must_use]
    pub fn column(&self) -> usize {
        self.place.column
    }

    /// Returns the id of the rule; `None` if the fault is outside of the rules, or the rule has no id.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// Returns the reason, such as ``unknown field `limt` ``.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns what to write instead.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

// === RuleSetError ===

/// All faults of a rule file, in the order of their places.
///
/// Its text has one line for each fault:
///
/// ```text
/// rules.yaml:4:5: rule "login": unknown field `limt`: write `limit`
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSetError {
    source: String,
    faults: Vec<Fault>,
    left_out: usize,
}

impl RuleSetError {
    pub(super) fn new(source: &str, mut faults: Vec<Fault>) -> Self {
        faults.sort_by_key(|fault| fault.place);
        faults.dedup();
        let left_out = faults.len().saturating_sub(MAX_FAULTS);
        faults.truncate(MAX_FAULTS);
        Self {
            source: source.to_owned(),
            faults,
            left_out,
        }
    }

    /// Returns the faults, at most 100.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Returns the name of the file, or `rules` for text.
    #[must_use]
    pub fn source_name(&self) -> &str {
        &self.source
    }
}

impl fmt::Display for RuleSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.faults.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            let Place { line, column } = fault.place;
            write!(f, "{}:{line}:{column}: ", self.source)?;
            if let Some(rule) = &fault.rule {
                write!(f, "rule {rule:?}: ")?;
            }
            write!(f, "{}: {}", fault.reason, fault.remedy)?;
        }
        if self.left_out > 0 {
            write!(f, "\nand {} more", self.left_out)?;
        }
        Ok(())
    }
}

impl Error for RuleSetError {}

const MAX_FAULTS: usize = 100;

// === Words ===

/// Returns the message of an error without the name of the policy, and with fields in place of methods.
pub(super) fn in_words_of_files(error: &limiter::Error) -> String {
    let text = error.to_string();
    let message = match text.split_once("\": ") {
        Some((before, message)) if before.starts_with("policy \"") => message,
        _ => &text,
    };
    let words = METHODS
        .iter()
        .fold(message.to_owned(), |message, (method, field)| {
            message.replace(method, field)
        });
    words.replace(
        "set at least 1, or remove the route to reject all requests",
        "write at least 1",
    )
}

/// Methods that messages mention, and the fields of files for the same.
const METHODS: [(&str, &str); 9] = [
    ("ClientIp::behind_hops(n)", "`hops`"),
    ("ClientIp::peer()", "`peer_ip`"),
    ("Policy::concurrency", "`algorithm: concurrency`"),
    ("burst()", "`burst`"),
    ("cost_when()", "`costs`"),
    ("count_denied()", "`count_denied`"),
    ("forbid()", "`forbid`"),
    ("settle()", "`settle`"),
    ("unit()", "`unit`"),
];
