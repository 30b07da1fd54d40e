//! Reads the fields of a mapping, and notes every fault.

use std::collections::HashSet;

use crate::error::Error;

use super::{
    fault::{Fault, in_words_of_files},
    node::{Entry, Node, Place, Value},
    spec::OneOrMany,
};

/// The faults found so far.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) list: Vec<Fault>,
    /// The id of the rule that is read.
    pub(super) rule: Option<String>,
}

impl Faults {
    pub(super) fn add(
        &mut self,
        place: Place,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.list.push(Fault {
            rule: self.rule.clone(),
            ..Fault::new(place, reason, remedy)
        });
    }

    /// Notes why the limiter refuses a value.
    pub(super) fn refuse(&mut self, place: Place, error: &Error) {
        let message = in_words_of_files(error);
        match message.split_once(": ") {
            Some((reason, remedy)) => self.add(place, reason, remedy),
            None => self.add(place, "this cannot work", message),
        }
    }

    /// Notes that a value is of another kind.
    pub(super) fn expect(&mut self, node: &Node, remedy: impl Into<String>) {
        self.add(node.place, format!("this is {}", node.value.kind()), remedy);
    }
}

// === Fields ===

/// The fields of a mapping.
pub(super) struct Fields<'a> {
    pub(super) place: Place,
    entries: &'a [Entry],
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// Returns the fields of a mapping; `None` if it is something else, which is noted.
    pub(super) fn of(node: &'a Node, remedy: &str, faults: &mut Faults) -> Option<Self> {
        match &node.value {
            Value::Map(entries) => Some(Self {
                place: node.place,
                entries,
                asked: Vec::new(),
            }),
            _ => {
                faults.expect(node, remedy);
                None
            }
        }
    }

    /// Returns the value of a field. One without a value counts as absent.
    pub(super) fn get(&mut self, name: &'static str) -> Option<&'a Node> {
        if !self.asked.contains(&name) {
            self.asked.push(name);
        }
        let named = |entry: &&Entry| entry.name == name;
        let entry = self.entries.iter().find(named)?;
        (entry.node.value != Value::Null).then_some(&entry.node)
    }

    /// Returns the value of a field that must be there.
    pub(super) fn require(
        &mut self,
        name: &'static str,
        remedy: &str,
        faults: &mut Faults,
    ) -> Option<&'a Node> {
        let node = self.get(name);
        if node.is_none() {
            faults.add(self.place, format!("`{name}` is missing"), remedy);
        }
        node
    }

    /// Reads a field, if it is there.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        faults: &mut Faults,
        read: impl FnOnce(&Node, &mut Faults) -> Option<T>,
    ) -> Option<T> {
        let node = self.get(name)?;
        read(node, faults)
    }

    /// Returns the place of a field's value, or of the mapping without it.
    pub(super) fn place_of(&mut self, name: &'static str) -> Place {
        let place = self.place;
        self.get(name).map_or(place, |node| node.place)
    }

    /// Notes fields that nobody has asked for, and those that are there twice.
    pub(super) fn finish(self, faults: &mut Faults) {
        let mut seen = HashSet::new();
        for entry in self.entries {
            if !seen.insert(entry.name.as_str()) {
                let reason = format!("`{}` is there twice", entry.name);
                faults.add(entry.place, reason, "keep one of them");
            } else if !self.asked.contains(&entry.name.as_str()) {
                let reason = format!("unknown field `{}`", entry.name);
                faults.add(
                    entry.place,
                    reason,
                    one_of(&entry.name, self.asked.iter().copied()),
                );
            }
        }
    }
}

// === Values ===

pub(super) fn text(node: &Node, faults: &mut Faults) -> Option<String> {
    match &node.value {
        Value::Text(text) if !text.is_empty() => Some(text.clone()),
        Value::Text(_) => {
            faults.add(node.place, "an empty text", "write a value");
            None
        }
        _ => {
            faults.expect(node, "write text, in quotes if it looks like a number");
            None
        }
    }
}

pub(super) fn whole(node: &Node, faults: &mut Faults) -> Option<u64> {
    let Value::Integer(number) = node.value else {
        faults.expect(node, "write a whole number");
        return None;
    };
    let read = u64::try_from(number).ok();
    if read.is_none() {
        let (reason, remedy) = match number {
            ..0 => ("a number below 0", "write a whole number from 0"),
            _ => ("a number above 2^64", "write a smaller one"),
        };
        faults.add(node.place, reason, remedy);
    }
    read
}

pub(super) fn number(node: &Node, faults: &mut Faults) -> Option<f64> {
    match node.value {
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        Value::Integer(number) => Some(number as f64),
        Value::Float(number) => Some(number),
        _ => {
            faults.expect(node, "write a number");
            None
        }
    }
}

pub(super) fn boolean(node: &Node, faults: &mut Faults) -> Option<bool> {
    match node.value {
        Value::Bool(value) => Some(value),
        _ => {
            faults.expect(node, "write `true` or `false`");
            None
        }
    }
}

/// Reads one of several names.
pub(super) fn choice<T: Copy>(
    names: &'static [(&'static str, T)],
) -> impl FnOnce(&Node, &mut Faults) -> Option<T> {
    move |node, faults| {
        // YAML 1.1 reads `off` as false, and so do people's tools.
        let text = match &node.value {
            Value::Text(text) => text.as_str(),
            Value::Bool(false) => "false",
            _ => {
                faults.expect(node, one_of("", names.iter().map(|(name, _)| *name)));
                return None;
            }
        };
        let found = names.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let remedy = one_of(text, names.iter().map(|(name, _)| *name));
            faults.add(node.place, format!("unknown value `{text}`"), remedy);
        }
        found.map(|(_, value)| *value)
    }
}

/// Reads a list, or one item in place of a list of one. Returns what could be read, and whether it was a list.
pub(super) fn items(node: &Node) -> (&[Node], bool) {
    match &node.value {
        Value::List(items) => (items, true),
        _ => (std::slice::from_ref(node), false),
    }
}

/// Reads a text, or a list of texts.
pub(super) fn texts(node: &Node, faults: &mut Faults) -> Option<OneOrMany<String>> {
    let (items, is_list) = items(node);
    if items.is_empty() {
        faults.add(
            node.place,
            "an empty list",
            "write a value, or leave the field out",
        );
        return None;
    }
    let read: Vec<_> = items.iter().map(|item| text(item, faults)).collect();
    OneOrMany::of(read.into_iter().collect::<Option<_>>()?, is_list)
}

/// Returns what to write instead of a name: the nearest one, or all of them.
pub(super) fn one_of<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let meant = SYNONYMS.iter().find(|(synonym, _)| *synonym == name);
    if let Some((_, meant)) = meant.filter(|(_, meant)| known.contains(meant)) {
        return format!("write `{meant}`");
    }
    let distance = |other: &&&str| strsim::damerau_levenshtein(name, other);
    // A few edits turn a short name into any other.
    let most = (name.chars().count() / 3).clamp(1, MOST_EDITS);
    // No known name is near a long one, and the comparison would take long.
    let is_comparable = (1..=LONGEST).contains(&name.len());
    let nearest = known.iter().filter(|_| is_comparable).min_by_key(distance);
    match nearest {
        Some(nearest) if distance(&nearest) <= most => {
            format!("write `{nearest}`")
        }
        _ if known.len() == 1 => format!("write `{}`", known[0]),
        _ => format!("write one of `{}`", known.join("`, `")),
    }
}

/// Names of other limiters, and those for the same here.
const SYNONYMS: [(&str, &str); 17] = [
    ("after", "denials"),
    ("amount", "cost"),
    ("except", "unless"),
    ("exclude", "unless"),
    ("gcra", "token_bucket"),
    ("ip", "peer_ip"),
    ("longest", "longest_ban"),
    ("max_value", "limit"),
    ("name", "id"),
    ("period", "window"),
    ("quota", "limit"),
    ("rate", "limit"),
    ("remote_address", "peer_ip"),
    ("requests_per_unit", "limit"),
    ("shadow_mode", "mode"),
    ("skip", "unless"),
    ("weight", "cost"),
];

/// The most edits from a name to the one that was probably meant.
const MOST_EDITS: usize = 3;
/// The most bytes of a name that is compared with known ones.
const LONGEST: usize = 128;
