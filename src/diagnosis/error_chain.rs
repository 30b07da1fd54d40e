//! Errors as log events show them.

use std::{error, fmt};

use crate::error::Error;

/// Formats an error and its causes on one line: `no connection: connection refused`.
pub(crate) struct ErrorChain<'a>(pub &'a Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = one_line(self.0);
        f.write_str(&last)?;
        let mut source = error::Error::source(self.0);
        while let Some(cause) = source {
            let text = one_line(cause);
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

/// Formats an error with a space in place of each line break, which a server may have sent.
fn one_line(error: &dyn error::Error) -> String {
    let text = error.to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::error::ErrorKind;

    // Regression: the parse error for a reply of a web server took four lines of the log.
    #[test]
    fn error_with_line_breaks_is_shown_on_one_line() {
        let source = io::Error::other("Parse error at 1\nUnexpected `33`\n\r\n");
        let error = Error::new(ErrorKind::Protocol, "not a reply").with_source(source);
        assert_eq!(
            ErrorChain(&error).to_string(),
            "not a reply: Parse error at 1 Unexpected `33`"
        );
    }
}
