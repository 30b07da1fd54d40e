//! Whether the server is part of a cluster.

use std::sync::atomic::{AtomicU8, Ordering};

/// The mode of a server, and so of all nodes of its cluster. Every decision reads it.
#[derive(Debug, Default)]
pub(in crate::remote) struct ServerMode(AtomicU8);

impl ServerMode {
    /// Returns whether one command may have keys of several slots. `None` until the server has replied.
    #[inline]
    pub fn is_cluster(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            mode => Some(mode == CLUSTER),
        }
    }

    /// Sets the mode. Returns whether the server was not known to be a cluster, and is one.
    pub fn set(&self, is_cluster: bool) -> bool {
        let mode = if is_cluster { CLUSTER } else { STANDALONE };
        // A read first: each new connection sets the mode, and decisions on all cores read it.
        self.0.load(Ordering::Relaxed) != mode
            && self.0.swap(mode, Ordering::Relaxed) != mode
            && is_cluster
    }
}

const UNKNOWN: u8 = 0;
const STANDALONE: u8 = 1;
const CLUSTER: u8 = 2;
