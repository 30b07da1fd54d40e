//! Matchers made of others. What resembles stays in doubt unless the other part settles it.

use http::request::Parts;

use crate::{diagnosis::Code, error::Error};

use super::matcher::{Likeness, Matcher};

/// Both: see [`Matcher::and`].
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
    fn compare(&self, parts: &Parts) -> Likeness {
        match self.first.compare(parts) {
            Likeness::Differs => Likeness::Differs,
            first => first.min(self.second.compare(parts)),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate()?;
        self.second.validate()
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let first = self.first.diagnose(parts);
        first.or_else(|| self.second.diagnose(parts))
    }
}

// === Or ===

/// Either: see [`Matcher::or`].
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
    fn compare(&self, parts: &Parts) -> Likeness {
        match self.first.compare(parts) {
            Likeness::Matches => Likeness::Matches,
            first => first.max(self.second.compare(parts)),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.first.validate()?;
        self.second.validate()
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let first = self.first.diagnose(parts);
        first.or_else(|| self.second.diagnose(parts))
    }
}

// === Not ===

/// The others: see [`Matcher::not`].
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
    fn compare(&self, parts: &Parts) -> Likeness {
        match self.matcher.compare(parts) {
            Likeness::Differs => Likeness::Matches,
            Likeness::Resembles => Likeness::Resembles,
            Likeness::Matches => Likeness::Differs,
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.matcher.validate()
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        self.matcher.diagnose(parts)
    }
}
