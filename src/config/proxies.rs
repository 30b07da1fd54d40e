//! The proxies in front of the service, and networks, as they are written.

use http::HeaderName;

use crate::extract::{ClientIp, KeyExtractor, Networks};

use super::{
    fields::{self, Faults, Fields},
    node::{Node, Place},
    spec::{AddressHeaderSpec, OneOrMany, ProxiesSpec},
};

/// Reads the fields about proxies, and makes an extractor of the client's address behind them.
///
/// `None` if they have a fault, which is noted. `direct` is the field to use without proxies.
pub(super) fn read(
    setting: &mut Fields<'_>,
    direct: &str,
    faults: &mut Faults,
) -> (ProxiesSpec, Option<ClientIp>) {
    let (behind, hops) = (setting.get("behind"), setting.get("hops"));
    let spec = ProxiesSpec {
        behind: setting.read("behind", faults, networks),
        hops: setting.read("hops", faults, fields::whole),
        header: setting
            .read("header", faults, fields::text)
            .map(AddressHeaderSpec),
    };
    let mut made = match (behind, hops) {
        (Some(_), Some(_)) => {
            let remedy = "keep one of them";
            faults.add(setting.place, "both `behind` and `hops`", remedy);
            None
        }
        (None, None) => {
            let remedy = format!(
                "name their networks with `behind`, count them with `hops`, or use `{direct}`"
            );
            faults.add(setting.place, "no proxies", remedy);
            None
        }
        (Some(node), None) => {
            let made = spec
                .behind
                .as_ref()
                .map(|networks| ClientIp::behind(networks.as_slice()));
            made.filter(|made| works(made, node.place, faults))
        }
        (None, Some(node)) => {
            let hops = spec
                .hops
                .map(|hops| usize::try_from(hops).unwrap_or(usize::MAX));
            hops.map(ClientIp::behind_hops)
                .filter(|made| works(made, node.place, faults))
        }
    };
    if let Some(AddressHeaderSpec(name)) = &spec.header {
        // The header is checked also while the proxies have a fault.
        let proxies = made.clone().unwrap_or_else(|| ClientIp::behind_hops(1));
        let with_header = with_header(proxies, name, setting.place_of("header"), faults);
        made = made.and(with_header);
    }
    (spec, made)
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

/// Reads networks. Text that is not a network is noted.
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
