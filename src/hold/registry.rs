//! The holds of a limiter: registers them, renews their slots, and settles them at the end.
//!
//! # Renewals and releases that overtake each other
//!
//! A renewal takes slots again that the store no longer has, because their lease ended while the store was unavailable. So
//! a renewal that arrives after the release of the same slots would take them for a request that has ended:
//!
//! ```text
//! renewal sent ───────────────────────────────────▶ arrives: slots taken, and no request holds them
//!       hold ends, release sent ──▶ arrives: slots freed
//! ```
//!
//! Two measures prevent that:
//!
//! - If the hold ends while a renewal is unconfirmed, the release has a
//!   [pending acquire](crate::charge::Settlement::is_acquire_pending): the store then refuses the ticket for the length of
//!   a lease.
//! - If the reply to a renewal comes after its hold has ended, the slots are released again.
//!
//! # Locks
//!
//! The mutex guards the schedule and is never held across an await or a call to the store.

use std::{
    collections::HashMap,
    mem,
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};

#[cfg(feature = "metrics")]
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::{
    charge::{Charge, Fingerprint, Receipt},
    clock::Clock,
    decision::CountedBy,
    error::{Error, ErrorKind, Phase},
    store::{Store, StoreFuture},
    task::{Mutex, Running, SingleTask, timer::timeout},
};

use super::{
    key_batches::KeyBatches,
    renewal::Renewals,
    schedule::HeldSlots,
    settler::{Settler, no_home},
    turns::Turns,
};

/// All holds of a limiter. One task renews the slots of all of them.
#[derive(Debug)]
pub(crate) struct HoldRegistry {
    /// Renews slots.
    store: Arc<dyn Store>,
    /// Releases slots and corrects charges. Outlives the registry while settlements wait to be retried.
    settler: Arc<Settler>,
    renewals: Mutex<Renewals>,
    /// The task that renews.
    task: SingleTask,
    /// Wakes the task before its time.
    woken: Arc<Notify>,
    /// Requests that wait in queues.
    turns: Arc<Turns>,
    /// Number of slots that the holds have.
    #[cfg(feature = "metrics")]
    held: AtomicU64,
}

impl HoldRegistry {
    /// Creates a registry without holds. Its task starts with the first hold that has a lease.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            settler: Arc::new(Settler::new(Arc::clone(&store))),
            store,
            renewals: Mutex::default(),
            task: SingleTask::default(),
            woken: Arc::default(),
            turns: Arc::default(),
            #[cfg(feature = "metrics")]
            held: AtomicU64::new(0),
        }
    }

    /// Calls a function with the keys whose slots were released, and whether the store has woken a caller, from now on.
    pub fn on_release(&self, released: impl Fn(&[(Fingerprint, bool)]) + Send + Sync + 'static) {
        self.settler.on_release(Box::new(released));
    }

    /// Returns the queues in which requests wait.
    pub(super) fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// Settles a receipt that is not held. See [`Settler::settle`].
    pub fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        self.settler.settle(receipt)
    }

    /// Begins the delay of a key after a failure, in the background.
    pub(super) fn begin_delay(&self, charge: &Charge<'_>) {
        self.settler.begin_delay(charge);
    }

    /// Registers the slots of a receipt as held, and makes sure that a task renews them in time.
    ///
    /// Returns the number of the hold, or `None` if nothing must be renewed: the receipt has no slots, or they are in process
    /// and have no lease while they are held.
    pub fn register(self: &Arc<Self>, receipt: &Receipt) -> Option<u64> {
        let settlements = receipt.settlements().iter();
        let slots = settlements.filter(|settlement| settlement.charge().ticket().is_some());
        let slots: HeldSlots = slots.cloned().collect();
        if slots.is_empty() {
            return None;
        }
        #[cfg(feature = "metrics")]
        self.held.fetch_add(slots_of(receipt), Ordering::Relaxed);
        self.store.hold(receipt);
        let shared = slots
            .iter()
            .filter(|slots| slots.counted_by() == CountedBy::Shared);
        let slots: HeldSlots = shared.cloned().collect();
        if slots.is_empty() {
            return None;
        }
        self.settler.resume_retries();
        // Locked until the task has started, so that one that ends does not miss this hold.
        let mut renewals = self.renewals.lock();
        let now = Clock::system().now();
        let (number, soonest) = renewals.schedule.add(slots, now);
        if renewals.oversleeps(now, soonest) {
            self.woken.notify_one();
        }
        let is_running = self.task.start(|running| {
            let woken = Arc::clone(&self.woken);
            Self::run(Arc::downgrade(self), woken, running)
        });
        drop(renewals);
        if !is_running {
            self.settler.log_not_renewed(&no_home());
        }
        Some(number)
    }

    /// Ends a hold: settles its receipt in the background.
    ///
    /// If one of its renewals is unconfirmed, the release is marked with a pending acquire.
    pub fn end(&self, number: Option<u64>, mut receipt: Receipt) {
        #[cfg(feature = "metrics")]
        self.held.fetch_sub(slots_of(&receipt), Ordering::Relaxed);
        if let Some(number) = number
            && self.renewals.lock().schedule.remove(number)
        {
            receipt.mark_acquire_pending();
        }
        self.settler.settle_in_background(receipt);
    }

    /// Settles a receipt that was never held, in the background.
    pub fn give_back(&self, receipt: Receipt) {
        self.settler.settle_in_background(receipt);
    }

    /// Ends a hold without settling it.
    pub fn forget(&self, number: Option<u64>) {
        if let Some(number) = number {
            self.renewals.lock().schedule.remove(number);
        }
    }

    /// Returns the number of slots that the holds have.
    #[cfg(feature = "metrics")]
    pub fn held_slots(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The renewal task: renews what is due, until no slots are held.
    ///
    /// ```text
    /// sleep ─▶ take_due ─▶ renew, up to 200 holds ─▶ take_due ─▶ .. ─▶ nothing due: next_wait ─▶ sleep
    /// ```
    async fn run(registry: Weak<Self>, woken: Arc<Notify>, running: Running) {
        let mut waited = Duration::ZERO;
        loop {
            // Not kept alive during the sleep: the limiter may be dropped.
            let Some(registry) = registry.upgrade() else {
                return;
            };
            loop {
                let due = registry.renewals.lock().take_due(mem::take(&mut waited));
                if due.is_empty() {
                    break;
                }
                // A store that panics must not end the renewals of what is held.
                let _ = AssertUnwindSafe(registry.renew(&due)).catch_unwind().await;
            }
            let wait = {
                let mut renewals = registry.renewals.lock();
                let Some(wait) = renewals.next_wait() else {
                    drop(running);
                    return;
                };
                wait
            };
            drop(registry);
            let is_woken = timeout(wait, woken.notified()).await.is_some();
            waited = if is_woken { Duration::ZERO } else { wait };
        }
    }

    /// Renews the slots of some holds, those of each key by one call.
    ///
    /// A hold counts as renewed only if all its slots are. Otherwise it stays due soon.
    async fn renew(&self, due: &[(u64, HeldSlots)]) {
        let mut batches = KeyBatches::new();
        let mut numbers = Vec::new();
        for (number, slots) in due {
            for settlement in slots.iter() {
                batches.add(&settlement.charge(), settlement.charge());
                numbers.push(*number);
            }
        }
        let limit = self.renewals.lock().longest_renewal();
        let renewed = batches.call(|charges| {
            let renewing = self.store.renew(&charges);
            // One key without a reply must not hold up the others.
            StoreFuture::boxed(async move {
                let renewed = timeout(limit, renewing).await;
                renewed.unwrap_or_else(|| Err(no_reply()))
            })
        });
        let mut failed = HashMap::new();
        for (number, renewed) in numbers.into_iter().zip(renewed.await) {
            if let Err(error) = renewed {
                failed.insert(number, error);
            }
        }
        // A hold that ended meanwhile may have released its slots before the renewal took them again.
        let (mut ended, mut lapsing) = (Vec::new(), None);
        let mut renewals = self.renewals.lock();
        for (number, slots) in due {
            if !renewals.schedule.contains(*number) {
                ended.extend(slots.iter().cloned());
            } else if let Some(error) = failed.get(number) {
                lapsing = lapsing.or(Some(error).filter(|_| renewals.schedule.is_lapsing(*number)));
            } else {
                renewals.schedule.confirm(*number);
            }
        }
        drop(renewals);
        // A reply that was missed once leaves half of the lease for the next tries.
        if let Some(error) = lapsing {
            self.settler.log_not_renewed(error);
        }
        for slots in ended {
            self.settler.release_again(slots);
        }
    }
}

/// Returns the number of slots in a receipt.
#[cfg(feature = "metrics")]
fn slots_of(receipt: &Receipt) -> u64 {
    let settlements = receipt.settlements().iter();
    let charges = settlements.map(|settlement| settlement.charge());
    let slots = charges.filter(|charge| charge.ticket().is_some());
    slots.map(|charge| charge.units()).sum()
}

/// Returns the error of a renewal that took too long.
fn no_reply() -> Error {
    Error::new(
        ErrorKind::Timeout(Phase::Reply),
        "the store did not reply to the renewal of a slot lease",
    )
}

impl Drop for HoldRegistry {
    fn drop(&mut self) {
        self.woken.notify_one();
    }
}
