//! A store that sheds every decision.

use tollgate::{
    Decision, Error, ErrorKind, Key, Policy,
    charge::Charge,
    memory::MemoryStore,
    resilience::{Calls, ResilientStore},
    store::{Store, StoreFuture},
};

/// A store that sheds every decision before anything is done for it.
#[derive(Debug)]
pub(crate) struct Full;

impl Full {
    /// Returns the store behind a breaker, which judges it by reports, or by its decisions.
    pub(crate) fn behind_a_breaker(reports_calls: bool) -> ResilientStore {
        let mut builder = ResilientStore::builder(Self, MemoryStore::new());
        if reports_calls {
            builder = builder.calls(Calls::new());
        }
        builder.build().expect("a usable store")
    }
}

impl Store for Full {
    fn decide(&self, _: &[Charge<'_>]) -> StoreFuture<Decision> {
        StoreFuture::ready(Err(Error::new(ErrorKind::Overloaded, "full")))
    }

    fn reset(&self, _: &Policy, _: &Key) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}
