//! Addresses of servers.

use std::{fmt, path::PathBuf};

use super::super::protocol::NodeAddress;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::remote) enum Address {
    Tcp(NodeAddress),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}
