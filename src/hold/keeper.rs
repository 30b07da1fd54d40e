//! Renewals and releases of what a limiter holds.

use std::{
    collections::HashSet,
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use tokio::runtime::Handle;

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    error_chain::ErrorChain,
    log,
    retry::{Retry, RetryQueue, Tried},
    spawn,
    state::CountedBy,
    store::{Correction, Receipt, Settlement, Store, StoreFuture},
    sync::Mutex,
    timer::sleep,
};

use super::{
    by_key::ByKey,
    held::Held,
    join::all,
    schedule::Slots,
    unsettled::{Unsettled, is_release, may_repeat},
};

/// Renews what this limiter holds, by one task for all of it, and settles in the background.
#[derive(Debug)]
pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    held: Mutex<Held>,
    /// Slots whose release is not confirmed, and charges whose correction was not sent.
    unsettled: RetryQueue<Settlement>,
    /// Whether a failure was reported.
    warned: AtomicBool,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            held: Mutex::default(),
            unsettled: RetryQueue::default(),
            warned: AtomicBool::new(false),
        }
    }

    /// Holds what was charged, and renews it if it has a lease. The number is for [`end`](Self::end).
    pub(super) fn register(self: &Arc<Self>, receipt: &Receipt) -> Option<u64> {
        let slots: Slots = slots_of(receipt).cloned().collect();
        if slots.is_empty() {
            return None;
        }
        self.store.hold(receipt);
        if receipt.counted_by() != CountedBy::Shared {
            return None;
        }
        RetryQueue::resume(self);
        let runtime = Handle::try_current().ok();
        let mut held = self.held.lock();
        let now = Clock::system().now();
        let (number, soonest) = held.schedule.add(slots, runtime.clone(), now);
        if held.is_looked_after(now, soonest) {
            return Some(number);
        }
        // Others may be due sooner, and nobody looked after them.
        let wait = held
            .schedule
            .wait()
            .map_or(soonest, |wait| wait.min(soonest));
        let is_renewed = self.start(&mut held, runtime.as_ref(), wait);
        drop(held);
        if !is_renewed {
            self.note(&Err(no_runtime()), RENEWED);
        }
        Some(number)
    }

    /// Starts a task that renews, after a wait, on this runtime or that of any hold. Returns whether one has not ended.
    fn start(self: &Arc<Self>, held: &mut Held, on: Option<&Handle>, wait: Duration) -> bool {
        let lookout = Waker::from(Arc::new(Lookout(Arc::downgrade(self))));
        let number = held.next_task(wait);
        let start = |runtime: &Handle| {
            let renewing = Self::renew(Arc::downgrade(self), number, wait, lookout.clone());
            spawn::on(runtime, renewing)
        };
        let started = on.and_then(start);
        let started = started.or_else(|| held.schedule.start_on_any(start));
        let is_started = started.is_some();
        held.note_task(started, &lookout);
        is_started
    }

    /// Replaces the task that renews if it is late: its runtime has ended, or nobody drives it.
    fn look_after(self: &Arc<Self>) {
        let mut held = self.held.lock();
        if !held.must_replace() {
            return;
        }
        let is_renewed = self.start(&mut held, None, Duration::ZERO);
        drop(held);
        if !is_renewed {
            self.note(&Err(no_runtime()), RENEWED);
        }
    }

    /// Ends a hold without settling it.
    pub(super) fn forget(&self, number: Option<u64>) {
        if let Some(number) = number {
            self.held.lock().schedule.remove(number);
        }
    }

    /// Ends a hold: settles it in the background.
    pub(super) fn end(self: &Arc<Self>, number: Option<u64>, mut receipt: Receipt) {
        if let Some(number) = number
            && self.held.lock().schedule.remove(number)
        {
            receipt.mark_acquire_pending();
        }
        // What failed in the shared store is reported there, unless it is tried again.
        let is_shared = receipt.counted_by() == CountedBy::Shared;
        let keeper = Arc::clone(self);
        let note = move |settled: Result<(), Error>| {
            if !is_shared {
                keeper.note(&settled, SETTLED);
            }
        };
        let mut settled = self.settle(receipt);
        if let Some(settled) = settled.take_ready() {
            note(settled);
        } else if spawn::on_current(async move { note(settled.await) }).is_none() {
            self.note(&Err(no_runtime()), SETTLED);
        }
    }

    /// Settles each charge by itself. What was surely not done, and slots in any case, is tried again in the background.
    pub(crate) fn settle(self: &Arc<Self>, receipt: Receipt) -> StoreFuture<()> {
        if receipt.counted_by() != CountedBy::Shared {
            return self.store.settle(receipt);
        }
        RetryQueue::resume(self);
        let mut settlements = receipt.into_settlements();
        match settlements.len() {
            1 => self.settle_one(settlements.remove(0)),
            _ => {
                let settlements = settlements.into_iter();
                let answers = settlements.map(|settlement| self.settle_one(settlement));
                let answers = all(answers.collect());
                StoreFuture::boxed(async move { answers.await.into_iter().collect() })
            }
        }
    }

    fn settle_one(self: &Arc<Self>, settlement: Settlement) -> StoreFuture<()> {
        let settled = self.store.settle(Receipt::shared(vec![settlement.clone()]));
        let mut unsettled = Unsettled::new(self, settlement);
        settled.map(move |settled| unsettled.end(settled))
    }

    /// Renews until nothing is held.
    async fn renew(keeper: Weak<Self>, task: u64, mut wait: Duration, lookout: Waker) {
        loop {
            sleep(wait).await;
            // Not kept while it sleeps: nobody else may need the store any more.
            let Some(keeper) = keeper.upgrade() else {
                return;
            };
            let mut waited = wait;
            loop {
                let waited = mem::take(&mut waited);
                let due = keeper.held.lock().due(task, waited, &lookout);
                if due.is_empty() {
                    break;
                }
                keeper.renew_some(&due).await;
            }
            let Some(next) = keeper.held.lock().wait(task, &lookout) else {
                return;
            };
            wait = next;
        }
    }

    /// Renews the slots of each key by one answer: a key that cannot be renewed keeps no others.
    async fn renew_some(self: &Arc<Self>, due: &[(u64, Slots)]) {
        let mut by_key = ByKey::new();
        let mut numbers = Vec::new();
        for (number, slots) in due {
            for settlement in slots.iter() {
                by_key.add(&settlement.charge(), settlement.charge());
                numbers.push(*number);
            }
        }
        let answers = by_key
            .groups
            .iter()
            .map(|charges| self.store.renew(charges));
        let answers = all(answers.collect());
        let places = by_key.places;
        let renewed = answers.await;
        for renewed in &renewed {
            self.note(renewed, RENEWED);
        }
        let failed = numbers.iter().zip(places);
        let failed = failed.filter(|(_, place)| renewed[*place].is_err());
        let failed: HashSet<u64> = failed.map(|(number, _)| *number).collect();
        // What has ended meanwhile may have been released first, and then taken again by the renewal.
        let mut ended = Vec::new();
        let mut held = self.held.lock();
        for (number, slots) in due {
            if !held.schedule.has(*number) {
                ended.extend(slots.iter().cloned().map(Settlement::with_pending_acquire));
            } else if !failed.contains(number) {
                held.schedule.renewed(*number);
            }
        }
        drop(held);
        let ended = ended.into_iter();
        ended.for_each(|slots| drop(Unsettled::new(self, slots)));
    }

    /// Reports the first failure.
    pub(super) fn note(&self, result: &Result<(), Error>, what: &str) {
        if let Err(error) = result
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            let error = ErrorChain(error);
            log::event!(
                WARN,
                "a charge could not be corrected",
                action = what,
                error = error
            );
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.held.lock().abort();
    }
}

impl Retry for Keeper {
    type Item = Settlement;

    fn retries(&self) -> &RetryQueue<Settlement> {
        &self.unsettled
    }

    fn is_repeatable(settlement: &Settlement) -> bool {
        is_release(settlement)
    }

    /// Settles, the slots of each key by one answer: a key that cannot be settled keeps no others.
    fn try_again(self: Arc<Self>, settlements: Vec<Arc<Settlement>>) -> Tried {
        let mut by_key = ByKey::new();
        for settlement in &settlements {
            let item = Settlement::clone(settlement);
            match settlement.correction() {
                Correction::Release => by_key.add(&settlement.charge(), item),
                _ => by_key.add_alone(item),
            }
        }
        let receipts = by_key.groups.into_iter().map(Receipt::shared);
        let answers: Vec<StoreFuture<()>> =
            receipts.map(|receipt| self.store.settle(receipt)).collect();
        Box::pin(async move {
            let settled = all(answers).await;
            let tried = settlements.iter().zip(by_key.places);
            let is_done = |(settlement, place): (&Arc<Settlement>, usize)| {
                !settled[place]
                    .as_ref()
                    .is_err_and(|error| may_repeat(settlement, error))
            };
            tried.map(is_done).collect()
        })
    }
}

// === Lookout ===

/// Woken by the timer's thread when the task that renews is late.
struct Lookout(Weak<Keeper>);

impl Wake for Lookout {
    fn wake(self: Arc<Self>) {
        if let Some(keeper) = self.0.upgrade() {
            keeper.look_after();
        }
    }
}

fn slots_of(receipt: &Receipt) -> impl Iterator<Item = &Settlement> {
    let settlements = receipt.settlements().iter();
    settlements.filter(|settlement| settlement.charge().ticket().is_some())
}

fn no_runtime() -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        "there is no tokio runtime: hold and drop it within one",
    )
}

const RENEWED: &str = "renewed, so its slots may be given to others";
pub(super) const SETTLED: &str = "settled, so its charges stand";
