//! The region that is the home of each key.

use std::{fmt, sync::Arc};

use crate::{
    charge::mix,
    key::{Key, slot::SLOTS},
};

/// The home of each key, as an index into the names of all regions, where 0 is this one.
#[derive(Debug)]
pub(super) struct Placement {
    fixed: Box<[(u8, FixedHome)]>,
    /// For each hash slot the home of the keys that have no fixed one.
    of_slots: Box<[u8]>,
}

impl Placement {
    /// Returns the homes in these regions. Those of the fixed homes must be among them.
    pub fn new(names: &[&str], fixed: &[FixedHome]) -> Self {
        let index_of = |home: &FixedHome| {
            (0..u8::MAX)
                .zip(names)
                .find(|(_, name)| **name == home.region)
        };
        let fixed = fixed
            .iter()
            .filter_map(|home| Some((index_of(home)?.0, home.clone())));
        Self {
            fixed: fixed.collect(),
            of_slots: homes_of_slots(names),
        }
    }

    pub fn home_of(&self, key: &Key) -> usize {
        let fixed = self.fixed.iter().find(|(_, home)| home.has(key));
        let by_hash = || self.of_slots[usize::from(key.slot())];
        fixed.map_or_else(by_hash, |(index, _)| *index).into()
    }
}

/// Returns the home of one key, as [`Placement::home_of`] does.
pub(super) fn home_of<'a>(names: &[&'a str], fixed: &'a [FixedHome], key: &Key) -> &'a str {
    if let Some(home) = fixed.iter().find(|home| home.has(key)) {
        return &home.region;
    }
    let hashes: Vec<u64> = names.iter().map(|name| hash_of(name)).collect();
    names[usize::from(home_of_slot(&hashes, key.slot()))]
}

// === FixedHome ===

/// A region that is the home of some keys, whatever their hash.
#[derive(Clone)]
pub(super) struct FixedHome {
    region: String,
    has: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

impl FixedHome {
    pub fn new(region: String, has: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        let has = Arc::new(has);
        Self { region, has }
    }

    pub fn region(&self) -> &str {
        &self.region
    }

    fn has(&self, key: &Key) -> bool {
        let identity = std::str::from_utf8(key.without_slot());
        (self.has)(identity.expect("a key is ASCII"))
    }
}

impl fmt::Debug for FixedHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)
    }
}

/// Returns for each hash slot the index of the region that is its home.
fn homes_of_slots(names: &[&str]) -> Box<[u8]> {
    let hashes: Vec<u64> = names.iter().map(|name| hash_of(name)).collect();
    (0..SLOTS).map(|slot| home_of_slot(&hashes, slot)).collect()
}

/// Returns the index of the region that is the home of a hash slot. There are fewer than 256.
fn home_of_slot(hashes: &[u64], slot: u16) -> u8 {
    let weights = hashes
        .iter()
        .map(|hash| mix(hash ^ mix(u64::from(slot) + 1)));
    let regions = (0..u8::MAX).zip(weights);
    regions
        .max_by_key(|(_, weight)| *weight)
        .map_or(0, |(index, _)| index)
}

/// Returns a hash that is the same in all processes and versions (FNV-1a).
fn hash_of(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_the_home_of_equal_parts_and_a_new_one_takes_only_its_own() {
        let three = homes_of_slots(&["eu-west", "us-east", "ap-south"]);
        let four = homes_of_slots(&["eu-west", "us-east", "ap-south", "sa-east"]);
        for region in 0..3 {
            let slots = three.iter().filter(|home| **home == region).count();
            // A third of 16,384 is 5,461, with a standard deviation of 60.
            assert!((5_161..5_761).contains(&slots), "{region}: {slots}");
        }
        for (before, after) in three.iter().zip(&four) {
            assert!(after == before || *after == 3);
        }
    }

    #[test]
    fn order_of_the_names_changes_no_home() {
        let names = ["eu-west", "us-east", "ap-south"];
        let reversed = ["ap-south", "us-east", "eu-west"];
        for (one, other) in homes_of_slots(&names)
            .iter()
            .zip(&homes_of_slots(&reversed))
        {
            assert_eq!(names[usize::from(*one)], reversed[usize::from(*other)]);
        }
    }
}
