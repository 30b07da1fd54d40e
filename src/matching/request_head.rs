//! The head of a request, as matchers see it.

use std::{cell::OnceCell, fmt, ops::Deref};

use http::request::Parts;

use super::spelling::Spelling;

/// The head of a request, for the matchers of all rules.
///
/// Dereferences to [`Parts`]. The spelling of the path is examined once, when the first path pattern asks for it, however
/// many patterns there are.
pub struct RequestHead<'a> {
    parts: &'a Parts,
    spelling: OnceCell<Spelling>,
}

impl<'a> RequestHead<'a> {
    /// Makes the head of a request.
    #[must_use]
    #[inline]
    pub const fn new(parts: &'a Parts) -> Self {
        Self {
            parts,
            spelling: OnceCell::new(),
        }
    }

    /// Returns how the path is spelled.
    #[inline]
    pub(super) fn spelling(&self) -> &Spelling {
        let path = self.parts.uri.path().as_bytes();
        self.spelling.get_or_init(|| Spelling::of(path))
    }
}

impl Deref for RequestHead<'_> {
    type Target = Parts;

    #[inline]
    fn deref(&self) -> &Parts {
        self.parts
    }
}

impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.fmt(f)
    }
}
