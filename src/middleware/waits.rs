//! The time that a request has waited for decisions, which the layers around the same service share.

use std::{
    fmt,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Extensions;
use smallvec::SmallVec;

use crate::{
    charge::Charge,
    clock::{Clock, Timestamp},
    decision::Decision,
    error::Error,
    limiter::RateLimiter,
    store::{PendingResult, StoreFuture, StoreId, waited},
};

/// The waits of a request so far, in its extensions: one for each store.
#[derive(Clone, Default)]
struct Waits(SmallVec<[(StoreId, Duration); 1]>);

/// Decides within what is left of the request's deadline at the limiter's store.
#[inline]
pub(super) fn check(
    limiter: &RateLimiter,
    charges: &[Charge<'_>],
    extensions: &Extensions,
) -> StoreFuture<Decision> {
    match waited_for(limiter, extensions) {
        None => limiter.check(charges),
        Some(waited) => waited::after(waited, || limiter.check(charges)),
    }
}

/// Returns how long a request has waited for the limiter's store; `None` for no time that counts.
#[inline]
fn waited_for(limiter: &RateLimiter, extensions: &Extensions) -> Option<Duration> {
    let store = limiter.bounded_store()?;
    let waits = &extensions.get::<Waits>()?.0;
    let known = waits.iter().find(|(known, _)| *known == store);
    known.map(|(_, waited)| *waited)
}

// === AwaitedDecision ===

/// A decision that a request waits for.
pub struct AwaitedDecision {
    decision: PendingResult<Decision>,
    begun_at: Timestamp,
}

impl AwaitedDecision {
    /// Returns the decision of a future that is not ready.
    pub(super) fn new(decision: StoreFuture<Decision>) -> Self {
        Self {
            decision: decision.into_pending(),
            begun_at: now(),
        }
    }

    /// Polls the decision, and notes at its end how long the request has waited.
    pub(super) fn poll(
        &mut self,
        limiter: &RateLimiter,
        extensions: &mut Extensions,
        context: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let decided = ready!(self.decision.as_mut().poll(context));
        add(extensions, limiter, self.begun_at);
        Poll::Ready(decided)
    }
}

impl fmt::Debug for AwaitedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwaitedDecision").finish_non_exhaustive()
    }
}

/// Adds a wait for the limiter's store that ends now.
fn add(extensions: &mut Extensions, limiter: &RateLimiter, begun_at: Timestamp) {
    let Some(store) = limiter.bounded_store() else {
        return;
    };
    let waited = now().since(begun_at);
    if waited < LEAST {
        return;
    }
    let waits = &mut extensions.get_or_insert_with(Waits::default).0;
    match waits.iter_mut().find(|(known, _)| *known == store) {
        Some((_, sum)) => *sum += waited,
        None => waits.push((store, waited)),
    }
}

/// Returns the present time of this process' clock, by which deadlines are kept.
fn now() -> Timestamp {
    Clock::system().now()
}

/// Shorter waits do not count, so that usual requests need no place for them.
const LEAST: Duration = Duration::from_millis(1);
