//! Links in documents lead to files of the repository, and to headings in them.

use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn relative_links_of_documents_lead_to_files_and_headings() {
    let mut documents = Vec::new();
    add_documents(&root(), &mut documents);
    add_documents(&root().join("docs"), &mut documents);
    let (mut count, mut broken) = (0, Vec::new());
    for document in &documents {
        let text = prose(document);
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if target.contains("://") {
                continue;
            }
            count += 1;
            if !leads_somewhere(document, target) {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(count > 60, "only {count} links found");
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}

fn leads_somewhere(document: &Path, target: &str) -> bool {
    let (file, heading) = target
        .split_once('#')
        .map_or((target, None), |(file, heading)| (file, Some(heading)));
    let file = if file.is_empty() {
        document.to_owned()
    } else {
        document.with_file_name(file)
    };
    file.exists() && heading.is_none_or(|heading| anchors(&file).any(|anchor| anchor == heading))
}

/// Returns the anchors of a document's headings, as GitHub and rustdoc make them.
fn anchors(document: &Path) -> impl Iterator<Item = String> {
    let text = prose(document);
    let headings: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(anchor)
        .collect();
    headings.into_iter()
}

fn anchor(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title
        .chars()
        .filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
    kept.collect::<String>().replace(' ', "-")
}

/// Returns a document without its blocks of code.
fn prose(document: &Path) -> String {
    let text = fs::read_to_string(document).expect("a readable document");
    let parts = text.split("\n```").step_by(2);
    parts.collect::<Vec<_>>().join("\n")
}

/// Adds the documents of a folder, and of its folders if it is not the root.
fn add_documents(folder: &Path, documents: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() && folder != root() {
            add_documents(&path, documents);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            documents.push(path);
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
