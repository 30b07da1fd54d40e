//! Keys from request extensions that an outer layer has set.

use std::{any, fmt, marker::PhantomData};

use http::{HeaderValue, StatusCode};

use crate::{key::Key, request::RequestHead};

use super::{extracted::Extracted, extractor::KeyExtractor, into_key::IntoKey};

/// A key from a request extension that an outer layer has set, such as an authenticated user.
///
/// A client can vary the key only as far as that layer allows. If the extension is missing the response is 500; for a
/// claim that a token may lack, [`Claim`] responds with 401 instead.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, extract::ExtensionKey};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let by_user = ExtensionKey::new(|user: &User| Key::from(user.id));
/// ```
pub struct ExtensionKey<F, T> {
    key: F,
    extension: PhantomData<fn(&T)>,
}

impl<F, T, R> ExtensionKey<F, T>
where
    F: Fn(&T) -> R + Send + Sync + 'static,
    T: Send + Sync + 'static,
    R: IntoKey,
{
    /// Makes the key from the extension of type `T`. The closure returns a [`Key`], an `Option` of one, or an
    /// [`Extracted`].
    pub const fn new(key: F) -> Self {
        Self {
            key,
            extension: PhantomData,
        }
    }
}

impl<F, T, R> KeyExtractor for ExtensionKey<F, T>
where
    F: Fn(&T) -> R + Send + Sync + 'static,
    T: Send + Sync + 'static,
    R: IntoKey,
{
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        let extension = head.extensions.get::<T>();
        extension.map_or(Extracted::Absent, |extension| {
            (self.key)(extension).into_key()
        })
    }

    fn label(&self) -> &str {
        "extension"
    }

    /// 500: the layer that sets the extension is missing, or is not outside of this one.
    fn missing_status(&self, _: &RequestHead<'_>) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }
}

// Not derived: a derive would also require `T` to implement the trait.
impl<F: Clone, T> Clone for ExtensionKey<F, T> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            extension: PhantomData,
        }
    }
}

impl<F: Copy, T> Copy for ExtensionKey<F, T> {}

impl<F, T> fmt::Debug for ExtensionKey<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey<{}>", any::type_name::<T>())
    }
}

// === Claim ===

/// A claim of a token that an outer layer has verified, such as the `sub` of a JWT.
///
/// tollgate does not read tokens. An authentication layer outside of this one verifies the signature, decodes the token
/// and puts its claims into the request's extensions; without the check, every client could use anyone's quota. A client
/// can vary the key only by getting other tokens. The key is readable in Redis unless the closure hashes it: use
/// [`Key::secret`] for a `jti`, and for anything else that must stay as secret as the token.
///
/// # Examples
///
/// Claims as `jsonwebtoken` decodes them. If the extension is its `TokenData<Claims>`, name that type instead.
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
    claims: ExtensionKey<F, T>,
}

impl<F, T, R> Claim<F, T>
where
    F: Fn(&T) -> R + Send + Sync + 'static,
    T: Send + Sync + 'static,
    R: IntoKey,
{
    /// Makes the key from the claims of type `T`. `name` is the label, used in messages.
    ///
    /// The closure returns a [`Key`], an `Option` of one for a claim that may be missing, or an [`Extracted`].
    pub const fn new(name: &'static str, key: F) -> Self {
        Self {
            name,
            claims: ExtensionKey::new(key),
        }
    }
}

impl<F, T, R> KeyExtractor for Claim<F, T>
where
    F: Fn(&T) -> R + Send + Sync + 'static,
    T: Send + Sync + 'static,
    R: IntoKey,
{
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        self.claims.extract(head)
    }

    fn label(&self) -> &str {
        self.name
    }

    /// 401: no token was verified, or it lacks the claim.
    fn missing_status(&self, _: &RequestHead<'_>) -> StatusCode {
        StatusCode::UNAUTHORIZED
    }

    /// `Bearer`, the usual scheme for tokens.
    fn challenge(&self, _: &RequestHead<'_>) -> Option<HeaderValue> {
        Some(HeaderValue::from_static("Bearer"))
    }
}

impl<F: Clone, T> Clone for Claim<F, T> {
    fn clone(&self) -> Self {
        Self {
            name: self.name,
            claims: self.claims.clone(),
        }
    }
}

impl<F: Copy, T> Copy for Claim<F, T> {}

impl<F, T> fmt::Debug for Claim<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim<{}>({})", any::type_name::<T>(), self.name)
    }
}
