//! Faults of a rule file.
//!
//! # Why does a rule file list all of its faults?
//!
//! A file is edited at night, by hand, and is checked by the process that is to use it. If it stopped at the first fault, each
//! correction would need another try. So the parsers of all three formats make one tree whose parts know their positions
//! (`node.rs`), and one reader notes every fault in it (`decode.rs`, `rule.rs`). serde would stop at the first fault, and has
//! no positions in a tree. It only writes rule sets, and the JSON Schema comes from the same types. The reader also finds what
//! `build()` would refuse: a policy is made setting by setting (`policy_steps.rs`), and the setting after which it cannot work is
//! at fault. In place of a limit with a fault, the reader uses one that every algorithm can count, so that it checks the other
//! settings. A test makes random files, and builds a layer from each one without a fault.
//!
//! The YAML parser accepts much that is not JSON, and refuses the surrogate pairs of JSON. So JSON has another
//! reader (`from_json.rs`): serde_json checks the syntax, and a walk over the text finds the position of each value. Anchors, aliases
//! and tags are refused: no rule needs them, and an alias can make a small file a large one.

use std::{error::Error, fmt};

use crate::diagnosis::outside_text::shown;
use crate::error as limiter;

use super::node::{MAX_DEPTH, MAX_VALUES, Position};

/// One fault of a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(super) position: Position,
    pub(super) rule: Option<String>,
    pub(super) reason: String,
    pub(super) remedy: String,
}

impl Fault {
    pub(super) fn new(
        position: Position,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            position,
            rule: None,
            reason: shown(&reason.into(), MAX_TEXT),
            remedy: shown(&remedy.into(), MAX_TEXT),
        }
    }

    pub(super) fn too_deep(position: Position) -> Self {
        let reason = format!("more than {MAX_DEPTH} levels");
        Self::new(position, reason, "nest less deeply")
    }

    pub(super) fn too_many_values(position: Position) -> Self {
        let reason = format!("more than {MAX_VALUES} values");
        Self::new(
            position,
            reason,
            "write fewer rules, or move lists into code",
        )
    }

    /// Returns the line, from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.position.line
    }

    /// Returns the column in characters, from 1.
    #[must_use]
    pub fn column(&self) -> usize {
        self.position.column
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

/// The faults of a rule file, in the order of their positions: the first 100, and the number of the others.
///
/// Its text has one line for each fault, of at most 2 kB. What a file contains cannot break a line:
/// a line break in a name is written as `\n`, and a long name without its middle.
///
/// ```text
/// rules.yaml:4:5: rule "login": unknown field `limt`: write `limit`
/// ```
///
/// `Debug` has these lines too, since a `main` that returns the error prints that.
#[derive(Clone, PartialEq, Eq)]
pub struct RuleSetError {
    source: String,
    faults: Vec<Fault>,
    left_out: usize,
}

impl RuleSetError {
    /// Makes an error of the first faults in the order of their positions, and the number of those that were left out.
    pub(super) fn new(source: &str, faults: Vec<Fault>, left_out: usize) -> Self {
        Self {
            source: shown(source, MAX_TEXT),
            faults,
            left_out,
        }
    }

    /// Makes an error of one fault.
    pub(super) fn of(source: &str, fault: Fault) -> Self {
        Self::new(source, vec![fault], 0)
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
            let Position { line, column } = fault.position;
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

impl fmt::Debug for RuleSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RuleSetError:\n{self}\n")
    }
}

impl Error for RuleSetError {}

/// The most bytes of a reason, and of a remedy, before escapes. Enough for all fields of a rule.
const MAX_TEXT: usize = 640;

// === Words ===

/// Returns the message of an error without the name of the policy, and with fields in place of methods.
pub(super) fn in_words_of_files(error: &limiter::Error) -> String {
    let mut message = shown(&error.to_string(), MAX_TEXT);
    for subject in ["tier \"", "policy \""] {
        let rest = message
            .strip_prefix(subject)
            .and_then(|rest| rest.split_once("\": "));
        if let Some((_, rest)) = rest {
            message = rest.to_owned();
        }
    }
    // Quoted parts are from the file, and stay as they are.
    parts_in_quotes(&message)
        .map(|(part, is_quoted)| match is_quoted {
            true => part.to_owned(),
            false => words_of_files(part),
        })
        .collect()
}

/// Returns the parts of a message, and whether each is in quotes.
fn parts_in_quotes(message: &str) -> impl Iterator<Item = (&str, bool)> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = message.split_inclusive(move |next: char| {
        let is_end = next == '"' && !(is_quoted && is_escaped);
        is_escaped = next == '\\' && !is_escaped;
        is_quoted ^= is_end;
        is_end
    });
    parts.zip([false, true].into_iter().cycle())
}

/// Replaces names of code by those of rule files.
fn words_of_files(part: &str) -> String {
    let part = METHODS
        .iter()
        .fold(part.to_owned(), |part, (method, field)| {
            replace(&part, method, field)
        });
    PHRASES
        .iter()
        .fold(part, |part, (code, file)| part.replace(code, file))
}

/// Replaces calls of a method, with whatever arguments.
fn replace(message: &str, method: &str, field: &str) -> String {
    let Some((before, rest)) = message.split_once(&format!("{method}(")) else {
        return message.to_owned();
    };
    match rest.split_once(')') {
        Some((_, after)) => format!("{before}{field}{}", replace(after, method, field)),
        None => message.to_owned(),
    }
}

/// Methods that messages mention, and the fields of files for the same. A longer name comes before a shorter one in it.
const METHODS: [(&str, &str); 17] = [
    ("ClientIp::behind_hops", "`hops`"),
    ("ClientIp::behind", "`behind`"),
    ("ClientIp::peer", "`peer_ip`"),
    (
        "Quota::in_flight",
        "a number as `limit`, such as `limit: 10`,",
    ),
    ("Quota::per_month", "`limit: 100/month`"),
    ("Tier::forbidden", "`forbidden`"),
    ("behind_hops", "`hops`"),
    ("behind", "`behind`"),
    ("burst", "`burst`"),
    ("cost_when", "`costs`"),
    ("count_denied", "`count_denied`"),
    ("backoff()", "`backoff`"),
    ("penalty()", "`penalty`"),
    ("forbid", "`forbid`"),
    ("ipv4_prefix", "`ipv4_prefix`"),
    ("ipv6_prefix", "`ipv6_prefix`"),
    ("lend", "`lend`"),
];

/// Phrases of messages about code, each with the phrase for rule files.
const PHRASES: [(&str, &str); 10] = [
    (
        "add count_failures() or count_when()",
        "add `count: failures` or `count_statuses`",
    ),
    (
        "clear_when() and clear_on_success() need",
        "`clear_on_success` needs",
    ),
    (
        "remove what counts or clears outcomes, and backoff()",
        "remove `count`, `count_statuses`, `clear_on_success` and `backoff`",
    ),
    ("Algorithm::LeakyBucket", "`algorithm: leaky_bucket`"),
    (
        "Policy::concurrency limits",
        "`algorithm: concurrency` limits",
    ),
    ("raise the count", "raise the limit"),
    ("the count is", "the limit is"),
    ("unit()", "`unit`"),
    (
        "set at least 1, or remove the route to reject all requests",
        "write at least 1",
    ),
    (
        "forwarded_for() or forwarded()",
        "`x-forwarded-for` or `forwarded`",
    ),
];
