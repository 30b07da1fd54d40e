//! Other quotas for some callers: free, pro, or a single customer's.
//!
//! By default, a rule applies its policy's own quota to all callers. A [`Tier`] is another quota for some of them. It is chosen
//! per request, once the key is known:
//!
//! - by a [`TierChoice`], with [`Rule::tier_by`](crate::rules::Rule::tier_by): a closure, a [`TierTable`] of keys, or the
//!   tier that an outer layer put into the request's extensions ([`ExtensionTier`]);
//! - by an asynchronous [`TierResolver`] behind a [`TierCache`], with
//!   [`Rule::tier_cache`](crate::rules::Rule::tier_cache).
//!
//! With both, the cache is used if the choice returns `None`. If neither returns a tier, the policy's own quota applies.
//! Callers without a key have no tier.
//!
//! # Examples
//!
//! ```
//! use tollgate::{Key, Policy, Quota, extract::Header, tiers::{Tier, TierTable}};
//!
//! let pro = Tier::new("pro", Quota::per_minute(1_000))?;
//! let api = || Policy::new("api", Quota::per_minute(60)).key(Header::new("x-account"));
//!
//! // A closure.
//! let trusted = pro.clone();
//! let by_closure = api().tier_fn(move |_, key| key.as_str().starts_with("pro-").then(|| trusted.clone()));
//!
//! // Overrides per key: each is checked against the policy when the layer is built.
//! let overrides = TierTable::new([
//!     (Key::new("acme"), Tier::new("acme", Quota::per_minute(5_000))?),
//!     (Key::new("globex"), pro.clone()),
//!     (Key::new("ourselves"), Tier::unlimited()),
//!     (Key::new("in-arrears"), Tier::forbidden()),
//! ]);
//! let by_table = api().tier_by(overrides);
//! # Ok::<(), tollgate::Error>(())
//! ```
//!
//! Tiers from a database, cached for a minute:
//!
//! ```
//! use std::{collections::HashMap, io, time::Duration};
//! use tollgate::{Key, Policy, Quota, RequestHead, extract::Header, tiers::{Tier, TierCache}};
//!
//! # #[derive(Clone)] struct Plans;
//! # impl Plans { async fn of(&self, _: String) -> Result<Option<&'static str>, io::Error> { Ok(Some("pro")) } }
//! # fn example(plans: Plans) -> Result<(), tollgate::Error> {
//! let tiers = HashMap::from([
//!     ("pro", Tier::new("pro", Quota::per_minute(1_000))?),
//!     ("enterprise", Tier::new("enterprise", Quota::per_minute(20_000))?),
//! ]);
//! let cache = TierCache::builder(move |_: &RequestHead, account: &Key| {
//!     let (plans, tiers) = (plans.clone(), tiers.clone());
//!     let account = account.as_str().to_owned();
//!     async move {
//!         let plan = plans.of(account).await?;
//!         Ok::<_, io::Error>(plan.and_then(|plan| tiers.get(plan).cloned()))
//!     }
//! })
//! .ttl(Duration::from_secs(60))
//! .build()?;
//! let rule = Policy::new("api", Quota::per_minute(60))
//!     .key(Header::new("x-account"))
//!     .tier_cache(cache.clone());
//! # Ok(())
//! # }
//! ```
//!
//! # When a tier does not fit
//!
//! A tier does not fit a policy if the algorithm cannot count its quota, or if one request costs more than the quota. If the
//! tier is known at `build()`, that fails. A tier that comes later is logged once, and its callers get the policy's own quota.
//!
//! Costs that depend on the request, from [`cost_when`](crate::rules::Rule::cost_when) or
//! [`cost_by`](crate::rules::Rule::cost_by), are not checked at `build()`. A request that costs more than the tier allows
//! at once is always denied, without `Retry-After`, since waiting does not help. Other requests of the same caller are counted
//! by the tier.

mod builder;
mod cache;
mod choice;
mod resolver;
mod segment;
mod tier;

pub(crate) use self::cache::{TierFuture, TierResolution};
pub(crate) use self::segment::Cached;

pub use self::builder::TierCacheBuilder;
pub use self::cache::TierCache;
pub use self::choice::{ExtensionTier, TierChoice, TierTable};
pub use self::resolver::{TierLookup, TierResolver};
pub use self::tier::Tier;
