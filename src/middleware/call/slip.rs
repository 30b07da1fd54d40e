//! What a call was charged, until it has ended.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use crate::{
    clock::{Clock, Timestamp},
    holding::Hold,
    state::PolicyName,
};

/// How a call ended, for the closure that says what it really cost.
#[derive(Debug)]
#[non_exhaustive]
pub struct Ended<'a, T, E> {
    /// The policy that was charged.
    pub policy: &'a PolicyName,
    /// Units that were charged when the call was admitted.
    pub charged: u64,
    /// What came out; `None` when nothing did: the service panicked, or the caller went away.
    pub outcome: Option<Result<&'a T, &'a E>>,
    /// From when the call was made until something came out, or until it was given up.
    pub elapsed: Duration,
}

/// Says what a call really cost under a policy.
pub(super) type Price<T, E> = dyn Fn(&Ended<'_, T, E>) -> u64 + Send + Sync;

/// Gives back what was charged for a call that never started. One that did is charged what the closure says, and keeps its
/// slots until this ends.
pub(super) struct Slip<T, E> {
    hold: Option<Hold>,
    price: Option<Arc<Price<T, E>>>,
    /// `None` while the call waits for its turn.
    started: Option<Timestamp>,
}

impl<T, E> Slip<T, E> {
    pub(super) fn new(hold: Hold, price: Option<Arc<Price<T, E>>>) -> Self {
        Self {
            hold: Some(hold),
            price,
            started: None,
        }
    }

    /// Notes that the call starts.
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
        self.close(Some(outcome));
    }

    fn close(&mut self, outcome: Option<Result<&T, &E>>) {
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
            let ended = Ended {
                policy: policy.name(),
                charged,
                outcome,
                elapsed,
            };
            // It may be asked while another panic unwinds, where its own would end the process.
            let said = panic::catch_unwind(AssertUnwindSafe(|| price(&ended)));
            said.unwrap_or(charged)
        });
    }
}

impl<T, E> Drop for Slip<T, E> {
    fn drop(&mut self) {
        self.close(None);
    }
}
