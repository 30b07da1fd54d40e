//! Keys that do not come from what the client sent.

use std::fmt;

use http::{StatusCode, request::Parts};

use crate::key::Key;

use super::{extracted::Extracted, extractor::KeyExtractor};

/// Everybody together: one count for all requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

impl KeyExtractor for Global {
    fn extract(&self, _: &Parts) -> Extracted<Key> {
        Extracted::Found(Key::GLOBAL)
    }

    fn label(&self) -> &str {
        "global"
    }

    fn tells_callers_apart(&self) -> bool {
        false
    }
}

// === ExtensionKey ===

/// A key made of something that an outer layer put into the request's extensions, such as an authenticated user.
///
/// A client varies only what that layer lets it. For a claim that a token may lack, [`Claim`](super::Claim) answers 401
/// where this answers 500.
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
    extension: std::marker::PhantomData<fn(&T)>,
}

impl<F, T, R> ExtensionKey<F, T>
where
    F: Fn(&T) -> R + Send + Sync + 'static,
    T: Send + Sync + 'static,
    R: Into<Extracted<Key>>,
{
    /// The key that `key` makes of the extension of type `T`: a [`Key`], an `Option` of one, or an
    /// [`Extracted`].
    pub const fn new(key: F) -> Self {
        Self {
            key,
            extension: std::marker::PhantomData,
        }
    }
}

impl<F, T, R> KeyExtractor for ExtensionKey<F, T>
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
        "extension"
    }

    /// 500: the layer that sets the extension is missing or stands further in.
    fn missing_status(&self, _: &Parts) -> StatusCode {
        StatusCode::INTERNAL_SERVER_ERROR
    }
}

// By hand: a derive would ask the same of `T`, which is only named.
impl<F: Clone, T> Clone for ExtensionKey<F, T> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            extension: self.extension,
        }
    }
}

impl<F: Copy, T> Copy for ExtensionKey<F, T> {}

impl<F, T> fmt::Debug for ExtensionKey<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKey<{}>", std::any::type_name::<T>())
    }
}
