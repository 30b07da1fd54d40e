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

#[tokio::test]
async fn keys_in_one_slot_are_counted_apart() {
    let server = Server::start();
    let store = RedisStore::builder(server.url())
        .prefix("keys")
        .deadline(Duration::from_secs(10))
        .build()
        .expect("a usable store");
    let policy = Policy::new("a", Quota::per_minute(1));
    let tenants = [
        Key::new("acme"),
        Key::GLOBAL,
        Key::new("a").and(&Key::new("b")),
    ];
    let keys = keys();
    for tenant in &tenants {
        for key in keys.iter().map(|key| key.co_located_with(tenant)) {
            let decision = store.decide(&[policy.charge(key)]).await;
            assert!(
                decision.expect("redis answers").is_allowed(),
                "{}",
                key.as_str()
            );
        }
    }
    let stored = server.keys();
    assert_eq!(stored.len(), tenants.len() * keys.len());
    let tags: BTreeSet<&str> = stored.iter().map(|stored| read_tag(stored).0).collect();
    let slots: BTreeSet<u16> = tags.iter().map(|tag| slot(tag.as_bytes())).collect();
    let expected = ["acme", "*", "a|b"].map(|tenant| slot(tenant.as_bytes()));
    assert_eq!(slots, BTreeSet::from(expected));
}

#[test]
fn key_stays_in_its_slot_when_parts_are_joined() {
    let (tenant, user) = (Key::new("acme"), Key::new("ada"));
    let tag = |key: &Key| key.as_str().split_once('^').map(|(tag, _)| tag.to_owned());
    let placed = user.co_located_with(&tenant);
    let expected = tag(&placed).expect("a tag");
    assert_eq!(slot(expected.as_bytes()), slot(b"acme"));
    let long = Key::new([b'a'; 46]);
    for key in [
        placed.and(&user),
        user.and(&placed),
        placed.and(&placed),
        placed.labelled("label"),
        placed.and(&long),
        long.co_located_with(&tenant),
        placed.co_located_with(&placed),
        user.co_located_with(&placed),
        user.co_located_with(&Key::GLOBAL).co_located_with(&tenant),
    ] {
        assert_eq!(tag(&key).as_deref(), Some(&*expected), "{}", key.as_str());
        assert!(key.as_str().len() <= Key::MAX_LENGTH);
    }
    assert_eq!(placed.and(&user), user.and(&user).co_located_with(&tenant));
    // What a client sends is never taken for a tag.
    assert_eq!(Key::new("acm^ada").as_str(), "acm%5Eada");
}

/// CRC-16 (XMODEM) modulo 16,384, bit by bit.
fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    });
    crc % 16_384
}

/// The hash tag of a key, as a cluster finds it: from the first `{` to the next `}`; and the rest.
fn read_tag(stored: &str) -> (&str, &str) {
    assert_eq!(stored.matches(['{', '}']).count(), 2, "{stored}");
    let (prefix, rest) = stored.split_once('{').expect("a tag begins");
    let (tag, rest) = rest.split_once('}').expect("a tag ends");
    assert_eq!(prefix, "keys:");
    assert!(!tag.is_empty());
    let (_, policy) = rest.split_once(':').expect("a policy follows");
    (tag, policy)
}

/// The policy's name and the hash tag, as a cluster finds it: from the first `{` to the next `}`.
fn read(stored: &str) -> (&str, &str) {
    let (tag, policy) = read_tag(stored);
    (policy.split('#').next().expect("a name"), tag)
}

fn policies() -> Vec<Policy> {
    let of = |name, algorithm| Policy::new(name, Quota::per_minute(5)).algorithm(algorithm);
    let lease = Duration::from_secs(30);
    vec![
        of("a", Algorithm::TokenBucket),
        of("a.", Algorithm::LeakyBucket),
        of(
            "a-",
            Algorithm::LeakyQueue(QueueLimits::new(3, Duration::MAX)),
        ),
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
