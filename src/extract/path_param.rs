//! Keys from the parameters of the route.

use http::{StatusCode, request::Parts};

use crate::{error::Error, key::Key};

#[cfg(feature = "axum")]
use super::template;
use super::{extracted::Extracted, extractor::KeyExtractor, named::Name};

/// One parameter of the route that matched, in clear: `PathParam::new("id")` finds `7` in `/users/7` at `/users/{id}`.
///
/// With axum only, whose `MatchedPath` names the parameters: on a layer on a route, or added with `route_layer` or
/// `layer` after the routes; in nested routers too, where the parameter may stand in the prefix. Without axum the key is
/// absent. It is percent-decoded as axum's `Path` does, so `/users/%37` is the same key; what axum refuses because it
/// is no UTF-8 is a key of those bytes. A name that is in the route twice is ambiguous.
///
/// Clients choose their paths: count what exists only once a handler has found it, or count beside an address.
#[derive(Clone, Debug)]
pub struct PathParam {
    name: Name,
}

impl PathParam {
    /// The parameter of this name, without braces and without the `*` of one that takes the rest of the path. One with
    /// them, or none, is reported when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: Name::new("path", name.as_ref()),
        }
    }
}

impl KeyExtractor for PathParam {
    #[cfg(feature = "axum")]
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        template::value(parts, self.name.as_str()).map(Key::new)
    }

    #[cfg(not(feature = "axum"))]
    fn extract(&self, _: &Parts) -> Extracted<Key> {
        Extracted::Absent
    }

    /// `path:` and the name.
    fn label(&self) -> &str {
        self.name.label()
    }

    fn validate(&self) -> Result<(), Error> {
        let name = self.name.as_str();
        let is_usable = !name.is_empty() && !name.contains(['{', '}', '*', '/']);
        let advice = "path parameter: write that of the route without braces, \"id\" for {id}";
        self.name.validate(is_usable, advice)
    }

    /// 404: no route with such a parameter matched.
    fn missing_status(&self, _: &Parts) -> StatusCode {
        StatusCode::NOT_FOUND
    }
}
