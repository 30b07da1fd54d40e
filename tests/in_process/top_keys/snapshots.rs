//! The keys that are denied most often in the whole fleet: snapshots as bytes, and their merge.

use proptest::{collection::vec, prelude::*};
use tollgate::{
    ErrorKind, Key,
    extract::HashSecret,
    top_keys::{ShownKeys, Snapshot, TopKeys},
};

use super::{
    counts::{any_stream, plain},
    exact::{Exact, assert_bounds, policy, record},
};
use crate::support::Random;

fn merge(snapshots: &[Snapshot]) -> Snapshot {
    let merged = Snapshot::merge(snapshots).expect("one form of keys");
    merged.expect("at least one snapshot")
}

/// A snapshot of a stream, which is also added to the exact counts.
fn snapshot(stream: &[(u32, u32)], capacity: usize, exact: &mut Exact) -> Snapshot {
    let top_keys = plain(capacity);
    record(&top_keys, exact, stream);
    top_keys.snapshot()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn merged_counts_are_within_the_bounds_of_the_smallest_capacity(
        streams in vec((any_stream(), 1..40_usize), 1..6),
    ) {
        let mut exact = Exact::new();
        let snapshots: Vec<Snapshot> = streams
            .iter()
            .map(|(stream, capacity)| snapshot(stream, *capacity, &mut exact))
            .collect();
        let least = streams.iter().map(|(_, capacity)| *capacity).min().expect("streams");
        let merged = merge(&snapshots);
        prop_assert_eq!(merged.capacity(), least);
        assert_bounds(&merged, least, &exact);
    }

    #[test]
    fn snapshots_may_be_cut_and_merged_in_any_order(
        streams in vec((any_stream(), 1..40_usize), 2..7),
        keep in 1..40_usize,
        seed in any::<u64>(),
    ) {
        let mut exact = Exact::new();
        let mut snapshots: Vec<Snapshot> = streams
            .iter()
            .map(|(stream, capacity)| snapshot(stream, *capacity, &mut exact))
            .collect();
        let least = streams.iter().map(|(_, capacity)| *capacity).min().expect("streams");
        let mut random = Random(seed);
        while snapshots.len() > 1 {
            let mut any = || snapshots.swap_remove(random.below(snapshots.len() as u64) as usize);
            let pair = [any(), any()];
            let merged = merge(&pair);
            snapshots.push(if random.below(2) == 0 { merged.truncated(keep) } else { merged });
        }
        assert_bounds(&snapshots[0], least.min(keep), &exact);
    }

    #[test]
    fn cut_snapshot_is_within_the_bounds_of_its_size(
        stream in any_stream(),
        capacity in 1..40_usize,
        keep in 0..50_usize,
    ) {
        let mut exact = Exact::new();
        let cut = snapshot(&stream, capacity, &mut exact).truncated(keep);
        prop_assert_eq!(cut.capacity(), capacity.min(keep.max(1)));
        assert_bounds(&cut, cut.capacity(), &exact);
    }

    #[test]
    fn decoded_snapshot_equals_the_encoded_one(
        streams in vec((any_stream(), 1..40_usize), 1..4),
    ) {
        let mut exact = Exact::new();
        let snapshots: Vec<Snapshot> = streams
            .iter()
            .map(|(stream, capacity)| snapshot(stream, *capacity, &mut exact))
            .collect();
        for snapshot in [&snapshots[0], &merge(&snapshots)] {
            let bytes = snapshot.encode();
            let keys = snapshot.keys().len();
            prop_assert!(bytes.len() <= 34 + 70 * snapshot.policies().len() + 67 * keys);
            let decoded = Snapshot::decode(&bytes).expect("a snapshot");
            prop_assert_eq!(&decoded, snapshot);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_a_snapshot_within_its_bounds(
        stream in any_stream(),
        capacity in 1..40_usize,
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in any::<prop::sample::Index>(),
        noise in vec(any::<u8>(), 0..100),
    ) {
        let _ = Snapshot::decode(&noise);
        let bytes = snapshot(&stream, capacity, &mut Exact::new()).encode();
        prop_assert!(Snapshot::decode(&bytes[..length.index(bytes.len())]).is_err());
        let mut changed = bytes.clone();
        changes.iter().for_each(|(place, byte)| changed[place.index(bytes.len())] = *byte);
        if let Ok(decoded) = Snapshot::decode(&changed) {
            prop_assert_eq!(&decoded.encode(), &changed, "a snapshot has one form");
            for list in decoded.policies() {
                let most = list.total() / decoded.capacity() as u64;
                prop_assert!(list.unlisted() <= most && list.keys().len() <= decoded.capacity());
                for top in list.keys() {
                    prop_assert!(top.error() <= most && top.error() <= top.count());
                    prop_assert!(top.count() <= list.total());
                }
            }
            let merged = merge(&[decoded.clone(), decoded]);
            prop_assert!(Snapshot::decode(&merged.encode()).is_ok());
        }
        changed.push(0);
        prop_assert!(Snapshot::decode(&changed).is_err(), "a byte too many");
    }
}

#[test]
fn bytes_that_no_instance_wrote_are_refused() {
    let whole = snapshot(&[(1, 3), (2, 1)], 2, &mut Exact::new()).encode();
    assert!(Snapshot::decode(&whole).is_ok());
    let replaced = |from: &[u8], to: &[u8]| {
        let at = whole.windows(from.len()).position(|bytes| bytes == from);
        let at = at.expect("in the snapshot");
        [&whole[..at], to, &whole[at + from.len()..]].concat()
    };
    for (name, bytes) in [
        ("nothing", Vec::new()),
        ("another version", [&[2], &whole[1..]].concat()),
        ("a policy with a space", replaced(b"per-ip", b"per ip")),
        ("a key with a space", replaced(b"user:1", b"user 1")),
        ("a key twice", replaced(b"user:1", b"user:2")),
        (
            "a count above the total",
            replaced(b"user:1\x03", b"user:1\x04"),
        ),
        (
            "an error above unlisted",
            replaced(b"user:1\x03\x00", b"user:1\x03\x03"),
        ),
        (
            "a number of 10 bytes",
            replaced(
                b"user:1\x03",
                b"user:1\x83\x80\x80\x80\x80\x80\x80\x80\x80\x02",
            ),
        ),
    ] {
        let error = Snapshot::decode(&bytes).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::ForeignValue, "{name}");
    }
}

#[test]
fn key_is_added_up_over_instances_that_hash_it_in_the_same_way() {
    let instance = |secret: HashSecret, units: u32| {
        let top_keys = TopKeys::builder()
            .shown_keys(ShownKeys::hashed(secret))
            .build();
        let top_keys = top_keys.expect("usable");
        top_keys.record(&policy(), &Key::new("203.0.113.7"), units);
        let decoded = Snapshot::decode(&top_keys.snapshot().encode()).expect("a snapshot");
        (top_keys.shown(&Key::new("203.0.113.7")), decoded)
    };
    let secret = HashSecret::from_passphrase("the fleet's");
    let (shown, first) = instance(secret, 2);
    let (_, second) = instance(secret, 3);
    let merged = merge(&[first.clone(), second]);
    let top = &merged.policies()[0].keys()[0];
    assert_eq!((top.key(), top.count()), (&shown[..], 5));

    let (_, other) = instance(HashSecret::from_passphrase("another"), 1);
    for foreign in [other, snapshot(&[(1, 1)], 8, &mut Exact::new())] {
        let error = Snapshot::merge(&[first.clone(), foreign]).expect_err("another form");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("same secret"), "{error}");
    }
    assert_eq!(Snapshot::merge(&[]).expect("no difference"), None);
}

#[test]
fn hashed_key_takes_38_bytes() {
    let top_keys = TopKeys::new();
    let length = |keys: u64| {
        for key in 0..keys {
            top_keys.record(&policy(), &Key::from(key), 100);
        }
        top_keys.snapshot().encode().len()
    };
    let (one, hundred) = (length(1), length(100));
    assert!(hundred - one <= 99 * 38, "{one} and {hundred} bytes");
}
