//! YAML as a tree.

use std::{borrow::Cow, iter::Peekable};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use super::{
    fault::Fault,
    lines::Lines,
    node::{LocatedValue, MAX_DEPTH, MAX_VALUES, NamedValue, Position, Value},
};

/// Parses the only document of a text.
///
/// # Errors
///
/// The first fault of the syntax, or something in the document that no rule needs: an alias, a tag, a second document.
pub(super) fn parse(text: &str) -> Result<LocatedValue, Fault> {
    match parse_document(text) {
        Err(fault) if fault.reason == TAB => {
            parse_document(&with_spaces(text)).map_err(|fault| match fault.reason == TAB {
                true => Fault::new(fault.position, "a tab after `:`", "write a space"),
                false => fault,
            })
        }
        parsed => parsed,
    }
}

/// Returns the text with spaces for the tabs between a field's name and its value: the parser refuses them, although YAML
/// allows them.
fn with_spaces(text: &str) -> String {
    let mut text = text.to_owned();
    let mut from = 0;
    while let Some(found) = text[from..].find(":\t") {
        let colon = from + found;
        let tabs = text[colon + 1..].bytes().take_while(|byte| *byte == b'\t');
        let end = colon + 1 + tabs.count();
        let name = text[..colon].trim_end_matches(|next: char| {
            next.is_ascii_alphanumeric() || "_-./\"'".contains(next)
        });
        let before = name.trim_end_matches([' ', '\t']);
        if before.is_empty() || before.ends_with(['\n', '\r', '-', '{', ',']) {
            text.replace_range(colon + 1..end, &" ".repeat(end - colon - 1));
        }
        from = end;
    }
    text
}

/// The parser's reason for refusing a tab.
const TAB: &str = "':' must be followed by a valid YAML whitespace";

fn parse_document(text: &str) -> Result<LocatedValue, Fault> {
    // In YAML, a carriage return alone ends a line.
    let lines = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut events = Events {
        parser: Parser::new_from_str(text).peekable(),
        end: Lines::of(&lines).position(lines.len()),
        values: 0,
    };
    loop {
        match events.next()? {
            (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
            (Event::StreamEnd, at) => return Err(empty(at)),
            (event, at) => {
                let root = events.node(event, at, 0)?;
                let remedy = "write all rules into the first one";
                return match events.after_root()? {
                    None => Ok(root),
                    Some(second) => Err(Fault::new(second, "a second document", remedy)),
                };
            }
        }
    }
}

struct Events<'a> {
    parser: Peekable<Parser<'a, StrInput<'a>>>,
    /// The parser is in the next line when the text ends: no position is after this one.
    end: Position,
    /// The number of values so far.
    values: usize,
}

impl<'a> Events<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Position), Fault> {
        match self.parser.next() {
            Some(Ok((event, span))) => Ok((event, position(span).min(self.end))),
            Some(Err(error)) => Err(Fault::new(
                at(error.marker()).min(self.end),
                error.info().to_owned(),
                "correct the syntax",
            )),
            None => Err(empty(Position { line: 1, column: 1 })),
        }
    }

    fn node(
        &mut self,
        event: Event<'a>,
        position: Position,
        depth: usize,
    ) -> Result<LocatedValue, Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::too_deep(position));
        }
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(Fault::too_many_values(position));
        }
        let (reason, remedy) = match event {
            Event::Scalar(text, style, 0, None) => return Ok(scalar(text, style).at(position)),
            Event::SequenceStart(0, None) => return Ok(self.list(depth)?.at(position)),
            Event::MappingStart(0, None) => return Ok(self.map(depth)?.at(position)),
            Event::Alias(_) => ("an alias", "repeat the value, or use `defaults`"),
            Event::Scalar(_, _, 0, _) | Event::SequenceStart(0, _) | Event::MappingStart(0, _) => {
                ("a tag", "leave it out")
            }
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) => {
                ("an anchor", "leave it out")
            }
            _ => return Err(empty(position)),
        };
        Err(Fault::new(position, reason, remedy))
    }

    fn list(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(items)),
                (event, position) => items.push(self.node(event, position, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut entries = Vec::new();
        loop {
            let (name, position) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Value::Map(entries)),
                (Event::Scalar(name, _, 0, None), position) => (name.into_owned(), position),
                (_, position) => {
                    let reason = "a field whose name is not plain text";
                    return Err(Fault::new(position, reason, "write `name: value`"));
                }
            };
            let (event, at) = self.next()?;
            let node = self.node(event, at, depth + 1)?;
            entries.push(NamedValue {
                position,
                name,
                node,
            });
        }
    }

    /// Returns the position of what follows the first document.
    fn after_root(&mut self) -> Result<Option<Position>, Fault> {
        while let Some(next) = self.parser.peek() {
            match next {
                Ok((Event::DocumentStart(_), span)) => return Ok(Some(position(*span))),
                Ok(_) => {}
                Err(_) => return self.next().map(|(_, position)| Some(position)),
            }
            self.parser.next();
        }
        Ok(None)
    }
}

/// Returns a plain scalar by the core schema of YAML 1.2, and any other as text.
fn scalar(text: Cow<'_, str>, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::Text(text.into_owned());
    }
    match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.replace('_', "");
    let is_number = text.starts_with(|first: char| first.is_ascii_digit() || first == '-');
    match Value::number(&digits) {
        Value::Float(number) if !number.is_finite() => Value::Text(text.into_owned()),
        number if is_number => number,
        _ => Value::Text(text.into_owned()),
    }
}

fn position(span: Span) -> Position {
    at(&span.start)
}

fn at(marker: &Marker) -> Position {
    Position {
        line: marker.line(),
        column: marker.col() + 1,
    }
}

fn empty(position: Position) -> Fault {
    Fault::new(position, "no rules", "begin with `rules:`")
}
