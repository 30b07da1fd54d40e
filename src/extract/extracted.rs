//! The result of an extractor.

/// The result of looking for one value in a request: found, absent, or ambiguous.
///
/// `Absent` and `Ambiguous` are not the same. A client may leave a credential out, and the rule decides what that means
/// ([`OnMissingKey`](crate::rules::OnMissingKey), the second choice of [`or_else`](super::KeyExtractor::or_else)). A
/// client that sends it twice leaves open which one the service behind reads, so the request is always rejected with 400:
/// otherwise a second, empty header would be a way out of every limit.
///
/// A closure need not name the type: it may return a value, an `Option`, or this. `None` is `Absent`.
///
/// # Examples
///
/// ```
/// use http::request::Parts;
/// use tollgate::{Key, extract::{Extracted, KeyExtractor}};
///
/// /// Counts by the subdomain in `x-subdomain`, which a gateway sets.
/// struct Subdomain;
///
/// impl KeyExtractor for Subdomain {
///     fn extract(&self, parts: &Parts) -> Extracted<Key> {
///         let mut values = parts.headers.get_all("x-subdomain").iter();
///         match (values.next(), values.next()) {
///             (None, _) => Extracted::Absent,
///             (Some(value), None) => Extracted::Found(Key::new(value)),
///             (Some(_), Some(_)) => Extracted::Ambiguous,
///         }
///     }
/// }
///
/// let (parts, ()) = http::Request::get("/").header("x-subdomain", "acme").body(()).unwrap().into_parts();
/// assert_eq!(Subdomain.extract(&parts), Extracted::Found(Key::new("acme")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "there is no fourth case, and whoever matches on it must not overlook one"
)]
#[must_use]
pub enum Extracted<T> {
    /// The request does not have the value.
    Absent,
    /// The request has the value more than once, or in places that contradict each other.
    Ambiguous,
    /// The request has the value once.
    Found(T),
}

impl<T> Extracted<T> {
    /// Changes the value, if there is one.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Extracted<U> {
        self.and_then(|value| Extracted::Found(change(value)))
    }

    /// Looks further with the value, if there is one.
    pub fn and_then<U>(self, look: impl FnOnce(T) -> Extracted<U>) -> Extracted<U> {
        match self {
            Self::Absent => Extracted::Absent,
            Self::Ambiguous => Extracted::Ambiguous,
            Self::Found(value) => look(value),
        }
    }

    /// Makes a value absent that does not pass the test.
    pub fn filter(self, passes: impl FnOnce(&T) -> bool) -> Self {
        match self {
            Self::Found(value) if !passes(&value) => Self::Absent,
            found => found,
        }
    }

    /// Looks elsewhere when the value is absent. An ambiguous one stays ambiguous.
    pub fn or_else(self, look: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Absent => look(),
            found => found,
        }
    }

    /// Returns the value. `None` when it is absent or ambiguous: for logs and tests, not to decide on a request.
    #[must_use]
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(value) => Some(value),
            Self::Absent | Self::Ambiguous => None,
        }
    }

    /// Returns whether the request has the value more than once.
    #[must_use]
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous)
    }

    /// Returns the only value of an iterator; two make it ambiguous, whether they are equal or not.
    pub(crate) fn only(mut values: impl Iterator<Item = T>) -> Self {
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
