//! Conditions on requests.

use std::sync::Arc;

use http::{Method, request::Parts};

use crate::{
    diagnosis::Code,
    error::Error,
    extract::PeerIp,
    matching::{
        AddressList, HostPattern, Match, Matcher, Methods, PathPattern, Preflight, RequestHead,
    },
};

use super::{
    fields::{self, Faults, Fields},
    node::Node,
    proxies,
    registry::Registry,
    spec::{ClientNetworksSpec, OneOrMany, RequestSpec},
};

/// A matcher of any type.
pub(super) type DynMatcher = Arc<dyn Matcher>;

/// Matches requests that all of several matchers match.
#[derive(Clone, Default)]
pub(super) struct AllOf(Vec<DynMatcher>);

impl Matcher for AllOf {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        let mut least = Match::Exact;
        for matcher in &self.0 {
            match matcher.matches(head) {
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

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        self.0.iter().find_map(|matcher| matcher.diagnose(parts))
    }
}

/// Matches requests that one of several matchers matches.
struct AnyOf(Vec<DynMatcher>);

impl Matcher for AnyOf {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        let mut most = Match::Miss;
        for matcher in &self.0 {
            match matcher.matches(head) {
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

    fn diagnose(&self, parts: &Parts) -> Option<Code> {
        self.0.iter().find_map(|matcher| matcher.diagnose(parts))
    }
}

/// Returns the matchers of `path`, `method` and `host`. Those that cannot work are noted.
pub(super) fn conditions(
    fields: &mut Fields<'_>,
    [path, method, host]: [&Option<OneOrMany<String>>; 3],
    faults: &mut Faults,
) -> Vec<DynMatcher> {
    let mut matchers: Vec<DynMatcher> = Vec::new();
    if let (Some(paths), Some(node)) = (path, fields.get("path")) {
        let pattern = |path: &String| -> DynMatcher { Arc::new(PathPattern::new(path)) };
        let patterns = paths.as_slice().iter().map(pattern);
        matchers.extend(any_of(node, patterns, faults));
    }
    if let (Some(names), Some(node)) = (method, fields.get("method")) {
        let methods = names.as_slice().iter().zip(fields::items(node).0);
        let methods = methods.filter_map(|(name, item)| read_method(name, item, faults));
        let methods: Vec<Method> = methods.collect();
        matchers.push(Arc::new(Methods::new(methods)));
    }
    if let (Some(hosts), Some(node)) = (host, fields.get("host")) {
        let pattern = |host: &String| -> DynMatcher { Arc::new(HostPattern::new(host)) };
        let patterns = hosts.as_slice().iter().map(pattern);
        matchers.extend(any_of(node, patterns, faults));
    }
    matchers
}

fn read_method(name: &str, item: &Node, faults: &mut Faults) -> Option<Method> {
    let method = Method::from_bytes(name.as_bytes());
    let method = method
        .ok()
        .filter(|_| !name.chars().any(char::is_lowercase));
    if method.is_none() {
        let upper = name.to_uppercase();
        let remedy = match Method::from_bytes(upper.as_bytes()) {
            Ok(_) => format!("write `{upper}`"),
            Err(_) => "write one such as `GET` or `POST`".to_owned(),
        };
        faults.add(item.place, format!("{name:?} is not a method"), remedy);
    }
    method
}

/// Joins matchers, and notes those that cannot work. `None` if none is left.
fn any_of(
    node: &Node,
    matchers: impl Iterator<Item = DynMatcher>,
    faults: &mut Faults,
) -> Option<DynMatcher> {
    let mut all = Vec::new();
    for (matcher, item) in matchers.zip(fields::items(node).0) {
        match matcher.validate() {
            Ok(()) => all.push(matcher),
            Err(error) => faults.refuse(item.place, &error),
        }
    }
    match <[DynMatcher; 1]>::try_from(all) {
        Ok([one]) => Some(one),
        Err(several) if several.is_empty() => None,
        Err(several) => Some(Arc::new(AnyOf(several))),
    }
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
    let noted = faults.noted();
    let remedy = "write `{ path: .. }`, `{ method: .. }` or `{ peer: .. }`";
    let mut fields = Fields::of(node, remedy, faults)?;
    let mut spec = RequestSpec {
        path: fields.read("path", faults, fields::texts),
        method: fields.read("method", faults, fields::texts),
        host: fields.read("host", faults, fields::texts),
        peer: fields.read("peer", faults, proxies::networks),
        client_ip: None,
        preflight: fields.read("preflight", faults, fields::boolean),
        custom: fields.read("custom", faults, fields::text),
    };
    let plain = [&spec.path, &spec.method, &spec.host];
    let mut all = conditions(&mut fields, plain, faults);
    if let Some(networks) = &spec.peer {
        all.push(Arc::new(AddressList::new(PeerIp, networks.as_slice())));
    }
    if let Some((client_ip, list)) = fields.read("client_ip", faults, client_networks) {
        spec.client_ip = Some(client_ip);
        all.push(list);
    }
    let custom = fields.get("custom").zip(spec.custom.as_ref());
    let custom = custom.map(|(node, name)| registry.matcher(name, node.place, faults));
    fields.finish(faults);
    all.extend(custom.flatten());
    match spec.preflight {
        Some(true) => all.push(Arc::new(Preflight)),
        Some(false) => all.push(Arc::new(Preflight.not())),
        None => {}
    }
    if faults.noted() > noted {
        return None;
    }
    if all.is_empty() {
        let remedy = "write `path`, `method`, `host`, `peer`, `client_ip`, `preflight` or `custom`";
        faults.add(node.place, "no condition", remedy);
        return None;
    }
    Some((spec, AllOf(all)))
}

/// Reads the networks of clients behind proxies.
fn client_networks(node: &Node, faults: &mut Faults) -> Option<(ClientNetworksSpec, DynMatcher)> {
    let remedy = "write `{ behind: [networks of proxies], networks: [networks of clients] }`";
    let mut setting = Fields::of(node, remedy, faults)?;
    let (proxies, client_ip) = proxies::read(&mut setting, "peer", faults);
    let networks = setting.require("networks", "add those of the clients", faults);
    let networks = networks.and_then(|node| proxies::networks(node, faults));
    setting.finish(faults);
    let (client_ip, networks) = (client_ip?, networks?);
    let list = AddressList::new(client_ip, networks.as_slice());
    let spec = ClientNetworksSpec { proxies, networks };
    Some((spec, Arc::new(list)))
}
