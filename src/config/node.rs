//! A parsed file as a tree whose parts know their positions.

/// A position in a file. Both count from 1; the column counts characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub line: usize,
    pub column: usize,
}

/// A value with its position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LocatedValue {
    pub position: Position,
    pub value: Value,
}

impl LocatedValue {
    /// Returns the value of a field, if this is a mapping that has it.
    pub fn field(&self, name: &str) -> Option<&Self> {
        let Value::Map(entries) = &self.value else {
            return None;
        };
        let entry = entries.iter().find(|entry| entry.name == name)?;
        (entry.node.value != Value::Null).then_some(&entry.node)
    }
}

/// A value in any of the formats.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// A whole number.
    Integer(i128),
    List(Vec<LocatedValue>),
    Map(Vec<NamedValue>),
    Null,
    Text(String),
}

/// A field of a mapping.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NamedValue {
    pub position: Position,
    pub name: String,
    pub node: LocatedValue,
}

impl Value {
    pub fn at(self, position: Position) -> LocatedValue {
        LocatedValue {
            position,
            value: self,
        }
    }

    /// Returns a number from digits that a parser has accepted.
    pub fn number(digits: &str) -> Self {
        match digits.parse() {
            Ok(number) => Self::Integer(number),
            Err(_) => Self::whole(digits)
                .unwrap_or_else(|| Self::Float(digits.parse().unwrap_or(f64::NAN))),
        }
    }

    /// Returns a whole number that is too large for any field; `None` if it is something else.
    fn whole(digits: &str) -> Option<Self> {
        let bare = digits.strip_prefix('-').unwrap_or(digits);
        let is_whole = !bare.is_empty() && bare.bytes().all(|next| next.is_ascii_digit());
        is_whole.then(|| Self::out_of_range(digits))
    }

    /// Returns the number for digits that no integer holds: the faults of fields report it as too large or below 0.
    pub fn out_of_range(digits: &str) -> Self {
        let is_negative = digits.starts_with('-');
        Self::Integer(if is_negative { i128::MIN } else { i128::MAX })
    }

    /// Returns the kind of value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "true or false",
            Self::Float(_) => "a fraction",
            Self::Integer(_) => "a number",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
            Self::Null => "nothing",
            Self::Text(_) => "text",
        }
    }
}

/// The most values of a file.
pub(super) const MAX_VALUES: usize = 150_000;
/// The most levels of lists and mappings.
pub(super) const MAX_DEPTH: usize = 32;
