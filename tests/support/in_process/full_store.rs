//! A store that sheds every decision.

use tollgate::{
    ErrorKind,
    memory::MemoryStore,
    resilience::{Calls, ResilientStore},
    testing::ScriptedStore,
};

/// Returns a breaker over a store that sheds every decision before anything is done for it.
pub(crate) fn over_a_full_store(reports_calls: bool) -> ResilientStore {
    let full = ScriptedStore::failing(ErrorKind::Overloaded, "full");
    let mut builder = ResilientStore::builder(full, MemoryStore::new());
    if reports_calls {
        builder = builder.calls(Calls::new());
    }
    builder.build().expect("a usable store")
}
