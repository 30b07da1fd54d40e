//! What is in flight: slots that are held until they are given back, and renewed meanwhile.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::sleep;

use crate::{
    algorithm::Counter,
    clock::{Clock, Timestamp},
    error::Error,
    policy::{Charge, OwnedCharge, Policy},
    state::CountedBy,
    store::{Receipt, Store},
    sync::Mutex,
    task, telemetry,
};

/// What a decision charged, held until the request has ended. Dropped, it is settled in the background.
///
/// Slots of a [concurrency](crate::Policy::concurrency) policy are renewed as long as this exists, and given back by
/// settling. Over Redis both need the Tokio runtime on which it is made and dropped.
#[must_use = "dropped at once, the request has ended"]
pub struct Hold {
    receipt: Option<Receipt>,
    keeper: Arc<Keeper>,
}

impl Hold {
    pub(crate) fn new(receipt: Receipt, keeper: &Arc<Keeper>) -> Self {
        if receipt.counted_by() == CountedBy::Shared {
            keeper.register(&receipt);
        }
        Self {
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

    fn end(&mut self, actual: impl FnMut(&Policy, u64) -> u64) {
        if let Some(receipt) = self.receipt.take() {
            self.keeper.forget(&receipt);
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
    /// By ticket.
    charges: HashMap<u64, OwnedCharge>,
    /// When the task that renews comes back.
    next: Timestamp,
    /// Which task that is: an earlier one ends when it comes back.
    task: u64,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            held: Mutex::default(),
            warned: AtomicBool::new(false),
        }
    }

    fn register(self: &Arc<Self>, receipt: &Receipt) {
        let charges = receipt.settlements().iter().map(|one| one.charge());
        let slots: SmallVec<[OwnedCharge; 1]> = charges
            .filter(|charge| charge.ticket() != 0)
            .map(|charge| charge.to_owned())
            .collect();
        if slots.is_empty() {
            return;
        }
        let period = third(slots.iter());
        let mut held = self.held.lock();
        held.charges.extend(
            slots
                .into_iter()
                .map(|charge| (charge.borrow().ticket(), charge)),
        );
        let now = Clock::system().now();
        // A task that comes in time for these leases too is enough. One that is late has lost its runtime.
        if held.next <= now + period && now <= held.next + period {
            return;
        }
        held.task += 1;
        held.next = now + period;
        let task = held.task;
        drop(held);
        task::spawn(Arc::clone(self).renew(task, period));
    }

    fn forget(&self, receipt: &Receipt) {
        let tickets = receipt.settlements().iter();
        let mut tickets = tickets
            .map(|settlement| settlement.charge().ticket())
            .filter(|ticket| *ticket != 0)
            .peekable();
        if tickets.peek().is_none() {
            return;
        }
        let mut held = self.held.lock();
        for ticket in tickets {
            held.charges.remove(&ticket);
        }
    }

    fn settle(self: &Arc<Self>, receipt: Receipt) {
        match self.store.settle(receipt).now_or_later() {
            Ok(settled) => self.note(&settled, "settled, so its charges stand"),
            Err(answer) => {
                let keeper = Arc::clone(self);
                task::spawn(async move {
                    keeper.note(&answer.await, "settled, so its charges stand");
                });
            }
        }
    }

    /// Renews until nothing is held: a third of a lease passes between two renewals, so two may fail.
    async fn renew(self: Arc<Self>, task: u64, mut period: Duration) {
        loop {
            sleep(period).await;
            let charges: Vec<OwnedCharge> = {
                let mut held = self.held.lock();
                if held.task != task {
                    return;
                }
                if held.charges.is_empty() {
                    held.next = Timestamp::default();
                    return;
                }
                period = third(held.charges.values());
                held.next = Clock::system().now() + period;
                held.charges.values().cloned().collect()
            };
            for some in charges.chunks(BATCH) {
                let some: SmallVec<[Charge<'_>; BATCH]> =
                    some.iter().map(OwnedCharge::borrow).collect();
                let renewed = self.store.renew(&some).await;
                self.note(&renewed, "renewed, so its slots may be given to others");
            }
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

/// A third of the shortest lease.
fn third<'a>(charges: impl Iterator<Item = &'a OwnedCharge>) -> Duration {
    let lease = |charge: &OwnedCharge| match charge.borrow().policy().counter() {
        Counter::Slots(slots) => Some(slots.lease()),
        _ => None,
    };
    let shortest = charges.filter_map(lease).min();
    shortest.unwrap_or(Duration::from_secs(1)) / 3
}

/// How many are renewed at once.
const BATCH: usize = 64;
