//! What is in flight: slots that are held until they are given back, and renewed meanwhile.

use std::{
    collections::HashMap,
    fmt, mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{task::AbortHandle, time::sleep};

use crate::{
    algorithm::Counter,
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind},
    policy::{Charge, Policy},
    state::CountedBy,
    store::{Receipt, Settlement, Store},
    sync::Mutex,
    task, telemetry,
};

/// What a decision charged, held until the request has ended. Dropped, it is settled in the background.
///
/// Slots of a [concurrency](crate::Policy::concurrency) policy are renewed as long as this exists, and given back by
/// settling. In process they need no renewal, since they have no lease any more. Over Redis both need the Tokio runtime
/// on which it is made and dropped.
#[must_use = "dropped at once, the request has ended"]
pub struct Hold {
    receipt: Option<Receipt>,
    /// Under which the keeper has its slots.
    number: Option<u64>,
    keeper: Arc<Keeper>,
}

impl Hold {
    pub(crate) fn new(receipt: Receipt, keeper: &Arc<Keeper>) -> Self {
        Self {
            number: keeper.register(&receipt),
            receipt: Some(receipt),
            keeper: Arc::clone(keeper),
        }
    }

    /// What was charged.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Ends it, with what the request really cost under each policy: a function of the policy and of what was charged.
    pub fn settle(mut self, actual: impl FnMut(&Policy, u64) -> u64) {
        self.end(actual);
    }

    /// Forgets what was charged: it stands, and slots come back by their lease.
    pub(crate) fn forget(mut self) {
        self.receipt = None;
        self.keeper.forget(self.number);
    }

    fn end(&mut self, actual: impl FnMut(&Policy, u64) -> u64) {
        if let Some(receipt) = self.receipt.take() {
            // Before it is settled: a renewal after that would take the slots again.
            self.keeper.forget(self.number);
            self.keeper.settle(receipt.price(actual));
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end(|_, charged| charged);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("receipt", &self.receipt)
            .finish_non_exhaustive()
    }
}

// === Keeper ===

/// Renews what this limiter holds, by one task for all of it, and settles in the background.
#[derive(Debug)]
pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    held: Mutex<Held>,
    /// Whether a settlement that failed was reported.
    warned: AtomicBool,
}

#[derive(Debug, Default)]
struct Held {
    /// By the number of the hold.
    slots: HashMap<u64, Slots>,
    holds: u64,
    /// The task that renews, and which it is: an earlier one ends when it comes back.
    task: Option<AbortHandle>,
    tasks: u64,
    /// When it comes back.
    next: Timestamp,
}

type Slots = SmallVec<[Settlement; 1]>;

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            held: Mutex::default(),
            warned: AtomicBool::new(false),
        }
    }

    /// Holds what was charged, and has it renewed if it has a lease. The number is for [`forget`](Self::forget).
    fn register(self: &Arc<Self>, receipt: &Receipt) -> Option<u64> {
        let settlements = receipt.settlements().iter();
        let slots: Slots = settlements
            .filter(|settlement| settlement.charge().ticket() != 0)
            .cloned()
            .collect();
        if slots.is_empty() {
            return None;
        }
        self.store.hold(receipt);
        if receipt.counted_by() != CountedBy::Shared {
            return None;
        }
        let period = third(&slots);
        let mut held = self.held.lock();
        held.holds += 1;
        let number = held.holds;
        held.slots.insert(number, slots);
        let now = Clock::system().now();
        if held.is_looked_after(now, period) {
            return Some(number);
        }
        held.tasks += 1;
        held.next = now + period;
        let renewing = Self::renew(Arc::downgrade(self), held.tasks, period);
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

    fn forget(&self, number: Option<u64>) {
        if let Some(number) = number {
            let slots = self.held.lock().slots.remove(&number);
            drop(slots);
        }
    }

    fn settle(self: &Arc<Self>, receipt: Receipt) {
        match self.store.settle(receipt).now_or_later() {
            Ok(settled) => self.note(&settled, SETTLED),
            Err(answer) => {
                let keeper = Arc::clone(self);
                let settling = async move { keeper.note(&answer.await, SETTLED) };
                if task::spawn(settling).is_none() {
                    self.note(&Err(no_runtime()), SETTLED);
                }
            }
        }
    }

    /// Renews until nothing is held: a third of a lease passes between two renewals, so two may fail.
    async fn renew(keeper: Weak<Self>, task: u64, mut period: Duration) {
        loop {
            sleep(period).await;
            // Not kept while it sleeps: nobody else may need the store any more.
            let Some(keeper) = keeper.upgrade() else {
                return;
            };
            let Some((due, next)) = keeper.held.lock().due(task) else {
                return;
            };
            period = next;
            for some in due.chunks(BATCH) {
                keeper.renew_some(some).await;
            }
        }
    }

    async fn renew_some(&self, some: &[(u64, Settlement)]) {
        let charges: SmallVec<[Charge<'_>; BATCH]> = {
            let held = self.held.lock();
            let still = some.iter().filter(|(number, _)| held.has(*number));
            still.map(|(_, settlement)| settlement.charge()).collect()
        };
        if charges.is_empty() {
            return;
        }
        let renewed = self.store.renew(&charges).await;
        self.note(&renewed, RENEWED);
        // What was given back meanwhile may have come there first, and the renewal have taken the slots again.
        let ended: Vec<Settlement> = {
            let held = self.held.lock();
            let ended = some.iter().filter(|(number, _)| !held.has(*number));
            ended.map(|(_, settlement)| settlement.clone()).collect()
        };
        if !ended.is_empty() {
            let settled = self.store.settle(Receipt::again(ended)).await;
            self.note(&settled, SETTLED);
        }
    }

    /// Reports the first failure.
    fn note(&self, result: &Result<(), Error>, what: &str) {
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

impl Held {
    /// Whether a task comes in time for a lease with this period. One that is late has lost its runtime.
    fn is_looked_after(&self, now: Timestamp, period: Duration) -> bool {
        let is_running = self.task.as_ref().is_some_and(|task| !task.is_finished());
        is_running && self.next <= now + period && now <= self.next + period
    }

    fn has(&self, number: u64) -> bool {
        self.slots.contains_key(&number)
    }

    /// All that is held, and when it is due again. `None` ends the task: nothing is held, or another has taken over.
    fn due(&mut self, task: u64) -> Option<(Vec<(u64, Settlement)>, Duration)> {
        if self.tasks != task {
            return None;
        }
        let numbered = |(number, slots): (&u64, &Slots)| {
            let number = *number;
            let slots = slots.clone();
            slots.into_iter().map(move |slots| (number, slots))
        };
        let due: Vec<(u64, Settlement)> = self.slots.iter().flat_map(numbered).collect();
        if due.is_empty() {
            self.task = None;
            return None;
        }
        let period = third(due.iter().map(|(_, settlement)| settlement));
        self.next = Clock::system().now() + period;
        Some((due, period))
    }
}

/// A third of the shortest lease.
fn third<'a>(slots: impl IntoIterator<Item = &'a Settlement>) -> Duration {
    let lease = |settlement: &Settlement| match settlement.charge().policy().counter() {
        Counter::Slots(slots) => Some(slots.lease()),
        _ => None,
    };
    let shortest = slots.into_iter().filter_map(lease).min();
    shortest.unwrap_or(Duration::from_secs(1)) / 3
}

fn no_runtime() -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        "there is no tokio runtime: hold and drop it within one",
    )
}

const RENEWED: &str = "renewed, so its slots may be given to others";
const SETTLED: &str = "settled, so its charges stand";
/// How many are renewed at once.
const BATCH: usize = 64;
