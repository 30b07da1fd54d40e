//! The error of a request that is not served.

use std::fmt;

use crate::priority::priority::Priority;

/// A request that is not served, since the service is overloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shed {
    /// Its class.
    pub priority: Priority,
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "overloaded: a request of class {} is shed",
            self.priority
        )
    }
}

impl std::error::Error for Shed {}
