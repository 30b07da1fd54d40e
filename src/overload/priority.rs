//! Classes of requests.

use std::fmt;

/// How soon a request is shed under overload, compared with others.
///
/// Requests of one class are equal. See the [module docs](super).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// Shed last: what the service exists for, such as payments.
    Critical,
    /// A class of your own, between the others in the order that [`classes`](super::OverloadBuilder::classes) has.
    Named(&'static str),
    /// Requests without a class.
    #[default]
    Normal,
    /// Shed first: what can be repeated later, such as exports.
    Sheddable,
}

impl Priority {
    /// Returns the name of the class: `critical`, `normal`, `sheddable`, or your own.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Named(name) => name,
            Self::Normal => "normal",
            Self::Sheddable => "sheddable",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
