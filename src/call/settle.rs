//! Charges of an admitted call, settled when it has ended.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use crate::{
    clock::{Clock, Timestamp},
    hold::Hold,
};

use super::completed::{CallOutcome, CompletedCall};

/// Closures of a layer for calls that end.
pub(super) struct EndHooks<T, E> {
    pub(super) keep: Option<Box<Keep<T>>>,
    pub(super) price: Option<Box<Price<T, E>>>,
}

/// Takes over the slots of a response that outlives its call.
pub(super) type Keep<T> = dyn Fn(&mut T, Hold) + Send + Sync;

/// Returns what a call really cost under a policy.
pub(super) type Price<T, E> = dyn Fn(&CompletedCall<'_, T, E>) -> u64 + Send + Sync;

/// Charges of a call, from its admission until it has ended.
///
/// A call that never starts is refunded. Other calls keep their slots until they end, and cost what the closure returns.
pub struct PendingCharge<T, E> {
    hold: Option<Hold>,
    hooks: Arc<EndHooks<T, E>>,
    /// `None` while the call waits in a queue.
    started: Option<Timestamp>,
    /// Whether the service runs. Still set if it panicked.
    is_running: bool,
}

impl<T, E> PendingCharge<T, E> {
    pub(super) fn new(hold: Hold, hooks: Arc<EndHooks<T, E>>) -> Self {
        Self {
            hold: Some(hold),
            hooks,
            started: None,
            is_running: false,
        }
    }

    /// Notes that the service is about to be called.
    pub(super) fn start(&mut self) {
        self.started = Some(Clock::system().now());
    }

    /// The same charge of a call that has started.
    pub(super) fn started(mut self) -> Self {
        self.start();
        self
    }

    /// Notes whether the service runs.
    #[inline]
    pub(super) fn set_running(&mut self, is_running: bool) {
        self.is_running = is_running;
    }

    /// Ends the call with its outcome.
    pub(super) fn end(mut self, outcome: &mut Result<T, E>) {
        if let (Ok(response), Some(keep)) = (&mut *outcome, &self.hooks.keep) {
            if let Some(hold) = self.hold.take() {
                keep(response, hold);
            }
            return;
        }
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
        let Some(price) = &self.hooks.price else {
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
            // A second panic while one unwinds would abort the process.
            let cost = panic::catch_unwind(AssertUnwindSafe(|| price(&completed)));
            cost.unwrap_or(charged)
        });
    }
}

impl<T, E> Drop for PendingCharge<T, E> {
    fn drop(&mut self) {
        self.close(if self.is_running {
            CallOutcome::Panicked
        } else {
            CallOutcome::CallerGone
        });
    }
}

impl<T, E> fmt::Debug for PendingCharge<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCharge").finish_non_exhaustive()
    }
}
