//! Slots by their key, in groups of which each succeeds or fails on its own.

use std::collections::HashMap;

use crate::{charge::Charge, key::Key, policy_name::PolicyName};

/// Groups of items, and the group of each item in the order in which they came.
#[derive(Debug)]
pub(super) struct ByKey<T> {
    pub(super) groups: Vec<Vec<T>>,
    pub(super) places: Vec<usize>,
    latest: HashMap<(PolicyName, Key), usize>,
}

impl<T> ByKey<T> {
    pub(super) fn new() -> Self {
        Self {
            groups: Vec::new(),
            places: Vec::new(),
            latest: HashMap::new(),
        }
    }

    /// Adds slots to the group of their key, or to another one when that is full.
    pub(super) fn add(&mut self, charge: &Charge<'_>, item: T) {
        let key = (*charge.policy().name(), *charge.key());
        let latest = self.latest.get(&key).copied();
        let has_room = |place: &usize| self.groups[*place].len() < MOST;
        match latest.filter(has_room) {
            Some(place) => {
                self.groups[place].push(item);
                self.places.push(place);
            }
            None => {
                self.latest.insert(key, self.groups.len());
                self.add_alone(item);
            }
        }
    }

    /// Adds an item in a group of its own.
    pub(super) fn add_alone(&mut self, item: T) {
        self.places.push(self.groups.len());
        self.groups.push(vec![item]);
    }
}

/// As many tickets as one request to Redis carries: a group that is sent as several would fail with any of them.
const MOST: usize = 50;
