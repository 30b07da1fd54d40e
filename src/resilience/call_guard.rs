//! A decision that counts as a call to the primary.

use crate::{clock::Timestamp, decision::Decision, error::Error};

use super::{breaker::CallResult, monitor::PrimaryMonitor};

/// A decision that counts as a call, if the primary does not report its calls.
///
/// Dropped before [`end`](Self::end), it counts as abandoned by its caller.
pub(super) struct CallGuard<'a> {
    monitor: &'a PrimaryMonitor,
    /// Start of the call; `None` if it does not count, or has ended.
    started: Option<Timestamp>,
}

impl<'a> CallGuard<'a> {
    /// Starts a call.
    pub(super) fn new(monitor: &'a PrimaryMonitor) -> Self {
        let is_counted = !monitor.reports_calls;
        Self {
            monitor,
            started: is_counted.then(|| monitor.clock.now()),
        }
    }

    /// Records how the call ended.
    pub(super) fn end(mut self, result: &Result<Decision, Error>) {
        let Some(started) = self.started.take() else {
            return;
        };
        match result {
            Ok(_) => {
                let now = self.monitor.clock.now();
                self.monitor.record_reply(now.since(started), now);
            }
            Err(error) => self.monitor.record_failure(error),
        }
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if let Some(started) = self.started {
            let now = self.monitor.clock.now();
            let after = now.since(started);
            self.monitor.record(CallResult::Abandoned { after }, now);
        }
    }
}
