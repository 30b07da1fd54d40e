//! Errors in log lines.

use std::{error, fmt};

use crate::error::Error;

/// An error with its causes, on one line.
pub(super) struct Chain<'a>(pub(super) &'a Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut source = error::Error::source(self.0);
        while let Some(cause) = source {
            let text = cause.to_string();
            // The client library's errors show their cause themselves.
            if !said.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            said = text;
            source = cause.source();
        }
        Ok(())
    }
}
