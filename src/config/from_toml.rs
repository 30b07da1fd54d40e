//! TOML as a tree.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    fault::Fault,
    lines::Lines,
    node::{Entry, MAX_DEPTH, Node, Place, Value},
};

/// Parses a text.
///
/// # Errors
///
/// The faults of the syntax, each with its place.
pub(super) fn parse(text: &str) -> Result<Node, Vec<Fault>> {
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let fault = |error: &toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            let message = error.message().replace('\n', ", ");
            Fault::new(lines.place(start), message, "correct the syntax")
        };
        return Err(errors.iter().map(fault).collect());
    }
    let place = Place { line: 1, column: 1 };
    let value = map(table.get_ref(), &lines, 0).map_err(|fault| vec![fault])?;
    Ok(Node { place, value })
}

fn map(table: &DeTable<'_>, lines: &Lines<'_>, depth: usize) -> Result<Value, Fault> {
    let entries = table.iter().map(|(name, value)| {
        Ok(Entry {
            place: lines.place(name.span().start),
            name: name.get_ref().to_string(),
            node: node(value, name.span(), lines, depth + 1)?,
        })
    });
    let mut entries = entries.collect::<Result<Vec<_>, Fault>>()?;
    // The table is sorted by name.
    entries.sort_by_key(|entry| entry.place);
    Ok(Value::Map(entries))
}

fn node(
    value: &Spanned<DeValue<'_>>,
    name: Range<usize>,
    lines: &Lines<'_>,
    depth: usize,
) -> Result<Node, Fault> {
    // A table that only dotted names define has no place.
    let start = if value.span().is_empty() {
        name.start
    } else {
        value.span().start
    };
    let place = lines.place(start);
    if depth > MAX_DEPTH {
        return Err(Fault::too_deep(place));
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
    Ok(Node { place, value })
}
