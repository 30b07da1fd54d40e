//! Why rules were not replaced.

use std::{error::Error as StdError, fmt};

use crate::error::Error;

use super::super::fault::RuleSetError;

/// The reason why rules were not replaced. The current rules stay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReloadError {
    /// Others were pushed meanwhile.
    #[non_exhaustive]
    Conflict {
        /// The version that the source has.
        stored: u64,
    },
    /// The layer cannot have the rules, for example beside those from code.
    Layer(Error),
    /// The rules have faults.
    Rules(RuleSetError),
    /// The source cannot do this, or could not be reached.
    Source(Error),
    /// The history does not have the version to roll back to.
    #[non_exhaustive]
    UnknownVersion {
        /// The number that was asked for.
        version: u64,
        /// The numbers of the history.
        known: Vec<u64>,
    },
}

impl ReloadError {
    /// Returns whether both errors have the same text.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { stored } => write!(
                f,
                "others were pushed meanwhile: version {stored} is stored; look at it and push again"
            ),
            Self::Layer(error) | Self::Source(error) => error.fmt(f),
            Self::Rules(error) => error.fmt(f),
            Self::UnknownVersion { version, known } => {
                let known: Vec<_> = known.iter().map(u64::to_string).collect();
                let known = known.join(", ");
                write!(f, "no version {version}: the history has {known}")
            }
        }
    }
}

impl StdError for ReloadError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The text of the others is that of this error, so what follows is their cause.
        match self {
            Self::Conflict { .. } | Self::UnknownVersion { .. } => None,
            Self::Layer(error) | Self::Source(error) => error.source(),
            Self::Rules(error) => error.source(),
        }
    }
}

impl From<RuleSetError> for ReloadError {
    fn from(error: RuleSetError) -> Self {
        Self::Rules(error)
    }
}
