//! What a matcher is.

use std::sync::Arc;

use http::request::Parts;

use crate::{diagnosis::Code, error::Error};

use super::combine::{And, Not, Or};

/// Tells from the head of a request whether it is one of those that are meant.
///
/// Implemented for closures `Fn(&Parts) -> bool`; write the argument's type, as in `|parts: &Parts| ..`. Object-safe. It
/// is asked for each request, so it should neither allocate nor wait.
pub trait Matcher: Send + Sync + 'static {
    /// How much the request is like what is meant.
    fn matches(&self, parts: &Parts) -> Match;

    /// Says what keeps the matcher from working, when the layer is built.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), with what to do.
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }

    /// What looks wrong about the set-up, seen at this request. Asked for the first 1,000 requests, and reported once.
    ///
    /// Default: nothing. One that holds another passes it on.
    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        let _ = parts;
        None
    }

    /// Requests that both match.
    fn and<M: Matcher>(self, other: M) -> And<Self, M>
    where
        Self: Sized,
    {
        And::new(self, other)
    }

    /// Requests that either matches.
    fn or<M: Matcher>(self, other: M) -> Or<Self, M>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }

    /// Requests that this one does not match.
    fn not(self) -> Not<Self>
    where
        Self: Sized,
    {
        Not::new(self)
    }
}

/// How much a request is like those that are meant, from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Match {
    /// It is another one.
    Miss,
    /// It could be meant, but is written in another way: see [In doubt](crate::matching#in-doubt-a-request-is-counted).
    Possible,
    /// It is one of them.
    Exact,
}

impl From<bool> for Match {
    fn from(is_meant: bool) -> Self {
        if is_meant { Self::Exact } else { Self::Miss }
    }
}

impl<F> Matcher for F
where
    F: Fn(&Parts) -> bool + Send + Sync + 'static,
{
    fn matches(&self, parts: &Parts) -> Match {
        self(parts).into()
    }
}

// For matchers that are chosen at run time.
impl Matcher for Arc<dyn Matcher> {
    fn matches(&self, parts: &Parts) -> Match {
        (**self).matches(parts)
    }

    fn validate(&self) -> Result<(), Error> {
        (**self).validate()
    }

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        (**self).diagnose(parts)
    }
}
