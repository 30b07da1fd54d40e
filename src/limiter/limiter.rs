//! The rate limiter: policies over a store, without HTTP or Tower.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use tokio::sync::watch;

#[cfg(feature = "metrics")]
use crate::telemetry;

#[cfg(all(feature = "redis", any(feature = "reload", feature = "top-keys")))]
use crate::remote::RedisStore;
#[cfg(all(feature = "redis", feature = "reload"))]
use crate::store::RuleStore;
#[cfg(feature = "dashboard")]
use crate::{store::Stats, telemetry::DecisionTally};

#[cfg(feature = "reload")]
use super::known_policy::replaced;
use super::{
    known_policy::{KnownPolicy, add_known, check_known, validate_policies, with_rests},
    lent_slots::LentSlots,
};
use crate::{
    acquire::Lines,
    block::{ActiveBlock, Block, BlockChange, BlockTarget},
    block_check::{BlockCheck, BlockRefresh, Settle},
    charge::{AsCharges, Charge, Charges, MAX_CHARGES, Receipt},
    clock::Timestamp,
    decision::{CountedBy, Decision, Ticket},
    diagnosis::Warning,
    error::{Error, ErrorKind},
    hold::{Hold, HoldRegistry},
    key::Key,
    policy::{BanStatus, Policy},
    store::{Health, Mode, Store, StoreFuture, StoreId},
    task::Mutex,
    telemetry::{DecisionObserver, Recorders},
};

#[cfg(feature = "top-keys")]
use crate::top_keys::Snapshot;

/// Decides on charges, independently of the transport.
///
/// Use it for jobs, sockets or a custom protocol. [`RateLimitLayer`](crate::RateLimitLayer) uses one for HTTP. Clones
/// share the counts.
///
/// # Examples
///
/// Two policies are decided together: if one denies, neither is charged.
///
/// ```
/// use tollgate::{Key, Policy, Quota, RateLimiter};
///
/// # async fn example() -> Result<(), tollgate::Error> {
/// let user = Policy::new("user", Quota::per_minute(100));
/// let global = Policy::new("global", Quota::per_second(1_000));
/// let limiter = RateLimiter::builder()
///     .policy(user.clone())
///     .policy(global.clone())
///     .build()?;
///
/// let decision = limiter
///     .check(&[user.charge(Key::new("ada")), global.charge(Key::GLOBAL)])
///     .await?;
/// if let Some(wait) = decision.retry_after() {
///     println!("retry in {wait:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) blocks: Arc<BlockCheck>,
    /// The policies of all layers on this limiter: one name has one quota.
    pub(super) known: Arc<Mutex<Vec<KnownPolicy>>>,
    pub(super) holds: Arc<HoldRegistry>,
    /// Callers that wait for their turn.
    pub(crate) lines: Arc<Lines>,
    pub(super) observer: DecisionObserver,
    #[cfg_attr(
        not(any(feature = "explain", feature = "top-keys")),
        expect(dead_code, reason = "only these features ask it later")
    )]
    pub(crate) recorders: Recorders,
    /// Whether a failed decision of [`enforce`](Self::enforce) was logged.
    pub(super) has_logged_failure: Arc<AtomicBool>,
    /// The store, if its decisions have a deadline.
    bounded_store: Option<StoreId>,
}

impl RateLimiter {
    /// Creates a limiter over a custom store. [`builder`](Self::builder) covers the common stores.
    ///
    /// # Errors
    ///
    /// - The error of [`Policy::validate`] for a policy.
    /// - [`ErrorKind::DuplicatePolicy`] if two policies have the same name.
    /// - [`ErrorKind::InvalidPolicy`] for more than 1,000 policies.
    pub fn new(
        store: impl Store,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, Error> {
        Self::over(Arc::new(store), policies, Recorders::default())
    }

    /// Decides all charges together: if one is denied, none is made. Takes one charge, or several.
    ///
    /// Without charges, or if every cost is 0, nothing is written.
    ///
    /// A policy need not be one that the limiter was built with, but one name must have one quota and algorithm. Another quota
    /// under the same name converts the usage of the key, as a change of its limit does.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::DuplicatePolicy`] if two charges have the same policy and key.
    /// - [`ErrorKind::InvalidPolicy`] for more than 16 charges.
    /// - The error of [`Policy::validate`] for a policy.
    /// - The error of the store, if it could not decide.
    ///
    /// Being over a limit is not an error.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, the charges may or may not have been made.
    #[inline]
    pub fn check<'a>(&self, charges: impl AsCharges<'a>) -> StoreFuture<Decision> {
        self.check_all(charges.as_charges())
    }

    // For a slice alone, so that it is compiled here and once.
    #[inline]
    pub(super) fn check_all(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match validate_charges(charges) {
            Ok(()) if charges.iter().all(|charge| charge.ticket().is_none()) => {
                self.decide(charges)
            }
            Ok(()) => self.check_slots(charges),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Asks the store, and shows the decision to the observer.
    #[inline]
    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if self.observer.is_idle() && !self.blocks.is_needed() {
            return self.store.decide(charges);
        }
        self.decide_watched(charges)
    }

    /// As [`decide`](Self::decide), while keys may be blocked or decisions are recorded. Apart, so that the usual way stays
    /// as short as without both.
    #[inline(never)]
    fn decide_watched(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        // Changed in place: a move of the decision would cost more than counting it.
        let mut decided = if self.blocks.is_needed() {
            self.blocks.decide(charges)
        } else {
            self.store.decide(charges)
        };
        self.observer.observe(charges, &mut decided);
        decided
    }

    /// Returns the store, if its decisions have a deadline.
    #[inline]
    pub(crate) fn bounded_store(&self) -> Option<StoreId> {
        self.bounded_store
    }

    /// Returns whether the list of blocks is too old for [`is_blocked`](Self::is_blocked).
    pub(crate) fn has_old_blocks(&self) -> bool {
        self.blocks.is_needed() && self.blocks.is_old()
    }

    /// Brings the list of blocks up to date, within the deadline of the store.
    pub(crate) fn renew_old_blocks(&self) -> BlockRefresh {
        let blocks = Arc::clone(&self.blocks);
        Box::pin(async move { blocks.refresh().await })
    }

    /// Returns whether a key is blocked under a policy, for requests that charge nothing.
    pub(crate) fn is_blocked(&self, policy: &Policy, key: &Key) -> bool {
        self.blocks.is_needed() && self.blocks.is_blocked(policy, key)
    }

    /// Decides under a new ticket, so that reused charges do not share slots.
    fn check_slots(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let ticket = Ticket::random();
        let charges = charges.iter().map(|charge| charge.with_ticket(ticket));
        let charges: Charges<'_> = charges.collect();
        let (decided, lent) = (self.decide(&charges), LentSlots::in_charges(&charges));
        decided.map(move |decided| {
            let decision = decided?.with_ticket(ticket);
            lent.iter().for_each(|lent| lent.note(&decision));
            Ok(decision)
        })
    }

    /// Returns the state of the charges' keys without charging them.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek<'a>(&self, charges: impl AsCharges<'a>) -> StoreFuture<Decision> {
        let charges = charges.as_charges().iter();
        let peeks: Charges<'_> = charges.map(|charge| charge.cost(0)).collect();
        self.check_all(&peeks)
    }

    /// Corrects the charges of a request to its actual cost.
    ///
    /// Unused units are refunded. A cost beyond the charge is charged, even over the limit. A refund is at most the
    /// part of the charge that is still outstanding: units that time has given back are not refunded again. Each policy
    /// is settled separately, by the store that counted the charge.
    ///
    /// When overlapping charges on one key are refunded out of order, a bucket may refund slightly less than it could.
    /// It never refunds more.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota, RateLimiter, charge::Receipt};
    ///
    /// # async fn example(limiter: RateLimiter, tokens: Policy) -> Result<(), tollgate::Error> {
    /// let charges = [tokens.charge(Key::new("ada")).cost(4_000)];
    /// let decision = limiter.check(&charges).await?;
    /// if let Some(receipt) = Receipt::of(&charges, &decision) {
    ///     let used = 1_234; // from the response
    ///     limiter.settle(receipt.actual_cost(|_, _| used)).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the store. After [`Overloaded`](crate::ErrorKind::Overloaded),
    /// [`Unavailable`](crate::ErrorKind::Unavailable) or a timeout before sending, the settlement is retried in the
    /// background for the policy's period, at most an hour. After any other error the charge is kept. Releases of slots
    /// are retried until the lease must have ended, even if the future is dropped.
    pub fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        self.holds.settle(receipt)
    }

    /// Holds the slots of a decision until the returned [`Hold`] is dropped or settled.
    ///
    /// For [concurrency](Policy::concurrency) policies: slots that are not held come back when their lease ends.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, RateLimiter, charge::Receipt};
    ///
    /// # async fn example() -> Result<(), tollgate::Error> {
    /// let uploads = Policy::concurrency("uploads", 4);
    /// let limiter = RateLimiter::builder().policy(uploads.clone()).build()?;
    /// let charges = [uploads.charge(Key::new("ada"))];
    /// let decision = limiter.check(&charges).await?;
    /// if let Some(receipt) = Receipt::of(&charges, &decision) {
    ///     let slot = limiter.hold(receipt);
    ///     // ... the upload
    ///     drop(slot);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(&self, receipt: Receipt) -> Hold {
        Hold::new(receipt, &self.holds)
    }

    /// Resets `key` to the full quota of `policy`, also in the rest of a quota with a [reserve](Policy::reserve), and ends a ban under
    /// its [penalty](crate::policy). A [block](Self::block) or [pause](Self::pause) of the key stays, and units that instances have
    /// [leased](crate::Consistency::Leased) stay charged.
    ///
    /// # Errors
    ///
    /// The error of the store, if it could not reset the key.
    pub fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let whole = self.store.reset(policy, key);
        let Some(rest) = policy.rest() else {
            return whole;
        };
        let rest = self.store.reset(rest, key);
        StoreFuture::boxed(async move {
            whole.await?;
            rest.await
        })
    }

    /// Counts a failure of a key under a policy with a [backoff](Policy::backoff): its next delay begins. Returns when the delay
    /// ends. `None` if the policy has no backoff, or if the store in process is
    /// [full](crate::memory::MemoryStoreBuilder::max_keys).
    ///
    /// A layer does it for rules that [count failures](crate::rules::Rule::count_failures). [`reset`](Self::reset) ends the delay,
    /// and the next one is as short as the first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPolicy`] for an unusable policy, and the error of the store, if it could not count the failure. While
    /// Redis is unavailable, this instance counts it.
    pub fn count_failure(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<Timestamp>> {
        if let Err(error) = policy.validate() {
            return StoreFuture::ready(Err(error));
        }
        self.store.count_failure(policy, key)
    }

    /// Returns where a key stands under a policy with a [penalty](crate::policy): whether it is banned, and until when. `None`
    /// if the policy has no penalty, or if there is nothing to forgive.
    ///
    /// For operators: decisions contain the bans that concern them. Reads from where the next request would be decided.
    ///
    /// # Errors
    ///
    /// The error of the store, if it could not return it.
    pub fn ban_status(&self, policy: &Policy, key: &Key) -> StoreFuture<Option<BanStatus>> {
        let Some(penalty) = policy.ban_penalty().copied() else {
            return StoreFuture::ready(Ok(None));
        };
        let (peeked, policy, key) = (self.peek(&[policy.charge(*key)]), policy.clone(), *key);
        let store = Arc::clone(&self.store);
        StoreFuture::boxed(async move {
            let now = peeked.await?.decided_at();
            let state = store.ban_record(&policy, &key).await?;
            Ok(state.and_then(|state| penalty.ban_status(&state, now)))
        })
    }

    /// Refunds up to `units` of what a key has used, without a receipt.
    ///
    /// For operators who make good a charge that should not have been made. Never refunds more than is outstanding. Of a quota with a
    /// [reserve](Policy::reserve), the whole gets the units back, and the rest does not. A
    /// sliding log refunds units of the latest charge only, and a queue the last units before its end, whoever waits for them. Slots of a
    /// [concurrency](Policy::concurrency) policy are not refunded: their requests hold them.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unavailable`] while the shared store is unavailable. Then nothing is refunded.
    /// - As [`check`](Self::check) and [`settle`](Self::settle).
    pub fn refund(&self, policy: &Policy, key: &Key, units: u64) -> StoreFuture<()> {
        if policy.is_concurrency() || units == 0 {
            return StoreFuture::ready(Ok(()));
        }
        let charge = policy.charge(*key).cost(units).to_owned();
        let mut peeked = self.peek(&[charge.borrow()]);
        let holds = Arc::clone(&self.holds);
        let refund = move |decision: Decision| {
            let receipt = Receipt::of(&[charge.borrow()], &decision);
            match (receipt, decision.counted_by()) {
                (Some(receipt), CountedBy::InProcess | CountedBy::Shared) => {
                    holds.settle(receipt.actual_cost(|_, _| 0))
                }
                // A local refund would not reach the count of the shared store, and would be charged again after the outage.
                _ => StoreFuture::ready(Err(unrefunded())),
            }
        };
        match peeked.take_ready() {
            Some(Ok(decision)) => refund(decision),
            Some(Err(error)) => StoreFuture::ready(Err(error)),
            None => StoreFuture::boxed(async move { refund(peeked.await?).await }),
        }
    }

    /// Blocks a key: its requests are denied with 429 until the block ends, whatever quota is left.
    ///
    /// Replaces a block of the same key and policy. A request with a blocked key charges nothing. It is denied if the
    /// policy is enforced, and only [reported](Decision::would_deny) if it is in shadow mode. Peeks, which
    /// have a cost of 0, pass. Callers of an [unlimited](crate::tiers::Tier::unlimited) tier are denied as well.
    ///
    /// A key is blocked as it is charged: one that was put [in the slot](Key::co_located_with) of another key, or joined with it, is
    /// another key.
    ///
    /// The state of the policy has [`DeniedBy::Block`](crate::decision::DeniedBy::Block). Its retry time is the end of the block, or
    /// later if its quota is not back or a ban has not ended by then. Redis is not asked for that if the block outlasts the
    /// window of every policy. Requests in flight go on.
    ///
    /// # Where blocks hold
    ///
    /// | store | blocks hold |
    /// |---|---|
    /// | in process | for all limiters on the same store, until the process ends |
    /// | Redis with [`shared_blocks`] | for all instances with that setting, within a second, and while Redis is unavailable for those that have seen the block |
    /// | Redis without that setting, custom stores without blocks | an error |
    ///
    /// [`shared_blocks`]: crate::remote::RedisStoreBuilder::shared_blocks
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Policy, Quota, RateLimiter, block::{Block, BlockTarget}, decision::DeniedBy};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let api = Policy::new("api", Quota::per_minute(100));
    /// let limiter = RateLimiter::builder().policy(api.clone()).build()?;
    /// let ada = Key::new("ada");
    ///
    /// limiter.block(Block::new(ada, Duration::from_secs(3_600)).reason("scraping")).await?;
    /// let decision = limiter.check(&[api.charge(ada)]).await?;
    /// assert!(!decision.is_allowed());
    /// assert_eq!(decision.states()[0].denied_by(), Some(DeniedBy::Block));
    ///
    /// limiter.unblock(BlockTarget::new(ada, None)).await?;
    /// assert!(limiter.check(&[api.charge(ada)]).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - The error of [`Block::validate`].
    /// - [`ErrorKind::InvalidConfig`] if the store cannot block keys.
    /// - [`ErrorKind::Unavailable`] while Redis is unavailable, if 100,000 blocks are active, or if Redis keeps 200,000
    ///   with those that ended within the last hour. Then nothing is blocked.
    /// - The error of the store.
    pub fn block(&self, block: Block) -> StoreFuture<()> {
        match block.validate() {
            Ok(()) => self.store.change_block(BlockChange::Block(block)),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Ends the block of a key under one policy, or that under all policies. Others of the key stay.
    ///
    /// # Errors
    ///
    /// As [`block`](Self::block), also for a policy whose name is invalid. A target that is not blocked is not an error.
    pub fn unblock(&self, target: BlockTarget) -> StoreFuture<()> {
        match target.validate() {
            Ok(()) => self.store.change_block(BlockChange::Unblock(target)),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Returns the active blocks, as far as this instance knows them. Those that end first are at the front.
    ///
    /// After [`refresh_blocks`](Self::refresh_blocks) they are all blocks of the store.
    #[must_use]
    pub fn blocks(&self) -> Vec<ActiveBlock> {
        let list = self.store.blocks();
        list.map_or_else(Vec::new, |list| list.active())
    }

    /// Brings [`blocks`](Self::blocks) up to date. Decisions do so on their own.
    ///
    /// # Errors
    ///
    /// The error of the store.
    pub fn refresh_blocks(&self) -> StoreFuture<()> {
        self.store.refresh_blocks()
    }

    /// Returns a time by the clock of the store, such as one of a [`BanStatus`] or an explanation, as the wall clock shows it.
    ///
    /// The two differ for a store in process, if the wall clock was set since the process began or the machine was suspended:
    /// see [`Clock`](crate::clock::Clock).
    #[must_use]
    pub fn wall_time(&self, at: Timestamp) -> Timestamp {
        let list = self.store.blocks();
        list.map_or(at, |list| list.clock().wall_time(at))
    }

    /// Returns the health of the store.
    #[must_use]
    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// Gives back the units that this process has [leased](crate::Consistency::Leased). Call it at shutdown, after the last request.
    ///
    /// Without it, they count as spent after 2 s at most, or 10 s over regions. It takes the deadline of a decision at most, and the
    /// limiter goes on to work.
    ///
    /// Over regions, units that the region has leased from others stay at its server: other instances of the region spend them, and
    /// give them back once nobody asks for them. After the last instance of a region, they count as spent within 10 s.
    ///
    /// # Errors
    ///
    /// Those of a custom store. With Redis, what cannot be given back within the deadline counts as spent.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(limiter: tollgate::RateLimiter) -> Result<(), tollgate::Error> {
    /// // After `axum::serve(listener, app).with_graceful_shutdown(signal).await`:
    /// limiter.drain().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self) -> StoreFuture<()> {
        self.store.drain()
    }

    /// Returns a channel that holds the present mode of the store, and reports each change.
    ///
    /// For metrics, and for health endpoints that must react at once. The channel of a store in process is closed, since
    /// it never changes.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(limiter: tollgate::RateLimiter) {
    /// let mut changes = limiter.mode_changes();
    /// while changes.changed().await.is_ok() {
    ///     let mode = *changes.borrow_and_update();
    ///     println!("rate limits are {}", mode.name());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn mode_changes(&self) -> watch::Receiver<Mode> {
        self.store.mode_changes()
    }

    /// Sets the gauges of this limiter, with `limiter` as their label, so that limiters do not replace each other's values.
    ///
    /// Gauges change only here, so call it before each export: when the metrics are scraped, or in an interval. Call it once
    /// per limiter, also if several layers share it. It locks each part of the in-process store for a moment.
    /// [`telemetry`](crate::telemetry) lists the gauges.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder()
    ///     .policy(Policy::new("jobs", Quota::per_minute(100)))
    ///     .build()?;
    /// limiter.record_gauges("jobs");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn record_gauges(&self, limiter: &str) {
        self.observer.show();
        let (stats, health) = (self.store.stats(), self.store.health());
        let (held_slots, waits) = (self.holds.held_slots(), &self.lines.waits);
        telemetry::gauges::record(limiter, &stats, &health, held_slots, waits);
    }

    /// Returns the keys that were denied most often by this instance; `None` unless the limiter
    /// [records](crate::builder::RateLimiterBuilder::top_keys) them.
    ///
    /// [`Snapshot::policy`] selects a policy. [`top_keys`](crate::top_keys) states the bounds.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(limiter: tollgate::RateLimiter) {
    /// let snapshot = limiter.top_keys();
    /// if let Some(list) = snapshot.as_ref().and_then(|snapshot| snapshot.policy("per-ip")) {
    ///     for top in list.keys().iter().take(10) {
    ///         println!("{} was denied {} times", top.key(), top.count());
    ///     }
    /// }
    /// # }
    /// ```
    #[cfg(feature = "top-keys")]
    #[must_use]
    pub fn top_keys(&self) -> Option<Snapshot> {
        Some(self.recorders.top_keys.as_ref()?.snapshot())
    }

    /// Returns the keys that were denied most often by all instances together; `None` while none of them has shared any.
    ///
    /// For limiters that [share](crate::builder::RateLimiterBuilder::share_top_keys) their top keys through Redis. What other
    /// instances have denied in the last two seconds, or since their last decision, may be missing. What instances of another
    /// version have shared is left out if this one cannot read it: see [`Snapshot::unread`].
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidConfig`] if the instances show keys in different ways.
    /// - [`ErrorKind::ForeignValue`] if this instance can read nothing of what is shared.
    /// - The error of the store. During an outage, [`top_keys`](Self::top_keys) still returns those of this instance.
    #[cfg(feature = "top-keys")]
    pub fn fleet_top_keys(&self) -> StoreFuture<Option<Snapshot>> {
        #[cfg(feature = "redis")]
        if let Some(redis) = RedisStore::of(&*self.store) {
            let shared = redis.shared_top_keys();
            return shared.map(|snapshots| Snapshot::merge(&snapshots?));
        }
        StoreFuture::ready(Ok(None))
    }

    /// Returns the misconfigurations of the store found so far. Each was logged once.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        self.store.warnings()
    }

    /// Returns the place for rules that all instances share; `None` if the store has none.
    #[cfg(all(feature = "redis", feature = "reload"))]
    pub(crate) fn rule_store(&self) -> Option<Arc<dyn RuleStore>> {
        RedisStore::of(&*self.store).map(RedisStore::rule_store)
    }

    /// Adds the policies of a layer.
    pub(crate) fn with_policies(
        self,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, Error> {
        let policies = with_rests(policies);
        validate_policies(&*self.store, &policies)?;
        let mut known = self.known.lock();
        // All are checked before any is added: a layer that fails to build leaves no name behind.
        check_known(&known, &policies)?;
        add_known(&mut known, policies);
        drop(known);
        Ok(self)
    }

    /// Replaces the policies of a layer by others. The keys that have a debt keep it: it is converted to the new limit by the
    /// next decision on the key.
    ///
    /// # Errors
    ///
    /// As for a new layer: see [`new`](Self::new). Nothing has changed then.
    #[cfg(feature = "reload")]
    pub(crate) fn replace_policies<'a>(
        &self,
        old: impl IntoIterator<Item = &'a Policy>,
        new: impl IntoIterator<Item = Policy>,
    ) -> Result<(), Error> {
        let mut known = self.known.lock();
        *known = replaced(&*self.store, &known, old, with_rests(new))?;
        Ok(())
    }

    /// Checks that [`replace_policies`](Self::replace_policies) would succeed.
    #[cfg(all(feature = "redis", feature = "reload"))]
    pub(crate) fn check_replacement<'a>(
        &self,
        old: impl IntoIterator<Item = &'a Policy>,
        new: impl IntoIterator<Item = Policy>,
    ) -> Result<(), Error> {
        replaced(&*self.store, &self.known.lock(), old, with_rests(new))?;
        Ok(())
    }

    /// As [`new`](Self::new) over a shared store, with recorders of denied requests.
    pub(crate) fn over(
        store: Arc<dyn Store>,
        policies: impl IntoIterator<Item = Policy>,
        recorders: Recorders,
    ) -> Result<Self, Error> {
        let holds = Arc::new(HoldRegistry::new(Arc::clone(&store)));
        let settling = Arc::clone(&holds);
        let settle: Settle = Arc::new(move |receipt| settling.settle(receipt));
        let blocks = Arc::new(BlockCheck::new(Arc::clone(&store), settle));
        let observer = DecisionObserver::with(&recorders);
        let limiter = Self {
            bounded_store: store.deadline().map(|_| StoreId::of(&store)),
            lines: Lines::new(
                Arc::clone(&store),
                Arc::clone(&blocks),
                Arc::clone(&holds),
                observer.clone(),
            ),
            blocks,
            store,
            known: Arc::default(),
            holds,
            observer,
            recorders,
            has_logged_failure: Arc::default(),
        };
        limiter.with_policies(policies)
    }
}

#[cfg(feature = "explain")]
impl RateLimiter {
    /// Returns the policies of all layers on this limiter, and those it was built with.
    pub(crate) fn policies(&self) -> Vec<Policy> {
        let known = self.known.lock();
        known.iter().map(|known| known.policy.clone()).collect()
    }
}

#[cfg(feature = "dashboard")]
impl RateLimiter {
    /// Returns the sizes and loads of the store.
    pub(crate) fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Returns the number of concurrency slots that requests of this process hold.
    pub(crate) fn held_slots(&self) -> u64 {
        self.holds.held_slots()
    }

    /// Returns the numbers of decisions, which are counted from the first call on.
    pub(crate) fn tally(&self) -> &DecisionTally {
        self.observer.tally()
    }
}

// Not derived: what is counted, held and waits may be large, and changes while it is read.
impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.lock().clone();
        let names: Vec<_> = known.iter().map(|known| known.policy.name()).collect();
        f.debug_struct("RateLimiter")
            .field("policies", &names)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

// === Checks ===

#[inline]
pub(super) fn validate_charges(charges: &[Charge<'_>]) -> Result<(), Error> {
    if charges.len() > MAX_CHARGES {
        return Err(too_many(charges.len()));
    }
    for (index, charge) in charges.iter().enumerate() {
        if !charge.policy().is_countable() {
            charge.policy().validate()?;
        }
        let is_duplicate = |other: &Charge<'_>| {
            other.policy().name() == charge.policy().name() && other.key() == charge.key()
        };
        if charges[..index].iter().any(is_duplicate) {
            return Err(Error::new(
                ErrorKind::DuplicatePolicy,
                format!(
                    "policy {:?} is charged twice for the same key: charge the sum of the costs once",
                    charge.policy().name()
                ),
            ));
        }
    }
    Ok(())
}

#[cold]
fn unrefunded() -> Error {
    let message = "the shared store is unavailable: nothing was refunded";
    Error::new(ErrorKind::Unavailable, message)
}

fn too_many(count: usize) -> Error {
    Error::new(
        ErrorKind::InvalidPolicy,
        format!("{count} policies in one decision: use at most {MAX_CHARGES}"),
    )
}
