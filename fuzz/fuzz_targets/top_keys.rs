//! Snapshots of top keys, as another instance or anybody else may have stored them: refused, or within their bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::{ErrorKind, top_keys::Snapshot};

fuzz_target!(|data: &[u8]| {
    let [keep, bytes @ ..] = data else { return };
    let snapshot = match Snapshot::decode(bytes) {
        Ok(snapshot) => snapshot,
        Err(error) => return assert_eq!(error.kind(), ErrorKind::ForeignValue),
    };
    assert_eq!(snapshot.encode(), bytes, "a snapshot has one form");
    check(&snapshot);

    let cut = snapshot.clone().truncated(usize::from(*keep));
    assert!(cut.capacity() <= snapshot.capacity());
    check_whole(&cut);

    // The sums may saturate, but stay readable and within their bounds.
    let merged = Snapshot::merge(&[snapshot.clone(), cut, snapshot]);
    check_whole(&merged.expect("one form of keys").expect("three snapshots"));
});

/// The bounds, and that another instance reads it.
fn check_whole(snapshot: &Snapshot) {
    check(snapshot);
    let totals = snapshot.policies().iter().map(|list| list.total());
    if totals.max() != Some(u64::MAX) {
        let read = Snapshot::decode(&snapshot.encode()).expect("an instance wrote it");
        assert_eq!(read, *snapshot);
    }
}

/// The bounds that the docs state.
fn check(snapshot: &Snapshot) {
    assert!(snapshot.since() <= snapshot.until());
    for list in snapshot.policies() {
        // A total that has saturated bounds nothing.
        if list.total() == u64::MAX {
            continue;
        }
        let most = list.total() / snapshot.capacity() as u64;
        assert!(list.unlisted() <= most);
        assert!(list.keys().len() <= snapshot.capacity());
        assert!(list.keys().is_sorted_by(|left, right| left.count() >= right.count()));
        for top in list.keys() {
            assert!(top.error() <= most && top.error() <= top.count());
            assert!(top.count() <= list.total());
        }
    }
}
