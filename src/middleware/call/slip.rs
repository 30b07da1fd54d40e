//! What a call was charged, until it has ended.

use crate::holding::Hold;

/// Gives back what was charged for a call that never started; one that did keeps its slots until this is dropped.
#[derive(Debug)]
pub(super) struct Slip {
    hold: Option<Hold>,
    is_waiting: bool,
}

impl Slip {
    pub(super) fn new(hold: Hold) -> Self {
        Self {
            hold: Some(hold),
            is_waiting: true,
        }
    }

    /// Notes that the call starts.
    pub(super) fn start(mut self) -> Self {
        self.is_waiting = false;
        self
    }

    /// What is held, for whoever holds it longer than the call.
    pub(super) fn into_hold(mut self) -> Option<Hold> {
        self.hold.take()
    }
}

impl Drop for Slip {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take().filter(|_| self.is_waiting) {
            hold.settle(|_, _| 0);
        }
    }
}
