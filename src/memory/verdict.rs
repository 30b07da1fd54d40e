//! Verdicts on charges of buckets without a queue, of which decisions are made when somebody reads them.
//!
//! Most requests need the answer only. What is left, and when a denied request may come again, is computed from the state of the
//! key, so a verdict keeps that.

use crate::{
    algorithm::{BucketState, Counter, TokenBucket},
    charge::{Charge, Fingerprint},
    clock::Timestamp,
    decision::PolicyState,
    key::{Key, KeyText},
    policy::Policy,
};

#[cfg(feature = "metrics")]
use crate::decision::Outcome;

use super::{keyed::KeyRef, result::ChargeResult};

/// A charge of a bucket, whose key is hashed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketCharge<'a> {
    pub(super) policy: &'a Policy,
    pub(super) bucket: &'a TokenBucket,
    pub(super) fingerprint: Fingerprint,
    pub(super) units: u64,
}

impl<'a> BucketCharge<'a> {
    /// The most charges of a group that is decided by verdicts. Nearly all groups are smaller.
    pub const MAX: usize = 4;

    /// Returns a charge of a key, by its fingerprint; `None` if another algorithm counts the policy.
    #[inline(always)]
    pub(super) fn new(charge: &Charge<'a>, fingerprint: Fingerprint) -> Option<Self> {
        Some(Self {
            policy: charge.policy(),
            bucket: bucket_in(charge.counter())?,
            fingerprint,
            units: charge.units(),
        })
    }

    /// Returns the charge, with its key hashed; `None` if another algorithm counts the policy.
    #[inline(always)]
    pub(super) fn of(charge: &Charge<'a>) -> Option<Self> {
        // A hash takes time.
        bucket_in(charge.counter())?;
        Self::new(charge, Fingerprint::of(charge.policy(), charge.key()))
    }

    /// Returns the charge of the policy's cost to a key in text; `None` if a verdict is not enough for the policy, or the key is not
    /// plain.
    #[inline(always)]
    pub fn of_text(policy: &'a Policy, key: &KeyText<'_>) -> Option<Self> {
        let bucket = bucket_of(policy)?;
        // A peek, which costs nothing, is not counted among the decisions.
        let is_peek = policy.default_cost() == 0;
        if is_peek || policy.notes_denied() || !policy.is_countable() {
            return None;
        }
        let fingerprint = match key.as_key() {
            Some(key) => Fingerprint::of(policy, key),
            None => Fingerprint::of_words(policy, key.words()?),
        };
        Some(Self {
            policy,
            bucket,
            fingerprint,
            units: policy.default_cost(),
        })
    }

    /// Returns the charge of the policy's cost to a key; `None` if another algorithm counts the policy.
    #[inline(always)]
    pub fn of_key(policy: &'a Policy, key: &Key) -> Option<Self> {
        Some(Self {
            policy,
            bucket: bucket_of(policy)?,
            fingerprint: Fingerprint::of(policy, key),
            units: policy.default_cost(),
        })
    }

    /// Returns the policy.
    #[cfg(feature = "metrics")]
    #[inline]
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns the key, as a shard looks it up.
    #[inline]
    pub(super) fn key(&self) -> KeyRef {
        KeyRef::new(self.fingerprint, self.policy, self.units)
    }
}

/// Returns the bucket of a policy. A verdict on a queue would need its turns, too.
#[inline(always)]
fn bucket_of(policy: &Policy) -> Option<&TokenBucket> {
    bucket_in(policy.counter())
}

#[inline(always)]
fn bucket_in(counter: &Counter) -> Option<&TokenBucket> {
    counter.bucket().filter(|bucket| !bucket.is_queue())
}

/// The store's answer to a charge of a bucket: two words, which stay in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    /// The TAT of the key under this bucket, after the charge if it was made, and in the lowest bit whether it fits.
    tat_and_fits: u64,
    now: Timestamp,
}

impl Verdict {
    /// Returns the verdict on a charge that left this state.
    #[inline]
    pub(super) fn new(
        bucket: &TokenBucket,
        state: BucketState,
        fits: bool,
        now: Timestamp,
    ) -> Self {
        Self {
            tat_and_fits: bucket.tat(state, now) << 1 | u64::from(fits),
            now,
        }
    }

    /// Returns whether the policy admits the charge.
    #[inline]
    pub fn fits(&self) -> bool {
        self.tat_and_fits & 1 == 1
    }

    /// Returns the time of the decision.
    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns the outcome.
    #[cfg(feature = "metrics")]
    #[inline]
    pub fn outcome(&self) -> Outcome {
        if self.fits() {
            Outcome::Allowed
        } else {
            Outcome::Limited
        }
    }

    /// Returns the state of the policy, whose key has no refunds.
    #[inline]
    pub(super) fn state(&self, charge: &BucketCharge<'_>, is_shadow: bool) -> PolicyState {
        let (bucket, units) = (charge.bucket, charge.units);
        let state = bucket.state(self.tat_and_fits >> 1);
        let result = ChargeResult::of(bucket, units, &state, self.fits(), self.now);
        bucket.annotate(result.bare_state(charge.policy, is_shadow))
    }
}
