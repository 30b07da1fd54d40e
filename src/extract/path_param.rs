//! Keys from a parameter of axum's route.
//!
//! # Why does `PathParam` match the route against the path again?
//!
//! axum keeps path parameters in an extension of a private type. Only its extractor reads them, and needs a mutable request or a
//! copy of all extensions. `MatchedPath` and `NestedPath` are public, so the parameter is found again in the path that the router
//! saw last, and one in the prefix of a nested router in `OriginalUri`. A property test compares the result with what handlers
//! get.

use http::StatusCode;

use crate::{error::Error, key::Key, request::RequestHead};

#[cfg(feature = "axum")]
use super::matched_path;
use super::{caller_id::CallerId, extracted::Extracted, extractor::KeyExtractor, param::ParamName};

/// One parameter of the matched route, readable in Redis: `PathParam::new("id")` finds `7` in `/users/7` for the route
/// `/users/{id}`.
///
/// Needs axum, whose `MatchedPath` names the parameters; without it the key is absent. Put the layer on a route, or add it
/// with `route_layer` or `layer` after the routes. In nested routers, the parameter may also be in the prefix. The value is
/// percent-decoded as by axum's `Path`, so `/users/%37` has the same key. If the decoded bytes are not UTF-8, which axum
/// rejects, they are still a key. If the route has two parameters of the name, the key is ambiguous.
///
/// Clients choose their paths, including ones for which nothing exists: limit by address as well.
#[derive(Clone, Debug)]
pub struct PathParam {
    name: ParamName,
}

impl PathParam {
    /// Reads the parameter of this name, written without braces and without the `*` of a wildcard. An invalid name fails
    /// when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: ParamName::new("path", name.as_ref()),
        }
    }
}

impl KeyExtractor for PathParam {
    #[cfg(feature = "axum")]
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        matched_path::parameter(head, self.name.as_str()).map(Key::new)
    }

    #[cfg(not(feature = "axum"))]
    fn extract(&self, _: &RequestHead<'_>) -> Extracted<Key> {
        Extracted::Absent
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        Vec::from_iter(caller.value().map(Key::new))
    }

    /// `path:` followed by the name.
    fn label(&self) -> &str {
        self.name.label()
    }

    fn validate(&self) -> Result<(), Error> {
        let name = self.name.as_str();
        let is_valid = !name.is_empty() && !name.contains(['{', '}', '*', '/']);
        let kind = "path parameter: write it without braces, as \"id\" for {id}";
        self.name.validate(is_valid, kind)
    }

    /// 404: no route with this parameter matched.
    fn missing_status(&self, _: &RequestHead<'_>) -> StatusCode {
        StatusCode::NOT_FOUND
    }
}
