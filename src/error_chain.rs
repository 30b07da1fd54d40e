//! Errors as log events show them.

use std::{error, fmt};

use crate::error::Error;

/// Formats an error and its causes on one line: `no connection: connection refused`.
pub(crate) struct ErrorChain<'a>(pub(crate) &'a Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut source = error::Error::source(self.0);
        while let Some(cause) = source {
            let text = cause.to_string();
            // Errors of the Redis client already end with the text of their cause.
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            source = cause.source();
        }
        Ok(())
    }
}
