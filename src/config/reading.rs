//! The reading of one file: what its parts need, and the faults found so far.

use std::sync::Arc;

use crate::{error::Error, priority::priority::Priority};

use super::{
    fault::{Fault, RuleSetError, in_words_of_files},
    node::{LocatedValue, Position},
    registry::Registry,
    spec::DefaultsSpec,
};

/// The reading of one file.
pub(super) struct FileReading {
    pub registry: Arc<Registry>,
    pub defaults: DefaultsSpec,
    /// Those of the overload limit, if the file lists them.
    pub classes: Option<Vec<Priority>>,
    /// The ids that were read, and where.
    pub ids: Vec<(String, Position)>,
    /// The id of the rule that is read.
    pub rule: Option<String>,
    /// Faults in the order of their positions, at most [`MAX_FAULTS`].
    first: Vec<Fault>,
    noted: usize,
    /// Faults that are not among the first.
    left_out: usize,
    /// Names that may still be compared with known ones: a file may have very many of both.
    comparisons: usize,
    /// Quotas of tiers and overrides that may still be read: each takes about a kilobyte for as long as the rules are used.
    quotas: usize,
}

impl FileReading {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self {
            registry: Arc::clone(registry),
            defaults: DefaultsSpec::default(),
            classes: None,
            ids: Vec::new(),
            rule: None,
            first: Vec::new(),
            noted: 0,
            left_out: 0,
            comparisons: MAX_COMPARISONS,
            quotas: MAX_QUOTAS,
        }
    }

    /// Returns how many faults were noted so far.
    pub fn noted(&self) -> usize {
        self.noted
    }

    pub fn into_error(self, source: &str) -> RuleSetError {
        RuleSetError::new(source, self.first, self.left_out)
    }

    /// Notes a fault. Faults after the first hundred are only counted.
    pub fn add(
        &mut self,
        position: Position,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.noted += 1;
        if !self.is_kept(position) {
            self.left_out += 1;
            return;
        }
        let fault = Fault {
            rule: self.rule.clone(),
            ..Fault::new(position, reason, remedy)
        };
        let index = self
            .first
            .partition_point(|other| other.position <= position);
        let same_position = self.first[..index].iter().rev();
        let mut same_position = same_position.take_while(|other| other.position == position);
        if same_position.any(|other| *other == fault) {
            return;
        }
        self.first.insert(index, fault);
        if self.first.len() > MAX_FAULTS {
            self.first.pop();
            self.left_out += 1;
        }
    }

    /// Notes a fault. Returns `None`, as what was read.
    pub fn fault<T>(
        &mut self,
        position: Position,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Option<T> {
        self.add(position, reason, remedy);
        None
    }

    /// Returns whether a fault at this position is among the first so far.
    fn is_kept(&self, position: Position) -> bool {
        let last = self.first.get(MAX_FAULTS - 1);
        last.is_none_or(|last| position < last.position)
    }

    /// Counts a quota of a tier or an override. Returns whether there is room for it; the first one that is too many is noted.
    pub fn has_room_for_quota(&mut self, position: Position) -> bool {
        let Some(left) = self.quotas.checked_sub(1) else {
            return false;
        };
        self.quotas = left;
        if left == 0 {
            let reason = "more than 10,000 quotas of tiers and overrides";
            let remedy = "name the tiers, and let overrides share them";
            self.add(position, reason, remedy);
        }
        left > 0
    }

    /// Notes why the limiter refuses a value.
    pub fn refuse(&mut self, position: Position, error: &Error) {
        if !self.is_kept(position) {
            return self.add(position, "", "");
        }
        let message = in_words_of_files(error);
        match message.split_once(": ") {
            Some((reason, remedy)) => self.add(position, reason, remedy),
            None => self.add(position, "this cannot work", message),
        }
    }

    /// Notes that a value is of another kind. Returns `None`, as what was read.
    pub fn expect<T>(&mut self, node: &LocatedValue, remedy: impl Into<String>) -> Option<T> {
        self.fault(
            node.position,
            format!("this is {}", node.value.kind()),
            remedy,
        )
    }

    /// Returns what to write instead of a name at this position: the nearest one, or a few of them.
    pub fn one_of<'a>(
        &mut self,
        (name, position): (&str, Position),
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> String {
        if !self.is_kept(position) {
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
pub(super) fn few_of<'a>(known: impl Iterator<Item = &'a str>) -> String {
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
