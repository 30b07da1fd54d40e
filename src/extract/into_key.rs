//! Results of closures that find keys.
//!
//! # Why does a closure not return text?
//!
//! Text may be a name, which operators want to read in Redis, or a token, which must be hashed. `Key::new` and `Key::secret` are
//! this choice, and a limiter that made it would choose wrongly for some. The compiler's message shows both. With text as a second
//! kind of result, it could not infer the types of `None` and of `.map(Into::into)` either.

use crate::key::Key;

use super::extracted::Extracted;

/// The result of a closure that finds keys: a [`Key`], an `Option<Key>`, or an [`Extracted`].
///
/// Make a key of text with [`Key::new`], which readers of Redis can read, or with [`Key::secret`], which is hashed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key: a closure that finds keys returns a `Key` or an `Option<Key>`",
    label = "not a key",
    note = "make a key of text with `Key::new(text)`, and of an API key or token with `Key::secret(token)`",
    note = "for an `Option` of text: `.map(Key::new)`; for a `Result`: `.ok()`; a future needs `key_async` in place of `key_fn`"
)]
pub trait IntoKey {
    /// Returns the key, or whether it is absent or ambiguous.
    fn into_key(self) -> Extracted<Key>;
}

impl IntoKey for Key {
    fn into_key(self) -> Extracted<Key> {
        Extracted::Found(self)
    }
}

impl IntoKey for Option<Key> {
    fn into_key(self) -> Extracted<Key> {
        self.into()
    }
}

impl IntoKey for Extracted<Key> {
    fn into_key(self) -> Extracted<Key> {
        self
    }
}
