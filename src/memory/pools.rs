//! The buckets that newcomers share while all slots hold keys in debt.

/// One shared bucket per policy, for as many policies as are crowded at once.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pools: Vec<Pool>,
}

#[derive(Clone, Copy, Debug)]
struct Pool {
    policy: u64,
    tat: u64,
}

impl Pools {
    /// What a newcomer of a policy may owe at most, `span` being how far ahead its TAT may lie.
    pub(super) fn debt(&self, policy: u64, now: u64, span: u64) -> u64 {
        match self.of(policy) {
            Some(pool) if pool.policy == policy => pool.tat,
            // Shared with another policy, whose keys may owe for longer than this one's ever do.
            Some(pool) => pool.tat.min(now + span),
            None => 0,
        }
    }

    /// Adds to what a policy's newcomers owe.
    ///
    /// Added and not overwritten: several charges of one decision may fall on one pool.
    pub(super) fn add(&mut self, policy: u64, now: u64, micros: u64) {
        let index = self.index_for(policy, now);
        let pool = &mut self.pools[index];
        pool.tat = pool.tat.max(now) + micros;
    }

    fn of(&self, policy: u64) -> Option<&Pool> {
        let own = self.pools.iter().find(|pool| pool.policy == policy);
        own.or_else(|| {
            self.pools
                .get(shared_index(policy))
                .filter(|_| self.pools.len() == MOST)
        })
    }

    /// The policy's own pool; a new one, or one that owes nothing any more; when all are in use, another policy's.
    fn index_for(&mut self, policy: u64, now: u64) -> usize {
        if let Some(own) = self.pools.iter().position(|pool| pool.policy == policy) {
            return own;
        }
        if let Some(paid) = self.pools.iter().position(|pool| pool.tat <= now) {
            self.pools[paid] = Pool { policy, tat: 0 };
            return paid;
        }
        if self.pools.len() < MOST {
            self.pools.push(Pool { policy, tat: 0 });
            return self.pools.len() - 1;
        }
        shared_index(policy)
    }
}

fn shared_index(policy: u64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "only the low bits are used"
    )]
    let index = policy as usize % MOST;
    index
}

const MOST: usize = 64;
