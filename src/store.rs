//! The [`Store`] trait: implement it to keep counts elsewhere.

use std::{
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
};

pub use crate::{
    charge::{Charge, OwnedCharge},
    settlement::{Correction, Receipt, Settlement},
    ticket::Ticket,
};

/// A place that keeps counts and decides on them.
///
/// # Contract
///
/// - A decision is all or nothing: when one charge is denied, none is made.
/// - A decision never admits more than its policies do, whoever else uses the store at the same time.
/// - An answer comes within a time that the store states. A store that cannot decide by then returns an error.
/// - Charges of one call are distinct: no two share policy and key. [`RateLimiter`](crate::RateLimiter) sees to it.
///
/// Only `decide` and `reset` are required. Add `settle` for refunds, `hold` and `renew` for concurrency, `probe` and
/// `observe_calls` for a breaker. A [`ResilientStore`](crate::resilience::ResilientStore) around a remote store gives it a
/// deadline, a breaker and a local fallback.
pub trait Store: Debug + Send + Sync + 'static {
    /// Decides the charges together. A cost of 0 is always admitted and never writes.
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision>;

    /// Decides the charges together, and passes the result through `fallback`.
    ///
    /// By default this wraps the answer of [`decide`](Self::decide). A store whose answers come later can implement it to
    /// spare an allocation per decision.
    fn decide_with(
        &self,
        charges: &[Charge<'_>],
        fallback: Arc<dyn Fallback>,
    ) -> StoreFuture<Decision> {
        match self.decide(charges).into_later() {
            Ok(result) => {
                StoreFuture::ready(fallback.complete(result, &mut charges.iter().copied()))
            }
            Err(later) => {
                let charges: SmallVec<[OwnedCharge; 1]> =
                    charges.iter().map(Charge::to_owned).collect();
                StoreFuture::later(async move {
                    let result = later.await;
                    fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
                })
            }
        }
    }

    /// Forgets what `key` has used of `policy`: it starts afresh.
    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()>;

    /// Puts charges right that were made by this store, each by itself.
    ///
    /// # Errors
    ///
    /// The store's own; by default it cannot settle at all. Kinds that mean that it was surely not done are tried
    /// again: [`Overloaded`](ErrorKind::Overloaded), [`Unavailable`](ErrorKind::Unavailable), and a timeout before it was
    /// sent.
    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        drop(receipt);
        StoreFuture::ready(Err(Error::new(
            ErrorKind::InvalidConfig,
            "this store cannot settle: charges stand as they were made",
        )))
    }

    /// Notes that what was charged is held until it is settled: by this process, and for as long as that lives.
    ///
    /// A store in process need not take its slots back then when their lease ends. By default nothing is done; a store
    /// around another passes it on.
    fn hold(&self, receipt: &Receipt) {
        let _ = receipt;
    }

    /// Lets the leases of slots that charges took begin anew. A store without leases need not do anything.
    ///
    /// # Errors
    ///
    /// What the store could not do; the caller tries again before the leases end.
    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let _ = charges;
        StoreFuture::ready(Ok(()))
    }

    /// Makes sure that the store could decide now. A store that is always there need not say more.
    fn probe(&self) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    /// Reports every call that the store makes to its server from now on, so that a breaker can judge the server by them.
    ///
    /// Returns `false`, the default, when the store does not report calls. Each decision is then judged as a call. A store
    /// that returns `true` must report every call: its decisions are not judged.
    fn observe_calls(&self, observer: Weak<dyn CallObserver>) -> bool {
        drop(observer);
        false
    }

    /// What looked wrong about the set-up so far. A store around another passes it on.
    fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }

    /// Returns the condition of the store. By default it is in use and never failed.
    fn health(&self) -> Health {
        Health::default()
    }
}

// === Fallback ===

/// Decides when a store cannot.
pub trait Fallback: Send + Sync {
    /// Returns the decision for the caller: the store's own, or another one instead of an error.
    ///
    /// # Errors
    ///
    /// The store's own, if nothing else can decide either.
    fn complete(
        &self,
        result: Result<Decision, Error>,
        charges: &mut dyn Iterator<Item = Charge<'_>>,
    ) -> Result<Decision, Error>;
}

// === CallObserver ===

/// Receives a report on each call that a store makes to its server. A call may carry many decisions.
pub trait CallObserver: Debug + Send + Sync {
    /// Reports a call that ended. Not called with a lock held that a decision needs.
    fn call_ended(&self, call: CallReport<'_>);
}

/// How one call to a server ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CallReport<'a> {
    /// The server replied and was able to decide.
    #[non_exhaustive]
    Answered {
        /// What the server and the network took: no wait in this process is included.
        took: Duration,
    },
    /// There was no connection to send decisions over, no reply before the deadline, or a reply that says that the server
    /// cannot decide. What was [shed](ErrorKind::Overloaded) is not a call.
    #[non_exhaustive]
    Failed {
        /// The cause.
        error: &'a Error,
    },
}

impl<'a> CallReport<'a> {
    /// A call that the server answered, in this time.
    #[must_use]
    pub fn answered(took: Duration) -> Self {
        Self::Answered { took }
    }

    /// A call that failed.
    #[must_use]
    pub fn failed(error: &'a Error) -> Self {
        Self::Failed { error }
    }
}

// === Answer ===

/// An answer that is there at once, or comes later.
///
/// The in-process store answers at once: no allocation and no await. Dropping an answer that is under way does not
/// take the charge back.
#[must_use = "an answer that nobody awaits may never be given"]
pub struct StoreFuture<T> {
    state: State<T>,
}

enum State<T> {
    Ready(Option<Result<T, Error>>),
    Later(Later<T>),
}

impl<T> StoreFuture<T> {
    /// An answer that is known.
    #[inline]
    pub fn ready(result: Result<T, Error>) -> Self {
        Self {
            state: State::Ready(Some(result)),
        }
    }

    /// An answer that comes.
    pub fn later(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self {
            state: State::Later(Box::pin(future)),
        }
    }

    /// The answer when it is already known, else the future to await.
    ///
    /// # Errors
    ///
    /// The answer itself, unchanged, when it is not known yet.
    #[inline]
    pub fn try_ready(self) -> Result<Result<T, Error>, Self> {
        match self.state {
            State::Ready(Some(result)) => Ok(result),
            state => Err(Self { state }),
        }
    }

    /// As [`try_ready`](Self::try_ready), with the bare future.
    #[inline]
    pub(crate) fn into_later(self) -> Result<Result<T, Error>, Later<T>> {
        match self.state {
            State::Ready(result) => Ok(result.expect(UNTAKEN)),
            State::Later(future) => Err(future),
        }
    }
}

impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            State::Ready(result) => Poll::Ready(result.take().expect(UNTAKEN)),
            State::Later(future) => future.as_mut().poll(context),
        }
    }
}

impl<T> Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            State::Ready(_) => "StoreFuture(ready)",
            State::Later(_) => "StoreFuture(later)",
        })
    }
}

/// The future of an answer that is not known yet.
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

const UNTAKEN: &str = "an answer is polled until it is ready, once";

// === Health ===

/// The condition of a store: whether it is in use, and the decisions that were made without it.
///
/// # Examples
///
/// ```
/// use tollgate::{Policy, Quota, RateLimitLayer, extract::PeerIp};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("ip", Quota::per_minute(100)).key(PeerIp))
///     .build()?;
/// let health = layer.health();
/// if let Some(cause) = health.cause() {
///     eprintln!("degraded since {:?}: {cause}", health.since());
/// }
/// assert_eq!(health.fallback_decisions(), 0);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Health {
    outage: Option<Outage>,
    fallback_decisions: u64,
    shed_decisions: u64,
}

#[derive(Clone, Debug)]
struct Outage {
    since: Timestamp,
    cause: Error,
}

impl Health {
    /// Returns whether the shared store is in an outage: no request asks it, and each policy does what its
    /// [`OnOutage`](crate::OnOutage) says.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.outage.is_some()
    }

    /// Returns the time at which the outage began; `None` while the store is in use.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        self.outage.as_ref().map(|outage| outage.since)
    }

    /// Returns the latest cause of the outage; `None` while the store is in use.
    ///
    /// A probe that fails for another reason than the calls before it replaces the cause.
    #[must_use]
    pub fn cause(&self) -> Option<&Error> {
        self.outage.as_ref().map(|outage| &outage.cause)
    }

    /// Returns the number of decisions made without the shared store because it failed, single failures included.
    #[must_use]
    pub fn fallback_decisions(&self) -> u64 {
        self.fallback_decisions
    }

    /// Returns the number of decisions that were not sent to the shared store because they would have come too late
    /// ([`ErrorKind::Overloaded`]).
    #[must_use]
    pub fn shed_decisions(&self) -> u64 {
        self.shed_decisions
    }

    /// The same health during an outage.
    #[cfg(feature = "redis")]
    pub(crate) fn degraded(mut self, since: Timestamp, cause: Error) -> Self {
        self.outage = Some(Outage { since, cause });
        self
    }

    /// The health of a store in use, with these counts.
    #[cfg(feature = "redis")]
    pub(crate) fn counted(fallback_decisions: u64, shed_decisions: u64) -> Self {
        Self {
            outage: None,
            fallback_decisions,
            shed_decisions,
        }
    }
}
