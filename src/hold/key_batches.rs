//! Store calls for many slots: one call per key, all at the same time.

use std::{collections::HashMap, future::Future, pin::Pin};

use futures_util::future::join_all;

use crate::{charge::Charge, decision::PolicyName, error::Error, key::Key, store::StoreFuture};

/// Items grouped by key. Each group is one call to the store, so a key that fails does not affect the others.
///
/// ```text
/// added      a1  b1  a2  c1        (c1 alone)
/// batches    [a1 a2]  [b1]  [c1]
/// results    of batch 0, 1, 0, 2
/// ```
#[derive(Debug)]
pub(super) struct KeyBatches<T> {
    batches: Vec<Vec<T>>,
    /// Index of each item's batch, in the order in which the items were added.
    batch_of: Vec<usize>,
    /// Index of the latest batch of each key.
    latest: HashMap<(PolicyName, Key), usize>,
}

impl<T> KeyBatches<T> {
    /// Creates an empty set of batches.
    pub fn new() -> Self {
        Self {
            batches: Vec::new(),
            batch_of: Vec::new(),
            latest: HashMap::new(),
        }
    }

    /// Adds an item to the batch of its charge's policy and key, or to a new one if that is full.
    pub fn add(&mut self, charge: &Charge<'_>, item: T) {
        let key = (*charge.policy().name(), *charge.key());
        let latest = self.latest.get(&key).copied();
        match latest.filter(|batch| self.batches[*batch].len() < MAX_TICKETS) {
            Some(batch) => {
                self.batches[batch].push(item);
                self.batch_of.push(batch);
            }
            None => {
                self.latest.insert(key, self.batches.len());
                self.add_alone(item);
            }
        }
    }

    /// Adds an item in a new batch.
    pub fn add_alone(&mut self, item: T) {
        self.batch_of.push(self.batches.len());
        self.batches.push(vec![item]);
    }

    /// Starts one call per batch. The future returns the result of each item's batch, in the order of the items.
    pub fn call(self, call: impl FnMut(Vec<T>) -> StoreFuture<()>) -> BatchResults {
        let replies = join_all(self.batches.into_iter().map(call));
        let batch_of = self.batch_of;
        Box::pin(async move {
            let results = replies.await;
            let batch_of = batch_of.into_iter();
            batch_of.map(|batch| results[batch].clone()).collect()
        })
    }
}

/// Results of calls, in the order of the items.
type BatchResults = Pin<Box<dyn Future<Output = Vec<Result<(), Error>>> + Send>>;

/// Maximum number of tickets in one request to Redis. A larger batch would need several requests, and would fail if one
/// of them fails.
const MAX_TICKETS: usize = 50;
