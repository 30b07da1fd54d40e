//! JSON as a tree.
//!
//! serde_json checks the syntax, and keeps each value as the part of the text that it was read from. The address of that part
//! is its place.

use std::{borrow::Cow, cell::Cell, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    fault::Fault,
    lines::Lines,
    node::{Entry, MAX_DEPTH, MAX_VALUES, Node, Value},
};

/// Parses a text.
///
/// # Errors
///
/// The first fault of the syntax.
pub(super) fn parse(text: &str) -> Result<Node, Fault> {
    let reader = Reader {
        text,
        lines: Lines::of(text),
        values: Cell::new(0),
    };
    let root: &RawValue =
        serde_json::from_str(text).map_err(|error| reader.syntax(text, &error))?;
    reader.node(root.get(), 0)
}

struct Reader<'a> {
    text: &'a str,
    lines: Lines<'a>,
    /// The number of values so far.
    values: Cell<usize>,
}

impl<'a> Reader<'a> {
    fn node(&self, raw: &'a str, depth: usize) -> Result<Node, Fault> {
        let place = self.lines.place(self.offset(raw));
        if depth > MAX_DEPTH {
            return Err(Fault::too_deep(place));
        }
        self.values.set(self.values.get() + 1);
        if self.values.get() > MAX_VALUES {
            return Err(Fault::too_many_values(place));
        }
        let value = match raw.as_bytes().first() {
            Some(b'{') => {
                let fields: Fields<'a> = self.read(raw)?;
                Value::Map(self.entries(fields, depth)?)
            }
            Some(b'[') => {
                let items: Vec<&'a RawValue> = self.read(raw)?;
                let items = items
                    .into_iter()
                    .map(|item| self.node(item.get(), depth + 1));
                Value::List(items.collect::<Result<_, _>>()?)
            }
            Some(b'"') => Value::Text(self.read(raw)?),
            Some(b't' | b'f') => Value::Bool(self.read(raw)?),
            Some(b'n') => Value::Null,
            _ => Value::number(raw),
        };
        Ok(Node { place, value })
    }

    fn entries(&self, fields: Fields<'a>, depth: usize) -> Result<Vec<Entry>, Fault> {
        let entry = |(name, raw): (Cow<'a, str>, &'a RawValue)| {
            let node = self.node(raw.get(), depth + 1)?;
            // A name with escapes is a copy, which has no place in the text.
            let place = match &name {
                Cow::Borrowed(name) => self.lines.place(self.offset(name).saturating_sub(1)),
                Cow::Owned(_) => node.place,
            };
            Ok(Entry {
                place,
                name: name.into_owned(),
                node,
            })
        };
        fields.0.into_iter().map(entry).collect()
    }

    fn read<T: Deserialize<'a>>(&self, raw: &'a str) -> Result<T, Fault> {
        serde_json::from_str(raw).map_err(|error| self.syntax(raw, &error))
    }

    /// Returns the index of a part of the text.
    fn offset(&self, part: &str) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize)
    }

    fn syntax(&self, part: &str, error: &serde_json::Error) -> Fault {
        let lines = Lines::of(part);
        let byte = self.offset(part) + lines.byte(error.line(), error.column());
        let message = error.to_string();
        let message = message
            .split(" at line ")
            .next()
            .unwrap_or(&message)
            .to_owned();
        Fault::new(self.lines.place(byte), message, "correct the syntax")
    }
}

/// The fields of an object in their order. A field that is there twice stays so.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some((Name(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(Fields(fields))
    }
}

/// A name that is borrowed from the text if it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}
