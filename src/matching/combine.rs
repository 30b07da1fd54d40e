//! Matchers made of others.
//!
//! They follow Kleene's three-valued logic: a possible match stays possible unless the other matcher decides.

use crate::{diagnosis::Code, error::Error, request::RequestHead};

use super::matcher::{Match, Matcher};

/// The requests that both matchers match: see [`Matcher::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B> {
    first: A,
    second: B,
}

impl<A, B> And<A, B> {
    pub(super) const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: Matcher, B: Matcher> Matcher for And<A, B> {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        match self.first.matches(head) {
            Match::Miss => Match::Miss,
            first => first.min(self.second.matches(head)),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate()?;
        self.second.validate()
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        let first = self.first.diagnose(head);
        first.or_else(|| self.second.diagnose(head))
    }
}

// === Or ===

/// The requests that at least one matcher matches: see [`Matcher::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: Matcher, B: Matcher> Matcher for Or<A, B> {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        match self.first.matches(head) {
            Match::Exact => Match::Exact,
            first => first.max(self.second.matches(head)),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate()?;
        self.second.validate()
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        let first = self.first.diagnose(head);
        first.or_else(|| self.second.diagnose(head))
    }
}

// === Not ===

/// The requests that a matcher does not match: see [`Matcher::not`].
#[derive(Clone, Copy, Debug)]
pub struct Not<M> {
    matcher: M,
}

impl<M> Not<M> {
    pub(super) const fn new(matcher: M) -> Self {
        Self { matcher }
    }
}

impl<M: Matcher> Matcher for Not<M> {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        match self.matcher.matches(head) {
            Match::Miss => Match::Exact,
            Match::Ambiguous => Match::Ambiguous,
            Match::Exact => Match::Miss,
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.matcher.validate()
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        self.matcher.diagnose(head)
    }
}
