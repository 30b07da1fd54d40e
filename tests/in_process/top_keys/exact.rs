//! Exact counts, and the bounds that top keys keep beside them.

use std::collections::HashMap;

use tollgate::{
    Key, Policy, Quota,
    clock::Timestamp,
    top_keys::{Snapshot, TopKeys},
};

/// A multiple of every window here, so that halves begin at it.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_698_796_800_000_000);

/// The exact counts of a stream.
pub(crate) type Exact = HashMap<String, u64>;

pub(crate) fn policy() -> Policy {
    Policy::new("per-ip", Quota::per_minute(1))
}

pub(crate) fn record(top_keys: &TopKeys, exact: &mut Exact, stream: &[(u32, u32)]) {
    for (number, units) in stream {
        let key = format!("user:{number}");
        top_keys.record(&policy(), &Key::new(&key), *units);
        *exact.entry(key).or_default() += u64::from(*units);
    }
}

/// Asserts the documented bounds.
pub(crate) fn assert_bounds(snapshot: &Snapshot, capacity: usize, exact: &Exact) {
    assert!(snapshot.capacity() >= capacity);
    let Some(list) = snapshot.policy("per-ip") else {
        assert!(exact.values().all(|count| *count == 0), "a list is missing");
        return;
    };
    let total: u64 = exact.values().sum();
    assert_eq!(list.total(), total);
    let most = total / capacity as u64;
    assert!(list.unlisted() <= most, "{} > {most}", list.unlisted());
    assert!(list.keys().len() <= snapshot.capacity());
    assert!(
        list.keys()
            .is_sorted_by(|left, right| left.count() >= right.count())
    );
    let mut unlisted = exact.clone();
    for top in list.keys() {
        let count = unlisted
            .remove(top.key())
            .expect("a key that is listed once");
        let (least, error) = (top.count() - top.error(), top.error());
        assert!(
            least <= count && count <= top.count(),
            "{count} is not in {least}..={}",
            top.count()
        );
        assert!(error <= most, "an error of {error} above {most}");
    }
    for (key, count) in unlisted {
        assert!(count <= list.unlisted(), "{key} with {count} is not listed");
    }
}
