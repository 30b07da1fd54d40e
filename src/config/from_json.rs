//! JSON as a tree.
//!
//! serde_json checks the syntax of the whole text, and reads the texts in it. After that a walk over the text finds where each
//! value begins.

use serde::de::IgnoredAny;

use super::{
    fault::Fault,
    lines::Lines,
    node::{LocatedValue, MAX_DEPTH, MAX_VALUES, NamedValue, Position, Value},
};

/// Parses a text.
///
/// # Errors
///
/// The first fault of the syntax.
pub(super) fn parse(text: &str) -> Result<LocatedValue, Fault> {
    let mut walk = Walk {
        text,
        lines: Lines::of(text),
        at: 0,
        values: 0,
    };
    let checked: Result<IgnoredAny, _> = serde_json::from_str(text);
    checked.map_err(|error| walk.syntax(0, &error))?;
    walk.node(0)
}

/// A walk over a text without a fault in its syntax, but for escapes that stand for nothing.
struct Walk<'a> {
    text: &'a str,
    lines: Lines<'a>,
    /// The index of the next byte.
    at: usize,
    /// The number of values so far.
    values: usize,
}

impl<'a> Walk<'a> {
    fn node(&mut self, depth: usize) -> Result<LocatedValue, Fault> {
        let (first, position) = self.next();
        if depth > MAX_DEPTH {
            return Err(Fault::too_deep(position));
        }
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(Fault::too_many_values(position));
        }
        let value = match first {
            Some(b'[') => {
                self.at += 1;
                let mut items = Vec::new();
                while self.has_next(b']') {
                    items.push(self.node(depth + 1)?);
                }
                Value::List(items)
            }
            Some(b'{') => {
                self.at += 1;
                let mut entries = Vec::new();
                while self.has_next(b'}') {
                    let (_, position) = self.next();
                    let name = self.string()?;
                    let node = self.node(depth + 1)?;
                    entries.push(NamedValue {
                        position,
                        name,
                        node,
                    });
                }
                Value::Map(entries)
            }
            Some(b'"') => Value::Text(self.string()?),
            _ => match self.take(|next| b",]} \t\r\n".contains(&next)) {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                "null" => Value::Null,
                digits => Value::number(digits),
            },
        };
        Ok(LocatedValue { position, value })
    }

    /// Reads the text in quotes that is next.
    fn string(&mut self) -> Result<String, Fault> {
        let mut texts = serde_json::Deserializer::from_str(&self.text[self.at..]).into_iter();
        let read = texts.next().unwrap_or_else(|| Ok(String::new()));
        let read = read.map_err(|error| self.syntax(self.at, &error))?;
        self.at += texts.byte_offset();
        Ok(read)
    }

    /// Returns whether a list or a mapping has another part. Goes past the bracket that ends it.
    fn has_next(&mut self, end: u8) -> bool {
        let (next, _) = self.next();
        let is_end = next == Some(end);
        self.at += usize::from(is_end);
        !is_end && next.is_some()
    }

    /// Goes to the next value, name or bracket, and returns its first byte and its position.
    fn next(&mut self) -> (Option<u8>, Position) {
        let _ = self.take(|next| !b",: \t\r\n".contains(&next));
        let next = self.text.as_bytes().get(self.at).copied();
        (next, self.lines.position(self.at))
    }

    /// Takes what is before the first byte that ends it.
    fn take(&mut self, mut is_end: impl FnMut(u8) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.bytes().position(&mut is_end).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Returns a fault of the part of the text that begins at a byte.
    fn syntax(&self, start: usize, error: &serde_json::Error) -> Fault {
        let lines = Lines::of(&self.text[start..]);
        let byte = start + lines.byte(error.line(), error.column());
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        Fault::new(self.lines.position(byte), message, "correct the syntax")
    }
}
