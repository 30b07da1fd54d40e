//! Tiers that are looked up asynchronously.

use std::{error::Error, future::Future, pin::Pin};

use crate::{key::Key, request::RequestHead};

use super::tier::Tier;

/// Looks a caller's tier up in a database or over the network.
///
/// Implemented for closures `Fn(&RequestHead<'_>, &Key) -> impl Future` with explicit argument types. The future borrows nothing, since
/// it may outlive the request: copy what it needs from the request head, and clone shared state. Object-safe.
///
/// The result is cached by *key*, so it must not depend on anything else in the request. Use the request head only to read
/// the value that the key is a hash of.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not look tiers up",
    label = "not a lookup of tiers",
    note = "use a closure with the types of its arguments that returns a future without borrows: `|head: &tollgate::RequestHead, key: &tollgate::Key| async {{ Ok::<_, Infallible>(None) }}`"
)]
pub trait TierResolver: Send + Sync + 'static {
    /// Returns the caller's tier, or `None` if the policy's own quota applies.
    fn resolve(&self, head: &RequestHead<'_>, key: &Key) -> TierLookup;
}

/// The future of a lookup.
pub type TierLookup =
    Pin<Box<dyn Future<Output = Result<Option<Tier>, Box<dyn Error + Send + Sync>>> + Send>>;

impl<F, T, E> TierResolver for F
where
    F: Fn(&RequestHead<'_>, &Key) -> T + Send + Sync + 'static,
    T: Future<Output = Result<Option<Tier>, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn resolve(&self, head: &RequestHead<'_>, key: &Key) -> TierLookup {
        let lookup = self(head, key);
        Box::pin(async move { lookup.await.map_err(Into::into) })
    }
}
