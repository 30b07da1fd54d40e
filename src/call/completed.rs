//! How a call ended, for the closure that settles its cost.

use std::time::Duration;

use crate::decision::PolicyName;

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
