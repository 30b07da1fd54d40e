//! Tiers that must be awaited.

use std::{error::Error, future::Future, pin::Pin};

use http::request::Parts;

use crate::{key::Key, tier::Tier};

/// Looks a caller's tier up where that takes waiting: in a database, or over the network.
///
/// A type with fields has its state; a closure `Fn(&Parts, &Key) -> impl Future` captures it. The future borrows nothing, so
/// that it can go on when the request is gone: take what it needs out of the head, and clone what it shares. Object-safe.
///
/// The answer is kept for the *key*, so it must not depend on anything else of the request. The head is there to read what
/// the key is a hash of.
pub trait TierResolver: Send + Sync + 'static {
    /// The caller's tier; `None` when it has none, and the policy's own quota holds.
    fn resolve(&self, parts: &Parts, key: &Key) -> TierLookup;
}

/// A tier that is being looked up.
pub type TierLookup =
    Pin<Box<dyn Future<Output = Result<Option<Tier>, Box<dyn Error + Send + Sync>>> + Send>>;

impl<F, T, E> TierResolver for F
where
    F: Fn(&Parts, &Key) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Option<Tier>, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn resolve(&self, parts: &Parts, key: &Key) -> TierLookup {
        let lookup = self(parts, key);
        Box::pin(async move { lookup.await.map_err(Into::into) })
    }
}
