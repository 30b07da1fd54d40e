//! The result of an extractor.
//!
//! # Why is a repeated value ambiguous, and not missing?
//!
//! Examples are `?key=a&key=b`, two cookies with one name, and two `X-Api-Key` lines. Frameworks disagree about which value they
//! read. Whichever one the limiter chose, a client could put an invented value there and its real value in the other place, and
//! get a fresh count for each request. A missing key would not help, since it may be skipped, shared or replaced by `or_else`: a
//! second, empty `Authorization` line was a way out of an exhausted bucket and of a forbidden tier, while the service read the
//! first line.
//!
//! So ambiguous is a third result, always rejected with 400. It is an enum, because a flag beside an `Option` is easily
//! overlooked, and `.ok()` of a `Result` turns ambiguous into absent unnoticed. A browser that has two cookies with one name, for
//! two paths, is rejected too: set the cookie for one path.

/// The result of looking for one value in a request: found, absent, or ambiguous.
///
/// `Absent` and `Ambiguous` are handled differently. If a client leaves a value out, the rule decides: by its
/// [`OnMissingKey`](crate::rules::OnMissingKey), or by the second extractor of an
/// [`or_else`](super::KeyExtractor::or_else). If a client sends it twice, the limiter cannot know which one the inner
/// service reads, so the request is always rejected with 400: otherwise a second, empty header would bypass every
/// limit.
///
/// Closures may also return a plain value or an `Option`; `None` becomes `Absent`.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, RequestHead, extract::{Extracted, KeyExtractor}};
///
/// /// Finds the subdomain in `x-subdomain`, which a gateway sets.
/// struct Subdomain;
///
/// impl KeyExtractor for Subdomain {
///     fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
///         let mut values = head.headers.get_all("x-subdomain").iter();
///         match (values.next(), values.next()) {
///             (None, _) => Extracted::Absent,
///             (Some(value), None) => Extracted::Found(Key::new(value)),
///             (Some(_), Some(_)) => Extracted::Ambiguous,
///         }
///     }
/// }
///
/// let request = http::Request::get("/").header("x-subdomain", "acme").body(()).unwrap();
/// assert_eq!(Subdomain.extract(&RequestHead::from(&request)), Extracted::Found(Key::new("acme")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "there is no fourth case, and code that matches on it must not miss one"
)]
#[must_use]
pub enum Extracted<T> {
    /// The request does not have the value.
    Absent,
    /// The request has the value more than once, or in places that contradict each other.
    Ambiguous,
    /// The request has the value exactly once.
    Found(T),
}

impl<T> Extracted<T> {
    /// Converts the value, if there is one.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Extracted<U> {
        self.and_then(|value| Extracted::Found(change(value)))
    }

    /// Continues with the value, if there is one.
    pub fn and_then<U>(self, next: impl FnOnce(T) -> Extracted<U>) -> Extracted<U> {
        match self {
            Self::Absent => Extracted::Absent,
            Self::Ambiguous => Extracted::Ambiguous,
            Self::Found(value) => next(value),
        }
    }

    /// Makes the value absent unless it passes the test.
    pub fn filter(self, passes: impl FnOnce(&T) -> bool) -> Self {
        match self {
            Self::Found(value) if !passes(&value) => Self::Absent,
            found => found,
        }
    }

    /// Tries another source if the value is absent. An ambiguous value stays ambiguous.
    pub fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Absent => other(),
            found => found,
        }
    }

    /// Returns the value. `None` if it is absent or ambiguous: for logs and tests, not for decisions about requests.
    #[must_use]
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(value) => Some(value),
            Self::Absent | Self::Ambiguous => None,
        }
    }

    /// Returns whether the value is ambiguous.
    #[must_use]
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous)
    }

    /// Takes the single value of an iterator. Two values are ambiguous, also if they are equal.
    pub(super) fn single(mut values: impl Iterator<Item = T>) -> Self {
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => Self::Found(value),
            (Some(_), Some(_)) => Self::Ambiguous,
        }
    }
}

impl<T> From<T> for Extracted<T> {
    fn from(value: T) -> Self {
        Self::Found(value)
    }
}

impl<T> From<Option<T>> for Extracted<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Found)
    }
}
