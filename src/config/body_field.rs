//! Keys and costs from the bodies of requests.

#[cfg(feature = "body")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "body")]
use crate::extract::{FromBody, KeyExtractor};
use crate::rules::Rule;

use super::{
    fields::{Fields, boolean, text, whole},
    node::LocatedValue,
    quota::duration,
    reading::FileReading,
    registry::DynExtractor,
    spec::{BodyFieldSpec, BodyKeySpec, KeySpec},
    units::write_duration,
};

/// A field of a body.
#[cfg(feature = "body")]
pub(super) type BodyField = FromBody;
#[cfg(not(feature = "body"))]
pub(super) type BodyField = std::convert::Infallible;

/// Reads a key from the body. `None` if it has faults.
pub(super) fn read_key(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(KeySpec, DynExtractor)> {
    let mut fields = Fields::of(node, KEY, reading)?;
    let (field, within) = read_field(&mut fields);
    let spec = BodyKeySpec {
        field,
        ignore_case: fields.read("ignore_case", boolean),
        hashed: fields.read("hashed", boolean),
    };
    fields.finish();
    let key = find((&spec.field, within), (node, KEY), reading)?;
    let key = extractor(key, &spec, reading);
    Some((KeySpec::Body(spec), key))
}

/// Reads the field of a cost. `None` if it has faults.
pub(super) fn read_cost(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(BodyFieldSpec, BodyField)> {
    let mut fields = Fields::of(node, COST, reading)?;
    let (spec, within) = read_field(&mut fields);
    fields.finish();
    let field = find((&spec, within), (node, COST), reading)?;
    Some((spec, field))
}

/// Gives a rule the cost in a field.
#[cfg_attr(
    not(feature = "body"),
    expect(unused_variables, reason = "the field cannot exist")
)]
pub(super) fn with_cost(rule: Rule, field: BodyField) -> Rule {
    #[cfg(feature = "body")]
    return rule.cost_field(field);
    #[cfg(not(feature = "body"))]
    match field {}
}

fn read_field(fields: &mut Fields<'_, '_>) -> (BodyFieldSpec, Option<Duration>) {
    let (json, form) = (fields.read("json", text), fields.read("form", text));
    let max_bytes = fields.read("max_bytes", whole);
    let within = fields.read("within", duration);
    let spec = BodyFieldSpec {
        json,
        form,
        max_bytes,
        within: within.map(write_duration),
    };
    (spec, within)
}

#[cfg(feature = "body")]
fn find(
    (spec, within): (&BodyFieldSpec, Option<Duration>),
    (node, remedy): (&LocatedValue, &str),
    reading: &mut FileReading,
) -> Option<BodyField> {
    let mut field = match (&spec.json, &spec.form) {
        (Some(pointer), Some(name)) => FromBody::json(pointer).or_form(name),
        (Some(pointer), None) => FromBody::json(pointer),
        (None, Some(name)) => FromBody::form(name),
        (None, None) => return reading.fault(node.position, "no field of the body", remedy),
    };
    if let Some(bytes) = spec.max_bytes {
        field = field.limit(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    if let Some(within) = within {
        field = field.within(within);
    }
    match field.validate() {
        Ok(()) => Some(field),
        Err(error) => {
            reading.refuse(node.position, &error);
            None
        }
    }
}

#[cfg(not(feature = "body"))]
fn find(
    _: (&BodyFieldSpec, Option<Duration>),
    (node, _): (&LocatedValue, &str),
    reading: &mut FileReading,
) -> Option<BodyField> {
    reading.fault(
        node.position,
        "this rule needs bodies of requests",
        "enable the feature `body`, or write the rule without the body",
    )
}

#[cfg(feature = "body")]
fn extractor(mut key: BodyField, spec: &BodyKeySpec, reading: &FileReading) -> DynExtractor {
    if spec.ignore_case == Some(true) {
        key = key.ignore_case();
    }
    if spec.hashed == Some(true) {
        key = match reading.registry.hash_secret {
            Some(secret) => key.hash_secret(secret),
            None => key.hashed(),
        };
    }
    Arc::new(key)
}

#[cfg(not(feature = "body"))]
fn extractor(key: BodyField, _: &BodyKeySpec, _: &FileReading) -> DynExtractor {
    match key {}
}

const KEY: &str = "write `{ json: /user/email }` or `{ form: email }`";
const COST: &str = "write `{ json: /max_tokens }` or `{ form: items }`";
