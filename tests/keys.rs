//! Where counts lie in a real Redis: one key per policy and identity, with one hash tag, whoever chose the identity.

use std::{collections::BTreeSet, time::Duration};

use tollgate::{
    Key, Policy, Quota,
    algorithm::{Algorithm, QueueLimits, WindowStart},
    remote::RedisStore,
    store::Store,
};

use crate::support::Server;

#[tokio::test]
async fn every_policy_and_identity_has_a_key_of_its_own_with_one_hash_tag() {
    let server = Server::start();
    let store = RedisStore::builder(server.url())
        .prefix("keys")
        .deadline(Duration::from_secs(10))
        .build()
        .expect("a usable store");
    let (policies, keys) = (policies(), keys());
    let mut expected = BTreeSet::new();
    for policy in &policies {
        for key in &keys {
            let decision = store.decide(&[policy.charge(*key)]).await;
            assert!(decision.expect("redis answers").is_allowed());
            assert!(expected.insert((policy.name().as_str(), key.as_str())));
        }
    }
    let stored = server.keys();
    assert_eq!(stored.len(), policies.len() * keys.len());
    let found: BTreeSet<(&str, &str)> = stored.iter().map(|stored| read(stored)).collect();
    assert_eq!(found, expected);
}

/// The policy's name and the hash tag, as a cluster finds it: from the first `{` to the next `}`.
fn read(stored: &str) -> (&str, &str) {
    assert_eq!(stored.matches(['{', '}']).count(), 2, "{stored}");
    let (prefix, rest) = stored.split_once('{').expect("a tag begins");
    let (tag, rest) = rest.split_once('}').expect("a tag ends");
    assert_eq!(prefix, "keys:");
    assert!(!tag.is_empty());
    let policy = rest.strip_prefix(':').expect("a policy follows");
    (policy.split('#').next().expect("a name"), tag)
}

fn policies() -> Vec<Policy> {
    let of = |name, algorithm| Policy::new(name, Quota::per_minute(5)).algorithm(algorithm);
    let lease = Duration::from_secs(30);
    vec![
        of("a", Algorithm::TokenBucket),
        of("a.", Algorithm::LeakyBucket),
        of("a-", Algorithm::LeakyQueue(QueueLimits::new(3))),
        of("af", Algorithm::FixedWindow(WindowStart::Clock)),
        of("f", Algorithm::FixedWindow(WindowStart::FirstHit)),
        of("a_g", Algorithm::SlidingLog),
        of("a_s", Algorithm::SlidingWindow),
        Policy::new("a_c", Quota::in_flight(5)).algorithm(Algorithm::Concurrency { lease }),
    ]
}

fn keys() -> Vec<Key> {
    let long = "a".repeat(1 << 20);
    let hostile: [&[u8]; 12] = [
        b"",
        b"\0",
        b"a",
        b"a#f",
        b"{a}",
        b"}:a{",
        b"}{",
        b"a}:af",
        b"\r\nFLUSHALL\r\n",
        b"\xFF\xC0\xAF",
        b"%7Ba%7D",
        long.as_bytes(),
    ];
    let mut keys: Vec<Key> = hostile.iter().map(Key::new).collect();
    keys.extend(hostile.iter().map(Key::secret));
    keys.extend(
        hostile
            .iter()
            .map(|bytes| Key::new("a").and(&Key::new(bytes))),
    );
    keys.extend(hostile.iter().map(|bytes| Key::new(bytes).labelled("a")));
    keys.extend([Key::GLOBAL, Key::UNIDENTIFIED]);
    keys
}
