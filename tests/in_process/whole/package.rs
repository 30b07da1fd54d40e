//! The package that is published has what users need, and nothing else.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

/// Files at the root of the package. Cargo writes the first four.
const ROOT: [&str; 8] = [
    ".cargo_vcs_info.json",
    "Cargo.lock",
    "Cargo.toml",
    "Cargo.toml.orig",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
];

/// Folders of the package, and the extensions of their files.
const FOLDERS: [(&str, &[&str]); 5] = [
    ("docs", &["md"]),
    ("examples", &["rs", "yaml"]),
    ("lua", &["lua"]),
    ("src", &["rs"]),
    ("src/dashboard/assets", &["css", "html", "js", "mjs", "svg"]),
];

#[test]
fn package_has_no_file_that_users_do_not_need() {
    let allowed = |path: &&PathBuf| {
        let extension = path.extension().unwrap_or_default();
        let in_folder = FOLDERS.iter().any(|(folder, extensions)| {
            path.starts_with(folder) && extensions.iter().any(|allowed| extension == *allowed)
        });
        in_folder || ROOT.iter().any(|name| path.as_path() == Path::new(name))
    };
    let packaged = packaged();
    let other: Vec<_> = packaged.iter().filter(|path| !allowed(path)).collect();
    assert!(other.is_empty(), "users do not need {other:#?}");
}

#[test]
fn package_has_its_licences_and_all_files_of_src_and_lua() {
    let packaged = packaged();
    let mut needed: BTreeSet<PathBuf> = ROOT[4..].iter().map(PathBuf::from).collect();
    for folder in ["src", "lua"] {
        add_files(Path::new(folder), &mut needed);
    }
    assert!(needed.len() > 300, "only {} files found", needed.len());
    let missing: Vec<_> = needed.difference(&packaged).collect();
    assert!(missing.is_empty(), "not in the package: {missing:#?}");
}

#[test]
fn package_has_every_file_that_its_code_includes() {
    let packaged = packaged();
    let mut count = 0;
    for file in packaged
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
    {
        let text = fs::read_to_string(root().join(file)).expect("a readable file");
        let parts = text
            .split("include_str!(\"")
            .chain(text.split("include_bytes!(\""));
        for name in parts.filter(|part| part.len() < text.len()).skip(1) {
            let Some((name, _)) = name.split_once("\")") else {
                continue;
            };
            let path = normal(&file.with_file_name("").join(name));
            assert!(
                packaged.contains(&path),
                "{} includes {}, which is not packaged",
                file.display(),
                path.display()
            );
            count += 1;
        }
    }
    assert!(count > 30, "only {count} included files found");
}

/// The paths of the files that `cargo package` puts into the package.
fn packaged() -> BTreeSet<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--list", "--allow-dirty", "--offline"]);
    let output = cargo.current_dir(root()).output().expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let list = String::from_utf8(output.stdout).expect("paths are text");
    list.lines().map(PathBuf::from).collect()
}

fn add_files(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(root().join(folder)).expect("a readable folder") {
        let entry = entry.expect("a readable entry");
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            add_files(&path, files);
        } else {
            files.insert(path);
        }
    }
}

/// Returns the path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(normal.pop(), "{} is outside", path.display()),
            part => normal.push(part),
        }
    }
    normal
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
