//! The [`Store`] trait: implement it to keep counts elsewhere.

use std::{
    any::Any,
    fmt::Debug,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::sync::watch;

#[cfg(feature = "reload")]
use super::stored_rules::{RulesId, RulesText};
use super::{
    future::StoreFuture,
    health::{Health, Mode},
    local_view::LocalView,
    stats::Stats,
};
#[cfg(doc)]
use crate::algorithm::AdaptiveRate;
use crate::{
    algorithm::{MicroRate, RateReport},
    block::{BlockChange, BlockList},
    charge::{Charge, Receipt, TurnRequest, Turns},
    clock::{Clock, Timestamp},
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::{BanRecord, Policy},
};

/// Receives the messages of [`Store::listen_for_slots`].
pub type OnSlotMessage = dyn Fn(SlotMessage) + Send + Sync;

/// A message about slots that waiting callers may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotMessage {
    /// From now on there are messages. Slots may be free already.
    Began,
    /// There are no messages any more, or not yet.
    Ended,
    /// The queue with this number may have a slot.
    Freed(u64),
}

/// A place that keeps counts and decides on charges.
///
/// # Contract
///
/// - A decision is all or nothing: if one charge is denied, none is made. Charges in shadow deny nothing:
///   [`Enforcement`](crate::charge::Enforcement) describes when they are made, and their states have
///   [`with_shadow`](crate::decision::PolicyState::with_shadow).
/// - A decision never admits more than its policies allow, however many processes use the store at the same time.
/// - A future completes within a time that the store documents. A store that cannot decide in time returns an error.
/// - A future does not block its thread. Probes, renewals and retries of all stores of a process are polled on one thread of
///   their own, where a Tokio runtime is at hand.
/// - A charge is counted by the [algorithm](crate::Policy::algorithm) of its policy. The fallback of a `ResilientStore` and the
///   waits of [blocked](crate::RateLimiter::block) keys use the same one. If the store cannot count a policy, for example one
///   on concurrency, whose period is zero, `decide` returns an error.
/// - [`units`](Charge::units) may be more than the limit: such a charge is denied. Compare `units <= limit - used`, since
///   `used + units` may overflow.
/// - The times of a decision, of [`blocks`](Self::blocks) and of `RateLimiter` are by one clock, [`Clock::system`](crate::clock::Clock::system) by default.
/// - The charges of one call are distinct: no two have the same policy and key.
///   [`RateLimiter`](crate::RateLimiter) checks that.
///
/// Only [`decide`](Self::decide) and [`reset`](Self::reset) are required. Add [`settle`](Self::settle) for refunds,
/// [`hold`](Self::hold) and [`renew`](Self::renew) for concurrency, [`ban_record`](Self::ban_record) for penalties, which
/// `decide` must count, [`count_failure`](Self::count_failure) for backoffs, [`blocks`](Self::blocks) and [`change_block`](Self::change_block) for blocks, and
/// [`probe`](Self::probe) for a circuit breaker. Without `settle`, refunds and actual costs fail. Wrap a
/// remote store in a [`ResilientStore`](crate::resilience::ResilientStore) to give it a deadline, a circuit breaker and a local
/// fallback.
///
/// # Wrapping a store
///
/// Return the wrapped store from [`inner`](Self::inner), and implement what the wrapper changes. All other methods
/// then do what those of the wrapped store do:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Decision, Key, Policy, Charge, memory::MemoryStore, store::{Store, StoreFuture}};
///
/// /// Logs each decision.
/// #[derive(Debug)]
/// struct Logged(MemoryStore);
///
/// impl Store for Logged {
///     fn inner(&self) -> Option<&dyn Store> {
///         Some(&self.0)
///     }
///
///     fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
///         self.0.decide(charges).map(|decided| {
///             println!("{decided:?}");
///             decided
///         })
///     }
///
///     fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
///         self.0.reset(policy, key)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "not a store",
    note = "to count in Redis, use `.redis(\"redis://127.0.0.1/\")` in place of `.store(..)`; in process, leave both out"
)]
pub trait Store: Any + Debug + Send + Sync {
    /// Decides the charges together. A cost of 0 is always admitted and never writes.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the store could not decide. Being over a limit is not an error.
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision>;

    /// Resets `key` to the full quota of `policy`, and ends its ban.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the store could not reset the key.
    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()>;

    /// Gives turns to the oldest callers of a queue, in their order, up to the first one that must wait longer.
    ///
    /// Default: decides on the first caller alone, by [`decide`](Self::decide) of this store, which may wrap another. Callers then wait in the order of this process,
    /// and not of the fleet.
    ///
    /// # Errors
    ///
    /// As [`decide`](Self::decide).
    fn take_turns(&self, request: TurnRequest) -> StoreFuture<Turns> {
        if request.callers() == 0 {
            return StoreFuture::ready(Ok(Turns::default()));
        }
        if let Some(turns) = Turns::in_pause(&request, Clock::system().now()) {
            return StoreFuture::ready(Ok(turns));
        }
        let decided = self.decide(&request.charges(0));
        decided.map(move |decision| Ok(Turns::from_decision(decision?, &request)))
    }

    /// Lets no caller that [waits](Self::take_turns) for a charge start for this long.
    ///
    /// # Errors
    ///
    /// By default [`InvalidConfig`](ErrorKind::InvalidConfig): the store cannot pause. Otherwise any kind that describes why
    /// nothing was paused.
    fn pause(&self, charge: &Charge<'_>, length: Duration) -> StoreFuture<()> {
        match self.inner() {
            Some(inner) => inner.pause(charge, length),
            None => cannot("this store cannot pause keys"),
        }
    }

    /// Returns when the [pause](Self::pause) of a charge's key ends; `None` if it was not paused. The time may be past.
    ///
    /// For operators; turns do not need it. By default there are no pauses.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the store could not read it.
    fn paused_until(&self, charge: &Charge<'_>) -> StoreFuture<Option<Timestamp>> {
        match self.inner() {
            Some(inner) => inner.paused_until(charge),
            None => StoreFuture::ready(Ok(None)),
        }
    }

    /// Lowers what is left of a charge's quota to `remaining`. What is less stays.
    ///
    /// # Errors
    ///
    /// By default [`InvalidConfig`](ErrorKind::InvalidConfig): the store cannot lower it. Otherwise any kind that describes why
    /// nothing was lowered.
    fn lower(&self, charge: &Charge<'_>, remaining: u64) -> StoreFuture<()> {
        match self.inner() {
            Some(inner) => inner.lower(charge, remaining),
            None => cannot("this store cannot lower what is left of a quota"),
        }
    }

    /// Calls a function with messages about slots that waiting callers may have by now, while somebody else holds it.
    ///
    /// `queues` are the upper 32 bits of the numbers of its queues. Without messages, callers ask now and then.
    ///
    /// Default: no messages, unless the store that this one wraps has some.
    fn listen_for_slots(&self, queues: u32, received: Weak<OnSlotMessage>) {
        if let Some(inner) = self.inner() {
            inner.listen_for_slots(queues, received);
        }
    }

    /// Takes a report on how an [adaptive](AdaptiveRate) key was used, and returns its rate for all instances.
    ///
    /// # Errors
    ///
    /// By default [`InvalidConfig`](ErrorKind::InvalidConfig): the store cannot adapt rates. Otherwise any kind that describes why
    /// the report was lost.
    fn adapt(&self, charge: &Charge<'_>, report: RateReport) -> StoreFuture<MicroRate> {
        match self.inner() {
            Some(inner) => inner.adapt(charge, report),
            None => cannot("this store cannot adapt rates"),
        }
    }

    /// Returns the store that this one wraps. The defaults of all other methods but [`take_turns`](Self::take_turns) call it.
    ///
    /// Default: none.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// Corrects charges that this store made, independently of each other.
    ///
    /// # Errors
    ///
    /// By default [`InvalidConfig`](ErrorKind::InvalidConfig): the store cannot settle, and charges stay as they were
    /// made. For charges [in a shared store](crate::decision::CountedBy::Shared) the kind decides whether
    /// [`RateLimiter::settle`](crate::RateLimiter::settle) retries in the background:
    ///
    /// | kind | charges and refunds | releases of slots |
    /// |---|---|---|
    /// | [`Overloaded`](ErrorKind::Overloaded), [`Unavailable`](ErrorKind::Unavailable), [`Timeout`](ErrorKind::Timeout) before sending | not executed: retried for the policy's period, at most an hour | retried until the lease has ended |
    /// | any other | possibly executed: not retried, the charge is kept | retried until the lease has ended, or until a retry fails with a kind that needs a change of configuration |
    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        match self.inner() {
            Some(inner) => inner.settle(receipt),
            None => cannot("this store cannot settle: charges stand as they were made"),
        }
    }

    /// Marks the slots of a receipt as held by this process until they are settled.
    ///
    /// An in-process store keeps held slots beyond their lease. The default does nothing.
    fn hold(&self, receipt: &Receipt) {
        if let Some(inner) = self.inner() {
            inner.hold(receipt);
        }
    }

    /// Renews the leases of the slots that charges took.
    ///
    /// The default does nothing, for stores without leases.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the leases were not renewed. The caller tries again before they end.
    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        self.inner().map_or_else(done, |inner| inner.renew(charges))
    }

    /// Checks that the store can decide, for a circuit breaker that is open.
    ///
    /// The default succeeds at once, for stores that are always available.
    ///
    /// # Errors
    ///
    /// An error of any [`ErrorKind`](crate::ErrorKind) that describes why the store cannot decide.
    fn probe(&self) -> StoreFuture<()> {
        self.inner().map_or_else(done, Store::probe)
    }

    /// Checks that the store can count a policy, when a limiter is built with it.
    ///
    /// The default accepts all.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`](ErrorKind::InvalidPolicy) with the reason.
    fn check_policy(&self, policy: &Policy) -> Result<(), Error> {
        self.inner()
            .map_or(Ok(()), |inner| inner.check_policy(policy))
    }

    /// Returns the time within which every future of the store completes, if it keeps such a deadline itself.
    ///
    /// A store that wraps this one then needs no timer. Default: `None`.
    fn deadline(&self) -> Option<Duration> {
        self.inner()?.deadline()
    }

    /// Counts a failure of a key whose policy has a [backoff](Policy::backoff): the next delay begins. Returns when it ends;
    /// `None` if the policy has no backoff.
    ///
    /// # Errors
    ///
    /// By default [`InvalidConfig`](ErrorKind::InvalidConfig): the store cannot delay keys. Otherwise any kind that describes
    /// why the failure was not counted.
    fn count_failure(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<Timestamp>> {
        match self.inner() {
            Some(inner) => inner.count_failure(policy, key),
            None => cannot("this store cannot delay keys after failures"),
        }
    }

    /// Returns the denials and the ban of a key under a policy with a [penalty](crate::policy); `None` if there are none.
    ///
    /// For operators; decisions do not need it. By default there are none.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the store could not read them.
    fn ban_record(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanRecord>> {
        match self.inner() {
            Some(inner) => inner.ban_record(policy, key),
            None => StoreFuture::ready(Ok(None)),
        }
    }

    /// Returns the blocked keys, as far as this instance knows them.
    ///
    /// [`RateLimiter`](crate::RateLimiter) denies requests of these keys without asking the store. With `None`, the
    /// default, keys cannot be blocked.
    fn blocks(&self) -> Option<Arc<BlockList>> {
        self.inner()?.blocks()
    }

    /// Blocks or unblocks a key for all instances.
    ///
    /// A store that has a list of [`blocks`](Self::blocks) can just [change it](BlockList::change).
    ///
    /// # Errors
    ///
    /// Any kind that describes why nothing was changed. By default [`InvalidConfig`](ErrorKind::InvalidConfig): the store
    /// cannot block.
    fn change_block(&self, change: BlockChange) -> StoreFuture<()> {
        match self.inner() {
            Some(inner) => inner.change_block(change),
            None => cannot("this store cannot block keys"),
        }
    }

    /// Brings a [shared](BlockList::shared) list up to date.
    ///
    /// The limiter calls it behind decisions, so that no list in use is older than a second. The default does nothing.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the list stays as it is.
    fn refresh_blocks(&self) -> StoreFuture<()> {
        self.inner().map_or_else(done, Store::refresh_blocks)
    }

    /// Gives back what this process has leased from the store, before it ends.
    ///
    /// The default does nothing, for stores that lease nothing.
    ///
    /// # Errors
    ///
    /// Any kind that describes why something was not given back. It counts as spent then.
    fn drain(&self) -> StoreFuture<()> {
        self.inner().map_or_else(done, Store::drain)
    }

    /// Returns the misconfigurations found so far. A custom store logs each of its own once itself.
    fn warnings(&self) -> Vec<Warning> {
        self.inner().map(Store::warnings).unwrap_or_default()
    }

    /// Returns the health of the store. By default it is available and has never failed.
    fn health(&self) -> Health {
        self.inner().map(Store::health).unwrap_or_default()
    }

    /// Returns the present sizes and loads of the store, for metrics.
    ///
    /// Default: none.
    fn stats(&self) -> Stats {
        self.inner().map(Store::stats).unwrap_or_default()
    }

    /// Returns what this process holds of a charge's key, so that it decides without asking the store. Explanations show it.
    ///
    /// Default: nothing.
    fn local_view(&self, charge: &Charge<'_>) -> LocalView {
        let inner = self.inner();
        inner.map_or_else(LocalView::default, |inner| inner.local_view(charge))
    }

    /// Returns a channel that holds the present mode, and reports each change.
    ///
    /// The default is closed, for stores that are always available: waiting for a change fails at once.
    fn mode_changes(&self) -> watch::Receiver<Mode> {
        match self.inner() {
            Some(inner) => inner.mode_changes(),
            None => watch::channel(Mode::Healthy).1,
        }
    }
}

fn done() -> StoreFuture<()> {
    StoreFuture::ready(Ok(()))
}

fn cannot<T>(message: &'static str) -> StoreFuture<T> {
    StoreFuture::ready(Err(Error::new(ErrorKind::InvalidConfig, message)))
}

// === RuleStore ===

/// Keeps the rules that all instances share, and reports new ones.
#[cfg(feature = "reload")]
#[doc(hidden)]
pub trait RuleStore: Debug + Send + Sync + 'static {
    /// Returns the stored version; `None` if there is none.
    fn rules_id(&self) -> StoreFuture<Option<RulesId>>;

    /// Returns the rules of the stored version.
    fn read_rules(&self, id: RulesId) -> StoreFuture<RulesText>;

    /// Stores rules as the next version if they replace the stored one, 0 for none. Returns the stored version as an error if
    /// they replace another one.
    ///
    /// `floor` is a version that is in use. The next one is above it, even if the store has lost it.
    fn store_rules(
        &self,
        rules: RulesText,
        replaced: u64,
        floor: u64,
    ) -> StoreFuture<Result<RulesId, u64>>;

    /// Returns the last ten versions, from the oldest.
    fn rules_history(&self) -> StoreFuture<Vec<(RulesId, RulesText)>>;

    /// Waits until rules may have been stored since the last call that completed. Returns `false` at once if the store cannot
    /// report that.
    ///
    /// It can be dropped at any time, and reports the same at the next call.
    fn rules_stored(&self) -> StoreFuture<bool>;
}
