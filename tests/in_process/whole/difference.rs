//! Which differences of two lists of public items break users, by the rules of semantic versions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The difference of two lists of public items.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Difference {
    gone: Vec<String>,
    /// Old and new.
    changed: Vec<(String, String)>,
    /// Methods that implementors of a trait must add.
    required: Vec<String>,
    added: Vec<String>,
}

impl Difference {
    pub fn of(old: &str, new: &str) -> Self {
        let (old_lines, new_lines): (BTreeSet<_>, BTreeSet<_>) =
            (items(old).collect(), items(new).collect());
        let gone = old_lines.difference(&new_lines);
        let mut added: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for line in new_lines.difference(&old_lines) {
            added.entry(path(line)).or_default().push(line);
        }
        let mut difference = Self::default();
        for line in gone {
            match added.get_mut(path(line)).and_then(Vec::pop) {
                Some(now) if line.strip_suffix(REQUIRED) == Some(now) => {
                    difference.added.push(now.to_owned());
                }
                Some(now) => difference.changed.push((line.to_string(), now.to_owned())),
                None => difference.gone.push(line.to_string()),
            }
        }
        let traits: BTreeSet<_> = old_lines
            .iter()
            .filter(|line| line.contains(": trait"))
            .map(|line| path(line))
            .collect();
        for line in added.into_values().flatten() {
            let owner = path(line).rsplit_once("::").map_or("", |(owner, _)| owner);
            let list = if line.ends_with(REQUIRED) && traits.contains(owner) {
                &mut difference.required
            } else {
                &mut difference.added
            };
            list.push(line.to_owned());
        }
        difference
    }

    /// Returns whether code that compiled with the old list may not compile with the new one.
    pub fn is_breaking(&self) -> bool {
        !(self.gone.is_empty() && self.changed.is_empty() && self.required.is_empty())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_breaking() {
            "breaks users"
        } else {
            "only adds"
        };
        writeln!(f, "the change of the public items {verdict}")?;
        for line in &self.gone {
            writeln!(f, "breaking, gone:     {line}")?;
        }
        for (old, new) in &self.changed {
            writeln!(f, "breaking, changed:  {old}\n                to: {new}")?;
        }
        for line in &self.required {
            writeln!(f, "breaking, required: {line}")?;
        }
        self.added
            .iter()
            .try_for_each(|line| writeln!(f, "added:              {line}"))
    }
}

/// How the lines of methods without a default end.
pub(super) const REQUIRED: &str = ", required";

/// Returns the lines of a list without its head, which counts them.
fn items(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| line.contains("tollgate::"))
}

/// Returns the path of a line's item.
fn path(line: &str) -> &str {
    line.split_once(": ").map_or(line, |(path, _)| path)
}

#[test]
fn change_of_public_items_breaks_users_unless_it_only_adds() {
    let old = "3 items\n\ntollgate::Store: trait\ntollgate::Store::decide: fn decide(), required\ntollgate::f: fn f()\ntollgate::g: fn g()\n";
    assert_eq!(Difference::of(old, old), Difference::default());

    let added = format!(
        "{old}tollgate::Store::stats: fn stats()\ntollgate::New: trait\ntollgate::New::new: fn new(), required\n"
    );
    let difference = Difference::of(old, &added);
    assert!(!difference.is_breaking(), "{difference}");
    assert_eq!(difference.added.len(), 3);

    let gone = Difference::of(old, &old.replace("tollgate::g: fn g()\n", ""));
    assert_eq!(
        (gone.is_breaking(), gone.gone),
        (true, vec!["tollgate::g: fn g()".to_owned()])
    );

    let changed = Difference::of(old, &old.replace("fn f()", "fn f(n: u8)"));
    let (before, after) = (
        "tollgate::f: fn f()".to_owned(),
        "tollgate::f: fn f(n: u8)".to_owned(),
    );
    assert_eq!(
        (changed.is_breaking(), changed.changed),
        (true, vec![(before, after)])
    );

    let required = Difference::of(
        old,
        &format!("{old}tollgate::Store::end: fn end(), required\n"),
    );
    assert!(
        required.is_breaking() && required.required.len() == 1,
        "{required}"
    );

    let default = Difference::of(old, &old.replace(", required", ""));
    assert_eq!((default.is_breaking(), default.added.len()), (false, 1));
}
