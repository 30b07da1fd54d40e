//! Keys from a query parameter.

use std::borrow::Cow;

use http::Uri;

use crate::{error::Error, key::Key, request::RequestHead};

use super::{
    caller_id::CallerId,
    extracted::Extracted,
    extractor::KeyExtractor,
    param::{self, ParamName, Plus},
};

/// One query parameter, readable in Redis: `QueryParam::new("tenant")` finds `acme` in `/orders?tenant=acme&page=3`.
///
/// Clients choose their parameters: use it in addition to an address, or where varying the value gains a client nothing.
/// For secrets use [`ApiKey::query`](super::ApiKey::query).
///
/// The rest of the URI is not part of the key, so adding parameters does not start a new count. Name and value are decoded
/// as forms are (`%XX`; `+` is a space; a `%` that starts no escape is kept), so `a%62c` and `abc` are one key. Names are
/// case-sensitive. An empty parameter is absent. One that comes more than once is ambiguous, since the limiter cannot know
/// which one the handler reads.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, RequestHead, extract::{Extracted, KeyExtractor, QueryParam}};
///
/// let request = http::Request::get("/orders?tenant=ac%6De&page=3").body(()).unwrap();
/// let key = QueryParam::new("tenant").extract(&RequestHead::from(&request));
/// assert_eq!(key, Extracted::Found(Key::new("acme")));
/// ```
#[derive(Clone, Debug)]
pub struct QueryParam {
    name: ParamName,
}

impl QueryParam {
    /// Reads the parameter of this name, written without escapes. An empty name fails when the layer is built.
    #[must_use]
    pub fn new(name: impl AsRef<str>) -> Self {
        Self {
            name: param_name(name.as_ref()),
        }
    }
}

impl KeyExtractor for QueryParam {
    fn extract(&self, head: &RequestHead<'_>) -> Extracted<Key> {
        single(head.uri, &self.name).map(Key::new)
    }

    fn keys_of(&self, caller: &CallerId<'_>) -> Vec<Key> {
        Vec::from_iter(caller.value().map(Key::new))
    }

    /// `query:` followed by the name.
    fn label(&self) -> &str {
        self.name.label()
    }

    fn validate(&self) -> Result<(), Error> {
        validate(&self.name)
    }
}

pub(super) fn param_name(name: &str) -> ParamName {
    ParamName::new("query", name)
}

pub(super) fn validate(name: &ParamName) -> Result<(), Error> {
    let kind = "query parameter: use a name such as \"tenant\"";
    name.validate(!name.as_str().is_empty(), kind)
}

/// Returns the parameter's value, decoded. An empty value is absent, and two are ambiguous.
pub(super) fn single<'a>(uri: &'a Uri, name: &ParamName) -> Extracted<Cow<'a, [u8]>> {
    let value = Extracted::single(raw_values(uri, name));
    value
        .filter(|value| !value.is_empty())
        .map(|value| param::decode(value.as_bytes(), Plus::Space))
}

fn raw_values<'a>(uri: &'a Uri, name: &ParamName) -> impl Iterator<Item = &'a str> {
    values_in(uri.query().unwrap_or_default(), name)
}

/// Returns the values of a parameter in a query or a form, as they are encoded.
pub(super) fn values_in<'a>(text: &'a str, name: &ParamName) -> impl Iterator<Item = &'a str> {
    let pairs = text.split('&');
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        name.matches(found.as_bytes(), Plus::Space).then_some(value)
    })
}
