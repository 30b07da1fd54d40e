//! A decision that counts as a call to the primary.

use crate::{clock::Timestamp, decision::Decision, error::Error};

use super::{breaker::CallResult, guard::Guard};

/// A decision that counts as a call, if the primary does not report its calls.
///
/// Dropped before [`end`](Self::end), it counts as abandoned by its caller.
pub(super) struct CallGuard<'a> {
    guard: &'a Guard,
    /// Start of the call; `None` if it does not count, or has ended.
    started: Option<Timestamp>,
}

impl<'a> CallGuard<'a> {
    /// Starts a call.
    pub fn new(guard: &'a Guard) -> Self {
        let is_counted = !guard.reports_calls;
        Self {
            guard,
            started: is_counted.then(|| guard.clock.now()),
        }
    }

    /// Records how the call ended.
    pub fn end(mut self, result: &Result<Decision, Error>) {
        let Some(started) = self.started.take() else {
            return;
        };
        match result {
            Ok(_) => {
                let now = self.guard.clock.now();
                self.guard.record_reply(now.since(started), now);
            }
            Err(error) => self.guard.record_failure(error),
        }
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if let Some(started) = self.started {
            let now = self.guard.clock.now();
            let after = now.since(started);
            self.guard.record(CallResult::Abandoned { after }, now);
        }
    }
}
