//! A file with rules: its text, and the folders that it is in.

use std::path::{Path, PathBuf};

use super::super::{
    fault::RuleSetError,
    rule_set::{Format, RuleSetReader},
};

/// A file with rules.
#[derive(Clone, Debug)]
pub(super) struct RuleFile {
    path: PathBuf,
}

impl RuleFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns its name in messages, as it was given.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Reads its text.
    pub(super) fn read(&self, reader: &RuleSetReader) -> Result<(Format, String), RuleSetError> {
        reader.read_text(&self.path)
    }

    /// Returns the folders whose events may be about the file: the one of its name, and the one of the file that its links
    /// lead to.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        let resolved = self.path.canonicalize().ok();
        let folder = |path: &Path| match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Some(PathBuf::from(".")),
            folder => folder.map(Path::to_path_buf),
        };
        let own = folder(&self.path);
        let target = resolved.as_deref().and_then(folder);
        let is_own = own.as_ref().and_then(|own| own.canonicalize().ok()) == target;
        own.into_iter().chain(target.filter(|_| !is_own)).collect()
    }
}
