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
    sync::{Arc, Weak},
    task::{Wake, Waker},
    time::Duration,
};

#[cfg(feature = "metrics")]
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;

use crate::{
    charge::Receipt,
    clock::Clock,
    decision::CountedBy,
    store::{Store, StoreFuture},
    task::{Mutex, home, spawn, timer::sleep},
};

use super::{
    key_batches::KeyBatches,
    renewal::RenewalTask,
    schedule::HeldSlots,
    settler::{Settler, no_home},
};

/// All holds of a limiter. One task renews the slots of all of them.
#[derive(Debug)]
pub(crate) struct HoldRegistry {
    /// Renews slots.
    store: Arc<dyn Store>,
    /// Releases slots and corrects charges. Outlives the registry while settlements wait to be retried.
    settler: Arc<Settler>,
    /// Schedule and task of the renewals.
    renewal: Mutex<RenewalTask>,
    /// Number of slots that the holds have.
    #[cfg(feature = "metrics")]
    held: AtomicU64,
}

impl HoldRegistry {
    /// Creates a registry without holds. Its task starts with the first hold that has a lease.
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            settler: Arc::new(Settler::new(Arc::clone(&store))),
            store,
            renewal: Mutex::default(),
            #[cfg(feature = "metrics")]
            held: AtomicU64::new(0),
        }
    }

    /// Settles a receipt that is not held. See [`Settler::settle`].
    pub(crate) fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        self.settler.settle(receipt)
    }

    /// Registers the slots of a receipt as held, and makes sure that a task renews them in time.
    ///
    /// Returns the number of the hold, or `None` if nothing must be renewed: the receipt has no slots, or they are in process
    /// and have no lease while they are held.
    pub(super) fn register(self: &Arc<Self>, receipt: &Receipt) -> Option<u64> {
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
        let runtime = Handle::try_current().ok();
        let mut renewal = self.renewal.lock();
        let now = Clock::system().now();
        let (number, soonest) = renewal.schedule.add(slots, now);
        if renewal.is_on_time(now, soonest) {
            return Some(number);
        }
        // Without a task on time, other holds may be due sooner than this one.
        let wait = renewal.schedule.wait();
        let wait = wait.map_or(soonest, |wait| wait.min(soonest));
        let is_started = self.start_task(&mut renewal, runtime.as_ref(), wait);
        drop(renewal);
        if !is_started {
            self.settler.log_not_renewed(&no_home());
        }
        Some(number)
    }

    /// Ends a hold: settles its receipt in the background.
    ///
    /// If one of its renewals is unconfirmed, the release is marked with a pending acquire.
    pub(super) fn end(&self, number: Option<u64>, mut receipt: Receipt) {
        #[cfg(feature = "metrics")]
        self.held.fetch_sub(slots_of(&receipt), Ordering::Relaxed);
        if let Some(number) = number
            && self.renewal.lock().schedule.remove(number)
        {
            receipt.mark_acquire_pending();
        }
        self.settler.settle_in_background(receipt);
    }

    /// Ends a hold without settling it.
    pub(super) fn forget(&self, number: Option<u64>) {
        if let Some(number) = number {
            self.renewal.lock().schedule.remove(number);
        }
    }

    /// Returns the number of slots that the holds have.
    #[cfg(feature = "metrics")]
    pub(crate) fn held_slots(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Starts a task that renews, after a wait, on this runtime or at home. Returns whether one of them took it.
    fn start_task(
        self: &Arc<Self>,
        renewal: &mut RenewalTask,
        runtime: Option<&Handle>,
        wait: Duration,
    ) -> bool {
        let alarm = self.alarm();
        let number = renewal.next_task(wait);
        let task = || Self::run(Arc::downgrade(self), number, wait, alarm.clone());
        let started = runtime.and_then(|runtime| spawn::on(runtime, task()));
        let started = started.or_else(|| home::spawn(task()));
        let is_started = started.is_some();
        renewal.task_started(started, &alarm);
        is_started
    }

    /// Returns the waker of the alarm.
    fn alarm(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::new(LateTaskAlarm(Arc::downgrade(self))))
    }

    /// Replaces a task that is late: its runtime has ended, or is not driven.
    fn replace_late_task(self: &Arc<Self>) {
        let mut renewal = self.renewal.lock();
        if !renewal.must_replace(&self.alarm()) {
            return;
        }
        let is_started = self.start_task(&mut renewal, None, Duration::ZERO);
        drop(renewal);
        if !is_started {
            self.settler.log_not_renewed(&no_home());
        }
    }

    /// The renewal task: renews what is due, until no slots are held or another task takes over.
    ///
    /// ```text
    /// sleep ─▶ take_due ─▶ renew, up to 200 holds ─▶ take_due ─▶ .. ─▶ nothing due: next_wait ─▶ sleep
    /// ```
    async fn run(registry: Weak<Self>, task: u64, mut wait: Duration, alarm: Waker) {
        loop {
            sleep(wait).await;
            // Not kept alive during the sleep: the limiter may be dropped.
            let Some(registry) = registry.upgrade() else {
                return;
            };
            let mut waited = wait;
            loop {
                let waited = mem::take(&mut waited);
                let due = registry.renewal.lock().take_due(task, waited, &alarm);
                if due.is_empty() {
                    break;
                }
                registry.renew(&due).await;
            }
            let Some(next) = registry.renewal.lock().next_wait(task, &alarm) else {
                return;
            };
            wait = next;
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
        let renewed = batches.call(|charges| self.store.renew(&charges));
        let mut failed = HashMap::new();
        for (number, renewed) in numbers.into_iter().zip(renewed.await) {
            if let Err(error) = renewed {
                failed.insert(number, error);
            }
        }
        // A hold that ended meanwhile may have released its slots before the renewal took them again.
        let (mut ended, mut lapsing) = (Vec::new(), None);
        let mut renewal = self.renewal.lock();
        for (number, slots) in due {
            if !renewal.schedule.contains(*number) {
                ended.extend(slots.iter().cloned());
            } else if let Some(error) = failed.get(number) {
                lapsing = lapsing.or(Some(error).filter(|_| renewal.schedule.is_lapsing(*number)));
            } else {
                renewal.schedule.confirm(*number);
            }
        }
        drop(renewal);
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

// === LateTaskAlarm ===

/// Waker of the alarm. The timer's thread wakes it when the task is late.
struct LateTaskAlarm(Weak<HoldRegistry>);

impl Wake for LateTaskAlarm {
    fn wake(self: Arc<Self>) {
        if let Some(registry) = self.0.upgrade() {
            registry.replace_late_task();
        }
    }
}
