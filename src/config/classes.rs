//! Classes of requests, and the part of a quota that is reserved for some of them.

use std::time::Duration;

use crate::{decision::PolicyName, policy::Percent, priority::priority::Priority};

use super::{
    fields::{Fields, each, items, percentage, text},
    node::LocatedValue,
    quota::duration,
    reading::FileReading,
    spec::{OneOrMany, ReserveSpec},
    units::write_duration,
};

/// A reserve, as a rule has it.
pub(super) struct Reserve {
    pub classes: Vec<Priority>,
    pub part: Percent,
    pub lent_within: Option<Duration>,
}

/// Reads a reserve. `None` if it has faults.
pub(super) fn reserve(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(ReserveSpec, Reserve)> {
    let mut fields = Fields::of(node, "write `{ class: critical, part: 20% }`", reading)?;
    let classes = fields.require("class", "add the class that it is for", classes);
    let part = fields.require(
        "part",
        "add the part, such as `part: 20%`",
        |node, reading| percentage(node, ("a reserve", 0.1..=99.9, "20%"), reading),
    );
    let lent_within = fields.read("lend", duration);
    fields.finish();
    let ((class, classes), part) = (classes?, part?);
    let lend = lent_within.map(write_duration);
    let reserve = Reserve {
        classes,
        part: Percent::new(part),
        lent_within,
    };
    Some((ReserveSpec { class, part, lend }, reserve))
}

/// Reads classes. `None` if one of them cannot be one.
pub(super) fn classes(
    node: &LocatedValue,
    reading: &mut FileReading,
) -> Option<(OneOrMany<String>, Vec<Priority>)> {
    let (items, is_list) = items(node);
    if items.is_empty() {
        let remedy = "write a class, such as `critical`";
        return reading.fault(node.position, "an empty list", remedy);
    }
    let read = each(node, reading, class)?;
    let names = read.iter().map(|class| class.name().to_owned()).collect();
    Some((OneOrMany::of(names, is_list)?, read))
}

/// Reads a class of a limit whose classes are not listed.
pub(super) fn built_in_class(node: &LocatedValue, reading: &mut FileReading) -> Option<Priority> {
    let class = class(node, reading)?;
    let Priority::Named(name) = class else {
        return Some(class);
    };
    let built_in = [Priority::Critical, Priority::Normal, Priority::Sheddable];
    let names = built_in.iter().map(|class| class.name());
    let remedy = reading.one_of((name, node.position), names);
    let reason = format!("{name:?} is not one of the classes");
    let remedy = format!("{remedy}, or list it in `classes`");
    reading.fault(node.position, reason, remedy)
}

/// Reads a class.
pub(super) fn class(node: &LocatedValue, reading: &mut FileReading) -> Option<Priority> {
    let name = text(node, reading)?;
    if PolicyName::new(&name).is_err() {
        let reason = format!("{name:?} is not the name of a class");
        let remedy = "write `critical`, `normal`, `sheddable`, or 1 to 39 of A-Z a-z 0-9 . _ -";
        return reading.fault(node.position, reason, remedy);
    }
    let class = Priority::of_name(&name);
    let listed = reading.classes.clone();
    if let Some(listed) = listed.filter(|listed| !listed.contains(&class)) {
        let names = listed.iter().map(|class| class.name());
        let remedy = reading.one_of((&name, node.position), names);
        let reason = format!("{name:?} is not one of the `classes` of `overload`");
        return reading.fault(node.position, reason, remedy);
    }
    Some(class)
}
