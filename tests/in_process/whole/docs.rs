//! Relative links in the docs lead to files and headings, and the table of options has every method of the builders.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

// === Links ===

#[test]
fn relative_links_lead_to_files_and_headings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = markdown(&root.join("docs"));
    for entry in fs::read_dir(root).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        pages.extend(is_markdown(&path).then_some(path));
    }
    assert!(pages.len() > 20, "{pages:?}");
    let mut count = 0;
    let mut broken = Vec::new();
    for page in &pages {
        for link in links(&text_of(page)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            if let Err(reason) = follow(page, &link) {
                broken.push(format!("{}: {link}: {reason}", page.display()));
            }
        }
    }
    assert!(count > 100, "the reader finds links: {count}");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn broken_link_turns_the_check_red() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = "a [link](docs/guide.md#metrics) in `[code](a.md)`\n```\n[code](b.md)\n```\n![image](docs/none.png)";
    assert_eq!(links(text), ["docs/guide.md#metrics", "docs/none.png"]);
    assert_eq!(follow(&readme, "docs/guide.md#metrics"), Ok(()));
    assert_eq!(follow(&readme, "docs/none.png"), Err("no such file"));
    assert_eq!(
        follow(&readme, "docs/guide.md#none"),
        Err("no such heading")
    );
    assert_eq!(
        anchors("## `Rule`, and what-else?\n```\n# code\n```\n# A\n# A"),
        ["rule-and-what-else", "a", "a-1"]
    );
}

/// # Errors
///
/// The reason why the link leads nowhere.
fn follow(page: &Path, link: &str) -> Result<(), &'static str> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_owned(),
        path => page.parent().expect("a folder").join(path),
    };
    if !target.exists() {
        return Err("no such file");
    }
    let is_found = anchor.is_empty()
        || !is_markdown(&target)
        || anchors(&text_of(&target)).iter().any(|own| own == anchor);
    is_found.then_some(()).ok_or("no such heading")
}

/// Returns the targets of the links in a text, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        let outside = line.split('`').step_by(2).collect::<Vec<_>>().join("");
        let targets = outside.split("](").skip(1);
        links.extend(targets.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    links
}

/// Returns the anchors of the headings in a text, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut bases: Vec<String> = Vec::new();
    for line in prose(text) {
        let heading = line.trim_start_matches('#');
        let Some(heading) = heading.strip_prefix(' ').filter(|_| line.starts_with('#')) else {
            continue;
        };
        let is_kept = |c: &char| c.is_alphanumeric() || ['-', '_', ' '].contains(c);
        let base: String = heading.to_lowercase().chars().filter(is_kept).collect();
        let base = base.trim().replace(' ', "-");
        let earlier = bases.iter().filter(|other| **other == base).count();
        anchors.push(match earlier {
            0 => base.clone(),
            number => format!("{base}-{number}"),
        });
        bases.push(base);
    }
    anchors
}

/// Returns the lines of a text that are not in a block of code.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line);
        }
    }
    lines
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            pages.extend(markdown(&path));
        } else if is_markdown(&path) {
            pages.push(path);
        }
    }
    pages
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).expect("readable text")
}

// === Options ===

/// The sections of docs/guide/options.md, by the paths of their types.
const BUILDERS: [(&str, &str); 6] = [
    ("RateLimitLayerBuilder", "builder::RateLimitLayerBuilder"),
    ("RateLimiterBuilder", "builder::RateLimiterBuilder"),
    ("RedisStoreBuilder", "remote::RedisStoreBuilder"),
    ("OverloadBuilder", "overload::OverloadBuilder"),
    ("Policy", "Policy"),
    ("Rule", "rules::Rule"),
];

#[test]
fn table_of_options_has_every_method_of_the_builders() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let items = text_of(&root.join("tests/in_process/whole/public_items.txt"));
    let page = text_of(&root.join("docs/guide/options.md"));
    for (name, path) in BUILDERS {
        let listed = listed_options(&page, name);
        let methods = methods_of(&items, path);
        assert!(methods.len() > 2, "{path}: {methods:?}");
        assert_eq!(
            listed, methods,
            "options of {name} in docs/guide/options.md, and its methods"
        );
    }
}

/// Returns the names in the first column of a section's table.
fn listed_options(page: &str, section: &str) -> BTreeSet<String> {
    let heading = format!("\n## `{section}`\n");
    let (_, rest) = page.split_once(&heading).expect("the section");
    let section = rest.split("\n## ").next().expect("a text");
    let cells = section.lines().filter_map(|line| line.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

/// Returns the methods that make or change a value of this type: all but those that read it.
fn methods_of(items: &str, path: &str) -> BTreeSet<String> {
    let start = format!("tollgate::{path}::");
    let methods = items.lines().filter_map(|line| {
        let (name, signature) = line.strip_prefix(&start)?.split_once(": ")?;
        let is_option = signature.contains("fn ") && !signature.contains("(&self");
        is_option.then(|| name.to_owned())
    });
    methods.collect()
}
