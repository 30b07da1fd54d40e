//! One value of a JSON document, by a pointer (RFC 6901).
//!
//! The document is read once, from its start to its end, and nothing of it is kept but the value. What is not on the way to the
//! value is skipped without recursion, however deep it is. A name that comes twice on the way is ambiguous: parsers differ in which
//! one they take.

use std::{borrow::Cow, fmt};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::{Error, ErrorKind};

use super::extracted::Extracted;

/// The way to a value in a JSON document.
#[derive(Clone, Debug)]
pub(super) struct JsonPointer {
    text: String,
    /// Names of fields and numbers of items, from the outermost on.
    steps: Vec<String>,
}

impl JsonPointer {
    pub fn new(text: &str) -> Self {
        let steps = text.split('/').skip(1);
        let steps = steps.map(|step| step.replace("~1", "/").replace("~0", "~"));
        Self {
            text: text.to_owned(),
            steps: steps.collect(),
        }
    }

    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a text that is not a pointer to a field.
    pub fn validate(&self) -> Result<(), Error> {
        if self.text.starts_with('/') && self.text.len() > 1 {
            return Ok(());
        }
        let message = format!(
            "{:?} is not a JSON pointer to a field: write one such as \"/user/email\"",
            self.text
        );
        Err(Error::new(ErrorKind::InvalidConfig, message))
    }

    /// Returns the text or whole number at the pointer. `null` is absent.
    ///
    /// # Errors
    ///
    /// That of the parser, if the text is not a JSON document, or the value is of another type.
    pub fn find(&self, json: &[u8]) -> Result<Extracted<String>, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let found = Finder { steps: &self.steps }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(found)
    }
}

/// Finds the value at the end of these steps.
struct Finder<'a> {
    steps: &'a [String],
}

impl<'de> DeserializeSeed<'de> for Finder<'_> {
    type Value = Extracted<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Finder<'_> {
    /// Returns a value that is neither a list nor an object: found at the end of the steps, and absent before.
    fn scalar<E>(&self, text: impl fmt::Display) -> Result<Extracted<String>, E> {
        Ok(if self.steps.is_empty() {
            Extracted::Found(text.to_string())
        } else {
            Extracted::Absent
        })
    }

    /// Returns that a value is absent before the end of the steps.
    ///
    /// # Errors
    ///
    /// A value of the wrong type at their end.
    fn no_key<E: de::Error>(&self, kind: &str) -> Result<Extracted<String>, E> {
        if self.steps.is_empty() {
            // inline: in Rust 1.88, `format_args!` does not outlive its statement
            return Err(E::custom(format_args!(
                "a key that is {kind}, and neither a text nor a whole number"
            )));
        }
        Ok(Extracted::Absent)
    }
}

impl<'de> Visitor<'de> for Finder<'_> {
    type Value = Extracted<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        self.scalar(text)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        self.scalar(number)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        self.scalar(number)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        self.no_key("a fraction")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self::Value, E> {
        self.no_key("a boolean")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Extracted::Absent)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((step, rest)) = self.steps.split_first() else {
            return self.no_key("an object");
        };
        let mut found = None;
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            if name.starts_with(PRIVATE) {
                return Err(de::Error::custom("a name that is private to a parser"));
            }
            if name != *step {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value_seed(Finder { steps: rest })?;
            found = Some(match found {
                None => value,
                Some(_) => Extracted::Ambiguous,
            });
        }
        Ok(found.unwrap_or(Extracted::Absent))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let Some((step, rest)) = self.steps.split_first() else {
            return self.no_key("a list");
        };
        // A handler may take the items for the fields in their order, as a derived `Deserialize` does.
        let Ok(wanted) = step.parse::<usize>() else {
            return Err(de::Error::custom("a list in place of an object"));
        };
        let mut found = Extracted::Absent;
        let mut number = 0;
        loop {
            if number == wanted {
                match items.next_element_seed(Finder { steps: rest })? {
                    Some(value) => found = value,
                    None => return Ok(found),
                }
            } else if items.next_element::<IgnoredAny>()?.is_none() {
                return Ok(found);
            }
            number += 1;
        }
    }
}

/// Names that `serde_json` gives a meaning, if some other crate switches that on. A handler then finds fields that are not there.
const PRIVATE: &str = "$serde_json::private::";
