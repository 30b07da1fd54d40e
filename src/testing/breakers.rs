//! The breakers in front of a scripted store.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    resilience::{Calls, Guard},
    task::Mutex,
};

/// Part of a store that serves the breaker in front of it.
#[derive(Clone)]
pub(super) struct BreakerSide {
    /// The longest time of an operation.
    pub deadline: Duration,
    /// Reports each operation.
    pub calls: Calls,
}

// === Breakers ===

/// The breakers in front of a store.
#[derive(Default)]
pub(super) struct Breakers {
    guards: Mutex<Vec<Weak<Guard>>>,
}

impl Breakers {
    pub fn add(&self, guard: &Arc<Guard>) {
        self.guards.lock().push(Arc::downgrade(guard));
    }

    /// Closes those that are open.
    pub fn close(&self) {
        let guards = self.guards.lock().clone();
        let guards = guards.iter().filter_map(Weak::upgrade);
        guards
            .filter(|guard| guard.is_open())
            .for_each(|guard| guard.recover());
    }
}
