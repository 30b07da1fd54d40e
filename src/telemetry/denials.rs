//! The last denial of each key, in bounded memory.
//!
//! ```text
//! hash of policy and key --> set --> 8 entries: the pair's own, or the one that was denied the longest time ago
//! ```

use std::{fmt, sync::Arc};

use siphasher::sip128::SipHasher13;

use crate::{
    charge::Charge,
    clock::Timestamp,
    decision::{CountedBy, Decision, Outcome, PolicyState, Retry},
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
    task::Mutex,
};

/// The last denials of many keys. Clones share them. See the [module docs](self).
#[derive(Clone)]
pub(crate) struct RecentDenials {
    sets: Arc<[DenialSet]>,
}

/// The entries of the pairs whose hashes fall into one set.
type DenialSet = Mutex<[Option<DenialEntry>; WAYS]>;

#[derive(Clone, Copy, Debug)]
struct DenialEntry {
    hash: Hash,
    denial: LastDenial,
}

/// 128 bits, so that no two pairs share an entry by chance.
type Hash = (u64, u64);

impl RecentDenials {
    /// Allocates room for this many pairs of policy and key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for 0, and for more than [`MAX_PAIRS`].
    pub fn new(pairs: usize) -> Result<Self, Error> {
        if !(1..=MAX_PAIRS).contains(&pairs) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("record_denials of {pairs}: use 1 to {MAX_PAIRS}, or leave it out"),
            ));
        }
        let sets = (0..pairs.div_ceil(WAYS)).map(|_| DenialSet::default());
        Ok(Self {
            sets: sets.collect(),
        })
    }

    /// Records a denial for each charge whose policy denied the request, or would have if it were enforced.
    pub fn record(&self, charges: &[Charge<'_>], decision: &Decision) {
        for (charge, state) in charges.iter().zip(decision.states()) {
            if state.outcome() != Outcome::Allowed {
                self.note(charge, state, decision);
            }
        }
    }

    /// Returns the last denial of a key under a policy.
    pub fn last(&self, policy: &Policy, key: &Key) -> Option<LastDenial> {
        let hash = hash(policy, key);
        let set = self.set_of(hash).lock();
        let mut entries = set.iter().flatten();
        let found = entries.find(|entry| entry.hash == hash)?;
        Some(found.denial)
    }

    #[cold]
    fn note(&self, charge: &Charge<'_>, state: &PolicyState, decision: &Decision) {
        let hash = hash(charge.policy(), charge.key());
        let at = decision.decided_at();
        let mut denial = LastDenial {
            at,
            first_at: at,
            count: 1,
            outcome: state.outcome(),
            counted_by: state.counted_by().unwrap_or(decision.counted_by()),
            is_shadow: state.is_shadow(),
            retry: if state.is_shadow() {
                state.retry()
            } else {
                decision.narrowest().map_or(Retry::Now, PolicyState::retry)
            },
        };
        let mut set = self.set_of(hash).lock();
        let own = |entry: &&mut Option<DenialEntry>| entry.is_some_and(|entry| entry.hash == hash);
        if let Some(Some(entry)) = set.iter_mut().find(own) {
            denial.first_at = entry.denial.first_at;
            denial.count = entry.denial.count.saturating_add(1);
            entry.denial = denial;
            return;
        }
        // An empty place comes before every entry.
        let oldest = set
            .iter_mut()
            .min_by_key(|entry| entry.map(|entry| entry.denial.at));
        *oldest.expect("a set has places") = Some(DenialEntry { hash, denial });
    }

    fn set_of(&self, (high, _): Hash) -> &DenialSet {
        let place = (u128::from(high) * self.sets.len() as u128) >> u64::BITS;
        &self.sets[usize::try_from(place).expect("below the number of sets")]
    }
}

/// Hashes a pair under a key that only this process has.
fn hash(policy: &Policy, key: &Key) -> Hash {
    let name = policy.name_hash();
    let hash = SipHasher13::new_with_keys(name.low, name.high).hash(key.as_bytes());
    (hash.h1, hash.h2)
}

impl fmt::Debug for RecentDenials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentDenials").finish_non_exhaustive()
    }
}

/// Number of entries in a set.
const WAYS: usize = 8;
/// 65 MB.
const MAX_PAIRS: usize = 1_000_000;

// === LastDenial ===

/// The last denial of a key under a policy, by this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastDenial {
    at: Timestamp,
    first_at: Timestamp,
    count: u64,
    outcome: Outcome,
    counted_by: CountedBy,
    is_shadow: bool,
    retry: Retry,
}

impl LastDenial {
    /// Returns when the request was denied, by the [clock](crate::RateLimiter::wall_time) of the store.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns when the first of the [counted](Self::count) denials was.
    #[must_use]
    pub fn first_at(&self) -> Timestamp {
        self.first_at
    }

    /// Returns the number of denials that were recorded for the key, with this one. It starts again if the entry was evicted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the outcome: [`Limited`](Outcome::Limited) or [`Unavailable`](Outcome::Unavailable).
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns where the count was kept.
    #[must_use]
    pub fn counted_by(&self) -> CountedBy {
        self.counted_by
    }

    /// Returns whether the policy was in shadow mode, so that it denied nothing.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns when the request could have succeeded, as the response stated. [`Retry::Now`] if that was unknown.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.retry
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{algorithm::Quota, decision::Usage};

    use super::*;

    fn policy() -> Policy {
        Policy::new("per-ip", Quota::per_minute(1))
    }

    fn second(number: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_secs(number)
    }

    fn deny(denials: &RecentDenials, key: u64, at: u64) {
        let policy = policy();
        let usage = Usage::new(1, 0, second(at + 60));
        let state = PolicyState::counted(*policy.name(), usage, Retry::At(second(at + 60)));
        let decision = Decision::new(CountedBy::Shared, second(at), [state]);
        denials.record(&[policy.charge(Key::from(key))], &decision);
    }

    #[test]
    fn last_denial_of_a_key_is_kept_with_their_number() {
        let denials = RecentDenials::new(100).expect("usable");
        for at in [1, 5, 9] {
            deny(&denials, 7, at);
        }
        let last = denials.last(&policy(), &Key::from(7_u64)).expect("denied");
        assert_eq!(
            (last.first_at(), last.at(), last.count()),
            (second(1), second(9), 3)
        );
        assert_eq!(last.retry(), Retry::At(second(69)));
        assert_eq!(denials.last(&policy(), &Key::from(8_u64)), None);
        let other = Policy::new("other", Quota::per_minute(1));
        assert_eq!(denials.last(&other, &Key::from(7_u64)), None);
    }

    #[test]
    fn pair_that_was_denied_the_longest_time_ago_makes_room() {
        let denials = RecentDenials::new(WAYS).expect("usable");
        let ways = WAYS as u64;
        for key in 0..ways {
            deny(&denials, key, key);
        }
        // Denied again, so it is the latest of the set.
        deny(&denials, 0, ways);
        deny(&denials, ways, ways + 1);
        let is_known = |key: u64| denials.last(&policy(), &Key::from(key)).is_some();
        let known: Vec<u64> = (0..=ways).filter(|key| is_known(*key)).collect();
        assert_eq!(known, [0, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn one_key_that_floods_evicts_no_other() {
        let denials = RecentDenials::new(WAYS).expect("usable");
        deny(&denials, 1, 0);
        for at in 0..10_000 {
            deny(&denials, 2, at);
        }
        assert!(denials.last(&policy(), &Key::from(1_u64)).is_some());
    }

    #[test]
    fn memory_is_within_the_documented_bound() {
        let denials = RecentDenials::new(1_000).expect("usable");
        let bytes = denials.sets.len() * size_of::<DenialSet>();
        assert!(bytes <= 65 * 1_000, "{bytes} bytes");
    }

    #[test]
    fn impossible_numbers_are_misconfigurations() {
        for pairs in [0, MAX_PAIRS + 1] {
            let error = RecentDenials::new(pairs).expect_err("not usable");
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        }
        assert!(RecentDenials::new(MAX_PAIRS).is_ok());
    }
}
