//! Tiers that are known without waiting.

use std::{collections::HashMap, fmt, sync::Arc};

use http::request::Parts;

use crate::{error::Error, key::Key, policy::Policy, tier::Tier};

/// Says which tier a caller has.
///
/// Implemented for closures `Fn(&Parts, &Key) -> Option<Tier>`; write the arguments' types. Object-safe.
pub trait TierChoice: Send + Sync + 'static {
    /// The caller's tier, or `None` when this does not say.
    fn tier(&self, parts: &Parts, key: &Key) -> Option<Tier>;

    /// Checks the tiers that are known beforehand against the policy that they stand for, when the layer is built.
    ///
    /// # Errors
    ///
    /// What [`Policy::under`] says of the first that does not fit. By default none are known.
    fn validate(&self, policy: &Policy) -> Result<(), Error> {
        let _ = policy;
        Ok(())
    }
}

impl<F> TierChoice for F
where
    F: Fn(&Parts, &Key) -> Option<Tier> + Send + Sync + 'static,
{
    fn tier(&self, parts: &Parts, key: &Key) -> Option<Tier> {
        self(parts, key)
    }
}

// For choices that are made at run time.
impl TierChoice for Arc<dyn TierChoice> {
    fn tier(&self, parts: &Parts, key: &Key) -> Option<Tier> {
        (**self).tier(parts, key)
    }

    fn validate(&self, policy: &Policy) -> Result<(), Error> {
        (**self).validate(policy)
    }
}

// === ExtensionKeyTier ===

/// The [`Tier`] that an outer layer has put into the request's extensions.
///
/// All rules of a layer that take it have the same quota then; where they should not, put something of your own there and
/// choose by a closure.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtensionTier;

impl TierChoice for ExtensionTier {
    fn tier(&self, parts: &Parts, _: &Key) -> Option<Tier> {
        parts.extensions.get::<Tier>().cloned()
    }
}

// === TierTable ===

/// Tiers by key: overrides for single callers.
#[derive(Clone)]
pub struct TierTable {
    tiers: HashMap<Key, Tier>,
}

impl TierTable {
    /// These keys' tiers; of two for one key the later counts.
    ///
    /// A key is looked up as the rule's extractor makes it, so make it in the same way here:
    ///
    /// | extractor | key |
    /// |---|---|
    /// | `ApiKey`, `Cookie`, with `hash_secret(..)` | `Key::secret(..)`, `Key::secret_with(&hash_secret, ..)` |
    /// | `Header`, `QueryParam`, `PathParam`, `Cookie::plaintext` | `Key::new(..)` |
    /// | `PeerIp`, `ClientIp` | `Key::from(address)`, for IPv6 the network's address: `2001:db8::` |
    /// | `first.and(second)` | `first.and(&second)` |
    /// | `first.or_else(second)` | the first's as it is; the second's [`labelled`](Key::labelled) with both labels |
    /// | the middle of `a.or_else(b).or_else(c)` | none can be made: choose by a closure, which sees the head |
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use std::net::IpAddr;
    /// use tollgate::{Key, Quota, extract::{ApiKey, KeyExtractor, PeerIp}};
    /// use tollgate::tiers::{Tier, TierChoice, TierTable};
    ///
    /// let caller = ApiKey::header("x-api-key").or_else(PeerIp);
    /// let office = IpAddr::from([192, 0, 2, 7]);
    /// let table = TierTable::new([
    ///     (Key::secret("k-acme"), Tier::new("acme", Quota::per_minute(5_000))?),
    ///     (Key::from(office).labelled(caller.label()), Tier::unlimited()),
    /// ]);
    ///
    /// let (by_key, ()) = Request::get("/").header("x-api-key", "k-acme").body(())?.into_parts();
    /// let (by_address, ()) = Request::get("/").extension(office).body(())?.into_parts();
    /// for parts in [by_key, by_address] {
    ///     let key = caller.extract(&parts).found().expect("it tells");
    ///     assert!(table.tier(&parts, &key).is_some());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(tiers: impl IntoIterator<Item = (Key, Tier)>) -> Self {
        Self {
            tiers: tiers.into_iter().collect(),
        }
    }
}

impl TierChoice for TierTable {
    fn tier(&self, _: &Parts, key: &Key) -> Option<Tier> {
        self.tiers.get(key).cloned()
    }

    fn validate(&self, policy: &Policy) -> Result<(), Error> {
        let mut limiting = self.tiers.values().filter(|tier| tier.quota().is_some());
        limiting.try_for_each(|tier| policy.under(tier).map(drop))
    }
}

impl fmt::Debug for TierTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierTable")
            .field("keys", &self.tiers.len())
            .finish()
    }
}
