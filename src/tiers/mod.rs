//! Other quotas for some callers: who has which, and where that is looked up.
//!
//! A rule counts everybody by its policy's own quota. A [`Tier`] is another quota for some, chosen per request once the key
//! is known:
//!
//! - by a [`TierChoice`]: a closure, a [`TierTable`] of keys, or what an outer layer put into the request's
//!   extensions ([`ExtensionTier`]), with [`Rule::tier_by`](crate::rules::Rule::tier_by);
//! - by a [`TierResolver`] that must await, behind a [`TierCache`], with
//!   [`Rule::tier_cache`](crate::rules::Rule::tier_cache).
//!
//! With both, the choice goes first and the cache is asked when it says `None`. Where neither names a tier, the policy's
//! own quota holds; callers whose key is missing have none either.
//!
//! # Examples
//!
//! ```
//! use http::request::Parts;
//! use tollgate::{Key, Policy, Quota, extract::Header, tiers::{Tier, TierTable}};
//!
//! let pro = Tier::new("pro", Quota::per_minute(1_000))?;
//! let api = || Policy::new("api", Quota::per_minute(60)).key(Header::new("x-account"));
//!
//! // A closure.
//! let trusted = pro.clone();
//! let by_closure = api().tier_by(move |_: &Parts, key: &Key| {
//!     key.as_str().starts_with("pro-").then(|| trusted.clone())
//! });
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
//! Looked up in a database, and kept for a minute:
//!
//! ```
//! use std::{collections::HashMap, io, time::Duration};
//! use http::request::Parts;
//! use tollgate::{Key, Policy, Quota, extract::Header, tiers::{Tier, TierCache}};
//!
//! # #[derive(Clone)] struct Plans;
//! # impl Plans { async fn of(&self, _: String) -> Result<Option<&'static str>, io::Error> { Ok(Some("pro")) } }
//! # fn example(plans: Plans) -> Result<(), tollgate::Error> {
//! let tiers = HashMap::from([
//!     ("pro", Tier::new("pro", Quota::per_minute(1_000))?),
//!     ("enterprise", Tier::new("enterprise", Quota::per_minute(20_000))?),
//! ]);
//! let cache = TierCache::builder(move |_: &Parts, account: &Key| {
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
//! A tier that the policy cannot count (its quota beyond what the algorithm takes, or less than one request costs) fails at
//! `build()` where it is known by then. One that comes later is reported once, and its callers have the policy's own
//! quota.
//!
//! What a single request costs is not compared: where [`cost_when`](crate::rules::Rule::cost_when) or
//! [`cost_by`](crate::rules::Rule::cost_by) asks for more than the tier has at once, `build()` says nothing, and such a
//! request is denied whenever it comes, without `Retry-After`, since waiting does not help. The tier's callers are counted
//! by it for all other requests.

mod cache;
mod choice;
mod resolver;
mod settings;
mod shelf;

pub(crate) use self::cache::{Asked, TierWait};

pub use self::cache::TierCache;
pub use self::choice::{ExtensionTier, TierChoice, TierTable};
pub use self::resolver::{TierLookup, TierResolver};
pub use self::settings::TierCacheBuilder;
pub use crate::tier::Tier;
