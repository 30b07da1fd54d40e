//! Keys from the query.

use std::borrow::Cow;

use http::{Uri, request::Parts};

use crate::{error::Error, key::Key};

use super::{
    extracted::Extracted,
    extractor::KeyExtractor,
    named::Name,
    percent::{self, Plus},
};

/// One parameter of the query, in clear: `QueryParam::new("tenant")` finds `acme` in `/orders?tenant=acme&page=3`.
///
/// Nothing else of the URI becomes part of the key, so no client opens a new count by adding parameters. Name and value
/// are decoded as forms are (`%XX`, `+` is a space; a `%` that begins no escape stands for itself): `a%62c` and `abc`
/// are one key. Names are told apart by case. An empty parameter is absent. One that comes more than once is ambiguous: which
/// of them the handler would take is not known here.
///
/// Clients choose their parameters: use it beside an address, or for what the client gains nothing by varying. For
/// secrets use [`ApiKey::query`](super::ApiKey::query).
///
/// # Examples
///
/// ```
/// use tollgate::{Key, extract::{Extracted, KeyExtractor, QueryParam}};
///
/// let request = http::Request::get("/orders?tenant=ac%6De&page=3").body(()).unwrap();
/// let key = QueryParam::new("tenant").extract(&request.into_parts().0);
/// assert_eq!(key, Extracted::Found(Key::new("acme")));
/// ```
#[derive(Clone, Debug)]
pub struct QueryParam {
    name: Name,
}

impl QueryParam {
    /// The parameter of this name, given as it reads when decoded. An empty one is reported when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: named(name.as_ref()),
        }
    }
}

impl KeyExtractor for QueryParam {
    fn extract(&self, parts: &Parts) -> Extracted<Key> {
        single(&parts.uri, &self.name).map(Key::new)
    }

    /// `query:` and the name.
    fn label(&self) -> &str {
        self.name.label()
    }

    fn validate(&self) -> Result<(), Error> {
        validate(&self.name)
    }
}

pub(super) fn named(name: &str) -> Name {
    Name::new("query", name)
}

pub(super) fn validate(name: &Name) -> Result<(), Error> {
    let advice = "query parameter: take that of one, as in \"tenant\"";
    name.validate(!name.as_str().is_empty(), advice)
}

/// The parameter's value, decoded. An empty one is absent, and two are ambiguous.
pub(super) fn single<'a>(uri: &'a Uri, name: &Name) -> Extracted<Cow<'a, [u8]>> {
    let value = Extracted::only(values(uri, name));
    value
        .filter(|value| !value.is_empty())
        .map(|value| percent::decoded(value.as_bytes(), Plus::Space))
}

/// All values of the parameter, as they are written.
fn values<'a>(uri: &'a Uri, name: &Name) -> impl Iterator<Item = &'a str> {
    let pairs = uri.query().unwrap_or_default().split('&');
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        percent::reads_as(found.as_bytes(), Plus::Space, name.as_str()).then_some(value)
    })
}
