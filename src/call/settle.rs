//! How a call ended, and the settlement of its charges.

use std::{fmt, mem, sync::Arc, time::Duration};

use crate::{decision::PolicyName, hold::Hold, middleware::held::HeldCharges};

/// A call that has ended, as the closure of [`settle`](super::CallLimitLayerBuilder::settle) receives it.
#[derive(Debug)]
#[non_exhaustive]
pub struct CompletedCall<'a, T, E> {
    /// The policy that was charged.
    pub policy: &'a PolicyName,
    /// Units charged when the call was admitted.
    pub charged: u64,
    /// Time from the call of the inner service until it returned or was dropped.
    pub elapsed: Duration,
    /// Outcome of the call.
    pub outcome: CallOutcome<'a, T, E>,
}

/// Outcome of a call.
///
/// Keep the charge for [`CallerGone`](Self::CallerGone): a caller can drop every call after the work was done, and would
/// never be limited.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallOutcome<'a, T, E> {
    /// The call was dropped before the service returned: the caller went away, or a layer outside, such as a timeout,
    /// gave up. Also a call that the layer denied although this policy admitted it, since another policy has no key.
    CallerGone,
    /// The service returned an error.
    Failed(&'a E),
    /// The service panicked.
    Panicked,
    /// The service returned a response.
    Responded(&'a T),
}

// Not derived: a derive would require the same of `T` and `E`.
impl<T, E> Clone for CallOutcome<'_, T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, E> Copy for CallOutcome<'_, T, E> {}

// === CallSettlement ===

/// Closures of a layer for calls that end.
pub(super) struct EndHooks<T, E> {
    pub keep: Option<Box<Keep<T>>>,
    pub price: Option<Box<Price<T, E>>>,
}

/// Takes over the slots of a response that outlives its call.
pub(super) type Keep<T> = dyn Fn(&mut T, Hold) + Send + Sync;

/// Returns what a call really cost under a policy.
pub(super) type Price<T, E> = dyn Fn(&CompletedCall<'_, T, E>) -> u64 + Send + Sync;

/// Charges of a call, from its admission until it has ended.
///
/// A call that never starts is refunded. Other calls keep their slots until they end, and cost what the closure returns.
pub struct CallSettlement<T, E> {
    pub(super) held: HeldCharges,
    pub(super) hooks: Arc<EndHooks<T, E>>,
}

impl<T, E> CallSettlement<T, E> {
    /// Ends the call with its outcome.
    pub(super) fn end(mut self, outcome: &mut Result<T, E>) {
        if let (Ok(response), Some(keep)) = (&mut *outcome, &self.hooks.keep) {
            if let Some(hold) = self.held.holds.pop() {
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
        let price = self.hooks.price.as_ref();
        mem::take(&mut self.held).settle(|held, policy, charged| {
            let completed = || CompletedCall {
                policy: policy.name(),
                charged,
                elapsed: held.elapsed(),
                outcome,
            };
            price.map_or(charged, |price| price(&completed()))
        });
    }
}

impl<T, E> Drop for CallSettlement<T, E> {
    fn drop(&mut self) {
        self.close(if self.held.is_running() {
            CallOutcome::Panicked
        } else {
            CallOutcome::CallerGone
        });
    }
}

impl<T, E> fmt::Debug for CallSettlement<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSettlement").finish_non_exhaustive()
    }
}
