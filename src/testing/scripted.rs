//! A store for tests.

use std::{
    fmt::{self, Debug},
    future::{self, Future},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    sync::{mpsc, oneshot},
    task,
};

use super::{future::StoreFuture, store::Store};
use crate::{
    charge::{Charge, OwnedCharge},
    decision::Decision,
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
};

/// A store whose decisions your test determines. It fails, denies or waits when a real store would not.
///
/// Clones share the number of [`calls`](Self::calls), and the decisions that wait.
///
/// # Examples
///
/// See what your service does while its store is down:
///
/// ```
/// use tollgate::{ErrorKind, Key, Policy, Quota, RateLimiter, store::ScriptedStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let store = ScriptedStore::failing(ErrorKind::Unavailable, "down");
/// let limiter = RateLimiter::new(store.clone(), [])?;
/// let policy = Policy::new("api", Quota::per_minute(10));
/// let decision = limiter.check(&[policy.charge(Key::new("ada"))]).await;
/// assert_eq!(decision.expect_err("it is down").kind(), ErrorKind::Unavailable);
/// assert_eq!(store.calls(), 1);
/// # Ok(())
/// # }
/// ```
///
/// See what your service does while a decision takes its time:
///
/// ```
/// use tollgate::{ErrorKind, Key, Policy, Quota, store::{ScriptedStore, Store}};
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
    script: Arc<DecideFn>,
    calls: Arc<AtomicUsize>,
    inner: Option<Arc<dyn Store>>,
    is_late: bool,
    waiting: Arc<Mutex<mpsc::UnboundedReceiver<PendingDecision>>>,
}

type DecideFn = dyn Fn(&[Charge<'_>]) -> StoreFuture<Decision> + Send + Sync;

impl ScriptedStore {
    /// Creates a store that decides by a closure. It cannot settle, and resets nothing.
    pub fn new(
        script: impl Fn(&[Charge<'_>]) -> StoreFuture<Decision> + Send + Sync + 'static,
    ) -> Self {
        Self::with(script, None, mpsc::unbounded_channel().1)
    }

    /// Creates a store whose decisions all fail.
    #[must_use]
    pub fn failing(kind: ErrorKind, message: &'static str) -> Self {
        Self::new(move |_| StoreFuture::ready(Err(Error::new(kind, message))))
    }

    /// Creates a store that does what another one does, for example [`later`](Self::later).
    pub fn over(store: impl Store) -> Self {
        let inner: Arc<dyn Store> = Arc::new(store);
        let deciding = Arc::clone(&inner);
        let script = move |charges: &[Charge<'_>]| deciding.decide(charges);
        Self::with(script, Some(inner), mpsc::unbounded_channel().1)
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
        Self::with(script, None, waiting)
    }

    fn with(
        script: impl Fn(&[Charge<'_>]) -> StoreFuture<Decision> + Send + Sync + 'static,
        inner: Option<Arc<dyn Store>>,
        waiting: mpsc::UnboundedReceiver<PendingDecision>,
    ) -> Self {
        Self {
            script: Arc::new(script),
            calls: Arc::default(),
            inner,
            is_late: false,
            waiting: Arc::new(Mutex::new(waiting)),
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

    /// Returns the number of decisions that the store was asked for.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Waits for the next decision of a [`pending`](Self::pending) store. Never completes for other stores.
    pub fn next_pending(&self) -> impl Future<Output = PendingDecision> + use<> {
        let waiting = Arc::clone(&self.waiting);
        async move {
            let next = future::poll_fn(|context| {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.poll_recv(context)
            });
            match next.await {
                Some(decision) => decision,
                None => future::pending().await,
            }
        }
    }
}

impl Store for ScriptedStore {
    fn inner(&self) -> Option<&dyn Store> {
        self.inner.as_deref()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let decision = (self.script)(charges);
        if !self.is_late {
            return decision;
        }
        StoreFuture::boxed(async {
            task::yield_now().await;
            decision.await
        })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        match &self.inner {
            Some(inner) => inner.reset(policy, key),
            None => StoreFuture::ready(Ok(())),
        }
    }
}

impl Debug for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedStore")
            .field("calls", &self.calls())
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

// === PendingDecision ===

/// A decision that waits for your test. If you drop this value, the decision stays pending.
#[derive(Debug)]
pub struct PendingDecision {
    charges: Vec<OwnedCharge>,
    result: oneshot::Sender<Result<Decision, Error>>,
}

impl PendingDecision {
    /// Completes the decision with what `decide` returns for its charges.
    pub fn complete(self, decide: impl FnOnce(&[Charge<'_>]) -> Result<Decision, Error>) {
        let charges: Vec<Charge<'_>> = self.charges.iter().map(OwnedCharge::borrow).collect();
        // The caller may have left.
        let _ = self.result.send(decide(&charges));
    }

    /// Returns whether the caller dropped the decision.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.result.is_closed()
    }

    /// Waits until the caller drops the decision.
    pub async fn abandoned(&mut self) {
        self.result.closed().await;
    }
}
