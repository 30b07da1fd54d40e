//! The keys that were decided locally, until Redis has their charges.
//!
//! ```text
//!          first local decision                 begin_merge                     made, and nothing was admitted since
//! (none) ----------------------> Pending --------------------------> UnderWay -------------------------------> (none)
//!                                  ^  ^                              |  |
//!                                  |  '-- not executed, or made -----'  | no reply
//!                                  |                                    v
//!                                  '---- 30 s after the first try -- Unconfirmed --> UnderWay, with the same id
//! ```
//!
//! Units that are admitted locally while a merge is under way are part of the next one. A key that is being decided stays, although
//! nothing is admitted yet.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{charge::Merge, clock::Timestamp, key::Key, task::Mutex};

use super::{
    admitted::Start,
    mirror::{Epoch, KeyHash, Mirrored},
    shares::SharePolicy,
};

/// Keys that were decided locally. At most [`MAX_KEYS`].
#[derive(Debug)]
pub(super) struct Journal {
    shards: Box<[Mutex<HashMap<KeyHash, LocalCharges>>]>,
    /// The number of keys. Every decision reads it.
    len: AtomicUsize,
}

/// A key that was decided locally.
#[derive(Debug)]
pub(super) struct LocalCharges {
    /// The policy and this instance's part of it.
    pub policies: Arc<SharePolicy>,
    pub key: Key,
    /// From when on charges are not in Redis; `None` if the local store does not return its usage.
    pub start: Option<Start>,
    pub stage: Stage,
    /// Shared with the local decisions under way.
    deciding: Arc<()>,
}

/// A local decision under way. Its key stays in the journal until it is dropped.
#[derive(Debug)]
pub(super) struct Deciding {
    /// The policies of the key.
    pub policies: Arc<SharePolicy>,
    _deciding: Arc<()>,
}

/// How far a key is on its way to Redis.
#[derive(Debug)]
pub(super) enum Stage {
    Pending,
    UnderWay(Box<Attempt>),
    Unconfirmed(Box<Attempt>),
}

/// A merge that may have been made.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub merge: Merge,
    /// The start of the next merge, once this one is made.
    pub next: Start,
    /// The state that the merge restores, if the server may have lost it.
    pub lost: Option<Mirrored>,
    /// That of the server's [`Doubts`](super::mirror::Doubts) at the latest try.
    pub epoch: Epoch,
    pub first_tried_at: Timestamp,
    /// Whether an earlier try may have been executed.
    pub is_repeated: bool,
}

impl LocalCharges {
    /// Returns an entry whose merge has not begun.
    pub fn new(policies: Arc<SharePolicy>, key: Key, start: Option<Start>) -> Self {
        Self {
            policies,
            key,
            start,
            stage: Stage::Pending,
            deciding: Arc::default(),
        }
    }

    /// Returns whether no local decision is under way. To be asked before the usage is read, which then has all decisions.
    pub fn is_idle(&mut self) -> bool {
        Arc::get_mut(&mut self.deciding).is_some()
    }

    fn decide(&self) -> Deciding {
        Deciding {
            policies: Arc::clone(&self.policies),
            _deciding: Arc::clone(&self.deciding),
        }
    }
}

impl Journal {
    /// Returns whether Redis has the charges of all keys.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns the keys for which this holds.
    pub fn keys_where(&self, holds: impl Fn(&Key) -> bool) -> Vec<KeyHash> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let chosen = shard.iter().filter(|(_, entry)| holds(&entry.key));
            keys.extend(chosen.map(|(fingerprint, _)| *fingerprint));
        }
        keys
    }

    /// Begins a local decision on a key. `start` makes the entry of a key that has none, and learns whether it is kept.
    ///
    /// The entry is made while others who ask for the same key wait, so a local state starts once.
    pub fn begin(
        &self,
        fingerprint: KeyHash,
        start: impl FnOnce(bool) -> LocalCharges,
    ) -> Deciding {
        let mut shard = self.shard(fingerprint).lock();
        if let Some(entry) = shard.get(&fingerprint) {
            return entry.decide();
        }
        let is_kept = self.len() < MAX_KEYS;
        let entry = start(is_kept);
        let deciding = entry.decide();
        if is_kept {
            shard.insert(fingerprint, entry);
            self.len.fetch_add(1, Ordering::Relaxed);
        }
        deciding
    }

    /// Returns the policies of a key, if it has an entry.
    pub fn get(&self, fingerprint: KeyHash) -> Option<Arc<SharePolicy>> {
        let shard = self.shard(fingerprint).lock();
        shard
            .get(&fingerprint)
            .map(|entry| Arc::clone(&entry.policies))
    }

    /// Changes the entry of a key, if it has one. `change` returns a result, and whether the entry stays.
    pub fn change<R>(
        &self,
        fingerprint: KeyHash,
        change: impl FnOnce(&mut LocalCharges) -> (R, bool),
    ) -> Option<R> {
        let mut shard = self.shard(fingerprint).lock();
        let (result, stays) = change(shard.get_mut(&fingerprint)?);
        if !stays {
            shard.remove(&fingerprint);
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        Some(result)
    }

    fn shard(&self, fingerprint: KeyHash) -> &Mutex<HashMap<KeyHash, LocalCharges>> {
        &self.shards[fingerprint.place(self.shards.len())]
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            len: AtomicUsize::new(0),
        }
    }
}

/// The most keys. More start with the mirror's state too, but are not charged to Redis.
const MAX_KEYS: usize = 100_000;
const SHARDS: usize = 64;
