//! Names of what a request may hold.

use crate::error::{Error, ErrorKind};

/// A name with the label that is told of it, such as `query:tenant`.
#[derive(Clone, Debug)]
pub(super) struct Name {
    label: String,
    /// Where the name begins in the label.
    start: usize,
}

impl Name {
    pub(super) fn new(kind: &str, name: &str) -> Self {
        Self {
            label: format!("{kind}:{name}"),
            start: kind.len() + 1,
        }
    }

    #[inline]
    pub(super) fn as_str(&self) -> &str {
        &self.label[self.start..]
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Refuses a name that nothing can have, with what to do.
    pub(super) fn validate(&self, is_usable: bool, advice: &str) -> Result<(), Error> {
        if is_usable {
            return Ok(());
        }
        let name = self.as_str();
        Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("{name:?} is no name of a {advice}"),
        ))
    }
}
