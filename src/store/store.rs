//! The [`Store`] trait: implement it to keep counts elsewhere.

use std::{
    fmt::Debug,
    sync::{Arc, Weak},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::sync::watch;

#[cfg(feature = "reload")]
use super::stored_rules::{ReadRulesReply, RulesId, RulesToStore, StoreRulesReply, StoredRules};
use super::{
    fleet::Fleet,
    future::StoreFuture,
    health::{Health, Mode},
    report::CallObserver,
    stats::Stats,
};
#[cfg(feature = "top-keys")]
use crate::top_keys::Snapshot;
use crate::{
    block::{BlockChange, BlockList},
    charge::{Charge, Merge, OwnedCharge, Receipt},
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    policy::{BanState, Policy},
};

/// A place that keeps counts and decides on charges.
///
/// # Contract
///
/// - A decision is all or nothing: if one charge is denied, none is made. Charges in shadow deny nothing:
///   [`Enforcement`](crate::charge::Enforcement) describes when they are made, and their states have
///   [`with_shadow`](crate::decision::PolicyState::with_shadow).
/// - A decision never admits more than its policies allow, however many processes use the store at the same time.
/// - A future completes within a time that the store documents. A store that cannot decide in time returns an error.
/// - The charges of one call are distinct: no two have the same policy and key.
///   [`RateLimiter`](crate::RateLimiter) checks that.
///
/// Only [`decide`](Self::decide) and [`reset`](Self::reset) are required. Add [`settle`](Self::settle) for refunds,
/// [`hold`](Self::hold) and [`renew`](Self::renew) for concurrency, [`probe`](Self::probe) and
/// [`observe_calls`](Self::observe_calls) for a circuit breaker. Wrap a remote store in a
/// [`ResilientStore`](crate::resilience::ResilientStore) to give it a deadline, a circuit breaker and a local fallback.
pub trait Store: Debug + Send + Sync + 'static {
    /// Decides the charges together. A cost of 0 is always admitted and never writes.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the store could not decide. Being over a limit is not an error.
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision>;

    /// Decides the charges together, and passes the result through `fallback`.
    ///
    /// The default wraps the future of [`decide`](Self::decide). A remote store can implement it to save one allocation
    /// per decision.
    ///
    /// # Errors
    ///
    /// The error that [`Fallback::complete`] returns.
    fn decide_with_fallback(
        &self,
        charges: &[Charge<'_>],
        fallback: Arc<dyn Fallback>,
    ) -> StoreFuture<Decision> {
        let mut decision = self.decide(charges);
        if let Some(result) = decision.take_ready() {
            return StoreFuture::ready(fallback.complete(result, &mut charges.iter().copied()));
        }
        let charges: SmallVec<[OwnedCharge; 1]> = charges.iter().map(Charge::to_owned).collect();
        let pending = decision.into_pending();
        StoreFuture::boxed(async move {
            let result = pending.await;
            fallback.complete(result, &mut charges.iter().map(OwnedCharge::borrow))
        })
    }

    /// Returns the denials and the ban of a key under a policy with a [penalty](crate::policy); `None` if there are none.
    ///
    /// For operators; decisions do not need it. A store that wraps another must forward the call. By default there are none.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the store could not read them.
    fn ban_state(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanState>> {
        let _ = (policy, key);
        StoreFuture::ready(Ok(None))
    }

    /// Resets `key` to the full quota of `policy`, and ends its ban.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the store could not reset the key.
    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()>;

    /// Returns the blocked keys, as far as this instance knows them. A store that wraps another must forward the call.
    ///
    /// [`RateLimiter`](crate::RateLimiter) denies requests of these keys without asking the store. With `None`, the
    /// default, keys cannot be blocked.
    fn blocks(&self) -> Option<Arc<BlockList>> {
        None
    }

    /// Blocks or unblocks a key for all instances. A store that wraps another must forward the call.
    ///
    /// A store that has a list of [`blocks`](Self::blocks) can just [change it](BlockList::change).
    ///
    /// # Errors
    ///
    /// Any kind that describes why nothing was changed. By default [`InvalidConfig`](ErrorKind::InvalidConfig): the store
    /// cannot block.
    fn change_block(&self, change: BlockChange) -> StoreFuture<()> {
        drop(change);
        StoreFuture::ready(Err(Error::new(
            ErrorKind::InvalidConfig,
            "this store cannot block keys",
        )))
    }

    /// Brings a [shared](BlockList::shared) list up to date. A store that wraps another must forward the call.
    ///
    /// The limiter calls it behind decisions, so that no list in use is older than a second. The default does nothing.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the list stays as it is.
    fn refresh_blocks(&self) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
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
        drop(receipt);
        StoreFuture::ready(Err(Error::new(
            ErrorKind::InvalidConfig,
            "this store cannot settle: charges stand as they were made",
        )))
    }

    /// Charges units that a fallback admitted while this store was unavailable, each merge once.
    ///
    /// The default drops them: then a key may get up to one quota more after an outage.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the units were not charged. The same merge is tried again for up to 30 s.
    fn merge(&self, merge: &Merge) -> StoreFuture<()> {
        let _ = merge;
        StoreFuture::ready(Ok(()))
    }

    /// Marks the slots of a receipt as held by this process until they are settled.
    ///
    /// An in-process store keeps held slots beyond their lease. The default does nothing. A store that wraps another
    /// must forward the call.
    fn hold(&self, receipt: &Receipt) {
        let _ = receipt;
    }

    /// Renews the leases of the slots that charges took.
    ///
    /// The default does nothing, for stores without leases.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the leases were not renewed. The caller tries again before they end.
    fn renew(&self, charges: &[Charge<'_>]) -> StoreFuture<()> {
        let _ = charges;
        StoreFuture::ready(Ok(()))
    }

    /// Checks that the store can decide, for a circuit breaker that is open.
    ///
    /// The default succeeds at once, for stores that are always available.
    ///
    /// # Errors
    ///
    /// Any kind that describes why the store cannot decide.
    fn probe(&self) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }

    /// Reports every further call to the store's server to `observer`.
    ///
    /// A circuit breaker judges the server by these reports. Returns whether the store reports its calls. With `false`,
    /// the default, each decision counts as a call. A store that returns `true` must report every call.
    fn observe_calls(&self, observer: Weak<dyn CallObserver>) -> bool {
        drop(observer);
        false
    }

    /// Returns whether the store decides on a key at present. A node of a cluster decides on some of the keys only.
    ///
    /// Default: always.
    fn serves(&self, key: &Key) -> bool {
        let _ = key;
        true
    }

    /// Returns the time within which every future of the store completes, if it keeps such a deadline itself.
    ///
    /// A store that wraps this one then needs no timer. Default: `None`.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Returns the address of the only server that decides, for the health and log events. A store that wraps another must
    /// forward the call.
    ///
    /// Default: none.
    fn server(&self) -> Option<String> {
        None
    }

    /// Returns the instances that share the store, and keeps their number up to date from now on.
    ///
    /// While the store is unavailable, each of them grants its [`Share`](super::Share) of a quota. With `None`, the default, each
    /// instance grants the whole quota.
    fn fleet(&self) -> Option<Arc<Fleet>> {
        None
    }

    /// Returns what the instances share of their top keys: for each, a snapshot of each half of the window. A store that
    /// wraps another must forward the call.
    ///
    /// Default: nothing.
    ///
    /// # Errors
    ///
    /// Any kind that describes why they could not be read.
    #[cfg(feature = "top-keys")]
    fn shared_top_keys(&self) -> StoreFuture<Vec<Snapshot>> {
        StoreFuture::ready(Ok(Vec::new()))
    }

    /// Returns the misconfigurations found so far. A store that wraps another must forward the call.
    fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }

    /// Returns the health of the store. By default it is available and has never failed.
    fn health(&self) -> Health {
        Health::default()
    }

    /// Returns the present sizes and loads of the store, for metrics. A store that wraps another must forward the call.
    ///
    /// Default: none.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Returns a channel that holds the present mode, and reports each change. A store that wraps another must forward
    /// the call.
    ///
    /// The default is closed, for stores that are always available: waiting for a change fails at once.
    fn mode_changes(&self) -> watch::Receiver<Mode> {
        watch::channel(Mode::Healthy).1
    }

    /// Returns the place for rules that all instances share. A store that wraps another must forward the call.
    ///
    /// Default: none.
    #[cfg(feature = "reload")]
    #[doc(hidden)]
    fn rule_store(&self) -> Option<Arc<dyn RuleStore>> {
        None
    }
}

// === RuleStore ===

/// Keeps the rules that all instances share, and reports new ones.
#[cfg(feature = "reload")]
#[doc(hidden)]
pub trait RuleStore: Debug + Send + Sync + 'static {
    /// Returns the stored rules, unless they are the known ones.
    fn read_rules(&self, known: Option<RulesId>) -> StoreFuture<ReadRulesReply>;

    /// Stores rules as the next version, if the stored one is that which they replace.
    fn store_rules(&self, rules: RulesToStore) -> StoreFuture<StoreRulesReply>;

    /// Returns the last ten versions, from the oldest.
    fn rules_history(&self) -> StoreFuture<Vec<StoredRules>>;

    /// Waits until rules may have been stored since the last call that completed. Returns `false` at once if the store cannot
    /// report that.
    ///
    /// It can be dropped at any time, and reports the same at the next call.
    fn rules_stored(&self) -> StoreFuture<bool>;
}

// === Fallback ===

/// Decides in place of a store that failed.
pub trait Fallback: Send + Sync {
    /// Returns the decision in `result`, or another one in place of its error.
    ///
    /// # Errors
    ///
    /// The error in `result`, if the fallback cannot decide either.
    fn complete(
        &self,
        result: Result<Decision, Error>,
        charges: &mut dyn Iterator<Item = Charge<'_>>,
    ) -> Result<Decision, Error>;
}
