//! Denies blocked keys before the store is asked, and keeps the list of a shared store up to date.
//!
//! ```text
//! age of a shared list        a decision
//! below 400 ms                uses the list
//! from 400 ms                 uses the list, and starts a refresh that nobody waits for
//! from 900 ms                 waits for a refresh, which is sent together with the decision
//! ```
//!
//! So no decision uses a list that is older than a second, and no timer runs: a limiter without decisions sends nothing.
//! While the shared store is unavailable, decisions use the list as it was, and a refresh is tried every 400 ms.
//!
//! A list in process is always up to date. A decision that was sent together with a refresh is refunded if that finds a block. A
//! refresh returns only what has changed (`lua/blocks.lua`), so many blocks cost no more than few.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join;
use smallvec::SmallVec;
use tokio::sync::Mutex as AsyncMutex;

use super::block_wait::{blocked_state, with_waits};
use crate::{
    block::BlockList,
    charge::{Charge, Charges, OwnedCharge, Receipt},
    clock::{Clock, Timestamp},
    decision::{CountedBy, Decision, Outcome, PolicyState, Retry},
    diagnosis::{ErrorChain, log},
    error::Error,
    key::Key,
    policy::{Penalty, Policy},
    store::{Store, StoreFuture, TimeLeft},
    task::{Mutex, home, timer::timeout},
};

/// Future of a list of blocks that is brought up to date.
pub(crate) type BlockRefresh = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Decides in a store, unless a key is blocked.
pub(crate) struct BlockCheck {
    /// Stays empty if the store cannot block keys.
    pub list: Arc<BlockList>,
    refresher: Arc<Refresher>,
    settle: Settle,
}

/// Settles a receipt, and retries releases that are not confirmed.
pub(crate) type Settle = Arc<dyn Fn(Receipt) -> StoreFuture<()> + Send + Sync>;

impl BlockCheck {
    pub fn new(store: Arc<dyn Store>, settle: Settle) -> Self {
        let list = store.blocks();
        Self {
            list: list.unwrap_or_else(|| Arc::new(BlockList::new(Clock::system()))),
            refresher: Arc::new(Refresher::new(store)),
            settle,
        }
    }

    /// Returns whether a key may be blocked. Otherwise the store can be asked directly.
    #[inline]
    pub fn is_needed(&self) -> bool {
        self.list.is_needed()
    }

    /// Returns whether a key is blocked under a policy, as far as this instance knows. An old list is refreshed in the
    /// background.
    #[cold]
    pub fn is_blocked(&self, policy: &Policy, key: &Key) -> bool {
        if self.list.is_shared() && self.refresher.age() != Age::Fresh {
            self.refresher.refresh_later();
        }
        self.list.blocked_until(policy, key).is_some()
    }

    /// Returns whether the list is too old to be used.
    #[cold]
    pub fn is_old(&self) -> bool {
        self.list.is_shared() && self.refresher.age() == Age::Stale
    }

    /// Brings the list up to date, unless the store cannot be reached.
    pub async fn refresh(&self) {
        if self.list.is_shared() && self.refresher.age() != Age::Fresh {
            let time = TimeLeft::of_request(self.refresher.store.deadline());
            self.refresher.refresh_in_time(time).await;
        }
    }

    /// Decides the charges together. A blocked key is denied, and then nothing is charged.
    pub fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let list = &self.list;
        if list.is_shared() {
            match self.refresher.age() {
                Age::Fresh => {}
                Age::Due => self.refresher.refresh_later(),
                Age::Stale => return self.decide_refreshed(charges),
            }
        }
        let blocks = Blocks::of(list, charges);
        if blocks.deny(charges) {
            let store = &self.refresher.store;
            return denied(
                &blocks,
                charges,
                (list, store),
                TimeLeft::of_request(store.deadline()),
            );
        }
        if blocks.is_empty() {
            return self.refresher.store.decide(charges);
        }
        let decided = self.refresher.store.decide(&blocks.as_peeks(charges));
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        decided.map(move |result| {
            let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
            result.map(|decision| blocks.shown_in(decision, &charges))
        })
    }

    /// Decides while the list is brought up to date.
    #[cold]
    fn decide_refreshed(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        let (list, refresher) = (Arc::clone(&self.list), Arc::clone(&self.refresher));
        let settle = Arc::clone(&self.settle);
        let time = TimeLeft::of_request(refresher.store.deadline());
        StoreFuture::boxed(async move {
            let time = time.restarted();
            let was_blocked = {
                let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                Blocks::of(&list, &charges).deny(&charges)
            };
            if was_blocked {
                refresher.refresh_in_time(time).await;
            }
            let (deciding, known) = {
                let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                let blocks = Blocks::of(&list, &charges);
                if blocks.deny(&charges) {
                    (
                        Err(denied(&blocks, &charges, (&list, &refresher.store), time)),
                        blocks,
                    )
                } else {
                    let asked = blocks.as_peeks(&charges);
                    (Ok(time.ask(|| refresher.store.decide(&asked))), blocks)
                }
            };
            let deciding = match deciding {
                Ok(deciding) => deciding,
                Err(denied) => return denied.await,
            };
            let deciding = async {
                let decision = deciding.await?;
                let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                let slots = UnclaimedSlots::of(&known.as_peeks(&charges), &decision, &settle);
                Ok((decision, slots))
            };
            let refreshing = refresher.refresh_in_time(time);
            let (result, ()) = join(deciding, refreshing).await;
            let (decision, slots) = result?;
            slots.claim();
            let (decision, blocks, receipt) = {
                let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                known.renewed(&list, &charges, decision)
            };
            // A refund that fails leaves the blocked key with less quota.
            if let Some(receipt) = receipt {
                let refunding = settle(receipt.actual_cost(|_, _| 0));
                let _ = time.limit(refunding).await;
            }
            let denied = match decision {
                Some(decision) => return Ok(decision),
                None => {
                    let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                    denied(&blocks, &charges, (&list, &refresher.store), time)
                }
            };
            denied.await
        })
    }
}

/// Leaves out the blocked keys, which would make the `Debug` of a limiter long, and which must not be logged.
impl fmt::Debug for BlockCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCheck").finish_non_exhaustive()
    }
}

// === Blocks ===

/// When the block of each charge ends, for charges that are blocked.
#[derive(Debug, Default)]
struct Blocks(SmallVec<[(usize, Timestamp); 2]>);

impl Blocks {
    /// Returns the blocks of these charges. A peek is never blocked.
    fn of(list: &BlockList, charges: &[Charge<'_>]) -> Self {
        let charges = charges.iter().enumerate();
        let charges = charges.filter(|(_, charge)| charge.units() > 0);
        let blocked = charges.filter_map(|(index, charge)| {
            let until = list.blocked_until(charge.policy(), charge.key())?;
            Some((index, until))
        });
        Self(blocked.collect())
    }

    /// Returns a decision made under these blocks as the present ones allow it, if they do; the present ones, and the charges of
    /// the decision that they deny.
    fn renewed(
        &self,
        list: &BlockList,
        charges: &[Charge<'_>],
        decision: Decision,
    ) -> (Option<Decision>, Self, Option<Receipt>) {
        let (asked, present) = (self.as_peeks(charges), Self::of(list, charges));
        if present.deny(charges) {
            let receipt = Receipt::of(&asked, &decision);
            return (None, present, receipt);
        }
        // The charges in shadow whose block was found meanwhile.
        let receipt = Receipt::of(&present.alone(&asked), &decision);
        let decision = present.shown_in(decision, charges);
        (Some(self.shown_in(decision, charges)), present, receipt)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a charge that is not in shadow is blocked.
    fn deny(&self, charges: &[Charge<'_>]) -> bool {
        self.0.iter().any(|(index, _)| !charges[*index].is_shadow())
    }

    /// Returns the charges with peeks in place of those that are blocked. A blocked key in shadow is charged nothing, and so
    /// takes no slot that nobody would release.
    fn as_peeks<'a>(&self, charges: &[Charge<'a>]) -> Charges<'a> {
        let mut charges: Charges<'a> = charges.iter().copied().collect();
        for (index, _) in &self.0 {
            charges[*index] = charges[*index].cost(0);
        }
        charges
    }

    /// Returns the charges, with peeks in place of all charges whose key is not blocked.
    fn alone<'a>(&self, charges: &[Charge<'a>]) -> Charges<'a> {
        let is_blocked = |index| self.0.iter().any(|(blocked, _)| *blocked == index);
        let charges = charges.iter().enumerate();
        let charges = charges.map(|(index, charge)| {
            if is_blocked(index) {
                *charge
            } else {
                charge.cost(0)
            }
        });
        charges.collect()
    }

    /// Returns the decision that denies the request. Policies whose key is not blocked are not counted.
    #[cold]
    fn denial(&self, charges: &[Charge<'_>], list: &BlockList) -> Decision {
        let states = charges.iter().enumerate().map(|(index, charge)| {
            let block = self.0.iter().find(|(blocked, _)| *blocked == index);
            match block {
                Some((_, until)) => blocked_state(charge, *until, Retry::At(*until)),
                None => PolicyState::uncounted(*charge.policy().name(), Outcome::Allowed)
                    .with_shadow(charge.is_shadow()),
            }
        });
        let counted_by = if list.is_shared() {
            CountedBy::Shared
        } else {
            CountedBy::InProcess
        };
        Decision::new(counted_by, list.clock().now(), states).timed_by(list.clock())
    }

    /// Returns whether the blocks that deny the request last until every quota is back, and every ban has ended, if the
    /// keys were last charged in the same tier and settled within the limit.
    fn outlast_all(&self, charges: &[Charge<'_>], now: Timestamp) -> bool {
        let denying = self
            .0
            .iter()
            .filter(|(index, _)| !charges[*index].is_shadow());
        let left = denying.map(|(_, until)| until.since(now)).max();
        let mut others = charges.iter().filter(|charge| !charge.is_shadow());
        others.all(|charge| {
            let penalty = charge.policy().ban_penalty();
            let ban = penalty.map_or(Duration::ZERO, Penalty::longest_ban);
            left >= Some(ban.max(charge.policy().counter().longest_recovery()))
        })
    }

    /// Returns the decision with the blocks of charges in shadow.
    fn shown_in(&self, mut decision: Decision, charges: &[Charge<'_>]) -> Decision {
        for (index, until) in &self.0 {
            let state = blocked_state(&charges[*index], *until, Retry::At(*until));
            decision.replace_state(*index, state);
        }
        decision
    }
}

/// Denies a request whose keys are blocked, with the longest wait of its policies that can be known in this time.
///
/// A shared store is only asked if a quota may still be used up when the blocks end, so that a blocked client that keeps
/// sending costs it nothing.
#[cold]
fn denied(
    blocks: &Blocks,
    charges: &[Charge<'_>],
    (list, store): (&BlockList, &Arc<dyn Store>),
    time: TimeLeft,
) -> StoreFuture<Decision> {
    let denial = blocks.denial(charges, list);
    if list.is_shared() && blocks.outlast_all(charges, denial.decided_at()) {
        return StoreFuture::ready(Ok(denial));
    }
    let charges = charges.iter().map(Charge::to_owned).collect();
    let store = Arc::clone(store);
    StoreFuture::polled(async move { Ok(with_waits(denial, charges, &*store, time).await) })
}

// === UnclaimedSlots ===

/// Slots of a decision whose caller still waits for the list. If the caller leaves, they are released.
struct UnclaimedSlots {
    receipt: Option<Receipt>,
    settle: Settle,
}

impl UnclaimedSlots {
    /// Returns the slots that a decision took, if it took any.
    fn of(charges: &[Charge<'_>], decision: &Decision, settle: &Settle) -> Self {
        let mut taking = charges.iter().filter(|charge| charge.units() > 0);
        let takes_slots = taking.any(|charge| charge.policy().is_concurrency());
        Self {
            receipt: Receipt::of(charges, decision).filter(|_| takes_slots),
            settle: Arc::clone(settle),
        }
    }

    /// Leaves the slots to the caller.
    fn claim(mut self) {
        self.receipt = None;
    }
}

impl Drop for UnclaimedSlots {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            let settled = (self.settle)(receipt.actual_cost(|_, _| 0));
            home::spawn_lasting(Box::pin(settled));
        }
    }
}

// === Refresher ===

/// Refreshes the list of a shared store, one call at a time.
#[derive(Debug)]
struct Refresher {
    store: Arc<dyn Store>,
    /// When the latest refresh began that succeeded, in microseconds since the Unix epoch.
    refreshed_at: AtomicU64,
    /// When the next one is due.
    due_at: AtomicU64,
    /// The turn to refresh. Replaced if whoever has it does not come to an end.
    turn: Mutex<Arc<AsyncMutex<()>>>,
    has_warned: AtomicBool,
}

/// How old a list is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    /// It can be used.
    Fresh,
    /// It can be used, but should be refreshed.
    Due,
    /// It must be refreshed first.
    Stale,
}

impl Refresher {
    fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            refreshed_at: AtomicU64::new(0),
            due_at: AtomicU64::new(0),
            turn: Mutex::default(),
            has_warned: AtomicBool::new(false),
        }
    }

    #[inline]
    fn age(&self) -> Age {
        let now = Clock::system().now();
        let time = |at: &AtomicU64| Timestamp::from_micros(at.load(Ordering::Relaxed));
        if now < time(&self.due_at) {
            Age::Fresh
        } else if now < time(&self.refreshed_at) + STALE {
            Age::Due
        } else {
            Age::Stale
        }
    }

    /// Starts a refresh in the background, unless one is running.
    fn refresh_later(self: &Arc<Self>) {
        if self.turn().try_lock().is_ok() {
            let refresher = Arc::clone(self);
            home::spawn(async move { refresher.refresh().await });
        }
    }

    /// Refreshes the list, within the time that is left of the deadline of the store.
    async fn refresh_in_time(&self, time: TimeLeft) {
        let left = time.left().unwrap_or(MAX_WAIT);
        if timeout(left, self.refresh()).await.is_none() {
            // The runtime of another caller may have the turn, and not be driven.
            *self.turn.lock() = Arc::default();
            self.try_again_later();
        }
    }

    /// Refreshes the list, unless another caller did so meanwhile.
    async fn refresh(&self) {
        let turn = self.turn();
        let _turn = turn.lock().await;
        if self.age() == Age::Fresh {
            return;
        }
        let began_at = Clock::system().now();
        match self.store.refresh_blocks().await {
            Ok(()) => {
                let due_at = began_at + INTERVAL;
                self.refreshed_at
                    .store(began_at.as_micros(), Ordering::Relaxed);
                self.due_at.store(due_at.as_micros(), Ordering::Relaxed);
            }
            Err(error) => {
                self.try_again_later();
                self.warn_once(&error);
            }
        }
    }

    fn turn(&self) -> Arc<AsyncMutex<()>> {
        Arc::clone(&self.turn.lock())
    }

    fn try_again_later(&self) {
        let due_at = Clock::system().now() + INTERVAL;
        self.due_at.store(due_at.as_micros(), Ordering::Relaxed);
    }

    /// Logs the first error that does not pass. Outages are logged by the breaker.
    fn warn_once(&self, error: &Error) {
        if !error.is_transient() && !self.has_warned.swap(true, Ordering::Relaxed) {
            log::event!(
                WARN,
                "blocks of other instances are not seen",
                error = ErrorChain(error),
            );
        }
    }
}

/// The least time between two refreshes.
const INTERVAL: Duration = Duration::from_millis(400);
/// The age from which a list must be refreshed. Less than a second, so that the decision itself has time.
const STALE: Duration = Duration::from_millis(900);
/// How long a decision waits for a refresh by a store that states no deadline.
const MAX_WAIT: Duration = Duration::from_millis(50);
