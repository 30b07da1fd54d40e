//! Lists with parameters, as in the IETF drafts of `RateLimit`.
//!
//! The reader is more lenient than RFC 9651, because ten drafts and their early texts differ, and Zendesk sends another form:
//!
//! ```text
//! "name";r=50;t=30, "other";r=2;t=1       drafts 08 to 11: an item for each policy
//! "name";a=50;w=30                        the same in the text that is proposed for the next draft
//! name;r=50;w=30                          an early text of draft 08
//! limit=100, remaining=50, reset=30       draft 07: one item without a name
//! 100;w=60, 1000;w=3600                   policies of drafts 00 to 07: the name is the quota
//! total=100; remaining=99; resets=41      Zendesk: one item without a name
//! ```

/// An item of a list. Without a name, it has the parameters that stand alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Item {
    pub name: Option<Box<str>>,
    /// Whether the name was in quotes, so that digits in it are not a quota.
    pub is_quoted: bool,
    parameters: Vec<(Box<str>, Box<str>)>,
}

impl Item {
    /// Returns the first parameter that has one of these names.
    pub fn parameter(&self, names: &[&str]) -> Option<&str> {
        let mut parameters = self.parameters.iter();
        let found = parameters.find(|(name, _)| names.contains(&&**name))?;
        Some(&found.1)
    }
}

/// Reads a list.
pub(super) fn items(text: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for (begins_item, part) in parts(text) {
        match parameter(part) {
            Some(parameter) => match items.last_mut() {
                Some(last) => last.parameters.push(parameter),
                None => items.push(Item {
                    parameters: vec![parameter],
                    ..Item::default()
                }),
            },
            None if begins_item && !part.is_empty() => items.push(Item {
                name: Some(unquoted(part)),
                is_quoted: part.starts_with('"'),
                parameters: Vec::new(),
            }),
            // A flag, or nothing.
            None => {}
        }
    }
    items
}

/// Splits a list at commas and semicolons outside of quotes. `true` marks what begins the list, or follows a comma.
fn parts(text: &str) -> Vec<(bool, &str)> {
    let (mut parts, mut start, mut begins_item) = (Vec::new(), 0, true);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ',' | ';' if !is_quoted => {
                parts.push((begins_item, text[start..at].trim()));
                (start, begins_item) = (at + 1, character == ',');
            }
            _ => {}
        }
    }
    parts.push((begins_item, text[start..].trim()));
    parts
}

/// Reads `name=value`.
fn parameter(part: &str) -> Option<(Box<str>, Box<str>)> {
    let (name, value) = part.split_once('=').filter(|_| !part.starts_with('"'))?;
    Some((name.trim().into(), unquoted(value.trim())))
}

/// Returns a text without its quotes and escapes.
fn unquoted(text: &str) -> Box<str> {
    let Some(inner) = text.strip_prefix('"') else {
        return text.into();
    };
    let inner = inner.strip_suffix('"').unwrap_or(inner);
    inner.replace("\\\"", "\"").replace("\\\\", "\\").into()
}
