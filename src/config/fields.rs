//! Reads the fields of a mapping, and notes every fault.

use std::{
    collections::{BTreeMap, HashSet},
    ops::RangeInclusive,
    sync::Arc,
};

use crate::error::Error;

use super::{
    names::Names,
    node::{LocatedValue, NamedValue, Position, Value},
    reading::{FileReading, few_of},
    registry::Registry,
    spec::OneOrMany,
};

/// The fields of a mapping.
pub(super) struct Fields<'n, 'r> {
    pub position: Position,
    entries: &'n [NamedValue],
    asked: Vec<&'static str>,
    pub reading: &'r mut FileReading,
}

impl<'n, 'r> Fields<'n, 'r> {
    /// Returns the fields of a mapping; `None` if it is something else, which is noted.
    pub fn of(node: &'n LocatedValue, remedy: &str, reading: &'r mut FileReading) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            return reading.expect(node, remedy);
        };
        Some(Self {
            position: node.position,
            entries,
            asked: Vec::new(),
            reading,
        })
    }

    /// Returns the value of a field. One without a value counts as absent.
    pub fn get(&mut self, name: &'static str) -> Option<&'n LocatedValue> {
        if !self.asked.contains(&name) {
            self.asked.push(name);
        }
        let named = |entry: &&NamedValue| entry.name == name;
        let entry = self.entries.iter().find(named)?;
        (entry.node.value != Value::Null).then_some(&entry.node)
    }

    /// Reads a field, if it is there.
    pub fn read<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'n LocatedValue, &mut FileReading) -> Option<T>,
    ) -> Option<T> {
        let node = self.get(name)?;
        read(node, self.reading)
    }

    /// Reads a field that must be there.
    pub fn require<T>(
        &mut self,
        name: &'static str,
        remedy: &str,
        read: impl FnOnce(&'n LocatedValue, &mut FileReading) -> Option<T>,
    ) -> Option<T> {
        if self.get(name).is_none() {
            self.reading
                .add(self.position, format!("`{name}` is missing"), remedy);
        }
        self.read(name, read)
    }

    /// Returns the position of a field's value, or of the mapping without it.
    pub fn position_of(&mut self, name: &'static str) -> Position {
        self.get(name).map_or(self.position, |node| node.position)
    }

    /// Notes a fault of a field's value, or of the mapping without it.
    pub fn add(
        &mut self,
        name: &'static str,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let position = self.position_of(name);
        self.reading.add(position, reason, remedy);
    }

    /// Notes why the limiter refuses the value of a field.
    pub fn refuse(&mut self, name: &'static str, error: &Error) {
        let position = self.position_of(name);
        self.reading.refuse(position, error);
    }

    /// Notes fields that nobody has asked for, and those that are there twice.
    pub fn finish(self) {
        let mut seen = HashSet::new();
        for NamedValue { position, name, .. } in self.entries {
            if !seen.insert(name.as_str()) {
                let reason = format!("`{name}` is there twice");
                self.reading.add(*position, reason, "keep one of them");
            } else if !self.asked.contains(&name.as_str()) {
                let asked = self.asked.iter().copied();
                let remedy = self.reading.one_of((name, *position), asked);
                self.reading
                    .add(*position, format!("unknown field `{name}`"), remedy);
            }
        }
    }
}

// === Values ===

pub(super) fn text(node: &LocatedValue, reading: &mut FileReading) -> Option<String> {
    match &node.value {
        Value::Text(text) if !text.is_empty() => Some(text.clone()),
        Value::Text(_) => reading.fault(node.position, "an empty text", "write a value"),
        _ => reading.expect(node, "write text, in quotes if it looks like a number"),
    }
}

pub(super) fn whole(node: &LocatedValue, reading: &mut FileReading) -> Option<u64> {
    let Value::Integer(number) = node.value else {
        return reading.expect(node, "write a whole number");
    };
    u64::try_from(number).ok().or_else(|| {
        let (reason, remedy) = match number {
            ..0 => ("a number below 0", "write a whole number from 0"),
            _ => ("a number above 2^64", "write a smaller one"),
        };
        reading.fault(node.position, reason, remedy)
    })
}

pub(super) fn number(node: &LocatedValue, reading: &mut FileReading) -> Option<f64> {
    match node.value {
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        Value::Integer(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => reading.expect(node, "write a number"),
    }
}

/// Reads a percentage of this name and range.
pub(super) fn percentage(
    node: &LocatedValue,
    (name, range, example): (&str, RangeInclusive<f64>, &str),
    reading: &mut FileReading,
) -> Option<f64> {
    let (least, most) = (range.start(), range.end());
    let percent = match &node.value {
        Value::Text(text) => {
            let number = text.trim_end().strip_suffix('%');
            let number = number.and_then(|number| number.trim_end().parse().ok());
            number.or_else(|| {
                let remedy =
                    format!("write a percentage from {least} to {most}, such as `{example}`");
                reading.expect(node, remedy)
            })
        }
        _ => number(node, reading),
    }?;
    if !range.contains(&percent) {
        let reason = format!("{name} of {percent} %");
        let remedy = format!("write a number from {least} to {most}");
        return reading.fault(node.position, reason, remedy);
    }
    Some(percent)
}

pub(super) fn boolean(node: &LocatedValue, reading: &mut FileReading) -> Option<bool> {
    match node.value {
        Value::Bool(value) => Some(value),
        _ => reading.expect(node, "write `true` or `false`"),
    }
}

/// Reads one of several names.
pub(super) fn choice<T: Names>(node: &LocatedValue, reading: &mut FileReading) -> Option<T> {
    let names = T::ALL.iter().map(|(name, _)| *name);
    let text = match &node.value {
        Value::Text(text) => text.as_str(),
        // YAML 1.1 reads `off` as false, and so do people's tools.
        Value::Bool(false) => names.clone().find(|name| *name == "off").unwrap_or("false"),
        _ => return reading.expect(node, few_of(names)),
    };
    let found = T::ALL.iter().find(|(name, _)| *name == text);
    if found.is_none() {
        let remedy = reading.one_of((text, node.position), names);
        reading.add(node.position, format!("unknown value `{text}`"), remedy);
    }
    found.map(|(_, value)| *value)
}

/// Reads the name of a part from code, and returns that part too. `method` is the one of the reader that registers it.
pub(super) fn registered<T: Clone>(
    node: &LocatedValue,
    reading: &mut FileReading,
    method: &str,
    parts: impl FnOnce(&Registry) -> &BTreeMap<String, T>,
) -> Option<(String, T)> {
    let name = text(node, reading)?;
    let registry = Arc::clone(&reading.registry);
    let parts = parts(&registry);
    if let Some(found) = parts.get(&name) {
        return Some((name, found.clone()));
    }
    let remedy = if parts.is_empty() {
        format!("register it by RuleSetReader::{method}()")
    } else {
        reading.one_of((&name, node.position), parts.keys().map(String::as_str))
    };
    reading.fault(node.position, format!("{name:?} is not registered"), remedy)
}

/// Returns the items of a list, or one item in place of a list of one, and whether it was a list.
pub(super) fn items(node: &LocatedValue) -> (&[LocatedValue], bool) {
    match &node.value {
        Value::List(items) => (items, true),
        _ => (std::slice::from_ref(node), false),
    }
}

/// Reads all items of a list, or one item in place of a list of one. `None` if one of them has a fault.
pub(super) fn each<T>(
    node: &LocatedValue,
    reading: &mut FileReading,
    mut read: impl FnMut(&LocatedValue, &mut FileReading) -> Option<T>,
) -> Option<Vec<T>> {
    let read: Vec<_> = items(node)
        .0
        .iter()
        .map(|item| read(item, reading))
        .collect();
    read.into_iter().collect()
}

/// Reads a text, or a list of texts.
pub(super) fn texts(node: &LocatedValue, reading: &mut FileReading) -> Option<OneOrMany<String>> {
    let (items, is_list) = items(node);
    if items.is_empty() {
        let remedy = "write a value, or leave the field out";
        return reading.fault(node.position, "an empty list", remedy);
    }
    OneOrMany::of(each(node, reading, text)?, is_list)
}
