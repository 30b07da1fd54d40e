//! Settles receipts, and retries settlements that the shared store has not confirmed.
//!
//! ```text
//!                     ┌─ confirmed ───────────────────────────▶ done
//! settle ─▶ store ────┼─ release, fate unknown or refused ────▶ RetryQueue, until the lease must have ended
//!                     ├─ correction, certainly not sent ──────▶ RetryQueue, for the policy's period, at most 1 h
//!                     └─ correction, fate unknown ────────────▶ the charge is kept; the first failure is logged
//! ```
//!
//! A release can be repeated: it names the ticket of its slots. A correction cannot, since a repeated one would count twice.

use std::{
    fmt, iter,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::{
    charge::{Charge, Correction, Fingerprint, KeyEffect, Receipt, Settlement},
    clock::Clock,
    diagnosis::{ErrorChain, log},
    error::{Error, ErrorKind},
    store::{Store, StoreFuture},
    task::{RetryFuture, RetryOwner, RetryQueue, home},
};

use super::key_batches::KeyBatches;

/// Settles the receipts of a limiter.
///
/// Receipts of the in-process store are passed on to the store. It settles at once, so there is nothing to retry.
pub(super) struct Settler {
    store: Arc<dyn Store>,
    /// Releases that are not confirmed, and corrections that were not sent.
    retries: RetryQueue<Settlement>,
    /// Whether a failure was logged: only the first one is.
    has_warned: AtomicBool,
    /// Called with the slots that were released.
    released: OnceLock<Released>,
}

/// A function that is called with the keys whose slots were released, and whether the store has woken other instances.
pub(super) type Released = Box<dyn Fn(&[(Fingerprint, bool)]) + Send + Sync>;

impl fmt::Debug for Settler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settler")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Settler {
    /// Creates a settler with nothing to retry.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            retries: RetryQueue::default(),
            has_warned: AtomicBool::new(false),
            released: OnceLock::new(),
        }
    }

    /// Calls a function with the keys whose slots were released, and whether the store has woken a caller. Only the first call has
    /// an effect.
    pub fn on_release(&self, released: Released) {
        let _ = self.released.set(released);
    }

    /// Settles each charge of a receipt on its own, and changes keys as the end of the request does, all at the same time.
    ///
    /// Releases, and corrections that were certainly not sent, are retried in the background, even if the future is dropped.
    ///
    /// # Errors
    ///
    /// The first error of the store, also if the settlement is retried.
    pub fn settle(self: &Arc<Self>, receipt: Receipt) -> StoreFuture<()> {
        let effects = receipt.effects();
        let corrected = self.correct(receipt);
        if effects.is_empty() {
            return corrected;
        }
        let effects = effects.iter().map(|(charge, effect)| {
            let charge = charge.borrow();
            self.take_effect(&charge, *effect)
        });
        let (mut result, mut pending) = (Ok(()), Vec::new());
        for mut call in iter::once(corrected).chain(effects) {
            match call.take_ready() {
                Some(ready) => result = result.and(ready),
                None => pending.push(call),
            }
        }
        if pending.is_empty() {
            return StoreFuture::ready(result);
        }
        StoreFuture::boxed(async move {
            let results = join_all(pending).await;
            results.into_iter().fold(result, Result::and)
        })
    }

    /// Changes a key as the end of its request does. A failure is not retried, and logged.
    fn take_effect(self: &Arc<Self>, charge: &Charge<'_>, effect: KeyEffect) -> StoreFuture<()> {
        let (policy, key) = (charge.policy(), charge.key());
        let (done, undone) = match effect {
            KeyEffect::Cleared => (self.store.reset(policy, key), "failures were not cleared"),
            KeyEffect::Failed => {
                let counted = self.store.count_failure(policy, key);
                (
                    counted.map(|until| until.map(drop)),
                    "no delay began after a failure",
                )
            }
            KeyEffect::Nothing => return StoreFuture::ready(Ok(())),
        };
        let (settler, policy) = (Arc::clone(self), *policy.name());
        done.map(move |result| {
            if let Err(error) = &result
                && settler.is_first_failure()
            {
                let error = ErrorChain(error);
                log::event!(
                    WARN,
                    "a key was not changed",
                    policy = policy.as_str(),
                    effect = undone,
                    error = error
                );
            }
            result
        })
    }

    /// Begins the delay of a key after a failure, for which no caller waits.
    pub fn begin_delay(self: &Arc<Self>, charge: &Charge<'_>) {
        let mut begun = self.take_effect(charge, KeyEffect::Failed);
        if begun.take_ready().is_none() {
            // Logged where it fails.
            home::spawn_lasting(Box::pin(async move { drop(begun.await) }));
        }
    }

    /// Settles each charge of a receipt on its own.
    fn correct(self: &Arc<Self>, receipt: Receipt) -> StoreFuture<()> {
        let settlements = receipt.into_settlements().into_iter();
        let (mut shared, local): (Vec<_>, Vec<_>) =
            settlements.partition(|settlement| settlement.counted_by().is_shared());
        if shared.is_empty() {
            return self.store.settle(Receipt::with(local));
        }
        self.resume_retries();
        if shared.len() == 1 && local.is_empty() {
            return self.settle_one(shared.remove(0));
        }
        let shared = shared.into_iter();
        let mut replies: Vec<_> = shared
            .map(|settlement| self.settle_one(settlement))
            .collect();
        if !local.is_empty() {
            replies.push(self.store.settle(Receipt::with(local)));
        }
        let replies = join_all(replies);
        StoreFuture::boxed(async move { replies.await.into_iter().collect() })
    }

    /// Settles a receipt for which no caller waits. The first failure that is not retried is logged.
    ///
    /// A caller outside of a Tokio runtime has the reply awaited at home.
    pub fn settle_in_background(self: &Arc<Self>, receipt: Receipt) {
        // Failures in the shared store are logged by the guard of each settlement.
        let is_shared = receipt.counted_by().is_shared();
        let settler = Arc::clone(self);
        let slots: SmallVec<[(Fingerprint, bool); 2]> = receipt
            .settlements()
            .iter()
            .filter(|settlement| settlement.charge().ticket().is_some())
            .map(|settlement| {
                let charge = settlement.charge();
                let is_told = settlement.wakes() && settlement.counted_by().is_shared();
                (Fingerprint::of(charge.policy(), charge.key()), is_told)
            })
            .collect();
        let log = move |settled: Result<(), Error>| {
            if let Some(released) = settler.released.get()
                && !slots.is_empty()
            {
                released(&slots);
            }
            if let Err(error) = settled
                && !is_shared
            {
                settler.log_unsettled(&error);
            }
        };
        let mut settled = self.settle(receipt);
        if let Some(settled) = settled.take_ready() {
            log(settled);
        } else {
            home::spawn_lasting(Box::pin(async move { log(settled.await) }));
        }
    }

    /// Sends one settlement. Its guard retries it if it fails or the future is dropped.
    fn settle_one(self: &Arc<Self>, settlement: Settlement) -> StoreFuture<()> {
        let settled = self.store.settle(Receipt::with(vec![settlement.clone()]));
        let mut guard = SettlementGuard::new(self, settlement);
        settled.map(move |settled| guard.finish(settled))
    }

    /// Queues another release of slots whose first release may have been overtaken by a renewal.
    pub fn release_again(self: &Arc<Self>, slots: Settlement) {
        self.retry_later(slots.with_pending_acquire());
    }

    /// Starts the task that retries, if settlements wait and no task is on time.
    pub fn resume_retries(self: &Arc<Self>) {
        RetryQueue::resume(self);
    }

    /// Adds a settlement to the queue, until it is of no use any more. Logs the first one that finds the queue full.
    fn retry_later(self: &Arc<Self>, settlement: Settlement) {
        // The last renewal may have been just now, so the lease ends at most its full length from now.
        let until = Clock::system().now() + settlement.retry_span();
        if !RetryQueue::add(self, settlement, until) && self.is_first_failure() {
            log::event!(
                WARN,
                "too many settlements wait for the shared store: slots stay taken until their lease ends, and charges stand"
            );
        }
    }

    /// Logs a settlement that failed and is not retried.
    pub fn log_unsettled(&self, error: &Error) {
        if self.is_first_failure() {
            log::event!(
                WARN,
                "a charge could not be settled, so it stands",
                error = ErrorChain(error)
            );
        }
    }

    /// Logs a renewal that failed.
    pub fn log_not_renewed(&self, error: &Error) {
        if self.is_first_failure() {
            log::event!(
                WARN,
                "a slot lease could not be renewed, so other requests may take the slots",
                error = ErrorChain(error)
            );
        }
    }

    /// Returns `true` once: a store that is down would otherwise fill the log.
    fn is_first_failure(&self) -> bool {
        !self.has_warned.swap(true, Ordering::Relaxed)
    }
}

impl RetryOwner for Settler {
    type Item = Settlement;

    fn retry_queue(&self) -> &RetryQueue<Settlement> {
        &self.retries
    }

    fn is_repeatable(settlement: &Settlement) -> bool {
        settlement.is_release()
    }

    /// Settles the slots of each key by one call, and each correction by its own.
    fn retry(self: Arc<Self>, settlements: Vec<Arc<Settlement>>) -> RetryFuture {
        let mut batches = KeyBatches::new();
        for settlement in &settlements {
            let item = Settlement::clone(settlement);
            if settlement.is_release() {
                batches.add(&settlement.charge(), item);
            } else {
                batches.add_alone(item);
            }
        }
        let settled = batches.call(|batch| self.store.settle(Receipt::with(batch)));
        Box::pin(async move {
            let settled = settlements.iter().zip(settled.await);
            let is_done = |(settlement, result): (&Arc<Settlement>, Result<(), Error>)| {
                !result.is_err_and(|error| settlement.may_retry(&error))
            };
            settled.map(is_done).collect()
        })
    }
}

// === SettlementGuard ===

/// A settlement that was sent. If it fails, or the guard is dropped before the reply, it is retried where that is safe.
struct SettlementGuard {
    settler: Arc<Settler>,
    /// Taken when the reply is there.
    settlement: Option<Settlement>,
}

impl SettlementGuard {
    /// Guards a settlement that is being sent.
    fn new(settler: &Arc<Settler>, settlement: Settlement) -> Self {
        Self {
            settler: Arc::clone(settler),
            settlement: Some(settlement),
        }
    }

    /// Handles the reply of the store. Returns it.
    fn finish(&mut self, settled: Result<(), Error>) -> Result<(), Error> {
        if let (Some(settlement), Err(error)) = (self.settlement.take(), &settled)
            && settlement.correction() != Correction::Keep
        {
            if settlement.is_release() || settlement.may_retry(error) {
                self.settler.retry_later(settlement);
            } else {
                self.settler.log_unsettled(error);
            }
        }
        settled
    }
}

impl Drop for SettlementGuard {
    fn drop(&mut self) {
        // The fate of the call is unknown, so only a release is repeated.
        if let Some(settlement) = self
            .settlement
            .take_if(|settlement| settlement.is_release())
        {
            self.settler.retry_later(settlement);
        }
    }
}

/// Returns the error of a hold for which no task can be started.
pub(super) fn no_home() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "no thread can be started for it: this process has too many",
    )
}
