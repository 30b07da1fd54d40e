//! The class of a request.

use std::fmt;
#[cfg(feature = "rules")]
use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use http::Extensions;

/// How soon a request is shed under overload, compared with others.
///
/// Requests of one class are equal. [`Overload`](crate::overload::Overload) puts the class into the extensions of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// Shed last: what the service exists for, such as payments.
    Critical,
    /// A class of your own, between the others in the order that [`classes`](crate::overload::OverloadBuilder::classes) has.
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

    /// Returns the class of this name. The names of classes of your own are kept for good: a program has few.
    #[cfg(feature = "rules")]
    pub(crate) fn of_name(name: &str) -> Self {
        static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let builtin = [Self::Critical, Self::Normal, Self::Sheddable];
        if let Some(class) = builtin.into_iter().find(|class| class.name() == name) {
            return class;
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.get(name).copied().unwrap_or_else(|| {
            let name = &*Box::leak(Box::from(name));
            names.insert(name);
            name
        });
        Self::Named(known)
    }

    /// Returns the class of a request, from its extensions: `Normal` if no layer has put another one there.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().copied().unwrap_or_default()
    }
}

// For settings that take one class, or several.
impl From<Priority> for Vec<Priority> {
    fn from(priority: Priority) -> Self {
        vec![priority]
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The class of the request, `Normal` if no layer has set one.
#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for Priority {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.extensions))
    }
}
