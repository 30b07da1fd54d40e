//! A folder of one test.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::launch::fresh_directory;

/// A folder that is removed when this is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(fresh_directory())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a name in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("it can be written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
