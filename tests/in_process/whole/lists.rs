//! Lists of algorithms and extractors in tests, fuzz targets and docs have all of them. The compiler does not notice a gap.

use std::{collections::BTreeSet, fs, path::Path};

// === Algorithms ===

/// A part of a file that must name every algorithm.
struct List {
    path: &'static str,
    /// How the first line of the part begins. The part ends with the line that closes its block. Empty: the whole file.
    start: &'static str,
    /// Algorithms that the list leaves out.
    without: &'static [&'static str],
}

const LISTS: [List; 17] = [
    List {
        path: "benches/accuracy/main.rs",
        start: "fn bursts()",
        without: &["Concurrency", "LeakyQueue"],
    },
    List {
        path: "benches/accuracy/main.rs",
        start: "fn edges()",
        without: &["Concurrency", "LeakyQueue"],
    },
    List {
        path: "benches/script.rs",
        start: "fn rows()",
        without: &["Concurrency", "LeakyQueue", "SlidingLog"], // logs have rows by length
    },
    List {
        path: "fuzz/fuzz_targets/reply.rs",
        start: "static CHARGES",
        without: &["TokenBucket"], // the default
    },
    List {
        path: "src/remote/protocol/keyspace.rs",
        start: "    fn policy()",
        without: &[],
    },
    List {
        path: "tests/conformance/changes.rs",
        start: "async fn algorithm_that_is_new_to_a_key_starts_afresh",
        without: &["LeakyBucket", "LeakyQueue"], // a key in Redis that they share with token buckets
    },
    List {
        path: "tests/conformance/ways.rs",
        start: "pub(super) static WAYS",
        without: &["LeakyQueue"], // tests/middleware/queueing.rs
    },
    List {
        path: "tests/in_process/algorithm/counting.rs",
        start: "fn any_algorithm",
        without: &["Concurrency", "LeakyQueue"],
    },
    List {
        path: "tests/lua/differential.rs",
        start: "", // the whole file
        without: &[],
    },
    List {
        path: "tests/fleet/hammer_mixed.rs",
        start: "fn policies()",
        without: &["LeakyBucket", "LeakyQueue", "TokenBucket"], // a plain policy is a token bucket
    },
    List {
        path: "tests/in_process/headers/families.rs",
        start: "    fn any()",
        without: &["Concurrency", "LeakyQueue"],
    },
    List {
        path: "tests/in_process/algorithm/limit_changes.rs",
        start: "const ALGORITHMS",
        without: &["Concurrency", "LeakyQueue"],
    },
    List {
        path: "tests/in_process/memory/algorithms.rs",
        start: "const ALGORITHMS",
        without: &["Concurrency", "LeakyQueue"],
    },
    List {
        path: "tests/memory/bounds.rs",
        start: "fn all_algorithms_together",
        without: &["Concurrency", "LeakyBucket", "LeakyQueue", "TokenBucket"], // of `rate` and `slots`
    },
    List {
        path: "tests/memory/bounds.rs",
        start: "fn no_algorithm_takes_more",
        without: &["Concurrency", "LeakyBucket", "LeakyQueue"],
    },
    List {
        path: "tests/middleware/settling.rs",
        start: "const ALGORITHMS",
        without: &["Concurrency", "LeakyBucket", "LeakyQueue"],
    },
    List {
        path: "tests/tiers/tiers.rs",
        start: "async fn number_of_a_window",
        without: &["Concurrency", "LeakyBucket", "LeakyQueue", "TokenBucket"], // neither a window nor a log
    },
];

impl List {
    fn text(&self) -> String {
        let file = source_of(self.path);
        if self.start.is_empty() {
            return file;
        }
        let indent = self.start.len() - self.start.trim_start().len();
        let closes = |line: &&str| {
            let closing = line.trim_start();
            closing.starts_with(['}', ']']) && line.len() - closing.len() == indent
        };
        let mut lines = file
            .lines()
            .skip_while(|line| !line.starts_with(self.start))
            .peekable();
        assert!(lines.peek().is_some(), "{}: {}", self.path, self.start);
        let part: Vec<&str> = lines.take_while(|line| !closes(line)).collect();
        part.join("\n")
    }
}

#[test]
fn every_list_of_algorithms_has_all_of_them() {
    let mut gaps = Vec::new();
    for list in &LISTS {
        let names = names_after("Algorithm::", &list.text());
        for variant in algorithms() {
            let is_left_out = list.without.contains(&variant.as_str());
            if names.contains(&variant) == is_left_out {
                gaps.push(format!("{}, {:?}: {variant}", list.path, list.start));
            }
        }
    }
    assert!(
        gaps.is_empty(),
        "add the algorithm here, or to `without`: {gaps:#?}"
    );
}

#[test]
fn every_way_of_counting_is_in_the_conformance_tests() {
    let tests = source_of("tests/conformance/mod.rs");
    let tried: BTreeSet<&str> = tests.lines().map(str::trim).collect();
    for line in source_of("tests/conformance/ways.rs").lines() {
        let name = line.trim().strip_prefix("name: \"");
        if let Some(name) = name.and_then(|name| name.strip_suffix("\",")) {
            let is_tried = name == "concurrency" || tried.contains(name);
            assert!(
                is_tried,
                "add {name} to `by_every_way` in tests/conformance/mod.rs"
            );
        }
    }
}

#[test]
fn every_algorithm_has_a_chapter_in_the_guide() {
    let guide = source_of("docs/which-algorithm.md").to_lowercase();
    for variant in algorithms() {
        let heading = format!("\n## {}\n", words(&variant));
        assert!(
            guide.contains(&heading),
            "docs/which-algorithm.md:{heading}"
        );
    }
}

/// Returns the variants of `Algorithm`.
fn algorithms() -> BTreeSet<String> {
    let choice = source_of("src/algorithm/choice.rs");
    let (_, names) = choice
        .split_once("fn name(self)")
        .expect("the names of all algorithms");
    let (names, _) = names
        .split_once("\n    }")
        .expect("the end of the function");
    let variants = names_after("Self::", names);
    assert!(variants.len() >= 7, "{variants:?}");
    variants
}

// === Extractors ===

#[test]
fn every_extractor_is_in_both_tables_of_the_docs() {
    let docs = source_of("src/extract/mod.rs");
    for extractor in extractors() {
        let named = [format!("[`{extractor}`]"), format!("[`{extractor}::")];
        let rows = docs.lines().filter(|line| {
            let mut cells = line.strip_prefix("//! |").unwrap_or_default().split('|');
            let first = cells.next().unwrap_or_default();
            named.iter().any(|name| first.contains(name))
        });
        // The table of what clients can vary has five columns, and that of absent and ambiguous keys has three.
        let columns: BTreeSet<usize> = rows.map(|row| row.matches(" | ").count()).collect();
        for (count, table) in [(5, "which one"), (3, "found, absent, ambiguous")] {
            assert!(
                columns.contains(&count),
                "add a row for {extractor} to the table `{table}` in src/extract/mod.rs"
            );
        }
    }
}

#[test]
fn every_extractor_that_reads_what_clients_write_is_attacked() {
    let attacks = source_of("tests/in_process/extract/repeated_keys.rs");
    for extractor in extractors() {
        let is_attacked = attacks.contains(&format!("key({extractor}"))
            || attacks.contains(&format!("{extractor}::"));
        let is_left_out = WITHOUT_ATTACK.contains(&extractor.as_str());
        assert!(
            is_attacked != is_left_out,
            "{extractor}: add an attack to tests/in_process/extract/repeated_keys.rs, or the name to `WITHOUT_ATTACK`"
        );
    }
}

/// Extractors that read nothing of the head that a client can send twice. Those of bodies are attacked with the layer that reads
/// bodies.
const WITHOUT_ATTACK: [&str; 7] = [
    "Claim",
    "ExtensionKey",
    "FromBody",
    "Global",
    "PeerIp",
    "Route",
    "RouteOrUnmatched",
];

/// Returns the types in `src/extract/` that find keys on their own.
fn extractors() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/extract");
    let files = fs::read_dir(folder).expect("the folder of the extractors");
    let mut extractors = BTreeSet::new();
    for file in files {
        let file = file.expect("a file").path();
        if file.ends_with("combine.rs") {
            continue;
        }
        let text = fs::read_to_string(file).expect("readable text");
        for line in text.lines().filter(|line| line.starts_with("impl")) {
            extractors.extend(names_after(" KeyExtractor for ", line));
        }
    }
    extractors.retain(|name| name.len() > 1); // closures
    assert!(extractors.len() >= 12, "{extractors:?}");
    extractors
}

// === Sources ===

/// Returns the names that follow each of these prefixes in a text.
fn names_after(prefix: &str, text: &str) -> BTreeSet<String> {
    let parts = text.split(prefix).skip(1);
    parts
        .map(|part| {
            part.chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect()
        })
        .collect()
}

/// Returns `sliding log` for `SlidingLog`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(character.to_ascii_lowercase());
    }
    words
}

fn source_of(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join(path)).expect("readable text")
}
