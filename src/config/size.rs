//! The size of a text, which is checked before it is parsed.
//!
//! A parser keeps up to 400 bytes for each separator of a text, because it reads a whole list before it returns a part of
//! it. So the number of separators bounds the memory of a parser, whatever the text contains.

use super::{fault::Fault, node::Position};

/// Checks that a text can be parsed within the memory that a rule file may take. `separators` are the characters of its
/// format for which the parser needs memory.
///
/// # Errors
///
/// The bound that it exceeds.
pub(super) fn check(text: &[u8], separators: &str) -> Result<(), Fault> {
    let start = Position { line: 1, column: 1 };
    if text.len() > MAX_BYTES {
        return Err(Fault::new(start, "more than 1 MiB", LESS));
    }
    let is_separator = |byte: &&u8| separators.as_bytes().contains(byte);
    if text.iter().filter(is_separator).count() > MAX_SEPARATORS {
        let reason = format!("more than 80,000 separators ({separators})");
        return Err(Fault::new(start, reason, LESS));
    }
    Ok(())
}

/// The most bytes of a text.
pub(super) const MAX_BYTES: usize = 1 << 20;
const MAX_SEPARATORS: usize = 80_000;
const LESS: &str = "write fewer rules, or move lists into code";
