//! The retry budget: how many retries the calls to a key pay for.
//!
//! # Why a bucket, and not a share per window?
//!
//! While half of all calls fail for 10 s, three tries per call send 1.75 times the calls. A budget of 20 %, but at least ten
//! retries a second, sends 1.62 times in 8 processes, since each has the minimum. A bucket has no minimum and no window, so it
//! bounds any span: a number `n` of calls causes at most `share * n + HOLDS` retries.
//!
//! ```text
//! first call   100 calls     a retry   9 more retries     10 calls
//! 10.0         10.0          9.0       0.0: no retries    1.0: one retry
//! ```

use std::{collections::HashMap, time::Duration};

use crate::{clock::Moment, task::Mutex};

use super::subject::Subject;

/// A bucket per key. Clones of a layer share it.
#[derive(Debug)]
pub(super) struct RetryBudget {
    /// The share that a call adds, in thousandths of a retry.
    per_call: u32,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    /// Buckets that are not full, in thousandths of a retry, and when they were last used.
    partial: HashMap<Subject, (u32, Moment)>,
    /// The bucket of all other keys while there are too many.
    shared: u32,
}

impl RetryBudget {
    pub fn new(percent: u32) -> Self {
        Self {
            per_call: percent * (RETRY / 100),
            buckets: Mutex::new(Buckets {
                partial: HashMap::new(),
                shared: FULL,
            }),
        }
    }

    /// Whether 100 calls pay for this many retries.
    pub fn has_percent(&self, percent: u32) -> bool {
        self.per_call == percent * (RETRY / 100)
    }

    /// Adds the share of a call.
    pub fn deposit(&self, subject: &Subject) {
        let mut buckets = self.buckets.lock();
        let Some((left, used)) = buckets.partial.get_mut(subject) else {
            buckets.shared = FULL.min(buckets.shared + self.per_call);
            return;
        };
        (*left, *used) = (FULL.min(*left + self.per_call), Moment::now());
        // A full bucket is as good as none: only keys with retries take memory.
        if *left == FULL {
            buckets.partial.remove(subject);
        }
    }

    /// Takes one retry. Returns whether the budget had one.
    pub fn withdraw(&self, subject: &Subject) -> bool {
        let mut buckets = self.buckets.lock();
        let now = Moment::now();
        if buckets.partial.len() >= MAX_KEYS && !buckets.partial.contains_key(subject) {
            // Otherwise a key with one retry and no more calls would stay.
            let in_use = |used: Moment| now.since(used) < IDLE;
            buckets.partial.retain(|_, (_, used)| in_use(*used));
        }
        let is_crowded = buckets.partial.len() >= MAX_KEYS;
        let bucket = match buckets.partial.get_mut(subject) {
            None if is_crowded => &mut buckets.shared,
            _ => {
                let (left, used) = buckets.partial.entry(*subject).or_insert((FULL, now));
                *used = now;
                left
            }
        };
        let left = bucket.checked_sub(RETRY);
        *bucket = left.unwrap_or(*bucket);
        left.is_some()
    }
}

const RETRY: u32 = 1_000;
/// Ten retries.
const FULL: u32 = 10 * RETRY;
/// At about 140 bytes each.
const MAX_KEYS: usize = 10_000;
/// A key without a call for so long begins with a full bucket again.
const IDLE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{algorithm::Quota, key::Key, policy::Policy};

    fn subject(key: u64) -> Subject {
        let policy = Policy::new("api", Quota::per_second(1));
        Subject::of(&policy.charge(Key::from(key)))
    }

    #[test]
    fn ten_calls_pay_for_one_retry_after_the_first_ten() {
        let budget = RetryBudget::new(10);
        let (ada, bob) = (subject(1), subject(2));
        assert_eq!((0..20).filter(|_| budget.withdraw(&ada)).count(), 10);
        assert!(budget.withdraw(&bob), "each key has its own");
        for _ in 0..9 {
            budget.deposit(&ada);
        }
        assert!(!budget.withdraw(&ada));
        budget.deposit(&ada);
        assert!(budget.withdraw(&ada));
        assert!(!budget.withdraw(&ada));
    }

    #[test]
    fn full_buckets_take_no_memory_and_too_many_keys_share_one() {
        let budget = RetryBudget::new(100);
        let most = u64::try_from(MAX_KEYS).expect("a small number");
        for key in 0..most {
            assert!(budget.withdraw(&subject(key)));
        }
        let beyond = (0..20).filter(|extra| budget.withdraw(&subject(most + extra)));
        assert_eq!(beyond.count(), 10, "they share a bucket");
        assert_eq!(budget.buckets.lock().partial.len(), MAX_KEYS);
        for key in 0..most {
            budget.deposit(&subject(key));
        }
        assert!(budget.buckets.lock().partial.is_empty());
    }

    // Regression: keys with one retry and no more calls kept their buckets, and all others shared one for ever.
    #[tokio::test(start_paused = true)]
    async fn idle_keys_make_room() {
        let budget = RetryBudget::new(10);
        let most = u64::try_from(MAX_KEYS).expect("a small number");
        for key in 0..most {
            assert!(budget.withdraw(&subject(key)));
        }
        tokio::time::advance(IDLE).await;
        for key in [most, most + 1] {
            assert_eq!(
                (0..20).filter(|_| budget.withdraw(&subject(key))).count(),
                10
            );
        }
        assert_eq!(budget.buckets.lock().partial.len(), 2);
    }
}
