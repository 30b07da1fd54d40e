//! Conditions on requests.

use std::sync::Arc;

use http::Method;

use crate::{
    diagnosis::Code,
    error::Error,
    extract::PeerIp,
    matching::{AddressList, HostPattern, Match, Matcher, Methods, PathPattern, Preflight},
    request::RequestHead,
};

use super::{
    fields::{self, Fields, boolean, registered, texts},
    node::LocatedValue,
    proxies::{self, networks},
    reading::FileReading,
    registry::DynMatcher,
    spec::{ClientNetworksSpec, OneOrMany, RequestSpec},
};

/// Matches requests that all of several matchers match, or one of them.
#[derive(Clone)]
pub(super) struct Several {
    matchers: Vec<DynMatcher>,
    is_all: bool,
}

impl Several {
    pub fn all_of(matchers: Vec<DynMatcher>) -> Self {
        Self {
            matchers,
            is_all: true,
        }
    }

    /// Matches requests that one of these matches.
    pub fn any_of(all: &[Self]) -> Self {
        let matcher = |several: &Self| -> DynMatcher { Arc::new(several.clone()) };
        Self {
            matchers: all.iter().map(matcher).collect(),
            is_all: false,
        }
    }
}

impl Matcher for Several {
    fn matches(&self, head: &RequestHead<'_>) -> Match {
        // The result before any matcher was asked, and the one after which no other changes it.
        let (mut result, last) = match self.is_all {
            true => (Match::Exact, Match::Miss),
            false => (Match::Miss, Match::Exact),
        };
        for matcher in &self.matchers {
            let next = matcher.matches(head);
            result = match self.is_all {
                true => result.min(next),
                false => result.max(next),
            };
            if result == last {
                break;
            }
        }
        result
    }

    fn validate(&self) -> Result<(), Error> {
        self.matchers.iter().try_for_each(Matcher::validate)
    }

    fn diagnose(&self, head: &RequestHead<'_>) -> Option<Code> {
        let mut matchers = self.matchers.iter();
        matchers.find_map(|matcher| matcher.diagnose(head))
    }
}

/// Reads `path`, `method` and `host`, and makes their matchers. Those that cannot work are noted.
pub(super) fn conditions(
    fields: &mut Fields<'_, '_>,
) -> ([Option<OneOrMany<String>>; 3], Vec<DynMatcher>) {
    let written = ["path", "method", "host"].map(|name| fields.read(name, texts));
    let [path, method, host] = &written;
    let mut matchers: Vec<DynMatcher> = Vec::new();
    if let (Some(paths), Some(node)) = (path, fields.get("path")) {
        let pattern = |path: &String| -> DynMatcher { Arc::new(PathPattern::new(path)) };
        matchers.extend(any_of(node, paths, pattern, fields.reading));
    }
    if let (Some(names), Some(node)) = (method, fields.get("method")) {
        let methods = names.as_slice().iter().zip(fields::items(node).0);
        let methods = methods.filter_map(|(name, item)| read_method(name, item, fields.reading));
        let methods: Vec<Method> = methods.collect();
        matchers.push(Arc::new(Methods::new(methods)));
    }
    if let (Some(hosts), Some(node)) = (host, fields.get("host")) {
        let pattern = |host: &String| -> DynMatcher { Arc::new(HostPattern::new(host)) };
        matchers.extend(any_of(node, hosts, pattern, fields.reading));
    }
    (written, matchers)
}

fn read_method(name: &str, item: &LocatedValue, reading: &mut FileReading) -> Option<Method> {
    let method = Method::from_bytes(name.as_bytes()).ok();
    let method = method.filter(|_| !name.chars().any(char::is_lowercase));
    method.or_else(|| {
        let upper = name.to_uppercase();
        let remedy = match Method::from_bytes(upper.as_bytes()) {
            Ok(_) => format!("write `{upper}`"),
            Err(_) => "write one such as `GET` or `POST`".to_owned(),
        };
        reading.fault(item.position, format!("{name:?} is not a method"), remedy)
    })
}

/// Joins the matchers of texts, and notes those that cannot work. `None` if none is left.
fn any_of(
    node: &LocatedValue,
    texts: &OneOrMany<String>,
    matcher: impl Fn(&String) -> DynMatcher,
    reading: &mut FileReading,
) -> Option<DynMatcher> {
    let mut matchers = Vec::new();
    for (text, item) in texts.as_slice().iter().zip(fields::items(node).0) {
        let matcher = matcher(text);
        match matcher.validate() {
            Ok(()) => matchers.push(matcher),
            Err(error) => reading.refuse(item.position, &error),
        }
    }
    match matchers.len() {
        0 | 1 => matchers.pop(),
        _ => Some(Arc::new(Several {
            matchers,
            is_all: false,
        })),
    }
}

/// Reads requests: a mapping, or a list of them.
pub(super) fn requests(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(Vec<RequestSpec>, Vec<Several>)> {
    let read = fields::each(node, reading, request)?;
    Some(read.into_iter().unzip())
}

pub(super) fn request(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(RequestSpec, Several)> {
    let noted = reading.noted();
    let remedy = "write `{ path: .. }`, `{ method: .. }` or `{ peer: .. }`";
    let mut fields = Fields::of(node, remedy, reading)?;
    let ([path, method, host], mut all) = conditions(&mut fields);
    let peer = fields.read("peer", networks);
    let preflight = fields.read("preflight", boolean);
    let registered = |node: &LocatedValue, reading: &mut FileReading| {
        registered(node, reading, "matcher", |registry| &registry.matchers)
    };
    let (custom, matcher) = fields.read("custom", registered).unzip();
    let (client_ip, list) = fields.read("client_ip", client_networks).unzip();
    let spec = RequestSpec {
        path,
        method,
        host,
        peer,
        client_ip,
        preflight,
        custom,
    };
    if let Some(networks) = &spec.peer {
        all.push(Arc::new(AddressList::new(PeerIp, networks.as_slice())));
    }
    fields.finish();
    all.extend([list, matcher].into_iter().flatten());
    match spec.preflight {
        Some(true) => all.push(Arc::new(Preflight)),
        Some(false) => all.push(Arc::new(Preflight.not())),
        None => {}
    }
    if reading.noted() > noted {
        return None;
    }
    if all.is_empty() {
        let remedy = "write `path`, `method`, `host`, `peer`, `client_ip`, `preflight` or `custom`";
        return reading.fault(node.position, "no condition", remedy);
    }
    Some((spec, Several::all_of(all)))
}

/// Reads the networks of clients behind proxies.
fn client_networks(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(ClientNetworksSpec, DynMatcher)> {
    let remedy = "write `{ behind: [networks of proxies], networks: [networks of clients] }`";
    let mut fields = Fields::of(node, remedy, reading)?;
    let (proxies, client_ip) = proxies::read(&mut fields, "peer");
    let networks = fields.require("networks", "add those of the clients", networks);
    fields.finish();
    let (client_ip, networks) = (client_ip?, networks?);
    let list = AddressList::new(client_ip, networks.as_slice());
    Some((ClientNetworksSpec { proxies, networks }, Arc::new(list)))
}
