//! What was taken back of charges, so that those taken back later do not weigh more than they do.

use std::collections::HashMap;

use super::fingerprint::Fingerprint;

/// The sum of what was taken back for each key of which something was, for as long as that matters: apart from the
/// states, since few keys have one.
#[derive(Debug)]
pub(super) struct Returned {
    sums: HashMap<Fingerprint, Sum>,
    max_keys: usize,
    /// How many there may be until those that matter no more are dropped.
    roomy: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    sum: u64,
    /// When the last charge is over that is known by an earlier sum than the next.
    until: u64,
}

impl Returned {
    /// Room for so many keys.
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            sums: HashMap::new(),
            max_keys,
            roomy: FEW,
        }
    }

    /// The sum by which a charge is known that is over by then.
    #[inline]
    pub(super) fn mark(&mut self, fingerprint: Fingerprint, until: u64) -> u64 {
        match self.sums.is_empty() {
            true => 0,
            false => self.mark_some(fingerprint, until),
        }
    }

    #[inline(never)]
    fn mark_some(&mut self, fingerprint: Fingerprint, until: u64) -> u64 {
        self.sums.get_mut(&fingerprint).map_or(0, |sum| {
            sum.until = sum.until.max(until);
            sum.sum
        })
    }

    /// What was taken back of a key's charges. `None` when there is no room to note more.
    pub(super) fn of(&mut self, fingerprint: Fingerprint, now: u64) -> Option<u64> {
        if let Some(sum) = self.sums.get(&fingerprint) {
            return Some(sum.sum);
        }
        if self.sums.len() >= self.roomy {
            self.sums.retain(|_, sum| sum.until > now);
            self.roomy = (2 * self.sums.len()).max(FEW).min(self.max_keys);
        }
        (self.sums.len() < self.roomy).then_some(0)
    }

    /// Sets what was taken back of a key's charges, the last of which is over by then.
    pub(super) fn set(&mut self, fingerprint: Fingerprint, sum: u64, until: u64) {
        let known = self.sums.entry(fingerprint);
        let known = known.or_insert(Sum { sum, until });
        known.sum = sum;
        known.until = known.until.max(until);
    }

    /// Bytes that the sums take.
    pub(super) fn bytes(&self) -> usize {
        self.sums.capacity() * size_of::<(Fingerprint, Sum)>()
    }
}

const FEW: usize = 64;
