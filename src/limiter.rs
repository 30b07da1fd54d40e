//! Policies over a store: the use case, free of HTTP and Tower.

use std::sync::Arc;

use crate::{
    charge::{Charge, Charges},
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    hold::{Hold, Keeper},
    key::Key,
    policy::Policy,
    store::{Health, Receipt, Store, StoreFuture},
    sync::Mutex,
    ticket::Ticket,
};

/// Decides on charges, whatever the transport. Clones share the counts.
///
/// [`RateLimitLayer`](crate::RateLimitLayer) uses one; use it directly for jobs, sockets, or a protocol of your own.
///
/// # Examples
///
/// Two policies, decided together: when one denies, neither is charged.
///
/// ```
/// use tollgate::{Key, Policy, Quota, RateLimiter};
///
/// # async fn example() -> Result<(), tollgate::Error> {
/// let user = Policy::new("user", Quota::per_minute(100));
/// let everybody = Policy::new("everybody", Quota::per_second(1_000));
/// let limiter = RateLimiter::builder()
///     .policy(user.clone())
///     .policy(everybody.clone())
///     .build()?;
///
/// let decision = limiter
///     .check(&[user.charge(Key::new("ada")), everybody.charge(Key::GLOBAL)])
///     .await?;
/// if let Some(wait) = decision.retry_after() {
///     println!("come back in {wait:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiter {
    store: Arc<dyn Store>,
    /// The policies of all layers on this limiter: one name must mean one quota.
    known: Arc<Mutex<Vec<Policy>>>,
    keeper: Arc<Keeper>,
}

impl RateLimiter {
    /// A limiter of these policies over a store.
    ///
    /// # Errors
    ///
    /// What [`Policy::validate`] says, and [`ErrorKind::DuplicatePolicy`] when two bear one name.
    pub fn new(
        store: impl Store,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, Error> {
        Self::with(Arc::new(store), policies)
    }

    /// Decides all charges together: when one is denied, none is made.
    ///
    /// Without charges, or when every cost is 0, nothing is written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DuplicatePolicy`] when two charges share policy and key, [`ErrorKind::InvalidPolicy`] above 16
    /// charges, what [`Policy::validate`] says, and what the store could not do. Over the limit is no error.
    ///
    /// # Cancel safety
    ///
    /// When the answer is dropped before it is there, the charge may have been made or not.
    #[inline]
    pub fn check(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match judge(charges) {
            Ok(()) if charges.iter().all(|charge| charge.ticket().is_none()) => {
                self.store.decide(charges)
            }
            Ok(()) => self.check_slots(charges),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Decides under a new ticket, so that charges can be used again and each decision's slots are known.
    fn check_slots(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let ticket = Ticket::random();
        let charges = charges.iter().map(|charge| charge.with_ticket(ticket));
        let charges: Charges<'_> = charges.collect();
        match self.store.decide(&charges).try_ready() {
            Ok(decided) => StoreFuture::ready(decided.map(|decision| decision.with_ticket(ticket))),
            Err(answer) => StoreFuture::later(async move { Ok(answer.await?.with_ticket(ticket)) }),
        }
    }

    /// Tells where the charges' keys stand, without charging.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let peeks: Vec<Charge<'_>> = charges.iter().map(|charge| charge.cost(0)).collect();
        self.check(&peeks)
    }

    /// Puts right what a request was charged, once it is known what it really cost.
    ///
    /// Units that were not needed are given back; what it cost beyond the charge is charged, whether it fits or not. A
    /// refund is at most what the charge still weighs: what time has given back since is not given back again. Each
    /// policy is settled by itself, by whoever counted the charge.
    ///
    /// When overlapping charges on one key are refunded out of order, a bucket may refund slightly less than it could. It
    /// never refunds more.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota, RateLimiter, store::Receipt};
    ///
    /// # async fn example(limiter: RateLimiter, tokens: Policy) -> Result<(), tollgate::Error> {
    /// let charges = [tokens.charge(Key::new("ada")).cost(4_000)];
    /// let decision = limiter.check(&charges).await?;
    /// if let Some(receipt) = Receipt::of(&charges, &decision) {
    ///     let used = 1_234; // told by the answer
    ///     limiter.settle(receipt.price(|_, _| used)).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The store's error. After [`Overloaded`](crate::ErrorKind::Overloaded),
    /// [`Unavailable`](crate::ErrorKind::Unavailable) or a timeout before sending, the settlement is retried in the
    /// background for the policy's period, at most an hour. After any other error the charge stands. Slot releases are
    /// retried until the lease must have ended, even if the future is dropped.
    pub fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        self.keeper.settle(receipt)
    }

    /// Holds what a decision charged until the returned [`Hold`] is dropped or settled.
    ///
    /// For policies on [concurrency](Policy::concurrency): slots that are not held come back by their lease.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, RateLimiter, store::Receipt};
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
        Hold::new(receipt, &self.keeper)
    }

    /// Forgets what `key` has used of `policy`.
    ///
    /// # Errors
    ///
    /// What the store could not do.
    pub fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        self.store.reset(policy, key)
    }

    /// Whether the limiter works as configured, or without its shared store.
    #[must_use]
    pub fn health(&self) -> Health {
        self.store.health()
    }

    /// What looked wrong about the store's set-up so far. Each was logged when it was seen.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        self.store.warnings()
    }

    /// The same limiter, when it can count these policies too.
    pub(crate) fn for_policies(
        self,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, Error> {
        let policies: Vec<Policy> = policies.into_iter().collect();
        check_policies(&policies)?;
        let mut known = self.known.lock();
        let named = |policy: &Policy| known.iter().find(|other| other.name() == policy.name());
        let is_new = |policy: &Policy| match named(policy) {
            Some(other) if !other.counts_like(policy) => Err(two_quotas(policy)),
            other => Ok(other.is_none()),
        };
        // All are judged before any is noted: a layer that is refused leaves no name behind.
        let new: Vec<bool> = policies.iter().map(is_new).collect::<Result<_, _>>()?;
        let new = policies.into_iter().zip(new).filter(|(_, is_new)| *is_new);
        known.extend(new.map(|(policy, _)| policy));
        drop(known);
        Ok(self)
    }

    pub(crate) fn with(
        store: Arc<dyn Store>,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, Error> {
        let known = Arc::default();
        let keeper = Arc::new(Keeper::new(Arc::clone(&store)));
        let limiter = Self {
            store,
            known,
            keeper,
        };
        limiter.for_policies(policies)
    }
}

/// Each policy can work, and no two bear one name.
fn check_policies(policies: &[Policy]) -> Result<(), Error> {
    for (index, policy) in policies.iter().enumerate() {
        policy.validate()?;
        if policies[..index]
            .iter()
            .any(|other| other.name() == policy.name())
        {
            return Err(Error::new(
                ErrorKind::DuplicatePolicy,
                format!(
                    "two policies are named {:?}: give each a name of its own",
                    policy.name()
                ),
            ));
        }
    }
    if policies.len() > MAX_CHARGES {
        return Err(too_many(policies.len()));
    }
    Ok(())
}

#[inline]
fn judge(charges: &[Charge<'_>]) -> Result<(), Error> {
    if charges.len() > MAX_CHARGES {
        return Err(too_many(charges.len()));
    }
    for (index, charge) in charges.iter().enumerate() {
        if !charge.policy().is_usable() {
            charge.policy().validate()?;
        }
        let shares = |other: &Charge<'_>| {
            other.policy().name() == charge.policy().name() && other.key() == charge.key()
        };
        if charges[..index].iter().any(shares) {
            return Err(Error::new(
                ErrorKind::DuplicatePolicy,
                format!(
                    "policy {:?} is charged twice for one key: add the costs up instead",
                    charge.policy().name()
                ),
            ));
        }
    }
    Ok(())
}

fn two_quotas(policy: &Policy) -> Error {
    Error::new(
        ErrorKind::DuplicatePolicy,
        format!(
            "policy {:?} has another quota or algorithm in another layer on this limiter: give it a name of its own",
            policy.name()
        ),
    )
}

fn too_many(count: usize) -> Error {
    Error::new(
        ErrorKind::InvalidPolicy,
        format!("{count} policies at once: at most {MAX_CHARGES} are decided together"),
    )
}

/// How many charges one decision may have.
const MAX_CHARGES: usize = 16;
