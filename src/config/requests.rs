//! Conditions on requests.

use std::sync::Arc;

use http::{Method, request::Parts};

use crate::{
    error::Error,
    extract::PeerIp,
    matching::{AddressList, HostPattern, Match, Matcher, Methods, PathPattern, Preflight},
};

use super::{
    fault::in_words_of_files,
    fields::{self, Faults, Fields},
    keys,
    node::Node,
    registry::Registry,
    spec::{RequestSpec, RuleSpec},
};

/// A matcher of any type.
pub(super) type DynMatcher = Arc<dyn Matcher>;

/// Matches requests that all of several matchers match.
#[derive(Clone)]
pub(super) struct AllOf(Vec<DynMatcher>);

impl Matcher for AllOf {
    fn matches(&self, parts: &Parts) -> Match {
        let mut least = Match::Exact;
        for matcher in &self.0 {
            match matcher.matches(parts) {
                Match::Miss => return Match::Miss,
                Match::Possible => least = Match::Possible,
                Match::Exact => {}
            }
        }
        least
    }

    fn validate(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(Matcher::validate)
    }
}

/// Matches requests that one of several matchers matches.
struct AnyOf(Vec<DynMatcher>);

impl Matcher for AnyOf {
    fn matches(&self, parts: &Parts) -> Match {
        let mut most = Match::Miss;
        for matcher in &self.0 {
            match matcher.matches(parts) {
                Match::Exact => return Match::Exact,
                Match::Possible => most = Match::Possible,
                Match::Miss => {}
            }
        }
        most
    }

    fn validate(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(Matcher::validate)
    }
}

/// Returns the matchers of a rule's `path`, `method` and `host`.
pub(super) fn matchers(
    fields: &mut Fields<'_>,
    spec: &RuleSpec,
    faults: &mut Faults,
) -> Option<Vec<DynMatcher>> {
    let request = RequestSpec {
        path: spec.path.clone(),
        method: spec.method.clone(),
        host: spec.host.clone(),
        ..RequestSpec::default()
    };
    conditions(fields, &request, faults)
}

/// Returns the matchers of a request's plain fields.
fn conditions(
    fields: &mut Fields<'_>,
    spec: &RequestSpec,
    faults: &mut Faults,
) -> Option<Vec<DynMatcher>> {
    let mut matchers: Vec<DynMatcher> = Vec::new();
    if let (Some(paths), Some(node)) = (&spec.path, fields.get("path")) {
        let pattern = |path: &String| -> DynMatcher { Arc::new(PathPattern::new(path)) };
        matchers.push(any_of(node, paths.as_slice().iter().map(pattern), faults)?);
    }
    if let (Some(names), Some(node)) = (&spec.method, fields.get("method")) {
        let mut methods = Vec::new();
        for (name, item) in names.as_slice().iter().zip(fields::items(node).0) {
            match Method::from_bytes(name.as_bytes()) {
                Ok(method) if !name.chars().any(char::is_lowercase) => methods.push(method),
                _ => {
                    let remedy = format!("write `{}`", name.to_uppercase());
                    faults.add(item.place, format!("`{name}` is not a method"), remedy);
                }
            }
        }
        matchers.push(Arc::new(Methods::new(methods)));
    }
    if let (Some(hosts), Some(node)) = (&spec.host, fields.get("host")) {
        let pattern = |host: &String| -> DynMatcher { Arc::new(HostPattern::new(host)) };
        matchers.push(any_of(node, hosts.as_slice().iter().map(pattern), faults)?);
    }
    Some(matchers)
}

/// Joins matchers, and notes those that cannot work.
fn any_of(
    node: &Node,
    matchers: impl Iterator<Item = DynMatcher>,
    faults: &mut Faults,
) -> Option<DynMatcher> {
    let mut all = Vec::new();
    for (matcher, item) in matchers.zip(fields::items(node).0) {
        match matcher.validate() {
            Ok(()) => all.push(matcher),
            Err(error) => faults.add(
                item.place,
                "this pattern cannot work",
                in_words_of_files(&error),
            ),
        }
    }
    Some(match <[DynMatcher; 1]>::try_from(all) {
        Ok([one]) => one,
        Err(several) if several.is_empty() => return None,
        Err(several) => Arc::new(AnyOf(several)),
    })
}

/// Reads requests: a mapping, or a list of them.
pub(super) fn requests(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(Vec<RequestSpec>, Vec<AllOf>)> {
    let read = fields::items(node)
        .0
        .iter()
        .map(|item| request(item, registry, faults));
    let read: Vec<_> = read.collect();
    let read: Option<Vec<_>> = read.into_iter().collect();
    Some(read?.into_iter().unzip())
}

pub(super) fn request(
    node: &Node,
    registry: &Registry,
    faults: &mut Faults,
) -> Option<(RequestSpec, AllOf)> {
    let mut fields = Fields::of(
        node,
        "write `{ path: .. }`, `{ method: .. }` or `{ peer: .. }`",
        faults,
    )?;
    let spec = RequestSpec {
        path: fields.read("path", faults, keys::texts),
        method: fields.read("method", faults, keys::texts),
        host: fields.read("host", faults, keys::texts),
        peer: fields.read("peer", faults, keys::texts),
        preflight: fields.read("preflight", faults, fields::boolean),
        custom: fields.read("custom", faults, fields::text),
    };
    let matchers = conditions(&mut fields, &spec, faults);
    let peer = fields.get("peer").zip(spec.peer.as_ref());
    let peer = peer.map(|(node, networks)| {
        let list: DynMatcher = Arc::new(AddressList::new(PeerIp, networks.as_slice()));
        any_of(node, std::iter::once(list), faults)
    });
    let custom = fields.get("custom").zip(spec.custom.as_ref());
    let custom = custom.map(|(node, name)| registry.matcher(name, node.place, faults));
    fields.finish(faults);
    let mut all = matchers?;
    if let Some(list) = peer {
        all.push(list?);
    }
    if let Some(custom) = custom {
        all.push(custom?);
    }
    match spec.preflight {
        Some(true) => all.push(Arc::new(Preflight)),
        Some(false) => all.push(Arc::new(Preflight.not())),
        None => {}
    }
    if all.is_empty() {
        faults.add(
            node.place,
            "no condition",
            "write `path`, `method`, `host`, `peer`, `preflight` or `custom`",
        );
        return None;
    }
    Some((spec, AllOf(all)))
}
