//! TOML as a tree.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    fault::Fault,
    lines::Lines,
    node::{LocatedValue, MAX_DEPTH, NamedValue, Position, Value},
    reading::FileReading,
};

/// Parses a text. `None` if its syntax has faults, which are noted: of a long text the first one.
pub(super) fn parse(text: &str, reading: &mut FileReading) -> Option<LocatedValue> {
    let lines = Lines::of(text);
    let (table, errors) = if text.len() <= MAX_RECOVERED {
        DeTable::parse_recoverable(text)
    } else {
        // Each byte may be a fault, and the parser keeps them all.
        match DeTable::parse(text) {
            Ok(table) => (table, Vec::new()),
            Err(error) => (Spanned::new(0..0, DeTable::new()), vec![error]),
        }
    };
    for error in &errors {
        let start = error.span().map_or(0, |span| span.start);
        let message = error.message().replace('\n', ", ");
        reading.add(lines.position(start), message, "correct the syntax");
    }
    if !errors.is_empty() {
        return None;
    }
    let position = Position { line: 1, column: 1 };
    match map(table.get_ref(), &lines, 0) {
        Ok(value) => Some(LocatedValue { position, value }),
        Err(fault) => {
            reading.add(fault.position, fault.reason, fault.remedy);
            None
        }
    }
}

/// The longest text of which all faults of the syntax are listed.
const MAX_RECOVERED: usize = 64 << 10;

fn map(table: &DeTable<'_>, lines: &Lines<'_>, depth: usize) -> Result<Value, Fault> {
    let entries = table.iter().map(|(name, value)| {
        Ok(NamedValue {
            position: lines.position(name.span().start),
            name: name.get_ref().to_string(),
            node: node(value, name.span(), lines, depth + 1)?,
        })
    });
    let mut entries = entries.collect::<Result<Vec<_>, Fault>>()?;
    // The table is sorted by name.
    entries.sort_by_key(|entry| entry.position);
    Ok(Value::Map(entries))
}

fn node(
    value: &Spanned<DeValue<'_>>,
    name: Range<usize>,
    lines: &Lines<'_>,
    depth: usize,
) -> Result<LocatedValue, Fault> {
    // A table that only dotted names define has no position.
    let start = if value.span().is_empty() {
        name.start
    } else {
        value.span().start
    };
    let position = lines.position(start);
    if depth > MAX_DEPTH {
        return Err(Fault::too_deep(position));
    }
    let value = match value.get_ref() {
        DeValue::Array(items) => {
            let items = items
                .iter()
                .map(|item| node(item, item.span(), lines, depth + 1));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Float(number) => {
            let digits = number.as_str().replace('_', "");
            Value::Float(digits.parse().unwrap_or(f64::NAN))
        }
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::out_of_range(number.as_str()),
        },
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Table(table) => map(table, lines, depth)?,
    };
    Ok(LocatedValue { position, value })
}
