//! Renewals and releases of what a limiter holds.

use std::{
    collections::HashSet,
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::task::AbortHandle;

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
    retry::{Retry, RetryQueue, Tried},
    state::CountedBy,
    store::{Answer, Correction, Receipt, Settlement, Store},
    sync::Mutex,
    task, telemetry,
    timer::sleep,
};

use super::{
    by_key::ByKey,
    join::all,
    schedule::{Schedule, Slots},
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

#[derive(Debug, Default)]
struct Held {
    schedule: Schedule,
    /// The task that renews.
    task: Option<AbortHandle>,
    /// Number of the latest task. An earlier one ends when it wakes.
    tasks: u64,
    /// When the task wakes, if anybody drives its runtime.
    wakes_at: Timestamp,
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
        let mut held = self.held.lock();
        let now = Clock::system().now();
        let (number, soonest) = held.schedule.add(slots, now);
        if held.is_looked_after(now, soonest) {
            return Some(number);
        }
        held.tasks += 1;
        held.wakes_at = now + soonest;
        let renewing = Self::renew(Arc::downgrade(self), held.tasks, soonest);
        let former = mem::replace(&mut held.task, task::spawn(renewing));
        let is_renewed = held.task.is_some();
        drop(held);
        if let Some(former) = former {
            former.abort();
        }
        if !is_renewed {
            self.note(&Err(no_runtime()), RENEWED);
        }
        Some(number)
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
            receipt.note_pending_take();
        }
        // What failed in the shared store is reported there, unless it is tried again.
        let is_shared = receipt.counted_by() == CountedBy::Shared;
        let keeper = Arc::clone(self);
        let note = move |settled: Result<(), Error>| {
            if !is_shared {
                keeper.note(&settled, SETTLED);
            }
        };
        match self.settle(receipt).now_or_later() {
            Ok(settled) => note(settled),
            Err(answer) => {
                if task::spawn(async move { note(answer.await) }).is_none() {
                    self.note(&Err(no_runtime()), SETTLED);
                }
            }
        }
    }

    /// Settles each charge by itself. What was surely not done, and slots in any case, is tried again in the background.
    pub(crate) fn settle(self: &Arc<Self>, receipt: Receipt) -> Answer<()> {
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
                Answer::later(async move { answers.await.into_iter().collect() })
            }
        }
    }

    fn settle_one(self: &Arc<Self>, settlement: Settlement) -> Answer<()> {
        let answer = self.store.settle(Receipt::again(vec![settlement.clone()]));
        let mut unsettled = Unsettled::new(self, settlement);
        match answer.now_or_later() {
            Ok(settled) => Answer::ready(unsettled.end(settled)),
            Err(answer) => Answer::later(async move { unsettled.end(answer.await) }),
        }
    }

    /// Renews until nothing is held.
    async fn renew(keeper: Weak<Self>, task: u64, mut wait: Duration) {
        loop {
            sleep(wait).await;
            // Not kept while it sleeps: nobody else may need the store any more.
            let Some(keeper) = keeper.upgrade() else {
                return;
            };
            let mut waited = wait;
            loop {
                let due = keeper.held.lock().due(task, mem::take(&mut waited));
                if due.is_empty() {
                    break;
                }
                keeper.renew_some(&due).await;
            }
            let Some(next) = keeper.held.lock().wait(task) else {
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
                ended.extend(slots.iter().cloned().map(Settlement::with_pending_take));
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
            telemetry::warn(format_args!("a request could not be {what}: {error:?}"));
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(task) = self.held.lock().task.take() {
            task.abort();
        }
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
        let receipts = by_key.groups.into_iter().map(Receipt::again);
        let answers: Vec<Answer<()>> = receipts.map(|receipt| self.store.settle(receipt)).collect();
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

impl Held {
    /// Whether a task wakes in time for a hold that must be renewed so soon. One that is late has lost its runtime.
    fn is_looked_after(&self, now: Timestamp, soonest: Duration) -> bool {
        let is_running = self.task.as_ref().is_some_and(|task| !task.is_finished());
        is_running && self.wakes_at <= now + soonest && now <= self.wakes_at + soonest
    }

    /// Some of what is due, after a wait; nothing if another task has taken over.
    fn due(&mut self, task: u64, waited: Duration) -> Vec<(u64, Slots)> {
        if self.tasks != task {
            return Vec::new();
        }
        self.schedule.run_on(Clock::system().now(), waited);
        self.schedule.take_due()
    }

    /// How long the task is to wait. `None` ends it: nothing is held, or another task has taken over.
    fn wait(&mut self, task: u64) -> Option<Duration> {
        if self.tasks != task {
            return None;
        }
        let now = Clock::system().now();
        self.schedule.run_on(now, Duration::ZERO);
        let wait = self.schedule.wait();
        match wait {
            Some(wait) => self.wakes_at = now + wait,
            None => self.task = None,
        }
        wait
    }
}

fn slots_of(receipt: &Receipt) -> impl Iterator<Item = &Settlement> {
    let settlements = receipt.settlements().iter();
    settlements.filter(|settlement| settlement.charge().ticket() != 0)
}

fn no_runtime() -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        "there is no tokio runtime: hold and drop it within one",
    )
}

const RENEWED: &str = "renewed, so its slots may be given to others";
pub(super) const SETTLED: &str = "settled, so its charges stand";
