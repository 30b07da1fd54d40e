//! Whether new requests to a server are shed, and whose fault that is. Read without a lock.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

use super::super::connection::classify;

/// Whether new requests are shed.
#[derive(Debug, Default)]
pub(in crate::remote) struct Shedding {
    is_on: AtomicBool,
    /// Whether the tasks of this process run so late that requests are shed for it, and not for the server.
    is_process_slow: AtomicBool,
}

impl Shedding {
    /// Returns whether a request must be shed before any work is done for it.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Returns the error of a request that is shed, which names whose fault it is.
    pub fn error(&self) -> Error {
        classify::overloaded(self.is_process_slow.load(Ordering::Relaxed))
    }

    /// Sets whether requests are shed, and whether this process is too slow.
    pub fn set(&self, is_on: bool, is_process_slow: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
        self.is_process_slow
            .store(is_process_slow, Ordering::Relaxed);
    }

    /// Ends shedding: nothing waits any more.
    pub fn end(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }
}
