//! Reads the fields of a mapping, and notes every fault.

use std::collections::HashSet;

use crate::error::Error;

use super::{
    fault::{Fault, RuleSetError, in_words_of_files},
    node::{Entry, Node, Place, Value},
    spec::OneOrMany,
};

/// The faults found so far: the first ones by their places, and the number of all.
#[derive(Debug)]
pub(super) struct Faults {
    /// In the order of their places, at most [`MAX_FAULTS`].
    first: Vec<Fault>,
    noted: usize,
    /// Faults that are not among the first.
    left_out: usize,
    /// Names that may still be compared with known ones: a file may have very many of both.
    comparisons: usize,
    /// Quotas of tiers and overrides that may still be read: each takes about a kilobyte for as long as the rules are used.
    quotas: usize,
    /// The id of the rule that is read.
    pub(super) rule: Option<String>,
}

impl Faults {
    pub(super) fn new() -> Self {
        Self {
            first: Vec::new(),
            noted: 0,
            left_out: 0,
            comparisons: MAX_COMPARISONS,
            quotas: MAX_QUOTAS,
            rule: None,
        }
    }

    /// Returns how many faults were noted so far.
    pub(super) fn noted(&self) -> usize {
        self.noted
    }

    pub(super) fn into_error(self, source: &str) -> RuleSetError {
        RuleSetError::new(source, self.first, self.left_out)
    }

    /// Notes a fault. One that comes after the first hundred is only counted.
    pub(super) fn add(
        &mut self,
        place: Place,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.noted += 1;
        if !self.is_kept(place) {
            self.left_out += 1;
            return;
        }
        let fault = Fault {
            rule: self.rule.clone(),
            ..Fault::new(place, reason, remedy)
        };
        let index = self.first.partition_point(|other| other.place <= place);
        let same_place = self.first[..index].iter().rev();
        let mut same_place = same_place.take_while(|other| other.place == place);
        if same_place.any(|other| *other == fault) {
            return;
        }
        self.first.insert(index, fault);
        if self.first.len() > MAX_FAULTS {
            self.first.pop();
            self.left_out += 1;
        }
    }

    /// Returns whether a fault at this place is among the first so far.
    fn is_kept(&self, place: Place) -> bool {
        let last = self.first.get(MAX_FAULTS - 1);
        last.is_none_or(|last| place < last.place)
    }

    /// Counts a quota of a tier or an override. Returns whether there is room for it; the first one that is too many is noted.
    pub(super) fn has_room_for_quota(&mut self, place: Place) -> bool {
        let Some(left) = self.quotas.checked_sub(1) else {
            return false;
        };
        self.quotas = left;
        if left == 0 {
            let reason = "more than 10,000 quotas of tiers and overrides";
            self.add(
                place,
                reason,
                "name the tiers, and let overrides share them",
            );
        }
        left > 0
    }

    /// Notes why the limiter refuses a value.
    pub(super) fn refuse(&mut self, place: Place, error: &Error) {
        if !self.is_kept(place) {
            return self.add(place, "", "");
        }
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
                let asked = self.asked.iter().copied();
                let remedy = faults.one_of((&entry.name, entry.place), asked);
                faults.add(entry.place, reason, remedy);
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
                faults.expect(node, few_of(names.iter().map(|(name, _)| *name)));
                return None;
            }
        };
        let found = names.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let names = names.iter().map(|(name, _)| *name);
            let remedy = faults.one_of((text, node.place), names);
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

impl Faults {
    /// Returns what to write instead of a name at this place: the nearest one, or a few of them.
    pub(super) fn one_of<'a>(
        &mut self,
        (name, place): (&str, Place),
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> String {
        if !self.is_kept(place) {
            return String::new();
        }
        let meant = SYNONYMS.iter().find(|(synonym, _)| *synonym == name);
        if let Some((_, meant)) = meant
            && known
                .clone()
                .take(MAX_COMPARISONS)
                .any(|known| known == *meant)
        {
            return format!("write `{meant}`");
        }
        match self.nearest(name, known.clone()) {
            Some(nearest) => format!("write `{nearest}`"),
            None => few_of(known),
        }
    }

    /// Returns the known name that was probably meant.
    fn nearest<'a>(&mut self, name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        // No known name is near a long one, and the comparison would take long.
        let is_comparable = |name: &str| (1..=LONGEST).contains(&name.len());
        if !is_comparable(name) {
            return None;
        }
        // A few edits turn a short name into any other.
        let most = (name.chars().count() / 3).clamp(1, MOST_EDITS);
        let mut nearest = None;
        for other in known.take(self.comparisons) {
            self.comparisons -= 1;
            if !is_comparable(other) || name.len().abs_diff(other.len()) > 4 * most {
                continue;
            }
            let distance = strsim::damerau_levenshtein(name, other);
            if distance <= most && nearest.is_none_or(|(least, _)| distance < least) {
                nearest = Some((distance, other));
            }
        }
        nearest.map(|(_, other)| other)
    }
}

/// Returns that one of some names is to be written: all of them if they are few.
fn few_of<'a>(known: impl Iterator<Item = &'a str>) -> String {
    let mut names = String::new();
    let mut count = 0;
    for name in known {
        if names.len() + name.len() > MAX_NAMES {
            return match count {
                0 => "write a known one".to_owned(),
                _ => format!("write one of {names}, .."),
            };
        }
        let comma = if count == 0 { "" } else { ", " };
        names += &format!("{comma}`{name}`");
        count += 1;
    }
    match count {
        1 => format!("write {names}"),
        _ => format!("write one of {names}"),
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

/// The most faults that are kept.
const MAX_FAULTS: usize = 100;
/// The most names of one file that are compared with another: as much work as reading the file.
const MAX_COMPARISONS: usize = 20_000;
/// The most bytes of the names in one remedy: enough for all fields of a rule.
const MAX_NAMES: usize = 560;
/// The most quotas of tiers and overrides in one file, and one more.
const MAX_QUOTAS: usize = 10_001;
/// The most edits from a name to the one that was probably meant.
const MOST_EDITS: usize = 3;
/// The most bytes of a name that is compared with known ones.
const LONGEST: usize = 64;
