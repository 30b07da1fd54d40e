//! A shared store with a breaker before it and a local one behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::timeout;

use crate::{
    clock::{Clock, Timestamp},
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind, Phase},
    key::Key,
    policy::{Charge, Charges, OwnedCharge, Policy},
    state::CountedBy,
    store::{Answer, Health, Receipt, Store},
    telemetry,
};

use super::{
    breaker::{Breaker, Call},
    chain::Chain,
    outage,
    probe::{self, Prober},
};

/// A store that never leaves a request without a decision. Clones share the breaker.
///
/// See the [module docs](super) for when it gives the shared store up and what it does then. It needs a Tokio runtime.
#[derive(Clone, Debug)]
pub struct ResilientStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) prober: Prober,
    pub(super) clock: Clock,
    pub(super) deadline: Duration,
    /// Whether a second timer would only cost time.
    primary_keeps_deadline: bool,
    primary: Arc<dyn Store>,
    local: Arc<dyn Store>,
    breaker: Breaker,
    /// Decisions made without the primary.
    decisions: AtomicU64,
    /// Whether a foreign value was reported.
    warned: AtomicBool,
    /// Whether the primary ever decided, or it was reported that it does not.
    was_heard: AtomicBool,
}

impl ResilientStore {
    /// Puts a breaker before `primary`, and `local` behind it for the time that `primary` is away.
    ///
    /// The deadline set here cuts `primary` off, whatever deadline it has itself. `local` must answer at once, as
    /// [`MemoryStore`](crate::memory::MemoryStore) does.
    pub fn builder(primary: impl Store, local: impl Store) -> ResilientStoreBuilder {
        ResilientStoreBuilder {
            primary: Arc::new(primary),
            local: Arc::new(local),
            deadline: Duration::from_millis(50),
            primary_keeps_deadline: false,
            clock: Clock::system(),
        }
    }
}

impl Store for ResilientStore {
    fn decide(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        let shared = &self.shared;
        if charges.is_empty() {
            return Answer::ready(Ok(Decision::new(CountedBy::Shared, shared.clock.now(), [])));
        }
        if shared.breaker.is_open() {
            if !shared.prober.is_running() {
                probe::start(shared);
            }
            return Answer::ready(Ok(shared.decide_without(charges)));
        }
        let answer = shared.primary.decide(charges);
        let shared = Arc::clone(shared);
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        Answer::later(async move {
            let asked = Asked::new(shared);
            let result = asked.shared.bounded(answer).await;
            let shared = asked.answered(&result);
            result.or_else(|_| {
                let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
                Ok(shared.decide_without(&charges))
            })
        })
    }

    fn settle(&self, receipt: Receipt) -> Answer<()> {
        let shared = Arc::clone(&self.shared);
        if receipt.counted_by() == CountedBy::Local {
            return shared.local.settle(receipt);
        }
        if shared.breaker.is_open() {
            return Answer::ready(Err(Error::new(
                ErrorKind::Unavailable,
                "the shared store is away: what it charged stands",
            )));
        }
        let answer = shared.primary.settle(receipt);
        Answer::later(async move { shared.bounded(answer).await })
    }

    fn hold(&self, receipt: &Receipt) {
        match receipt.counted_by() {
            CountedBy::Local => self.shared.local.hold(receipt),
            _ => self.shared.primary.hold(receipt),
        }
    }

    fn renew(&self, charges: &[Charge<'_>]) -> Answer<()> {
        if self.shared.breaker.is_open() {
            return Answer::ready(Err(Error::new(
                ErrorKind::Unavailable,
                "the shared store is away: leases run on",
            )));
        }
        let answer = self.shared.primary.renew(charges);
        let shared = Arc::clone(&self.shared);
        Answer::later(async move { shared.bounded(answer).await })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let local = self.shared.local.reset(policy, key);
        if self.shared.breaker.is_open() {
            return Answer::ready(Err(Error::new(
                ErrorKind::Unavailable,
                "the shared store is away: only this process' own count was reset",
            )));
        }
        let primary = self.shared.primary.reset(policy, key);
        let shared = Arc::clone(&self.shared);
        Answer::later(async move {
            local.await?;
            shared.bounded(primary).await
        })
    }

    fn probe(&self) -> Answer<()> {
        self.shared.primary.probe()
    }

    fn warnings(&self) -> Vec<Warning> {
        self.shared.primary.warnings()
    }

    fn health(&self) -> Health {
        match self.shared.breaker.open_since() {
            Some(since) => Health::Degraded {
                since,
                decisions: self.shared.decisions.load(Ordering::Relaxed),
            },
            None => Health::Steady,
        }
    }
}

impl Shared {
    /// Whether a probe succeeds, and as quickly as decisions must.
    pub(super) async fn probes_well(&self) -> bool {
        let asked = self.clock.now();
        let answer = self.bounded(self.primary.probe()).await;
        answer.is_ok() && !self.breaker.is_slow(self.clock.now().since(asked))
    }

    /// Ends an answer that does not keep the deadline.
    async fn bounded<T>(&self, answer: Answer<T>) -> Result<T, Error> {
        if self.primary_keeps_deadline {
            return answer.await;
        }
        match timeout(self.deadline.saturating_add(GRACE), answer).await {
            Ok(result) => result,
            Err(_) => Err(Error::new(
                ErrorKind::Timeout(Phase::Reply),
                format!(
                    "no answer from the shared store within the deadline of {:?}",
                    self.deadline
                ),
            )),
        }
    }

    /// Closes the breaker: the primary decides again.
    pub(super) fn recover(&self) {
        let since = self.breaker.open_since();
        self.breaker.close();
        self.prober.recovered(self.clock.now());
        if let Some(since) = since {
            telemetry::info(format_args!(
                "degraded => steady: the shared store decides again after {:?}",
                self.clock.now().since(since)
            ));
        }
    }

    fn decide_without(&self, charges: &[Charge<'_>]) -> Decision {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        outage::decide(&*self.local, charges, self.clock.now())
    }

    /// Counts a failure, or reports an error that says nothing about the store.
    fn note(self: &Arc<Self>, error: &Error) {
        if error.kind() != ErrorKind::ForeignValue {
            // A wrong address is not to stay hidden until the breaker opens, which with few requests takes long.
            if !self.was_heard.swap(true, Ordering::Relaxed) {
                telemetry::warn(format_args!(
                    "the shared store has not decided yet, and policies do what their outage choice says: {}",
                    Chain(error)
                ));
            }
            self.record(Call::Failed, self.clock.now(), Some(error));
        } else if !self.warned.swap(true, Ordering::Relaxed) {
            telemetry::warn(format_args!(
                "one key cannot be decided on: {}; its policies do what their outage choice says",
                Chain(error)
            ));
        }
    }

    fn record(self: &Arc<Self>, call: Call, now: Timestamp, error: Option<&Error>) {
        if !self.breaker.record(call, now) {
            return;
        }
        match error {
            None if matches!(call, Call::Abandoned { .. }) => telemetry::warn(format_args!(
                "steady => degraded: no answer to anybody, and callers do not wait for the deadline"
            )),
            Some(error) => telemetry::warn(format_args!("steady => degraded: {}", Chain(error))),
            None => telemetry::warn(format_args!(
                "steady => degraded: half of the decisions take longer than {:?}",
                self.deadline / 2
            )),
        }
        probe::start(self);
    }
}

// === Asked ===

/// A call that is under way: dropped before its answer, it is counted as abandoned.
struct Asked {
    shared: Arc<Shared>,
    at: Timestamp,
    is_answered: bool,
}

impl Asked {
    fn new(shared: Arc<Shared>) -> Self {
        let at = shared.clock.now();
        Self {
            shared,
            at,
            is_answered: false,
        }
    }

    /// Counts how the call ended.
    fn answered(mut self, result: &Result<Decision, Error>) -> Arc<Shared> {
        self.is_answered = true;
        match result {
            Ok(_) => {
                if !self.shared.was_heard.load(Ordering::Relaxed) {
                    self.shared.was_heard.store(true, Ordering::Relaxed);
                }
                let now = self.shared.clock.now();
                let after = now.since(self.at);
                self.shared.record(Call::Answered { after }, now, None);
            }
            Err(error) => self.shared.note(error),
        }
        Arc::clone(&self.shared)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.is_answered {
            let now = self.shared.clock.now();
            let after = now.since(self.at);
            self.shared.record(Call::Abandoned { after }, now, None);
        }
    }
}

// === ResilientStoreBuilder ===

/// Settings of a [`ResilientStore`].
#[derive(Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct ResilientStoreBuilder {
    primary: Arc<dyn Store>,
    local: Arc<dyn Store>,
    deadline: Duration,
    primary_keeps_deadline: bool,
    clock: Clock,
}

impl ResilientStoreBuilder {
    /// Sets how long one decision may take in all; answers that take more than half of it count as slow.
    ///
    /// Default: 50 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Trusts the primary to answer within the deadline by itself.
    pub(crate) fn primary_keeps_deadline(mut self) -> Self {
        self.primary_keeps_deadline = true;
        self
    }

    /// Sets the clock by which answers are timed.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the deadline is zero.
    pub fn build(self) -> Result<ResilientStore, Error> {
        if self.deadline.is_zero() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "deadline of zero: no decision could be made in time; the default is 50 ms",
            ));
        }
        Ok(ResilientStore {
            shared: Arc::new(Shared {
                primary: self.primary,
                local: self.local,
                breaker: Breaker::new(self.deadline / 2),
                deadline: self.deadline,
                primary_keeps_deadline: self.primary_keeps_deadline,
                prober: Prober::default(),
                clock: self.clock,
                decisions: AtomicU64::new(0),
                warned: AtomicBool::new(false),
                was_heard: AtomicBool::new(false),
            }),
        })
    }
}

/// Two ticks of the timer, so that a store's own deadline can say which phase was late.
const GRACE: Duration = Duration::from_millis(2);
