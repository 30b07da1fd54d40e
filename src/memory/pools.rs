//! The states that newcomers share while all slots hold keys in debt.

use super::table::Held;

/// One shared state per policy that is crowded.
///
/// As many as there are policies: their names come from the configuration, not from clients.
#[derive(Debug)]
pub(super) struct Pools<S> {
    pools: Vec<Pool<S>>,
}

#[derive(Debug)]
struct Pool<S> {
    policy: u64,
    state: S,
}

impl<S: Held> Pools<S> {
    /// What the newcomers of a policy share, if they do.
    pub(super) fn get(&self, policy: u64) -> Option<&S> {
        let pool = self.pools.iter().find(|pool| pool.policy == policy)?;
        Some(&pool.state)
    }

    /// Sets what the newcomers of a policy share.
    pub(super) fn set(&mut self, policy: u64, mut state: S, now: u64) {
        state.make_do(MORE);
        let own = |pool: &Pool<S>| pool.policy == policy;
        // One that owes nothing any more is as good as none.
        let paid = |pool: &Pool<S>| pool.state.owes_until() <= now;
        let index = self
            .pools
            .iter()
            .position(own)
            .or_else(|| self.pools.iter().position(paid));
        match index {
            Some(index) => self.pools[index] = Pool { policy, state },
            None => self.pools.push(Pool { policy, state }),
        }
    }

    /// Moves every time forwards by so many microseconds.
    pub(super) fn shift(&mut self, micros: u64) {
        for pool in &mut self.pools {
            pool.state.shift(micros);
        }
    }

    /// Bytes that the shared states take.
    pub(super) fn bytes(&self) -> usize {
        let beyond: usize = self.pools.iter().map(|pool| pool.state.bytes()).sum();
        self.pools.capacity() * size_of::<Pool<S>>() + beyond
    }
}

impl<S> Default for Pools<S> {
    fn default() -> Self {
        Self { pools: Vec::new() }
    }
}

/// Entries that a shared log may have beyond those that every log may have: a kilobyte in all.
const MORE: usize = 60;
