//! The sum of several lists of counts, with a bound on its error.
//!
//! A list has a total `N`, at most `m` keys with counts `c` and errors `e`, and `R` (`unlisted`), the largest count that
//! a key outside of the list may have. Three facts hold:
//!
//! ```text
//! (1)  c - e <= true count <= c, and true count <= R for a key outside of the list
//! (2)  e <= R <= c
//! (3)  sum of (c - R) over the listed keys  <=  N - m R,   so R <= N / m
//! ```
//!
//! - **One summary**: `R` is the smallest count if all counters are in use, and 0 otherwise. The counts sum to `N`.
//! - **A sum of lists** adds their totals and their `R`. If a list lacks a key, its `R` is added to the count and to the
//!   error of the key, which leaves the left side of (3) as it is. The smallest `m` keeps the right side large enough.
//! - **Keeping the largest `k <= m` counts** raises `R` to the next count, `R'`. In (3), the left side falls by at least
//!   `k (R' - R)`. The right side becomes `N - k R'`, so it falls by at most that.
//!
//! Therefore the error stays at most `N / m` after any number of merges, where `m` is the smallest number of kept keys.
//! Adding counts and missing minima is the merge of Agarwal et al., "Mergeable Summaries" (PODS 2012).

use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::Entry},
};

/// A sum of lists. See the [module docs](self).
#[derive(Debug, Default)]
pub(super) struct MergedList<'a> {
    total: u64,
    unlisted: u64,
    keys: HashMap<&'a str, Sum>,
}

/// The sum over the lists that contain a key.
#[derive(Clone, Copy, Debug)]
struct Sum {
    count: u64,
    error: u64,
    /// The sum of `unlisted` over the same lists.
    unlisted: u64,
}

/// One key with its count and its error.
pub(super) type Counted<'a> = (&'a str, u64, u64);

impl<'a> MergedList<'a> {
    /// Adds a list, in which no key is repeated.
    pub fn add(&mut self, total: u64, unlisted: u64, keys: impl IntoIterator<Item = Counted<'a>>) {
        self.total = self.total.saturating_add(total);
        self.unlisted = self.unlisted.saturating_add(unlisted);
        for (key, count, error) in keys {
            let added = Sum {
                count,
                error,
                unlisted,
            };
            match self.keys.entry(key) {
                Entry::Occupied(mut sum) => sum.get_mut().add(added),
                Entry::Vacant(place) => drop(place.insert(added)),
            }
        }
    }

    /// Returns the sum of all totals.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns `unlisted`, and the largest counts, in descending order. Equal counts are in the order of the keys.
    pub fn largest(&self, count: usize) -> (u64, Vec<Counted<'a>>) {
        let counted = self.keys.iter().map(|(key, sum)| {
            let missing = self.unlisted.saturating_sub(sum.unlisted);
            let add = |units: u64| units.saturating_add(missing);
            (*key, add(sum.count), add(sum.error))
        });
        let mut keys: Vec<Counted<'_>> = counted.collect();
        keys.sort_unstable_by_key(|(key, count, _)| (Reverse(*count), *key));
        let next = keys.get(count).map_or(0, |(_, count, _)| *count);
        keys.truncate(count);
        (self.unlisted.max(next), keys)
    }
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.error = self.error.saturating_add(other.error);
        self.unlisted = self.unlisted.saturating_add(other.unlisted);
    }
}
