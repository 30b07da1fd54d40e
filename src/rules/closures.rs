//! Settings by closures whose types the compiler infers.
//!
//! # Why are these methods of their own?
//!
//! The compiler infers the type of a closure's argument only from a bound on `Fn`. [`Policy::key`] and its siblings take a trait,
//! since extractors and matchers have settings to check, labels and diagnoses. So their closures must name the types, as in
//! `|head: &RequestHead|`, and these need not.

use crate::{extract::IntoKey, key::Key, policy::Policy, request::RequestHead, tiers::Tier};

use super::rule::Rule;

impl Policy {
    /// Counts this policy per key that a closure finds in a request.
    ///
    /// As [`key`](Self::key), but the closure names no types. It returns an `Option<Key>`, or another [`IntoKey`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, Policy, Quota};
    ///
    /// let by_tenant = Policy::new("tenant", Quota::per_minute(600))
    ///     .key_fn(|head| head.headers.get("x-tenant").map(Key::new));
    /// ```
    #[must_use]
    pub fn key_fn<K: IntoKey>(
        self,
        key: impl Fn(&RequestHead<'_>) -> K + Send + Sync + 'static,
    ) -> Rule {
        self.key(key)
    }
}

impl Rule {
    /// Counts only requests for which a closure returns `true`. As [`when`](Self::when), but the closure names no types.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::PeerIp};
    ///
    /// let writes = Policy::new("writes", Quota::per_minute(60))
    ///     .key(PeerIp)
    ///     .when_fn(|head| head.method != "GET");
    /// ```
    #[must_use]
    pub fn when_fn(
        self,
        matches: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.when(matches)
    }

    /// Does not count requests for which a closure returns `true`. As [`unless`](Self::unless), but the closure names no types.
    #[must_use]
    pub fn unless_fn(
        self,
        matches: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.unless(matches)
    }

    /// Sets a closure that returns a caller's tier without waiting. As [`tier_by`](Self::tier_by), but the closure names no
    /// types.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract::ApiKey, tiers::Tier};
    ///
    /// # #[derive(Clone)] struct Plan { is_pro: bool } // which an outer layer has found
    /// let pro = Tier::new("pro", Quota::per_minute(1_000))?;
    /// let api = Policy::new("api", Quota::per_minute(60))
    ///     .key(ApiKey::header("x-api-key"))
    ///     .tier_fn(move |head, _| head.extensions.get::<Plan>()?.is_pro.then(|| pro.clone()));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn tier_fn(
        self,
        tier: impl Fn(&RequestHead<'_>, &Key) -> Option<Tier> + Send + Sync + 'static,
    ) -> Self {
        self.tier_by(tier)
    }
}
