//! Settings of an overload limit, as they are written and as those of a layer.

use std::time::Duration;

use http::HeaderName;

use crate::{
    extract::Global,
    overload::{Overload, OverloadBuilder, Priority},
    rules::RuleMode,
};

use super::{
    classes::{built_in_class, class, classes},
    fields::{self, Fields, choice, each, text, whole},
    keys,
    node::LocatedValue,
    quota::duration,
    reading::FileReading,
    registry::DynExtractor,
    requests::{self, Several, requests},
    spec::{OneOrMany, OverloadSpec, PrioritySpec, TrustedHeaderSpec, WeightSpec},
    units::write_duration,
};

/// The settings that a file has.
#[derive(Default)]
pub(super) struct OverloadSettings {
    classes: Option<Vec<Priority>>,
    key: Option<DynExtractor>,
    header: Option<(String, Vec<Several>)>,
    priorities: Vec<(Several, Priority)>,
    weights: Vec<(Several, u32)>,
    skip: Vec<Several>,
    max_retry_after: Option<Duration>,
    mode: Option<RuleMode>,
}

/// Reads the settings of an overload limit. `None` if they have faults.
pub(super) fn read(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(OverloadSpec, OverloadSettings)> {
    let noted = reading.noted();
    let remedy = "write settings such as `key: peer_ip`, or `{}` for none";
    let mut fields = Fields::of(node, remedy, reading)?;
    let mut settings = OverloadSettings::default();
    let mut spec = OverloadSpec::default();
    (spec.classes, settings.classes) = fields.read("classes", classes).unzip();
    fields.reading.classes = settings.classes.clone();
    let class = match fields.get("classes") {
        Some(_) => class,
        None => built_in_class,
    };
    (spec.key, settings.key) = fields.read("key", keys::read).unzip();
    if let Some((header, trusted)) = fields.read("priority_header", trusted_header) {
        settings.header = Some((header.name.clone(), trusted));
        spec.priority_header = Some(header);
    }
    let priority = |node: &_, reading: &mut _| priority(node, class, reading);
    let read = fields.read("priority", |node, reading| each(node, reading, priority));
    (spec.priority, settings.priorities) = read.unwrap_or_default().into_iter().unzip();
    let read = fields.read("weights", |node, reading| each(node, reading, weight));
    (spec.weights, settings.weights) = read.unwrap_or_default().into_iter().unzip();
    (spec.skip, settings.skip) = fields.read("skip", requests).unwrap_or_default();
    settings.max_retry_after = fields.read("max_retry_after", duration);
    spec.max_retry_after = settings.max_retry_after.map(write_duration);
    spec.mode = fields.read("mode", choice);
    settings.mode = spec.mode.map(RuleMode::from);
    fields.finish();
    if reading.noted() > noted {
        return None;
    }
    // Each part was checked: this is for what only the parts together cannot do. A key may also be set in code.
    let keyed = Overload::adaptive().key(Global);
    if let Err(error) = settings.apply(keyed).build_setup() {
        reading.refuse(node.position, &error);
        return None;
    }
    Some((spec, settings))
}

/// Reads requests and their class.
fn priority(
    node: &LocatedValue,
    class: fn(&LocatedValue, &mut FileReading) -> Option<Priority>,
    reading: &mut FileReading,
) -> Option<(PrioritySpec, (Several, Priority))> {
    let mut fields = Fields::of(node, "write `{ when: {..}, class: critical }`", reading)?;
    let remedy = "add the requests of the class";
    let when = fields.require("when", remedy, requests::request);
    let class = fields.require("class", "add their class, such as `critical`", class);
    fields.finish();
    let ((when, matcher), class) = (when?, class?);
    let name = class.name().to_owned();
    Some((PrioritySpec { when, class: name }, (matcher, class)))
}

/// Reads requests and the weight of their keys.
fn weight(node: &LocatedValue, reading: &mut FileReading) -> Option<(WeightSpec, (Several, u32))> {
    let mut fields = Fields::of(node, "write `{ when: {..}, weight: 4 }`", reading)?;
    let remedy = "add the requests that have the weight";
    let when = fields.require("when", remedy, requests::request);
    let weight = fields.require("weight", "add their weight, such as `4`", whole);
    fields.finish();
    let ((when, matcher), weight) = (when?, weight?);
    // What is too large is refused with the other settings.
    let bounded = u32::try_from(weight).unwrap_or(u32::MAX);
    Some((WeightSpec { when, weight }, (matcher, bounded)))
}

/// Reads a header, and the requests whose header counts.
fn trusted_header(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(TrustedHeaderSpec, Vec<Several>)> {
    let remedy = "write `{ name: x-priority, from: { peer: 10.0.0.0/8 } }`";
    let mut fields = Fields::of(node, remedy, reading)?;
    let name = fields.require("name", "add the name of the header", |node, reading| {
        let name = text(node, reading)?;
        match name.parse::<HeaderName>() {
            Ok(_) => Some(name),
            Err(_) => {
                let reason = format!("{name:?} is not the name of a header");
                reading.fault(node.position, reason, "write one such as `x-priority`")
            }
        }
    });
    let remedy = "add the requests whose header counts, such as `from: { peer: 10.0.0.0/8 }`";
    let from = fields.require("from", remedy, |node, reading| {
        let (items, is_list) = fields::items(node);
        if items.is_empty() {
            let remedy = "write requests, such as `{ peer: 10.0.0.0/8 }`";
            return reading.fault(node.position, "an empty list", remedy);
        }
        let (specs, matchers) = requests(node, reading)?;
        Some((OneOrMany::of(specs, is_list)?, matchers))
    });
    fields.finish();
    let (name, (from, matchers)) = (name?, from?);
    Some((TrustedHeaderSpec { name, from }, matchers))
}

impl OverloadSettings {
    /// Sets what the file has.
    pub fn apply(&self, mut builder: OverloadBuilder) -> OverloadBuilder {
        if let Some(classes) = &self.classes {
            builder = builder.classes(classes.iter().copied());
        }
        if let Some(key) = &self.key {
            builder = builder.key(key.clone());
        }
        if let Some((name, from)) = &self.header {
            builder = builder.priority_header(name, Several::any_of(from));
        }
        for (matcher, priority) in &self.priorities {
            builder = builder.priority_when(matcher.clone(), *priority);
        }
        for (matcher, weight) in &self.weights {
            builder = builder.weight_when(matcher.clone(), *weight);
        }
        for matcher in &self.skip {
            builder = builder.skip(matcher.clone());
        }
        if let Some(longest) = self.max_retry_after {
            builder = builder.max_retry_after(longest);
        }
        match self.mode {
            Some(mode) => builder.mode(mode),
            None => builder,
        }
    }
}
