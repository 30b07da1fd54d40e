//! Tiers that are chosen without waiting.

use std::{collections::HashMap, fmt, sync::Arc};

use crate::{error::Error, key::Key, policy::Policy, request::RequestHead};

use super::tier::Tier;

/// Chooses a caller's tier.
///
/// Implemented for closures `Fn(&RequestHead<'_>, &Key) -> Option<Tier>` with explicit argument types. Object-safe.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose tiers",
    label = "not a choice of tiers",
    note = "use a `TierTable` or an `ExtensionTier`",
    note = "or a closure: `.tier_fn(|head, key| None)`, or with types `.tier_by(|head: &tollgate::RequestHead, key: &tollgate::Key| None)`"
)]
pub trait TierChoice: Send + Sync + 'static {
    /// Returns the caller's tier, or `None` to leave the choice to a [`TierCache`](super::TierCache) or the policy's own quota.
    fn tier(&self, head: &RequestHead<'_>, key: &Key) -> Option<Tier>;

    /// Checks tiers that are known when the layer is built against the policy of the rule. By default there are none.
    ///
    /// # Errors
    ///
    /// The error of [`Policy::under`] for the first tier that does not fit.
    fn validate(&self, policy: &Policy) -> Result<(), Error> {
        let _ = policy;
        Ok(())
    }
}

impl<F> TierChoice for F
where
    F: Fn(&RequestHead<'_>, &Key) -> Option<Tier> + Send + Sync + 'static,
{
    fn tier(&self, head: &RequestHead<'_>, key: &Key) -> Option<Tier> {
        self(head, key)
    }
}

// For a choice whose type is only known at run time.
impl TierChoice for Arc<dyn TierChoice> {
    fn tier(&self, head: &RequestHead<'_>, key: &Key) -> Option<Tier> {
        (**self).tier(head, key)
    }

    fn validate(&self, policy: &Policy) -> Result<(), Error> {
        (**self).validate(policy)
    }
}

// === ExtensionTier ===

/// The [`Tier`] that an outer layer has put into the request's extensions.
///
/// All rules of a layer that use it get the same tier. For a different tier per rule, insert a custom type and choose with a
/// closure.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtensionTier;

impl TierChoice for ExtensionTier {
    fn tier(&self, head: &RequestHead<'_>, _: &Key) -> Option<Tier> {
        head.extensions.get::<Tier>().cloned()
    }
}

// === TierTable ===

/// Tiers by key: overrides for individual callers.
#[derive(Clone)]
pub struct TierTable {
    tiers: HashMap<Key, Tier>,
}

impl TierTable {
    /// Creates a table of keys and tiers. If a key occurs twice, its last tier applies.
    ///
    /// Create each key as the rule's extractor does:
    ///
    /// | extractor | key |
    /// |---|---|
    /// | `ApiKey`, `Cookie`, with `hash_secret(..)` | `Key::secret(..)`, `Key::secret_with(&hash_secret, ..)` |
    /// | `Header`, `QueryParam`, `PathParam`, `Cookie::plaintext` | `Key::new(..)` |
    /// | `PeerIp`, `ClientIp` | `Key::from(address)`; with other prefix lengths, `client_ip.keys_of(&CallerId::Address(address))` |
    /// | `first.and(second)` | `first.and(&second)` |
    /// | `first.or_else(second)` | the key of `first` unchanged; the key of `second` [`labelled`](Key::labelled) with both labels |
    /// | the middle of `a.or_else(b).or_else(c)` | cannot be created: choose with a closure, which receives the request head |
    ///
    /// # Examples
    ///
    /// ```
    /// use http::Request;
    /// use std::net::IpAddr;
    /// use tollgate::{Key, Quota, RequestHead, extract::{ApiKey, KeyExtractor, PeerIp}};
    /// use tollgate::tiers::{Tier, TierChoice, TierTable};
    ///
    /// let caller = ApiKey::header("x-api-key").or_else(PeerIp);
    /// let office = IpAddr::from([192, 0, 2, 7]);
    /// let table = TierTable::new([
    ///     (Key::secret("k-acme"), Tier::new("acme", Quota::per_minute(5_000))?),
    ///     (Key::from(office).labelled(caller.label()), Tier::unlimited()),
    /// ]);
    ///
    /// let by_key = Request::get("/").header("x-api-key", "k-acme").body(())?;
    /// let by_address = Request::get("/").extension(office).body(())?;
    /// for request in [by_key, by_address] {
    ///     let head = RequestHead::from(&request);
    ///     let key = caller.extract(&head).found().expect("a caller");
    ///     assert!(table.tier(&head, &key).is_some());
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
    fn tier(&self, _: &RequestHead<'_>, key: &Key) -> Option<Tier> {
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
