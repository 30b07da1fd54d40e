//! Messages of the compiler for wrong uses: our own sentences, which name what to write instead.
//!
//! `rustc` runs twice over small files against the library that this test was built with, for a second in all.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

#[test]
fn compiler_shows_what_to_write_for_each_wrong_use() {
    let libraries = Libraries::of_this_test();
    let wrong = source("wrong.rs");
    let text = fs::read_to_string(&wrong).expect("readable text");
    let uses = WrongUse::all(&text);
    assert!(uses.len() >= 14, "{} wrong uses", uses.len());
    let mut shown: BTreeMap<&str, String> = BTreeMap::new();
    for (line, rendered) in libraries.errors(&wrong) {
        let inside = uses.iter().find(|wrong| wrong.lines.contains(&line));
        let inside = inside.unwrap_or_else(|| panic!("an error outside: {rendered}"));
        shown.entry(inside.name).or_default().push_str(&rendered);
    }
    for wrong in &uses {
        let shown = shown.get(wrong.name);
        let shown = shown.unwrap_or_else(|| panic!("{} compiles", wrong.name));
        for text in &wrong.texts {
            assert!(
                shown.contains(text),
                "{}: {text:?} is not in {shown}",
                wrong.name
            );
        }
    }
}

/// A function of `wrong.rs`.
struct WrongUse<'a> {
    name: &'a str,
    /// Texts that the compiler shows.
    texts: Vec<&'a str>,
    lines: std::ops::RangeInclusive<usize>,
}

impl<'a> WrongUse<'a> {
    fn all(text: &'a str) -> Vec<Self> {
        let mut uses: Vec<Self> = Vec::new();
        let mut texts = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            if let Some(text) = content.strip_prefix("//~ ") {
                texts.push(text);
            } else if let Some(function) = content.strip_prefix("fn ") {
                let (name, _) = function.split_once('(').expect("arguments");
                uses.push(Self {
                    name,
                    texts: std::mem::take(&mut texts),
                    lines: line..=line,
                });
            } else if content == "}"
                && let Some(last) = uses.last_mut()
            {
                last.lines = *last.lines.start()..=line;
            }
        }
        assert!(uses.iter().all(|wrong| !wrong.texts.is_empty()));
        uses
    }
}

/// The libraries that the files use.
struct Libraries {
    folder: PathBuf,
    tollgate: PathBuf,
    tower: PathBuf,
}

impl Libraries {
    /// Returns the newest libraries with which correct code compiles. Builds with other features may lie beside them.
    fn of_this_test() -> Self {
        let test = env::current_exe().expect("a path");
        let folder = test.parent().expect("a folder");
        let right = source("right.rs");
        let mut latest = String::new();
        for tollgate in newest(folder, "libtollgate-") {
            for tower in newest(folder, "libtower-") {
                let libraries = Self {
                    folder: folder.to_owned(),
                    tollgate: tollgate.clone(),
                    tower,
                };
                let errors = libraries.errors(&right);
                if errors.is_empty() {
                    return libraries;
                }
                latest = errors.into_iter().map(|(_, rendered)| rendered).collect();
            }
        }
        panic!("correct code does not compile: {latest}");
    }

    /// Compiles a file. Returns the errors with their lines.
    fn errors(&self, file: &Path) -> Vec<(usize, String)> {
        let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let library = |name: &str, path: &Path| format!("{name}={}", path.display());
        let output = Command::new(compiler)
            .args([
                "--edition",
                "2024",
                "--crate-type",
                "lib",
                "--emit",
                "metadata",
            ])
            .args(["--error-format", "json", "--cap-lints", "allow", "-o"])
            .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong_uses.rmeta"))
            .arg("-L")
            .arg(library("dependency", &self.folder))
            .args(["--extern", &library("tollgate", &self.tollgate)])
            .args(["--extern", &library("tower", &self.tower)])
            .arg(file)
            .output()
            .expect("a compiler");
        let output = String::from_utf8(output.stderr).expect("text");
        let messages = output.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let line = message["spans"].as_array()?.iter().find_map(|span| {
                let line = span["line_start"].as_u64()?;
                let is_here = span["is_primary"] == true && span["file_name"] == file.to_str()?;
                is_here.then_some(line as usize)
            });
            let rendered = message["rendered"].as_str()?.to_owned();
            // Without a place: a library is not found, or the number of errors.
            let is_count = line.is_none() && rendered.contains("due to");
            (message["level"] == "error" && !is_count).then_some((line.unwrap_or(0), rendered))
        });
        messages.collect()
    }
}

/// Returns the libraries of this name, the newest first.
fn newest(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let file = entry.file_name().into_string().ok()?;
            let is_library = file.starts_with(name) && file.ends_with(".rlib");
            let written = entry.metadata().ok()?.modified().ok()?;
            is_library.then(|| (written, entry.path()))
        })
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

fn source(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder
        .join("tests/in_process/builder/wrong_uses")
        .join(name)
}
