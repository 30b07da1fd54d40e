//! What a call was charged, until it has ended.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use crate::{
    clock::{Clock, Timestamp},
    hold::Hold,
};

use super::completed::{CallOutcome, CompletedCall};

/// Returns what a call really cost under a policy.
pub(super) type Price<T, E> = dyn Fn(&CompletedCall<'_, T, E>) -> u64 + Send + Sync;

/// Gives back what was charged for a call that never started. One that did is charged what the closure says, and keeps its
/// slots until this ends.
pub(super) struct Slip<T, E> {
    hold: Option<Hold>,
    price: Option<Arc<Price<T, E>>>,
    /// `None` while the call waits for its turn.
    started: Option<Timestamp>,
    /// Whether the service runs. It still does when a panic has ended it.
    is_inside: bool,
}

impl<T, E> Slip<T, E> {
    pub(super) fn new(hold: Hold, price: Option<Arc<Price<T, E>>>) -> Self {
        Self {
            hold: Some(hold),
            price,
            started: None,
            is_inside: false,
        }
    }

    /// Notes that the service is about to be called.
    pub(super) fn start(mut self) -> Self {
        self.started = Some(Clock::system().now());
        self
    }

    /// What is held, for whoever holds it longer than the call.
    pub(super) fn into_hold(mut self) -> Option<Hold> {
        self.hold.take()
    }

    /// Ends the call with what came out.
    pub(super) fn end(mut self, outcome: Result<&T, &E>) {
        self.close(match outcome {
            Ok(response) => CallOutcome::Responded(response),
            Err(error) => CallOutcome::Failed(error),
        });
    }

    fn close(&mut self, outcome: CallOutcome<'_, T, E>) {
        let Some(hold) = self.hold.take() else {
            return;
        };
        let Some(started) = self.started else {
            return hold.settle(|_, _| 0);
        };
        let Some(price) = &self.price else {
            return drop(hold);
        };
        let elapsed = Clock::system().now().since(started);
        hold.settle(|policy, charged| {
            let completed = CompletedCall {
                policy: policy.name(),
                charged,
                elapsed,
                outcome,
            };
            // It may be asked while another panic unwinds, where its own would end the process.
            let said = panic::catch_unwind(AssertUnwindSafe(|| price(&completed)));
            said.unwrap_or(charged)
        });
    }
}

impl<T, E> Drop for Slip<T, E> {
    fn drop(&mut self) {
        self.close(match self.is_inside {
            true => CallOutcome::Panicked,
            false => CallOutcome::CallerGone,
        });
    }
}

/// Runs the service. If that panics, the slip of its call knows.
#[inline]
pub(super) fn run<T, E, O>(slip: &mut Option<Slip<T, E>>, service: impl FnOnce() -> O) -> O {
    if let Some(slip) = slip {
        slip.is_inside = true;
    }
    let returned = service();
    if let Some(slip) = slip {
        slip.is_inside = false;
    }
    returned
}
