//! The losses and outages of a server, as far as they matter for its next decisions. Each server of a cluster has its own.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::clock::{Clock, Timestamp};

use super::{admitted::Recovery, mirror::Doubts};

/// When a server came back, and which states it may lack.
#[derive(Debug)]
pub(super) struct ServerHistory {
    pub doubts: Doubts,
    /// Since when the server can decide again, in microseconds since the Unix epoch.
    back_at: AtomicU64,
    /// When the other instances must have merged their charges, in microseconds since the Unix epoch.
    grace_ends: AtomicU64,
    /// Shows the time of the server, as far as it is known.
    clock: Clock,
}

impl ServerHistory {
    /// Returns the history of a server that was always there.
    pub fn new(clock: Clock) -> Self {
        Self {
            doubts: Doubts::default(),
            back_at: AtomicU64::new(0),
            grace_ends: AtomicU64::new(0),
            clock,
        }
    }

    /// Returns whether the server may lack a state that is known here.
    #[inline]
    pub fn has_doubts(&self) -> bool {
        self.doubts.are_present(&self.clock)
    }

    /// Notes that the server decides again, and has been able to for about this time.
    ///
    /// For [`GRACE`], keys that were decided here stay within this instance's share, until the other instances have
    /// merged theirs.
    pub fn begin_grace(&self, ago: Duration) {
        let now = self.clock.now();
        let (back_at, ends) = ((now - ago).as_micros(), (now + GRACE).as_micros());
        self.back_at.store(back_at, Ordering::Relaxed);
        self.grace_ends.store(ends, Ordering::Relaxed);
    }

    /// Returns whether other instances may not have merged their local charges yet.
    pub fn is_grace(&self) -> bool {
        self.clock.now().as_micros() < self.grace_ends.load(Ordering::Relaxed)
    }

    /// Returns when the server came back the last time.
    pub fn recovery(&self) -> Recovery {
        let grace_ends = Timestamp::from_micros(self.grace_ends.load(Ordering::Relaxed));
        Recovery {
            at: Timestamp::from_micros(self.back_at.load(Ordering::Relaxed)),
            noticed_at: grace_ends - GRACE,
        }
    }
}

/// How long the other instances may take to find the server available again, and to merge their charges: a probe and its
/// wait take at most 1.1 s, and merging begins within 0.5 s.
const GRACE: Duration = Duration::from_millis(2_500);
