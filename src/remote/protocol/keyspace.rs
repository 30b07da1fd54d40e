//! Where a count lies in Redis: the only place that forms keys.

use std::sync::atomic::{AtomicU8, Ordering};

use smallvec::SmallVec;

use crate::{
    algorithm::Counter,
    charge::Charge,
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
};

/// A key as it goes over the wire.
pub(in crate::remote) type WireKey = SmallVec<[u8; 128]>;

/// The prefix that all of a store's keys share.
///
/// A key is `prefix:{identity}:policy`, and what is no bucket has a mark behind the policy's name, so that a policy that
/// changes its algorithm does not find a state that it cannot read. The identity is the hash tag, so all policies about one identity lie in one
/// slot of a cluster; neither prefix, identity nor policy holds a brace, so there is exactly one tag and it is whole.
#[derive(Debug)]
pub(in crate::remote) struct Keyspace {
    prefix: Box<str>,
    /// The kinds of keys that charges had so far: a bit for each of [`MARKS`].
    used: AtomicU8,
}

impl Keyspace {
    pub(in crate::remote) fn new(prefix: &str) -> Result<Self, Error> {
        let usable = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(usable) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "prefix {prefix:?} is not usable: take 1 to 64 visible ASCII characters, no braces"
                ),
            ));
        }
        Ok(Self {
            prefix: prefix.into(),
            used: AtomicU8::new(0),
        })
    }

    /// The key that a charge is counted under.
    pub(in crate::remote) fn of(&self, charge: &Charge<'_>) -> WireKey {
        let bit = 1 << kind(charge.policy().counter());
        if self.used.load(Ordering::Relaxed) & bit == 0 {
            self.used.fetch_or(bit, Ordering::Relaxed);
        }
        self.of_policy(charge.policy(), charge.key())
    }

    /// The key of a policy's count for an identity, as the policy counts now.
    fn of_policy(&self, policy: &Policy, key: &Key) -> WireKey {
        self.marked(policy, key, MARKS[kind(policy.counter())])
    }

    /// All keys that the policy's count for an identity may have had, however it was counted.
    pub(in crate::remote) fn all_of(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> impl Iterator<Item = WireKey> {
        MARKS.iter().map(|mark| self.marked(policy, key, mark))
    }

    fn marked(&self, policy: &Policy, key: &Key, mark: &[u8]) -> WireKey {
        self.join(key.as_bytes(), policy.name().as_bytes(), mark)
    }

    /// Returns whether charges had keys of the kind that this counter has.
    pub(in crate::remote) fn is_used(&self, counter: &Counter) -> bool {
        self.used.load(Ordering::Relaxed) & (1 << kind(counter)) != 0
    }

    /// Keys of the store's own, for probes, of the kind that this counter has. No identity is `!` or `!!`, and in a cluster
    /// they lie in different slots (13379 and 404), as the keys of decisions that travel together do.
    pub(in crate::remote) fn probes(&self, counter: &Counter) -> [WireKey; 2] {
        let mark = MARKS[kind(counter)];
        [&b"!"[..], b"!!"].map(|identity| self.join(identity, b"probe", mark))
    }

    fn join(&self, identity: &[u8], policy: &[u8], mark: &[u8]) -> WireKey {
        let prefix = self.prefix.as_bytes();
        let parts = [prefix, b":{", identity, b"}:", policy, mark];
        // Filled in place: appending part by part takes three times the instructions.
        let mut wire = WireKey::from_elem(0, parts.iter().map(|part| part.len()).sum());
        let mut rest = &mut wire[..];
        for part in parts {
            let (place, after) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = after;
        }
        wire
    }
}

/// The index in [`MARKS`] of what stands behind the policy's name.
const fn kind(counter: &Counter) -> usize {
    match counter {
        Counter::Bucket(_) => 0,
        Counter::FixedWindow(_) => 1,
        Counter::SlidingLog(_) => 2,
        Counter::SlidingWindow(_) => 3,
        Counter::Concurrency(_) => 4,
    }
}

/// No name holds a `#`.
const MARKS: [&[u8]; 5] = [b"", b"#f", b"#g", b"#s", b"#c"];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::{collection::vec, prelude::*, sample::select};

    use crate::{
        algorithm::{Algorithm, QueueLimits, WindowStart},
        key::HashSecret,
        quota::Quota,
    };

    use super::*;

    /// How a key is made. Two that are made in the same way of the same bytes are one key, and no others are.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Made {
        Global,
        Unidentified,
        Plain(Vec<u8>),
        Secret(u8, Vec<u8>),
        Joined(Vec<Made>),
        Labelled(Vec<u8>, Box<Made>),
        FirstChoice(Box<Made>),
    }

    impl Made {
        fn key(&self) -> Key {
            match self {
                Self::Global => Key::GLOBAL,
                Self::Unidentified => Key::UNIDENTIFIED,
                Self::Plain(bytes) => Key::new(bytes),
                Self::Secret(0, bytes) => Key::secret(bytes),
                Self::Secret(own, bytes) => Key::secret_with(&HashSecret::new([*own; 32]), bytes),
                Self::Joined(parts) => {
                    let keys = parts.iter().map(Self::key);
                    keys.reduce(|joined, key| joined.and(&key))
                        .expect("there are parts")
                }
                Self::Labelled(label, inner) => inner.key().labelled(Key::new(label)),
                Self::FirstChoice(inner) => inner.key().unlabelled(),
            }
        }

        /// The same key in one way to tell it: a first choice without a label stays as it is.
        fn told(&self) -> Self {
            match self {
                Self::FirstChoice(inner) => {
                    let (told, key) = (inner.told(), inner.key());
                    match key.unlabelled() == key {
                        true => told,
                        false => Self::FirstChoice(Box::new(told)),
                    }
                }
                Self::Joined(parts) => Self::Joined(parts.iter().map(Self::told).collect()),
                Self::Labelled(label, inner) => {
                    Self::Labelled(label.clone(), Box::new(inner.told()))
                }
                other => other.clone(),
            }
        }
    }

    /// Any bytes, such as mean something in a key, such as look like keys, and long ones.
    fn identity() -> impl Strategy<Value = Vec<u8>> + Clone {
        prop_oneof![
            vec(any::<u8>(), 0..80),
            vec(select(b"ab%27B{}|!*?#$&: \0\xFF".to_vec()), 0..6),
            "[ab{}:#]{40,60}".prop_map(String::into_bytes),
            "[#$&][0-9A-F]{32}".prop_map(String::into_bytes),
            "(t:)?\\{a\\}:(a|b)#?[fgsc]?".prop_map(String::into_bytes),
        ]
    }

    fn made() -> impl Strategy<Value = Made> {
        let part = prop_oneof![
            1 => Just(Made::Global),
            1 => Just(Made::Unidentified),
            6 => identity().prop_map(Made::Plain),
            2 => (0..3_u8, identity()).prop_map(|(own, bytes)| Made::Secret(own, bytes)),
        ];
        let labelled = |inner: BoxedStrategy<Made>| {
            let pair = (identity(), inner);
            pair.prop_map(|(label, inner)| Made::Labelled(label, Box::new(inner)))
        };
        // Of one number of parts, as those of one rule are: that is what `and` promises to tell apart.
        let joined = vec(part.clone(), 2).prop_map(Made::Joined);
        let alternative = labelled(prop_oneof![part.clone(), joined.clone()].boxed());
        prop_oneof![
            4 => part,
            2 => joined.clone(),
            2 => alternative.clone(),
            1 => prop_oneof![joined, alternative].prop_map(|made| Made::FirstChoice(Box::new(made))),
        ]
    }

    fn policy() -> impl Strategy<Value = Policy> {
        let algorithm = select(vec![
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
            Algorithm::LeakyQueue(QueueLimits::new(3)),
            Algorithm::FixedWindow(WindowStart::Clock),
            Algorithm::FixedWindow(WindowStart::FirstHit),
            Algorithm::SlidingLog,
            Algorithm::SlidingWindow,
            Algorithm::Concurrency {
                lease: Duration::from_secs(1),
            },
        ]);
        let name = prop_oneof!["[ab]", "[a-zA-Z0-9._-]{1,39}", "a[fgsc._-]{1,2}"];
        (name, algorithm).prop_map(|(name, algorithm)| {
            let quota = match algorithm {
                Algorithm::Concurrency { .. } => Quota::in_flight(5),
                _ => Quota::per_minute(5),
            };
            let policy = Policy::new(name, quota).algorithm(algorithm);
            assert!(policy.validate().is_ok());
            policy
        })
    }

    fn prefix() -> impl Strategy<Value = String> {
        prop_oneof![Just("t".to_owned()), "[t:#!|]{1,4}", "[!-z|~]{1,64}"]
    }

    /// Reads a key of Redis backwards: the tag is what a cluster takes for it, from the first `{` to the next `}`.
    fn read(wire: &[u8]) -> (&[u8], &[u8], &[u8]) {
        let count = |brace| wire.iter().filter(|byte| **byte == brace).count();
        assert_eq!((count(b'{'), count(b'}')), (1, 1));
        let find = |brace| {
            wire.iter()
                .position(|byte| *byte == brace)
                .expect("it is there")
        };
        let (open, close) = (find(b'{'), find(b'}'));
        assert!(open + 1 < close, "a tag that is not empty");
        let (prefix, policy) = (&wire[..open], &wire[close + 1..]);
        let prefix = prefix.strip_suffix(b":").expect("a colon before the tag");
        let policy = policy.strip_prefix(b":").expect("a colon behind the tag");
        (prefix, &wire[open + 1..close], policy)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn no_two_policies_and_keys_share_a_key_in_redis(
            all in vec((policy(), made()), 2..8),
            prefix in prefix(),
        ) {
            let keyspace = Keyspace::new(&prefix).expect("a usable prefix");
            let mut seen = std::collections::HashMap::new();
            for (policy, made) in &all {
                let told = (policy.name().as_bytes().to_vec(), made.told());
                let present = keyspace.of_policy(policy, &made.key());
                let places: Vec<WireKey> = keyspace.all_of(policy, &made.key()).collect();
                prop_assert_eq!(places.iter().filter(|place| **place == present).count(), 1);
                for (mark, place) in MARKS.iter().zip(places) {
                    for probe in keyspace.probes(policy.counter()) {
                        prop_assert_ne!(&place, &probe);
                    }
                    let told = (told.clone(), *mark);
                    if let Some(other) = seen.insert(place, told.clone()) {
                        prop_assert_eq!(other, told);
                    }
                }
            }
            // and every one can be read back, so that two are never the same text of different parts
            for (place, ((name, _), mark)) in &seen {
                let (own, tag, policy) = read(place);
                prop_assert_eq!(own, prefix.as_bytes());
                prop_assert!((1..=Key::MAX_LENGTH).contains(&tag.len()));
                prop_assert_eq!(policy, [name.as_slice(), mark].concat());
            }
        }

        #[test]
        fn one_policy_and_key_is_one_key_in_redis_under_each_prefix(
            policy in policy(),
            made in made(),
            prefixes in (prefix(), prefix()),
        ) {
            let place = |prefix: &str| {
                Keyspace::new(prefix).expect("a usable prefix").of_policy(&policy, &made.key())
            };
            let places = (place(&prefixes.0), place(&prefixes.1));
            prop_assert_eq!(prefixes.0 == prefixes.1, places.0 == places.1);
        }

        #[test]
        fn prefix_with_a_brace_or_of_other_characters_is_refused(text in ".{0,80}") {
            let is_usable = (1..=64).contains(&text.len())
                && text.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && !b"{}".contains(&byte));
            prop_assert_eq!(Keyspace::new(&text).is_ok(), is_usable);
        }
    }

    #[test]
    fn probes_have_tags_of_their_own_in_different_slots() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let policy = Policy::new("a", Quota::per_minute(5)).algorithm(Algorithm::SlidingLog);
        let [one, other] = keyspace.probes(policy.counter());
        assert_eq!(read(&one), (&b"t"[..], &b"!"[..], &b"probe#g"[..]));
        assert_eq!(read(&other), (&b"t"[..], &b"!!"[..], &b"probe#g"[..]));
        assert_eq!((slot(b"!"), slot(b"!!")), (13_379, 404));
        for key in [
            Key::new("!"),
            Key::new("!!"),
            Key::new("").unlabelled(),
            Key::new("").labelled(""),
            Key::GLOBAL,
        ] {
            assert!(![&b"!"[..], b"!!"].contains(&key.as_bytes()));
        }
    }

    /// The slot of a hash tag: CRC-16 (XMODEM), as the specification of Redis Cluster has it.
    fn slot(tag: &[u8]) -> u16 {
        let mut crc = 0_u16;
        for byte in tag {
            crc ^= u16::from(*byte) << 8;
            for _ in 0..8 {
                let carry = crc & 0x8000 != 0;
                crc = (crc << 1) ^ if carry { 0x1021 } else { 0 };
            }
        }
        crc % 16_384
    }

    #[test]
    fn kinds_of_keys_are_known_once_a_charge_had_one() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let bucket = Policy::new("a", Quota::per_minute(5));
        let log = bucket.clone().algorithm(Algorithm::SlidingLog);
        let _ = keyspace.of(&log.charge(Key::GLOBAL));
        assert!(keyspace.is_used(log.counter()));
        assert!(!keyspace.is_used(bucket.counter()));
    }
}
