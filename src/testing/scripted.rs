//! A store for tests.

use std::{
    fmt::{self, Debug},
    future::{self, Future},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    task,
    time::sleep,
};

use crate::{
    algorithm::{MicroRate, RateReport},
    block::BlockChange,
    charge::{Charge, OwnedCharge, Receipt},
    clock::{Clock, Timestamp},
    decision::{CountedBy, Decision},
    error::{Error, ErrorKind},
    key::Key,
    memory::MemoryStore,
    policy::{BanRecord, Policy},
    store::{Store, StoreFuture},
    task::Mutex,
};

#[cfg(feature = "redis")]
use super::breakers::{BreakerSide, Breakers};
use super::{
    answer::{Answer, allowed, denied},
    asked::AskedCharge,
    pending::PendingDecision,
};
#[cfg(feature = "redis")]
use crate::error::Phase;
#[cfg(feature = "redis")]
use tokio::time::timeout;

/// A store whose decisions your test determines. It fails, denies or waits when a real store would not.
///
/// [`counting`](Self::counting) stands in for Redis: it counts, and fails when the test wants it to. A test switches the store
/// while it runs, and clones share the switch and the record of what they were [asked](Self::asked). A decision follows the
/// switch as it was when the store was asked.
///
/// | switch | decisions | other operations, such as settlements and probes |
/// |---|---|---|
/// | [`allow`](Self::allow), [`deny`](Self::deny) | allowed, or denied with a wait | made |
/// | [`fail`](Self::fail) | errors of a kind | errors |
/// | [`hang`](Self::hang) | none | none |
/// | [`refuse_writes`](Self::refuse_writes) | errors, but for peeks | errors, but for reads |
/// | [`slow_down`](Self::slow_down) | later | later |
/// | [`recover`](Self::recover) | as at first | made |
///
/// # Examples
///
/// See what your service does while its store is down. With the feature `redis`,
/// [`behind_breaker`](Self::behind_breaker) adds the [`OnOutage`](crate::OnOutage) choices.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{ErrorKind, Key, Policy, Quota, RateLimiter, testing::ScriptedStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let store = ScriptedStore::allowing();
/// let limiter = RateLimiter::new(store.clone(), [])?;
/// let policy = Policy::new("api", Quota::per_minute(10));
/// let charge = policy.charge(Key::new("ada"));
/// assert!(limiter.check(&[charge]).await?.is_allowed());
/// store.deny(Duration::from_secs(3));
/// assert_eq!(limiter.check(&[charge]).await?.retry_after(), Some(Duration::from_secs(3)));
/// store.fail(ErrorKind::Unavailable);
/// assert_eq!(limiter.check(&[charge]).await.expect_err("it is down").kind(), ErrorKind::Unavailable);
/// assert_eq!(store.calls(), 3);
/// # Ok(())
/// # }
/// ```
///
/// See what your service does while a decision takes its time:
///
/// ```
/// use tollgate::{ErrorKind, Key, Policy, Quota, store::Store, testing::ScriptedStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = ScriptedStore::pending();
/// let policy = Policy::new("api", Quota::per_minute(10));
/// let decision = store.decide(&[policy.charge(Key::new("ada"))]);
///
/// let pending = store.next_pending().await;
/// assert!(!pending.is_abandoned());
/// pending.complete(|_| Err(tollgate::Error::new(ErrorKind::Overloaded, "late")));
/// assert_eq!(decision.await.expect_err("it failed").kind(), ErrorKind::Overloaded);
/// # }
/// ```
#[derive(Clone)]
pub struct ScriptedStore {
    pub(super) shared: Arc<Shared>,
    is_late: bool,
    #[cfg(feature = "redis")]
    pub(super) breaker_side: Option<BreakerSide>,
}

pub(super) struct Shared {
    original: Answer,
    inner: Option<Arc<dyn Store>>,
    /// The same as `inner`, if this store stands in for a server.
    pub(super) counts: Option<MemoryStore>,
    pub(super) clock: Clock,
    state: Mutex<State>,
    waiting: Mutex<mpsc::UnboundedReceiver<PendingDecision>>,
    #[cfg(feature = "redis")]
    pub(super) breakers: Breakers,
}

struct State {
    answer: Answer,
    delay: Duration,
    asked: Vec<Vec<AskedCharge>>,
}

impl ScriptedStore {
    /// Creates a store that decides by a closure. It cannot settle, and resets nothing.
    pub fn new(
        script: impl Fn(&[Charge<'_>]) -> StoreFuture<Decision> + Send + Sync + 'static,
    ) -> Self {
        Self::with(Answer::Script(Arc::new(script)), None, None)
    }

    /// Creates a store that allows everything, and counts nothing.
    #[must_use]
    pub fn allowing() -> Self {
        Self::over_counts(|_| Answer::Allow)
    }

    /// Creates a store that counts like Redis, in this process.
    ///
    /// Within a Tokio runtime it counts by [`Clock::tokio`], so that paused time moves the limits. Elsewhere it counts by
    /// [`Clock::system`].
    #[must_use]
    pub fn counting() -> Self {
        Self::over_counts(|counts| {
            Answer::Script(Arc::new(move |charges| {
                let decided = counts.decide(charges);
                decided.map(|decision| Ok(decision?.counted_in(CountedBy::Shared)))
            }))
        })
    }

    /// Creates a store that denies all charges but peeks, with this wait.
    #[must_use]
    pub fn denying(wait: Duration) -> Self {
        Self::over_counts(|_| Answer::Deny(wait))
    }

    /// Creates a store whose operations all fail.
    #[must_use]
    pub fn failing(kind: ErrorKind, message: &'static str) -> Self {
        Self::with(Answer::Fail(Error::new(kind, message)), None, None)
    }

    /// Creates a store that does what another one does, for example [`later`](Self::later).
    pub fn over(store: impl Store) -> Self {
        let inner: Arc<dyn Store> = Arc::new(store);
        let deciding = Arc::clone(&inner);
        let script = move |charges: &[Charge<'_>]| deciding.decide(charges);
        Self::with(Answer::Script(Arc::new(script)), Some(inner), None)
    }

    /// Creates a store whose decisions wait until you [complete](PendingDecision::complete) them.
    #[must_use]
    pub fn pending() -> Self {
        let (sender, waiting) = mpsc::unbounded_channel();
        let script = move |charges: &[Charge<'_>]| {
            let (result, completed) = oneshot::channel();
            let charges = charges.iter().map(Charge::to_owned).collect();
            // The receiver lives as long as the store.
            let _ = sender.send(PendingDecision { charges, result });
            StoreFuture::boxed(async {
                match completed.await {
                    Ok(result) => result,
                    Err(_) => future::pending().await,
                }
            })
        };
        Self::with(Answer::Script(Arc::new(script)), None, Some(waiting))
    }

    fn over_counts(answer: impl FnOnce(MemoryStore) -> Answer) -> Self {
        let clock = Clock::of_runtime().unwrap_or_default();
        let counts = MemoryStore::builder().clock(clock.clone()).build();
        let counts = counts.expect("the default settings are valid");
        let inner: Arc<dyn Store> = Arc::new(counts.clone());
        let mut store = Self::with(answer(counts.clone()), Some(inner), None);
        let shared = Arc::get_mut(&mut store.shared).expect("a new store has no clones");
        (shared.counts, shared.clock) = (Some(counts), clock);
        store
    }

    fn with(
        original: Answer,
        inner: Option<Arc<dyn Store>>,
        waiting: Option<mpsc::UnboundedReceiver<PendingDecision>>,
    ) -> Self {
        let shared = Shared {
            state: Mutex::new(State {
                answer: original.clone(),
                delay: Duration::ZERO,
                asked: Vec::new(),
            }),
            original,
            inner,
            counts: None,
            clock: Clock::of_runtime().unwrap_or_default(),
            waiting: Mutex::new(waiting.unwrap_or_else(|| mpsc::unbounded_channel().1)),
            #[cfg(feature = "redis")]
            breakers: Breakers::default(),
        };
        Self {
            shared: Arc::new(shared),
            is_late: false,
            #[cfg(feature = "redis")]
            breaker_side: None,
        }
    }

    /// Makes each decision pending at the first poll, like a decision that comes over a network.
    ///
    /// Default: a decision is ready when its script is.
    #[must_use]
    pub fn later(mut self) -> Self {
        self.is_late = true;
        self
    }

    // --- Switches ---

    /// Allows everything from now on, and counts nothing.
    pub fn allow(&self) {
        self.switch(Answer::Allow);
    }

    /// Denies all charges but peeks from now on, with this wait.
    pub fn deny(&self, wait: Duration) {
        self.switch(Answer::Deny(wait));
    }

    /// Fails from now on, for example with [`ErrorKind::Connect`] as a server that is down.
    pub fn fail(&self, kind: ErrorKind) {
        let error = Error::new(kind, "the test makes the scripted store fail");
        self.switch(Answer::Fail(error));
    }

    /// Completes no operation from now on, like a server that was stopped. [Behind a breaker](Self::behind_breaker), each operation
    /// ends at the deadline.
    pub fn hang(&self) {
        self.switch(Answer::Hang);
    }

    /// Refuses writes from now on as [`ErrorKind::Unavailable`], like a primary that was demoted. Peeks succeed.
    pub fn refuse_writes(&self) {
        self.switch(Answer::RefuseWrites);
    }

    /// Makes each operation take this long from now on, by the timer of Tokio, which paused time moves.
    ///
    /// Whatever else the store does stays. Zero ends it.
    pub fn slow_down(&self, by: Duration) {
        self.shared.state.lock().delay = by;
    }

    /// Does again what the store did when it was created.
    ///
    /// Each [breaker](Self::behind_breaker) in front of the store closes, as it does within 2 s of the end of a real outage. The
    /// switches [`allow`](Self::allow) and [`deny`](Self::deny) close it too.
    pub fn recover(&self) {
        self.slow_down(Duration::ZERO);
        self.switch(self.shared.original.clone());
    }

    fn switch(&self, answer: Answer) {
        let is_working = answer.is_working();
        self.shared.state.lock().answer = answer;
        #[cfg(feature = "redis")]
        if is_working {
            self.shared.breakers.close();
        }
        #[cfg(not(feature = "redis"))]
        let _ = is_working;
    }

    // --- Record ---

    /// Returns the charges of each decision that the store was asked for, in order. The record grows with each of them.
    #[must_use]
    pub fn asked(&self) -> Vec<Vec<AskedCharge>> {
        self.shared.state.lock().asked.clone()
    }

    /// Returns the number of decisions that the store was asked for.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.shared.state.lock().asked.len()
    }

    /// Waits for the next decision of a [`pending`](Self::pending) store. Never completes for other stores.
    pub fn next_pending(&self) -> impl Future<Output = PendingDecision> + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            let next = future::poll_fn(|context| shared.waiting.lock().poll_recv(context));
            match next.await {
                Some(decision) => decision,
                None => future::pending().await,
            }
        }
    }

    // --- Operations ---

    /// Decides as this answer demands.
    fn decide_by(&self, answer: &Answer, charges: &[OwnedCharge]) -> StoreFuture<Decision> {
        let charges: Vec<Charge<'_>> = charges.iter().map(OwnedCharge::borrow).collect();
        let now = || self.shared.clock.now();
        match answer {
            Answer::Allow => StoreFuture::ready(Ok(allowed(&charges, now()))),
            Answer::Deny(wait) => StoreFuture::ready(Ok(denied(&charges, now(), *wait))),
            Answer::Script(script) => script(&charges),
            // Peeks.
            Answer::RefuseWrites => match &self.shared.original {
                Answer::Script(script) => script(&charges),
                _ => StoreFuture::ready(Ok(allowed(&charges, now()))),
            },
            Answer::Fail(_) | Answer::Hang => unreachable!("it does not decide"),
        }
    }

    /// Runs an operation, unless the store fails or hangs, after its delay.
    pub(super) fn run<T: Send + 'static>(
        &self,
        is_write: bool,
        operation: impl FnOnce(&Self, &Answer) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let (answer, delay) = {
            let state = self.shared.state.lock();
            (state.answer.clone(), state.delay)
        };
        let run = move |store: &Self, answer: &Answer| match answer.failure(is_write) {
            Some(error) => StoreFuture::ready(Err(error)),
            None => operation(store, answer),
        };
        let hangs = matches!(answer, Answer::Hang);
        if !hangs && delay.is_zero() {
            return self.bounded(run(self, &answer));
        }
        let store = self.clone();
        self.bounded(StoreFuture::boxed(async move {
            match hangs {
                true => future::pending().await,
                false => sleep(delay).await,
            }
            run(&store, &answer).await
        }))
    }

    /// Ends an operation at the deadline, and reports it, if there is a breaker in front.
    #[cfg(feature = "redis")]
    fn bounded<T: Send + 'static>(&self, mut running: StoreFuture<T>) -> StoreFuture<T> {
        let Some(BreakerSide { deadline, calls }) = self.breaker_side.clone() else {
            return running;
        };
        let (clock, started) = (self.shared.clock.clone(), self.shared.clock.now());
        if running.as_ready().is_none() {
            running = StoreFuture::boxed(async move {
                let ended = timeout(deadline, running).await;
                ended.unwrap_or_else(|_| {
                    let message = format!("the scripted store took longer than {deadline:?}");
                    let late = Error::new(ErrorKind::Timeout(Phase::Reply), message);
                    // It has counted nothing, so all of the outage can be charged afterwards.
                    Err(late.into_not_executed())
                })
            });
        }
        running.map(move |result| {
            match &result {
                Ok(_) => calls.replied(clock.now().since(started)),
                Err(error) => calls.failed(error),
            }
            result
        })
    }

    #[cfg(not(feature = "redis"))]
    fn bounded<T>(&self, running: StoreFuture<T>) -> StoreFuture<T> {
        running
    }

    /// Runs an operation of the store behind this one, if there is one, and otherwise returns `without`.
    fn pass<T: Send + 'static>(
        &self,
        is_write: bool,
        without: Result<T, Error>,
        operation: impl FnOnce(&dyn Store) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        self.run(is_write, move |store, _| match store.inner() {
            Some(inner) => operation(inner),
            None => StoreFuture::ready(without),
        })
    }
}

impl Store for ScriptedStore {
    fn inner(&self) -> Option<&dyn Store> {
        self.shared.inner.as_deref()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let asked = charges.iter().map(AskedCharge::from).collect();
        self.shared.state.lock().asked.push(asked);
        let is_write = charges.iter().any(|charge| charge.units() > 0);
        let charges: Vec<OwnedCharge> = charges.iter().map(Charge::to_owned).collect();
        let decision = self.run(is_write, move |store, answer| {
            store.decide_by(answer, &charges)
        });
        if !self.is_late {
            return decision;
        }
        StoreFuture::boxed(async {
            task::yield_now().await;
            decision.await
        })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let (policy, key) = (policy.clone(), *key);
        self.pass(true, Ok(()), move |inner| inner.reset(&policy, &key))
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let without = cannot("this store cannot settle: charges stand as they were made");
        self.pass(true, without, move |inner| inner.settle(receipt))
    }

    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let charges: Vec<OwnedCharge> = charges.iter().map(Charge::to_owned).collect();
        self.pass(true, Ok(()), move |inner| {
            let charges: Vec<Charge<'_>> = charges.iter().map(OwnedCharge::borrow).collect();
            inner.renew(&charges)
        })
    }

    fn probe(&self) -> StoreFuture<()> {
        self.pass(true, Ok(()), Store::probe)
    }

    fn pause(&self, charge: &Charge<'_>, length: Duration) -> StoreFuture<()> {
        let (charge, without) = (charge.to_owned(), cannot("this store cannot pause keys"));
        self.pass(true, without, move |inner| {
            inner.pause(&charge.borrow(), length)
        })
    }

    fn paused_until(&self, charge: &Charge<'_>) -> StoreFuture<Option<Timestamp>> {
        let charge = charge.to_owned();
        self.pass(false, Ok(None), move |inner| {
            inner.paused_until(&charge.borrow())
        })
    }

    fn lower(&self, charge: &Charge<'_>, remaining: u64) -> StoreFuture<()> {
        let charge = charge.to_owned();
        let without = cannot("this store cannot lower what is left of a quota");
        self.pass(true, without, move |inner| {
            inner.lower(&charge.borrow(), remaining)
        })
    }

    fn adapt(&self, charge: &Charge<'_>, report: RateReport) -> StoreFuture<MicroRate> {
        let (charge, without) = (charge.to_owned(), cannot("this store cannot adapt rates"));
        self.pass(true, without, move |inner| {
            inner.adapt(&charge.borrow(), report)
        })
    }

    fn ban_record(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanRecord>> {
        let (policy, key) = (policy.clone(), *key);
        self.pass(false, Ok(None), move |inner| {
            inner.ban_record(&policy, &key)
        })
    }

    fn change_block(&self, change: BlockChange) -> StoreFuture<()> {
        let without = cannot("this store cannot block keys");
        self.pass(true, without, move |inner| inner.change_block(change))
    }

    fn refresh_blocks(&self) -> StoreFuture<()> {
        self.pass(false, Ok(()), Store::refresh_blocks)
    }

    fn deadline(&self) -> Option<Duration> {
        #[cfg(feature = "redis")]
        if let Some(side) = &self.breaker_side {
            return Some(side.deadline);
        }
        self.inner()?.deadline()
    }
}

impl Debug for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("ScriptedStore")
            .field("answer", &state.answer)
            .field("calls", &state.asked.len())
            .field("inner", &self.shared.inner)
            .finish_non_exhaustive()
    }
}

fn cannot<T>(message: &'static str) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidConfig, message))
}
