//! Keys from claims that an outer layer has verified.

use std::{fmt, marker::PhantomData};

use http::{HeaderValue, StatusCode, request::Parts};

use crate::key::Key;

use super::{extracted::Extracted, extractor::KeyExtractor};

/// A claim of a token that an outer layer has verified and left in the request's extensions, such as a JWT's `sub`.
///
/// tollgate reads no token by itself: a claim counts only after its signature was checked, or everybody could count as
/// anybody. The authentication layer decodes it and puts its claims into the extensions; this layer stands further in.
/// A client varies only what it can get tokens for. The key stands in Redis in clear unless the closure hashes it: take
/// [`Key::secret`] for a `jti` or whatever is as good as the token.
///
/// # Examples
///
/// Claims as `jsonwebtoken` decodes them. With its `TokenData<Claims>` in the extensions, name that type instead.
///
/// ```
/// use tollgate::{Key, Policy, Quota, extract::Claim};
///
/// #[derive(Clone)]
/// struct Claims { sub: String, org: Option<String> }
///
/// let per_user = Policy::new("user", Quota::per_minute(60))
///     .key(Claim::new("sub", |claims: &Claims| Key::new(&claims.sub)));
/// let per_organisation = Policy::new("organisation", Quota::per_minute(600))
///     .key(Claim::new("org", |claims: &Claims| claims.org.as_deref().map(Key::new)));
/// ```
pub struct Claim<F, T> {
    name: &'static str,
    key: F,
    extension: PhantomData<fn(&T)>,
}

impl<F, T, R> Claim<F, T>
where
    F: Fn(&T) -> R + Send + Sync + 'static,
    T: Send + Sync + 'static,
    R: Into<Extracted<Key>>,
{
    /// The key that `key` makes of the claims of type `T`; `name` is its label, in messages.
    ///
    /// The closure returns a [`Key`], an `Option` of one for a claim that need not be there, or an [`Extracted`].
    pub const fn new(name: &'static str, key: F) -> Self {
        Self {
            name,
            key,
            extension: PhantomData,
        }
    }
}

impl<F, T, R> KeyExtractor for Claim<F, T>
where
    F: Fn(&T) -> R + Send + Sync + 'static,
    T: Send + Sync + 'static,
    R: Into<Extracted<Key>>,
{
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        let extension = parts.extensions.get::<T>();
        extension.map_or(Extracted::Absent, |extension| (self.key)(extension).into())
    }

    fn label(&self) -> &str {
        self.name
    }

    /// 401: nobody has verified a token, or it has no such claim.
    fn missing_status(&self, _: &Parts) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }

    /// `Bearer`, which is how verified tokens mostly come.
    fn challenge(&self, _: &Parts) -> Option<HeaderValue> {
        Some(HeaderValue::from_static("Bearer"))
    }
}

// By hand: a derive would ask the same of `T`, which is only named.
impl<F: Clone, T> Clone for Claim<F, T> {
    fn clone(&self) -> Self {
        Self {
            name: self.name,
            key: self.key.clone(),
            extension: self.extension,
        }
    }
}

impl<F: Copy, T> Copy for Claim<F, T> {}

impl<F, T> fmt::Debug for Claim<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim<{}>({})", std::any::type_name::<T>(), self.name)
    }
}
