//! The proxies in front of the service, and networks, as they are written.

use http::HeaderName;

use crate::extract::{ClientIp, KeyExtractor, Networks};

use super::{
    fields::{self, Faults, Fields},
    node::{Node, Place},
    spec::{AddressHeaderSpec, OneOrMany},
};

/// The proxies in front of the service.
pub(super) struct Proxies {
    pub(super) behind: Option<OneOrMany<String>>,
    pub(super) hops: Option<u64>,
    pub(super) header: Option<AddressHeaderSpec>,
    /// The client's address behind them. `None` if they have a fault.
    pub(super) client_ip: Option<ClientIp>,
}

impl Proxies {
    /// Reads the fields about proxies. What cannot work is noted; `direct` is the field to use without proxies.
    pub(super) fn read(setting: &mut Fields<'_>, direct: &str, faults: &mut Faults) -> Self {
        let behind = setting.get("behind");
        let mut read = Self {
            behind: setting.read("behind", faults, networks),
            hops: setting.read("hops", faults, fields::whole),
            header: setting
                .read("header", faults, fields::text)
                .map(AddressHeaderSpec),
            client_ip: None,
        };
        let (made, place) = match (behind, &read.behind, setting.get("hops"), read.hops) {
            (Some(_), _, Some(_), _) => {
                faults.add(
                    setting.place,
                    "both `behind` and `hops`",
                    "keep one of them",
                );
                (None, setting.place)
            }
            (Some(node), Some(networks), ..) => {
                (Some(ClientIp::behind(networks.as_slice())), node.place)
            }
            (_, _, Some(node), Some(hops)) => {
                let hops = usize::try_from(hops).unwrap_or(usize::MAX);
                (Some(ClientIp::behind_hops(hops)), node.place)
            }
            (None, _, None, _) => {
                let remedy = format!(
                    "name their networks with `behind`, count them with `hops`, or use `{direct}`"
                );
                faults.add(setting.place, "no proxies", remedy);
                (None, setting.place)
            }
            // A setting that could not be read was noted.
            _ => (None, setting.place),
        };
        read.client_ip = made.filter(|made| works(made, place, faults));
        if let Some(AddressHeaderSpec(name)) = &read.header {
            let made = read.client_ip.clone();
            // The header is checked also while the proxies have a fault.
            let made = made.unwrap_or_else(|| ClientIp::behind_hops(1));
            let place = setting.place_of("header");
            let with_header = with_header(made, name, place, faults);
            read.client_ip = read.client_ip.and(with_header);
        }
        read
    }
}

fn with_header(
    proxies: ClientIp,
    name: &str,
    place: Place,
    faults: &mut Faults,
) -> Option<ClientIp> {
    let next = match name.to_ascii_lowercase().as_str() {
        "forwarded" => proxies.forwarded(),
        "x-forwarded-for" => proxies.forwarded_for(),
        name => match HeaderName::try_from(name) {
            Ok(name) => proxies.header(name),
            Err(_) => {
                let reason = format!("{name:?} is not a header name");
                faults.add(place, reason, "write it as `x-real-ip`");
                return None;
            }
        },
    };
    works(&next, place, faults).then_some(next)
}

/// Notes an extractor that cannot work.
pub(super) fn works(extractor: &ClientIp, place: Place, faults: &mut Faults) -> bool {
    let result = KeyExtractor::validate(extractor);
    if let Err(error) = &result {
        faults.refuse(place, error);
    }
    result.is_ok()
}

/// Reads networks, and notes each that is none.
pub(super) fn networks(node: &Node, faults: &mut Faults) -> Option<OneOrMany<String>> {
    let read = fields::texts(node, faults)?;
    let mut all_work = true;
    for (text, item) in read.as_slice().iter().zip(fields::items(node).0) {
        if let Err(error) = Networks::new([text]) {
            faults.refuse(item.place, &error);
            all_work = false;
        }
    }
    all_work.then_some(read)
}
