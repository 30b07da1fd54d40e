//! The floors: a module imports only from its own floor or those below, separate siblings never meet, neither modules nor
//! files form a cycle, and `mod.rs` files hold no code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Each top-level module and its floor; see DESIGN.md.
const FLOORS: [(&str, u8); 40] = [
    ("clock", 0),
    ("error", 0),
    ("key", 0),
    ("priority", 0),
    ("request", 0),
    ("decision", 1),
    ("task", 1),
    ("algorithm", 2),
    ("diagnosis", 2),
    ("policy", 3),
    ("block", 4),
    ("charge", 4),
    ("top_keys", 5),
    ("store", 6),
    ("memory", 8),
    ("resilience", 8),
    ("telemetry", 8),
    ("block_check", 9),
    ("extract", 9),
    ("hold", 9),
    ("remote", 9),
    ("tiers", 9),
    ("acquire", 10),
    ("headers", 10),
    ("matching", 10),
    ("rejection", 10),
    ("limiter", 11),
    ("rules", 11),
    ("middleware", 12),
    ("call", 13),
    ("client", 13),
    ("explain", 13),
    ("overload", 13),
    ("builder", 14),
    ("fuzzing", 14),
    ("config", 15),
    ("dashboard", 16),
    ("prelude", 16),
    ("testing", 16),
    ("lib", 17),
];

/// Floors on which neighbours may not import each other.
const SEPARATE: [u8; 2] = [9, 10];

#[derive(Debug)]
struct Import {
    from: String,
    to: String,
    place: String,
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Code lines with their numbers: no comments, no docs, no test modules.
fn code(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            break;
        }
        let line = line.split("//").next().unwrap_or_default();
        if !line.trim().is_empty() {
            lines.push((index + 1, line.to_owned()));
        }
    }
    lines
}

/// The top-level modules that `crate::` paths in a text lead to, those in braces among them.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut depth: Option<usize> = None;
    for (number, line) in code(text) {
        let mut rest = line.as_str();
        if let Some(open) = &mut depth {
            // Inside `use crate::{ ... }`: names at depth one begin a path.
            let trimmed = rest.trim();
            if *open == 1 {
                found.extend(first_names(trimmed).into_iter().map(|name| (number, name)));
            }
            *open += trimmed.matches('{').count();
            *open = open.saturating_sub(trimmed.matches('}').count());
            if *open == 0 {
                depth = None;
            }
            continue;
        }
        while let Some(position) = rest.find("crate::") {
            rest = &rest[position + "crate::".len()..];
            if let Some(list) = rest.strip_prefix('{') {
                match list.find("};") {
                    Some(end) => found.extend(
                        first_names(&list[..end])
                            .into_iter()
                            .map(|name| (number, name)),
                    ),
                    None => {
                        found.extend(first_names(list).into_iter().map(|name| (number, name)));
                        depth = Some(1);
                    }
                }
                break;
            }
            let name: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            found.push((number, name));
        }
    }
    found
}

/// The first name of each path in a list such as `a::B, c::{D, e::F}, g`.
fn first_names(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut depth, mut name, mut is_first) = (0, String::new(), true);
    for character in list.chars().chain([',']) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth <= 0 => {
                if !name.is_empty() {
                    names.push(std::mem::take(&mut name));
                }
                is_first = true;
            }
            ':' if depth == 0 => is_first = false,
            _ if depth == 0 && is_first && (character.is_alphanumeric() || character == '_') => {
                name.push(character);
            }
            _ => {}
        }
    }
    names
}

fn imports_of(module: &str, file: &str, text: &str) -> Vec<Import> {
    let known: BTreeSet<&str> = FLOORS.iter().map(|(name, _)| *name).collect();
    targets(text)
        .into_iter()
        .map(|(line, to)| Import {
            from: module.to_owned(),
            // A name that is no module is one that lib.rs re-exports.
            to: if known.contains(to.as_str()) {
                to
            } else {
                format!("lib (as {to})")
            },
            place: format!("{file}:{line}"),
        })
        .collect()
}

fn all_imports() -> Vec<Import> {
    let src = src();
    let mut imports = Vec::new();
    for path in sources(&src) {
        let file = path
            .strip_prefix(&src)
            .expect("below src")
            .display()
            .to_string();
        let module = file.split(['/', '.']).next().expect("a name").to_owned();
        let text = fs::read_to_string(&path).expect("readable text");
        imports.extend(imports_of(&module, &file, &text));
    }
    imports
}

fn breaches(imports: &[Import]) -> Vec<String> {
    let floors: BTreeMap<&str, u8> = FLOORS.into_iter().collect();
    let mut breaches = Vec::new();
    for Import { from, to, place } in imports {
        let Some(own) = floors.get(from.as_str()) else {
            breaches.push(format!(
                "{place}: module {from} has no floor: add it to FLOORS and DESIGN.md"
            ));
            continue;
        };
        let target = to.split(' ').next().expect("a name");
        let Some(other) = floors.get(target) else {
            continue;
        };
        if other > own {
            breaches.push(format!(
                "{place}: {from} (floor {own}) imports {to} (floor {other}), which lies above"
            ));
        }
        if other == own && SEPARATE.contains(own) && from != target {
            breaches.push(format!("{place}: {from} imports its sibling {to}"));
        }
    }
    breaches
}

/// The first cycle among modules, if there is one.
fn cycle(imports: &[Import]) -> Option<Vec<String>> {
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports.iter().filter(|import| import.from != import.to) {
        edges.entry(&import.from).or_default().insert(&import.to);
    }
    fn walk<'a>(
        at: &'a str,
        edges: &BTreeMap<&'a str, BTreeSet<&'a str>>,
        path: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|step| *step == at) {
            return Some(
                path[start..]
                    .iter()
                    .chain([&at])
                    .map(|step| (*step).to_owned())
                    .collect(),
            );
        }
        if !done.insert(at) {
            return None;
        }
        path.push(at);
        let found = edges
            .get(at)
            .into_iter()
            .flatten()
            .find_map(|next| walk(next, edges, path, done));
        path.pop();
        found
    }
    let mut done = BTreeSet::new();
    edges
        .keys()
        .find_map(|start| walk(start, &edges, &mut Vec::new(), &mut done))
}

// === Files ===

/// Files that may import each other: a trait whose provided methods return combinators, and these combinators.
const COMBINATORS: [(&str, &str); 2] = [
    ("extract/extractor.rs", "extract/"),
    ("matching/matcher.rs", "matching/"),
];

/// The text of each file by its path below `src`, and what the facades re-export.
struct Tree {
    files: BTreeMap<String, String>,
    /// The file of each name that `mod.rs` of a folder re-exports, by folder and name.
    facades: BTreeMap<(String, String), String>,
}

impl Tree {
    fn read() -> Self {
        let src = src();
        let texts = sources(&src).into_iter().map(|path| {
            let file = path.strip_prefix(&src).expect("below src");
            let text = fs::read_to_string(&path).expect("readable text");
            (file.display().to_string(), text)
        });
        Self::of(texts)
    }

    fn of(texts: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut tree = Self {
            files: texts.into_iter().collect(),
            facades: BTreeMap::new(),
        };
        let facades = tree.files.iter();
        let facades =
            facades.filter_map(|(file, text)| Some((file.strip_suffix("/mod.rs")?, text)));
        let mut found = Vec::new();
        for (folder, text) in facades {
            for path in use_paths(text) {
                if let [own, file, .., name] = &path[..]
                    && own == "self"
                {
                    found.push(((folder.to_owned(), name.clone()), file.clone()));
                }
            }
        }
        for ((folder, name), module) in found {
            if let Some(file) = tree.file_of(&format!("{folder}/{module}"), &name) {
                tree.facades.insert((folder, name), file);
            }
        }
        tree
    }

    /// The file of a module, or of the name that its facade re-exports.
    fn file_of(&self, module: &str, name: &str) -> Option<String> {
        let file = format!("{module}.rs");
        if self.files.contains_key(&file) {
            return Some(file);
        }
        self.facades
            .get(&(module.to_owned(), name.to_owned()))
            .cloned()
    }

    /// The file that a path leads to, from a file in this folder.
    fn target(&self, folder: &str, path: &[String]) -> Option<String> {
        let (mut module, rest) = match path.split_first()? {
            (first, rest) if first == "crate" => (String::new(), rest),
            (first, rest) if first == "super" => (folder.to_owned(), rest),
            _ => return None,
        };
        for (index, name) in rest.iter().enumerate() {
            if name == "super" {
                module = parent(&module).to_owned();
                continue;
            }
            let inner = match module.is_empty() {
                true => name.clone(),
                false => format!("{module}/{name}"),
            };
            let next = rest.get(index + 1).map_or("", String::as_str);
            if let Some(file) = self.file_of(&inner, next) {
                return Some(file);
            }
            if let Some(file) = self.facades.get(&(module.clone(), name.clone())) {
                return Some(file.clone());
            }
            module = inner;
        }
        None
    }

    fn imports(&self) -> BTreeMap<&str, BTreeSet<String>> {
        let files = self
            .files
            .iter()
            .filter(|(file, _)| !file.ends_with("mod.rs"));
        files
            .map(|(file, text)| {
                let paths = use_paths(text);
                let targets = paths
                    .iter()
                    .filter_map(|path| self.target(parent(file), path));
                let others = targets.filter(|target| target != file && !target.ends_with("mod.rs"));
                (file.as_str(), others.collect())
            })
            .collect()
    }

    /// Groups of files that import each other, directly or through others.
    fn circles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let reached = |from: &str| {
            let mut seen = BTreeSet::new();
            let mut next: Vec<&str> = vec![from];
            while let Some(file) = next.pop() {
                for target in imports.get(file).into_iter().flatten() {
                    if seen.insert(target.clone()) {
                        next.extend(
                            imports
                                .get_key_value(target.as_str())
                                .map(|(file, _)| *file),
                        );
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<&str, BTreeSet<String>> =
            imports.keys().map(|file| (*file, reached(file))).collect();
        let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
        for (file, targets) in &reached {
            if targets.contains(*file) {
                let back = |other: &&String| {
                    reached
                        .get(other.as_str())
                        .is_some_and(|others| others.contains(*file))
                };
                circles.insert(targets.iter().filter(back).cloned().collect());
            }
        }
        circles.into_iter().collect()
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// All paths of the `use` declarations at the start of lines, without test modules.
fn use_paths(text: &str) -> Vec<Vec<String>> {
    let lines: Vec<String> = code(text).into_iter().map(|(_, line)| line).collect();
    let text = lines.join("\n");
    let mut paths = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let before = text[..at].rsplit('\n').next().unwrap_or_default().trim();
        if before.is_empty() || before.starts_with("pub") {
            let end = text[at..].find(';').map_or(text.len(), |end| at + end);
            spread(&text[at + "use ".len()..end], &mut Vec::new(), &mut paths);
        }
    }
    paths
}

/// The paths of a use tree such as `a::{B, c::{D, E as F}}`.
fn spread(tree: &str, start: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let depth = start.len();
    let open = tree.find('{').unwrap_or(tree.len());
    let names = tree[..open].split(" as ").next().unwrap_or_default();
    start.extend(
        names
            .split("::")
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
    );
    if open == tree.len() {
        paths.push(start.clone());
    } else {
        let inner = tree[open + 1..]
            .trim_end()
            .strip_suffix('}')
            .unwrap_or_default();
        let (mut nested, mut begin) = (0, 0);
        for (at, character) in inner.char_indices().chain([(inner.len(), ',')]) {
            match character {
                '{' => nested += 1,
                '}' => nested -= 1,
                ',' if nested == 0 => {
                    if !inner[begin..at].trim().is_empty() {
                        spread(&inner[begin..at], start, paths);
                    }
                    begin = at + 1;
                }
                _ => {}
            }
        }
    }
    start.truncate(depth);
}

#[test]
fn files_form_no_circle_but_combinators_and_their_trait() {
    let tree = Tree::read();
    let edges: usize = tree.imports().values().map(BTreeSet::len).sum();
    assert!(edges > 300, "the reader finds imports: {edges}");
    let is_allowed = |circle: &Vec<String>| {
        COMBINATORS.iter().any(|(hub, folder)| {
            circle.iter().any(|file| file == hub)
                && circle.iter().all(|file| file.starts_with(folder))
        })
    };
    let circles = tree.circles();
    let others: Vec<_> = circles
        .iter()
        .filter(|circle| !is_allowed(circle))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn circle_of_files_turns_the_check_red() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let tree = Tree::of([
        file(
            "room/mod.rs",
            "mod a;\nmod b;\npub use self::{a::A, b::B};\npub(crate) use self::b::C;",
        ),
        file("room/a.rs", "use super::b::B;"),
        file("room/b.rs", "use crate::{\n    other::O,\n};"),
        file("other.rs", "use crate::room::{A as Renamed};"),
        file("alone.rs", "use crate::room::C;"),
    ]);
    let circle = ["other.rs", "room/a.rs", "room/b.rs"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(tree.circles(), [circle]);
}

// === Tests ===

#[test]
fn imports_go_down_the_floors_only() {
    let imports = all_imports();
    assert!(
        imports.len() > 80,
        "the reader finds imports: {}",
        imports.len()
    );
    assert_eq!(breaches(&imports), Vec::<String>::new());
}

#[test]
fn modules_form_no_cycle() {
    assert_eq!(cycle(&all_imports()), None);
}

#[test]
fn upward_import_turns_the_check_red() {
    let upward = imports_of(
        "algorithm",
        "algorithm/x.rs",
        "use crate::{\n    clock::Clock,\n    memory::{MemoryStore, X},\n};\n",
    );
    assert_eq!(upward.len(), 2, "{upward:?}");
    assert_eq!(breaches(&upward).len(), 1);
    let sibling = imports_of("remote", "remote/x.rs", "use crate::hold::Hold;\n");
    assert_eq!(breaches(&sibling).len(), 1);
    let in_code = imports_of("policy", "policy.rs", "fn f() { crate::limiter::g() }\n");
    assert_eq!(breaches(&in_code).len(), 1);
    let through_the_root = imports_of("memory", "memory/x.rs", "use crate::{Policy, key::Key};\n");
    assert_eq!(breaches(&through_the_root).len(), 1);
    let unknown = imports_of("utils", "utils.rs", "use crate::key::Key;\n");
    assert_eq!(breaches(&unknown).len(), 1);
    let round = [
        imports_of("key", "key.rs", "use crate::error::E;"),
        imports_of("error", "error.rs", "use crate::key::K;"),
    ];
    assert!(cycle(&round.into_iter().flatten().collect::<Vec<_>>()).is_some());
}

#[test]
fn error_imports_nothing_of_ours() {
    let own: Vec<Import> = all_imports()
        .into_iter()
        .filter(|import| import.from == "error")
        .collect();
    assert!(own.is_empty(), "{own:?}");
}

#[test]
fn stores_are_named_by_few() {
    let mut namers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for import in all_imports() {
        if ["memory", "remote", "resilience"].contains(&import.to.as_str())
            && import.from != import.to
        {
            namers.entry(import.to).or_default().insert(import.from);
        }
    }
    let found: Vec<(&str, Vec<&str>)> = namers
        .iter()
        .map(|(store, namers)| (store.as_str(), namers.iter().map(String::as_str).collect()))
        .collect();
    let expected: [(&str, Vec<&str>); 3] = [
        // `middleware` for the short way of its gate, which asks no store through the trait.
        (
            "memory",
            vec!["builder", "limiter", "middleware", "resilience", "testing"],
        ),
        ("remote", vec!["builder", "limiter", "prelude"]),
        ("resilience", vec!["builder", "remote", "testing"]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn facades_hold_prose_and_names_only() {
    for path in sources(&src())
        .iter()
        .filter(|path| path.ends_with("mod.rs"))
    {
        let text = fs::read_to_string(path).expect("readable text");
        assert!(
            text.starts_with("//! "),
            "{}: begins with prose",
            path.display()
        );
        let mut in_use = false;
        for (number, line) in code(&text) {
            if in_use {
                in_use = !line.ends_with("};");
                continue;
            }
            in_use = line.contains("use ") && !line.ends_with(';');
            let allowed = [
                "mod ",
                "pub(crate) mod ",
                "pub mod ",
                "pub use ",
                "pub(crate) use ",
                "pub(super) use ",
                "#[cfg(",
                "#[doc(hidden)]",
            ];
            assert!(
                allowed.iter().any(|start| line.starts_with(start)),
                "{}:{number}: {line}",
                path.display()
            );
        }
    }
}

#[test]
fn only_the_clock_reads_the_time() {
    for path in sources(&src())
        .iter()
        .filter(|path| !path.starts_with(src().join("clock")))
    {
        let text = fs::read_to_string(path).expect("readable text");
        for (number, line) in code(&text) {
            let reads = ["Instant::now", "SystemTime::now"]
                .iter()
                .any(|call| line.contains(call));
            assert!(!reads, "{}:{number}: {line}", path.display());
        }
    }
}

#[test]
fn files_keep_to_one_role() {
    for path in sources(&src()) {
        let text = fs::read_to_string(&path).expect("readable text");
        let lines = code(&text).len();
        assert!(lines <= 400, "{}: {lines} lines of code", path.display());
    }
}
