//! The trait of matchers.
//!
//! # Why does a matcher have three results?
//!
//! The service behind the layer decides which spellings of a path reach one handler: a router compares bytes, a file server
//! resolves dots, a proxy decodes `%2F`. With two results, a matcher would have to choose one reading, and each choice is wrong
//! somewhere. By bytes, `//login` avoids the limit on `/login`. Normalised, `/static/../admin` uses the exception for `/static`.
//! So a path that fits only in *some* reading is a possible match, and the limit applies: it is counted, forbidden, not skipped,
//! and costs the most that could apply. `and`, `or` and `not` follow Kleene's logic: the negation of a possible match is a
//! possible match.
//!
//! Servers take steps in their own order: they cut `;` off before or after they decode, and merge slashes before or after they
//! resolve dots. So `readings.rs` tries each step at each place. There can be exponentially many readings. All are compared at
//! once, as sets of lengths in a few words of 128 bits. Escapes are decoded until none is left, and letters match in any case. An
//! unusual path above 2,048 bytes or 100 segments is a possible match for everything.
//!
//! A `RequestHead` analyses the path once, when the first pattern asks. Otherwise a crafted path would cost each of many patterns
//! several microseconds, also for a denied request. Most patterns then end at a segment that is nowhere in the path.

use std::sync::Arc;

use crate::{diagnosis::Code, error::Error, request::RequestHead};

use super::combine::{And, Not, Or};

/// Selects requests by their head.
///
/// Implemented for closures `Fn(&RequestHead<'_>) -> bool`. Write the argument's type, as in `|head: &RequestHead| ..`, or use
/// [`when_fn`](crate::rules::Rule::when_fn) and its siblings, which need no type. Dyn compatible.
///
/// A matcher runs for each request, so it should neither allocate nor block.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not select requests",
    label = "not a matcher",
    note = "use one of `tollgate::matching`, such as `PathPattern::new(\"/health\")` or `AddressList::new(PeerIp, [..])`",
    note = "or a closure that returns a `bool`, with the type of its argument: `|head: &tollgate::RequestHead| true`"
)]
pub trait Matcher: Send + Sync + 'static {
    /// Compares a request with this matcher.
    fn matches(&self, head: &RequestHead<'_>) -> Match;

    /// Checks the settings; called once, when the layer is built.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), with what to do.
    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the code of a misconfiguration that this request shows. Called for the first 1,000 requests; each code is
    /// reported once.
    ///
    /// Default: none. Matchers that wrap another one forward the call.
    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        let _ = head;
        None
    }

    /// Matches requests that both matchers match.
    fn and<M: IntoMatcher>(self, other: M) -> And<Self, M::Matcher>
    where
        Self: Sized,
    {
        And::new(self, other.into_matcher())
    }

    /// Matches requests that at least one of the matchers matches.
    fn or<M: IntoMatcher>(self, other: M) -> Or<Self, M::Matcher>
    where
        Self: Sized,
    {
        Or::new(self, other.into_matcher())
    }

    /// Matches requests that this matcher does not match.
    fn not(self) -> Not<Self>
    where
        Self: Sized,
    {
        Not::new(self)
    }
}

/// The result of comparing a request with a matcher, from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Match {
    /// The request does not match.
    Miss,
    /// The request may match, depending on how the inner service reads it: see
    /// [possible matches](crate::matching#ambiguous-matches).
    Ambiguous,
    /// The request matches.
    Exact,
}

impl Match {
    /// Returns the result for a request with several values: exact if there are values and all of them match exactly,
    /// possible if only some do.
    pub(super) fn of_values(values: impl Iterator<Item = Self>) -> Self {
        let (mut least, mut most) = (Self::Exact, Self::Miss);
        for value in values {
            least = least.min(value);
            most = most.max(value);
        }
        most.min(least.max(Self::Ambiguous))
    }
}

impl From<bool> for Match {
    fn from(is_match: bool) -> Self {
        if is_match { Self::Exact } else { Self::Miss }
    }
}

impl<F> Matcher for F
where
    F: Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
{
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        self(head).into()
    }
}

// Pointers, for matchers that are chosen at run time.
macro_rules! implement_for_pointers {
    ($($pointer:ty)*) => {
        $(impl Matcher for $pointer {
            fn matches(&self, head: &RequestHead<'_>) -> Match {
                (**self).matches(head)
            }

            fn validate(&self) -> Result<(), Error> {
                (**self).validate()
            }

            fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
                (**self).diagnose(head)
            }
        })*
    };
}

implement_for_pointers!(Arc<dyn Matcher> Box<dyn Matcher>);

// === IntoMatcher ===

/// A [`Matcher`], or the text of a path pattern: `.skip("/health")` is short for `.skip(PathPattern::new("/health"))`.
///
/// Implemented for all matchers, `&str` and `String`. Text always is a [`PathPattern`](super::PathPattern), and an invalid one fails
/// when the layer is built. It matches the path alone, so `"/health"` does not match `/health/db`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not select requests",
    label = "not a matcher",
    note = "use the text of a path such as `\"/health\"`, or one of `tollgate::matching`, such as `AddressList::new(PeerIp, [..])`",
    note = "for methods: `Methods::new([Method::POST])`; for a list, call it once for each, or take one of its kind such as `PathPattern::prefix(\"/api\")`",
    note = "or a closure that returns a `bool`: `.when_fn(|head| ..)`, or with a type `.when(|head: &tollgate::RequestHead| ..)`"
)]
pub trait IntoMatcher {
    /// The matcher that this becomes.
    type Matcher: Matcher;

    /// Returns the matcher.
    fn into_matcher(self) -> Self::Matcher;
}

#[diagnostic::do_not_recommend]
impl<M: Matcher> IntoMatcher for M {
    type Matcher = M;

    fn into_matcher(self) -> M {
        self
    }
}
