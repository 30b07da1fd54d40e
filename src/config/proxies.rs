//! The proxies in front of the service, and networks, as they are written.

use http::HeaderName;

use crate::extract::{ClientIp, KeyExtractor, Networks};

use super::{
    fields::{self, Fields, text, whole},
    node::LocatedValue,
    reading::FileReading,
    spec::{AddressHeaderSpec, OneOrMany, ProxiesSpec},
};

/// Reads the fields about proxies, and makes an extractor of the client's address behind them.
///
/// `None` if they have a fault, which is noted. `direct` is the field to use without proxies.
pub(super) fn read(fields: &mut Fields<'_, '_>, direct: &str) -> (ProxiesSpec, Option<ClientIp>) {
    let spec = ProxiesSpec {
        behind: fields.read("behind", networks),
        hops: fields.read("hops", whole),
        header: fields.read("header", text).map(AddressHeaderSpec),
    };
    let position = fields.position;
    let mut made = match (fields.get("behind"), fields.get("hops")) {
        (Some(_), Some(_)) => {
            let reason = "both `behind` and `hops`";
            fields.reading.fault(position, reason, "keep one of them")
        }
        (None, None) => {
            let remedy = format!(
                "name their networks with `behind`, count them with `hops`, or use `{direct}`"
            );
            fields.reading.fault(position, "no proxies", remedy)
        }
        (Some(_), None) => {
            let behind = spec.behind.as_ref().map(OneOrMany::as_slice);
            let made = behind.map(ClientIp::behind);
            made.filter(|made| works(made, "behind", fields))
        }
        (None, Some(_)) => {
            let hops = spec.hops.map(|hops| hops.try_into().unwrap_or(usize::MAX));
            let made = hops.map(ClientIp::behind_hops);
            made.filter(|made| works(made, "hops", fields))
        }
    };
    if let Some(AddressHeaderSpec(name)) = &spec.header {
        // The header is checked also while the proxies have a fault.
        let proxies = made.clone().unwrap_or_else(|| ClientIp::behind_hops(1));
        let with_header = with_header(proxies, name, fields);
        made = made.and(with_header);
    }
    (spec, made)
}

fn with_header(proxies: ClientIp, name: &str, fields: &mut Fields<'_, '_>) -> Option<ClientIp> {
    let next = match name.to_ascii_lowercase().as_str() {
        "forwarded" => proxies.forwarded(),
        "x-forwarded-for" => proxies.forwarded_for(),
        name => match HeaderName::try_from(name) {
            Ok(name) => proxies.header(name),
            Err(_) => {
                let reason = format!("{name:?} is not a header name");
                fields.add("header", reason, "write it as `x-real-ip`");
                return None;
            }
        },
    };
    works(&next, "header", fields).then_some(next)
}

/// Notes at a field that an extractor cannot work.
pub(super) fn works(extractor: &ClientIp, name: &'static str, fields: &mut Fields<'_, '_>) -> bool {
    let result = KeyExtractor::validate(extractor);
    if let Err(error) = &result {
        fields.refuse(name, error);
    }
    result.is_ok()
}

/// Reads networks. Text that is not a network is noted.
pub(super) fn networks(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<OneOrMany<String>> {
    let read = fields::texts(node, reading)?;
    let noted = reading.noted();
    for (text, item) in read.as_slice().iter().zip(fields::items(node).0) {
        if let Err(error) = Networks::new([text]) {
            reading.refuse(item.position, &error);
        }
    }
    (reading.noted() == noted).then_some(read)
}
