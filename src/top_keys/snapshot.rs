//! Snapshots: the keys that were denied most often.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    clock::Timestamp,
    decision::PolicyName,
    error::{Error, ErrorKind},
};

use super::merged_list::MergedList;

/// The keys that were denied most often in the last minutes, by policy.
///
/// [`TopKeys::snapshot`](super::TopKeys::snapshot) takes one. Snapshots of several instances can be
/// [merged](Self::merge).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
    pub(super) capacity: usize,
    /// Equal for snapshots that show keys in the same way.
    pub(super) shown_by: u64,
    /// Snapshots of other instances that could not be read. It is not encoded.
    pub(super) unread: u64,
    /// In the order of the names.
    pub(super) policies: Vec<PolicyTopKeys>,
}

impl Snapshot {
    /// Merges the snapshots of several instances. Returns `None` for none.
    ///
    /// The result covers the time of all, and has the smallest [capacity](Self::capacity). Its errors are bounded by the
    /// merged [total](PolicyTopKeys::total) divided by that capacity, in any order of merges.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the snapshots show keys in different ways: hashed under different secrets, or only
    /// some in plain text.
    pub fn merge(snapshots: &[Self]) -> Result<Option<Self>, Error> {
        let Some(first) = snapshots.first() else {
            return Ok(None);
        };
        let (mut since, mut until, mut capacity) = (first.since, first.until, first.capacity);
        let mut unread = 0_u64;
        let mut lists: BTreeMap<&str, (PolicyName, MergedList<'_>)> = BTreeMap::new();
        for snapshot in snapshots {
            if snapshot.shown_by != first.shown_by {
                return Err(shown_differently());
            }
            since = since.min(snapshot.since);
            until = until.max(snapshot.until);
            capacity = capacity.min(snapshot.capacity);
            unread = unread.saturating_add(snapshot.unread);
            for list in &snapshot.policies {
                let merged = lists.entry(list.policy.as_str());
                let (_, merged) = merged.or_insert((list.policy, MergedList::default()));
                let keys = list.keys.iter();
                let keys = keys.map(|top| (top.key.as_str(), top.count, top.error));
                merged.add(list.total, list.unlisted, keys);
            }
        }
        let shown = |key: &str| key.to_owned();
        let policies = lists
            .into_values()
            .map(|(policy, list)| PolicyTopKeys::of(policy, &list, capacity, shown));
        Ok(Some(Self {
            since,
            until,
            capacity,
            shown_by: first.shown_by,
            unread,
            policies: policies.collect(),
        }))
    }

    /// Returns the snapshot with only the `count` largest counts of each policy, at least one.
    ///
    /// A `count` below the [capacity](Self::capacity) replaces it, and so raises the bound of the error.
    #[must_use]
    pub fn truncated(mut self, count: usize) -> Self {
        self.capacity = self.capacity.min(count.max(1));
        for list in &mut self.policies {
            if let Some(next) = list.keys.get(self.capacity) {
                list.unlisted = list.unlisted.max(next.count);
            }
            list.keys.truncate(self.capacity);
        }
        self
    }

    /// Returns the start of the time that the counts cover.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Returns the end of the time that the counts cover: the time of the latest snapshot.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// Returns the most keys that each policy has here. It bounds the error of the counts.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of snapshots that are missing here, because they could not be read: those of instances with
    /// another version of tollgate, each with one or two.
    ///
    /// 0 for a snapshot of one instance.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.unread
    }

    /// Sets the number of snapshots that are missing here.
    #[cfg(feature = "redis")]
    pub(crate) fn set_unread(&mut self, unread: u64) {
        self.unread = unread;
    }

    /// Returns whether keys are shown in plain text.
    #[cfg(feature = "dashboard")]
    pub(crate) fn is_plain(&self) -> bool {
        self.shown_by == 0
    }

    /// Returns the policies that denied requests, in the order of their names.
    #[must_use]
    pub fn policies(&self) -> &[PolicyTopKeys] {
        &self.policies
    }

    /// Returns the keys of the policy with this name; `None` if it denied nothing.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&PolicyTopKeys> {
        let mut lists = self.policies.iter();
        lists.find(|list| list.policy.as_str() == name)
    }

    /// Returns the keys of all policies, in descending order of their counts.
    #[must_use]
    pub fn keys(&self) -> Vec<(PolicyName, &TopKey)> {
        let lists = self.policies.iter();
        let keys = lists.flat_map(|list| list.keys.iter().map(|key| (list.policy, key)));
        let mut keys: Vec<(PolicyName, &TopKey)> = keys.collect();
        // Stable: equal counts stay in the order of the policies.
        keys.sort_by_key(|(_, key)| Reverse(key.count));
        keys
    }
}

#[cold]
fn shown_differently() -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        "top keys in different forms cannot be merged: give all instances ShownKeys::hashed(..) with the same secret",
    )
}

// === PolicyTopKeys ===

/// The keys that one policy denied most often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyTopKeys {
    pub(super) policy: PolicyName,
    pub(super) total: u64,
    pub(super) unlisted: u64,
    /// In descending order of the counts.
    pub(super) keys: Vec<TopKey>,
}

impl PolicyTopKeys {
    /// Takes the largest counts of a list, with its keys in their shown form.
    pub(super) fn of(
        policy: PolicyName,
        list: &MergedList<'_>,
        count: usize,
        shown: impl Fn(&str) -> String,
    ) -> Self {
        let (unlisted, keys) = list.largest(count);
        let keys = keys.into_iter().map(|(key, count, error)| TopKey {
            key: shown(key),
            count,
            error,
        });
        Self {
            policy,
            total: list.total(),
            unlisted,
            keys: keys.collect(),
        }
    }

    /// Returns whether the counts can be those of a list with this many keys at most, by the facts (2) and (3) of
    /// [`merged_list`](super::merged_list).
    pub(super) fn is_within_bounds(&self, capacity: usize) -> bool {
        let (mut sum, unlisted) = (0, u128::from(self.unlisted));
        for key in &self.keys {
            if key.error > self.unlisted || key.count < self.unlisted {
                return false;
            }
            sum += u128::from(key.count) - unlisted;
        }
        let is_bounded = sum + unlisted * capacity as u128 <= u128::from(self.total);
        is_bounded && self.keys.len() <= capacity
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn policy(&self) -> &PolicyName {
        &self.policy
    }

    /// Returns the number of denied requests of all keys. It is exact.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the largest count that a key outside of this list may have.
    ///
    /// At most the [total](Self::total) divided by the [capacity](Snapshot::capacity); 0 if the list is complete.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.unlisted
    }

    /// Returns the keys, in descending order of their counts.
    #[must_use]
    pub fn keys(&self) -> &[TopKey] {
        &self.keys
    }
}

// === TopKey ===

/// A key that was denied often, in its shown form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    pub(super) key: String,
    pub(super) count: u64,
    pub(super) error: u64,
}

impl TopKey {
    /// Returns the key as [`ShownKeys`](super::ShownKeys) shows it.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the most requests of this key that were denied. The true number is between `count - error` and `count`.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the part of the [count](Self::count) that may belong to other keys.
    ///
    /// At most the [total](PolicyTopKeys::total) divided by the [capacity](Snapshot::capacity).
    #[must_use]
    pub fn error(&self) -> u64 {
        self.error
    }
}
