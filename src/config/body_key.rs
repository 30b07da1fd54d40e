//! Keys from the bodies of requests.

#[cfg(feature = "body")]
use std::sync::Arc;

#[cfg(feature = "body")]
use crate::extract::FromBody;

use super::{
    fields::{Fields, boolean, text, whole},
    node::LocatedValue,
    quota::duration,
    reading::FileReading,
    registry::DynExtractor,
    spec::{BodyKeySpec, KeySpec},
    units::write_duration,
};

/// Reads a key from the body. `None` if it has faults.
pub(super) fn read(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    let mut fields = Fields::of(node, REMEDY, reading)?;
    let spec = BodyKeySpec {
        json: fields.read("json", text),
        form: fields.read("form", text),
        max_bytes: fields.read("max_bytes", whole),
        within: fields.read("within", duration).map(write_duration),
        ignore_case: fields.read("ignore_case", boolean),
        hashed: fields.read("hashed", boolean),
    };
    let within = fields.get("within").cloned();
    fields.finish();
    if spec.json.is_none() && spec.form.is_none() {
        return reading.fault(node.position, "no field of the body", REMEDY);
    }
    let within = within.and_then(|node| duration(&node, reading));
    extractor(spec, within, node, reading)
}

#[cfg(feature = "body")]
fn extractor(
    spec: BodyKeySpec,
    within: Option<std::time::Duration>,
    _: &LocatedValue,
    reading: &FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    let mut key = match (&spec.json, &spec.form) {
        (Some(pointer), Some(name)) => FromBody::json(pointer).or_form(name),
        (Some(pointer), None) => FromBody::json(pointer),
        (None, name) => FromBody::form(name.as_deref()?),
    };
    if let Some(bytes) = spec.max_bytes {
        key = key.limit(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    if let Some(within) = within {
        key = key.within(within);
    }
    if spec.ignore_case == Some(true) {
        key = key.ignore_case();
    }
    if spec.hashed == Some(true) {
        key = match reading.registry.hash_secret {
            Some(secret) => key.hash_secret(secret),
            None => key.hashed(),
        };
    }
    Some((KeySpec::Body(spec), Arc::new(key)))
}

#[cfg(not(feature = "body"))]
fn extractor(
    _: BodyKeySpec,
    _: Option<std::time::Duration>,
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    let remedy = "enable the feature `body`, or use another key";
    reading.fault(
        node.position,
        "the key `body` needs bodies of requests",
        remedy,
    )
}

const REMEDY: &str = "write `{ json: /user/email }` or `{ form: email }`";
