//! The keys in Redis. No other file forms one.
//!
//! ```text
//! prefix   {identity} : policy suffix
//! tollgate:{ada}      : user           token bucket, leaky bucket or leaky queue
//! tollgate:{ada}      : login  #f      fixed window
//! tollgate:{ada}      : search #g      sliding log
//! tollgate:{ada}      : upload #s      sliding window
//! tollgate:{ada}      : export #c      concurrency
//! tollgate:{ada}      : user   #p      units of a bucket that another region has leased to this one
//! tollgate:{ada}      : user   #m..    a mark that an instance's merge was made, see `Keyspace::merge_key`
//! tollgate:{aB3}^ada  : user           an identity in the slot of another one, see `Key::co_located_with`
//! tollgate:{!}        : probe  #f      a probe of fixed windows, see `Keyspace::probe_key`
//! tollgate:{ada}      : user   #q      the line of callers that wait, and a pause
//! tollgate:{ada}      : login  #b      the denials and the ban of a policy with a penalty
//! tollgate:{!}        : members        the live instances, see `Keyspace::members_key`
//! tollgate:{!}        : blocks  #v     blocked keys, see `Keyspace::block_keys`
//! tollgate:{!}        : rules          the rules of all instances, see `Keyspace::rules_key`
//! tollgate:{!}        : top:566932     what instances share of their top keys, see `Keyspace::top_keys_key`
//! ```
//!
//! (The spaces are not part of a key.) The identity is the hash tag, so in a cluster all policies about one identity are in one
//! slot, and one script may access them. Neither prefix nor identity nor policy contains a brace, so a key has exactly one
//! complete hash tag. A policy's name contains no `#`, so a suffix is never part of a name.

use std::sync::atomic::{AtomicU8, Ordering};

use smallvec::SmallVec;

use crate::{
    algorithm::Counter,
    charge::Charge,
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
};

/// A key as Redis stores it. Keys of the usual length are not allocated.
pub(in crate::remote) type RedisKey = SmallVec<[u8; 128]>;

/// Makes all keys of one store: they share its prefix.
///
/// The suffix depends on the kind of state, so a policy whose algorithm changes never reads a state of another kind.
#[derive(Debug)]
pub(in crate::remote) struct Keyspace {
    prefix: Box<str>,
    /// The kinds of keys that charges had so far: one bit for each of [`SUFFIXES`].
    used: AtomicU8,
}

impl Keyspace {
    /// The identity in the keys that instances share.
    pub const MEMBERS_IDENTITY: &'static [u8] = b"!";

    /// Returns the keyspace below a prefix of 1 to 64 visible ASCII characters without braces.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for any other prefix.
    pub fn new(prefix: &str) -> Result<Self, Error> {
        let is_usable = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(is_usable) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "prefix {prefix:?} is not usable: set 1 to 64 visible ASCII characters without braces"
                ),
            ));
        }
        Ok(Self {
            prefix: prefix.into(),
            used: AtomicU8::new(0),
        })
    }

    /// Returns the key that a charge is counted under, and notes its kind as used.
    pub fn key_of(&self, charge: &Charge<'_>) -> RedisKey {
        if charge.is_away() {
            return self.join_key(charge.key(), charge.policy().name().as_bytes(), POT_SUFFIX);
        }
        let bit = 1 << suffix_index(charge.policy().counter());
        // The bit is almost always set, and a read does not take the cache line from other cores.
        if self.used.load(Ordering::Relaxed) & bit == 0 {
            self.used.fetch_or(bit, Ordering::Relaxed);
        }
        self.current_key(charge.policy(), charge.key())
    }

    /// Returns the key of the denials and the ban of an identity under a policy with a penalty.
    pub fn ban_key(&self, policy: &Policy, key: &Key) -> RedisKey {
        self.join_key(key, policy.name().as_bytes(), b"#b")
    }

    /// Returns the start of the channels' names that wake callers who wait for slots. An instance's number follows, in hexadecimal.
    pub fn wake_channel(&self) -> String {
        format!("{}:wake:", self.prefix)
    }

    /// Returns the key of the line of callers that wait for an identity under a policy.
    pub fn line_key(&self, policy: &Policy, key: &Key) -> RedisKey {
        self.join_key(key, policy.name().as_bytes(), b"#q")
    }

    /// Returns the key of the adaptive rate of an identity under a policy.
    pub fn rate_key(&self, policy: &Policy, key: &Key) -> RedisKey {
        self.join_key(key, policy.name().as_bytes(), b"#a")
    }

    /// Returns all keys that a policy may have for an identity: one for each algorithm it may have had, and that of units which
    /// another region has leased to this one.
    pub fn all_keys(&self, policy: &Policy, key: &Key) -> impl Iterator<Item = RedisKey> {
        let suffixes = SUFFIXES.iter().chain([&POT_SUFFIX]);
        suffixes.map(|suffix| self.join_key(key, policy.name().as_bytes(), suffix))
    }

    /// Returns whether a charge had a key of the kind that this counter has.
    pub fn is_used(&self, counter: &Counter) -> bool {
        self.used.load(Ordering::Relaxed) & (1 << suffix_index(counter)) != 0
    }

    /// Returns a key that only probes use, of the kind that this counter has.
    ///
    /// Their identities are `!`, and `!0`, `!1` and so on in a cluster, one of which is in each slot. No caller has these.
    pub fn probe_key(&self, identity: &[u8], counter: &Counter) -> RedisKey {
        let suffix = SUFFIXES[suffix_index(counter)];
        self.join(identity, b"probe", suffix)
    }

    /// Returns the key of the live instances. No caller has the identity `!`, and no probe this name.
    pub fn members_key(&self) -> RedisKey {
        self.join(Self::MEMBERS_IDENTITY, b"members", b"")
    }

    /// Returns the keys of the blocks: a hash of them, their targets by end, and by version. No probe has this name.
    pub fn block_keys(&self) -> [RedisKey; 3] {
        let suffixes: [&[u8]; 3] = [b"", b"#e", b"#v"];
        suffixes.map(|suffix| self.join(Self::MEMBERS_IDENTITY, b"blocks", suffix))
    }

    /// Returns the key of the rules that all instances share, which is also the name of the channel that announces them.
    #[cfg(feature = "reload")]
    pub fn rules_key(&self) -> RedisKey {
        self.join(Self::MEMBERS_IDENTITY, b"rules", b"")
    }

    /// Returns the key of what instances share of their top keys, for the half of the window with this number.
    #[cfg(feature = "top-keys")]
    pub fn top_keys_key(&self, half: u64) -> RedisKey {
        let name = format!("top:{half}");
        self.join(Self::MEMBERS_IDENTITY, name.as_bytes(), b"")
    }

    /// Returns the key that a merge leaves, in the slot of its identity. No policy's name contains a `#`.
    pub fn merge_key(&self, policy: &Policy, key: &Key, id: u64) -> RedisKey {
        let suffix = format!("#m{id:016x}");
        self.join_key(key, policy.name().as_bytes(), suffix.as_bytes())
    }

    /// Returns the key of a policy for an identity, under the policy's present algorithm.
    fn current_key(&self, policy: &Policy, key: &Key) -> RedisKey {
        let suffix = SUFFIXES[suffix_index(policy.counter())];
        self.join_key(key, policy.name().as_bytes(), suffix)
    }

    /// Forms the key of an identity.
    fn join_key(&self, key: &Key, policy: &[u8], suffix: &[u8]) -> RedisKey {
        let (tag, identity) = (key.hash_tag(), key.as_bytes());
        if tag.len() == identity.len() {
            return self.join(identity, policy, suffix);
        }
        let rest = &identity[tag.len()..];
        let parts = [
            self.prefix.as_bytes(),
            b":{",
            tag,
            b"}",
            rest,
            b":",
            policy,
            suffix,
        ];
        RedisKey::from_vec(parts.concat())
    }

    /// Forms a key from its parts.
    fn join(&self, identity: &[u8], policy: &[u8], suffix: &[u8]) -> RedisKey {
        let parts = [
            self.prefix.as_bytes(),
            b":{",
            identity,
            b"}:",
            policy,
            suffix,
        ];
        // Filled in place: appending part by part takes three times the instructions.
        let mut joined = RedisKey::from_elem(0, parts.iter().map(|part| part.len()).sum());
        let mut rest = &mut joined[..];
        for part in parts {
            let (place, after) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = after;
        }
        joined
    }
}

/// Returns the identity in a key: the hash tag, by which a cluster assigns the key to a slot.
pub(super) fn hash_tag(key: &[u8]) -> &[u8] {
    let mut parts = key.split(|byte| matches!(byte, b'{' | b'}'));
    parts.nth(1).expect("each key has a hash tag")
}

/// Defines the suffix of each kind of state. It is one table, so that no kind can be missing from the list.
macro_rules! suffixes {
    ($($kind:ident => $suffix:literal,)+) => {
        /// The kinds of state, each at its index in [`SUFFIXES`].
        enum Kind {
            $($kind,)+
        }

        /// The end of a key, by the kind of its state.
        const SUFFIXES: &[&[u8]] = &[$($suffix,)+];

        /// Returns the index in [`SUFFIXES`] of the kind of key that a counter has.
        const fn suffix_index(counter: &Counter) -> usize {
            match counter {
                $(Counter::$kind(_) => Kind::$kind as usize,)+
            }
        }
    };
}

suffixes! {
    Bucket => b"",
    FixedWindow => b"#f",
    SlidingLog => b"#g",
    SlidingWindow => b"#s",
    Concurrency => b"#c",
}

/// The end of a key of units that another region has leased to this one.
const POT_SUFFIX: &[u8] = b"#p";

const _: () = assert!(SUFFIXES.len() <= 8, "`Keyspace::used` has a bit for each");

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::{collection::vec, prelude::*, sample::select};

    use crate::{
        algorithm::{Algorithm, QueueLimits, Quota, WindowStart},
        key::HashSecret,
    };

    use super::*;

    /// A way to make a key. Two ways are equal exactly if the keys that they make are equal.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum KeyRecipe {
        Global,
        Unidentified,
        Plain(Vec<u8>),
        Secret(u8, Vec<u8>),
        Joined(Vec<KeyRecipe>),
        Labelled(Vec<u8>, Box<KeyRecipe>),
        FirstChoice(Box<KeyRecipe>),
    }

    impl KeyRecipe {
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

        /// The one form of all ways that make the same key: a first choice without a label changes nothing.
        fn canonical(&self) -> Self {
            match self {
                Self::FirstChoice(inner) => {
                    let (canonical, key) = (inner.canonical(), inner.key());
                    if key.unlabelled() == key {
                        canonical
                    } else {
                        Self::FirstChoice(Box::new(canonical))
                    }
                }
                Self::Joined(parts) => Self::Joined(parts.iter().map(Self::canonical).collect()),
                Self::Labelled(label, inner) => {
                    Self::Labelled(label.clone(), Box::new(inner.canonical()))
                }
                other => other.clone(),
            }
        }
    }

    /// Any bytes, bytes with a meaning in a key, whole keys, and long identities.
    fn identity() -> impl Strategy<Value = Vec<u8>> + Clone {
        prop_oneof![
            vec(any::<u8>(), 0..80),
            vec(select(b"ab%27B{}|!*?#$&: \0\xFF".to_vec()), 0..6),
            "[ab{}:#]{40,60}".prop_map(String::into_bytes),
            "[#$&][0-9A-F]{32}".prop_map(String::into_bytes),
            "(t:)?\\{a\\}:(a|b)#?[fgsc]?".prop_map(String::into_bytes),
        ]
    }

    fn made() -> impl Strategy<Value = KeyRecipe> {
        let part = prop_oneof![
            1 => Just(KeyRecipe::Global),
            1 => Just(KeyRecipe::Unidentified),
            6 => identity().prop_map(KeyRecipe::Plain),
            2 => (0..3_u8, identity()).prop_map(|(own, bytes)| KeyRecipe::Secret(own, bytes)),
        ];
        let labelled = |inner: BoxedStrategy<KeyRecipe>| {
            let pair = (identity(), inner);
            pair.prop_map(|(label, inner)| KeyRecipe::Labelled(label, Box::new(inner)))
        };
        // All with two parts: `and` keeps keys apart only if they have the same number of parts, as those of one rule
        // do.
        let joined = vec(part.clone(), 2).prop_map(KeyRecipe::Joined);
        let alternative = labelled(prop_oneof![part.clone(), joined.clone()].boxed());
        prop_oneof![
            4 => part,
            2 => joined.clone(),
            2 => alternative.clone(),
            1 => prop_oneof![joined, alternative].prop_map(|made| KeyRecipe::FirstChoice(Box::new(made))),
        ]
    }

    fn policy() -> impl Strategy<Value = Policy> {
        let algorithm = select(vec![
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
            Algorithm::LeakyQueue(QueueLimits::new(3, Duration::MAX)),
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

    /// Splits a Redis key into prefix, hash tag and policy. As in a cluster, the tag is from the first `{` to the next
    /// `}`.
    fn read(stored: &[u8]) -> (&[u8], &[u8], &[u8]) {
        let count = |brace| stored.iter().filter(|byte| **byte == brace).count();
        assert_eq!((count(b'{'), count(b'}')), (1, 1));
        let find = |brace| {
            stored
                .iter()
                .position(|byte| *byte == brace)
                .expect("it is there")
        };
        let (open, close) = (find(b'{'), find(b'}'));
        assert!(open + 1 < close, "a tag that is not empty");
        let (prefix, policy) = (&stored[..open], &stored[close + 1..]);
        let prefix = prefix.strip_suffix(b":").expect("a colon before the tag");
        let policy = policy.strip_prefix(b":").expect("a colon behind the tag");
        (prefix, &stored[open + 1..close], policy)
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
                let canonical = (policy.name().as_bytes().to_vec(), made.canonical());
                let present = keyspace.current_key(policy, &made.key());
                let keys: Vec<RedisKey> = keyspace.all_keys(policy, &made.key()).collect();
                prop_assert_eq!(keys.iter().filter(|key| **key == present).count(), 1);
                prop_assert!(!keys.contains(&keyspace.ban_key(policy, &made.key())));
                for (suffix, stored) in SUFFIXES.iter().zip(keys) {
                    for identity in [&b"!"[..], b"!0", b"!17"] {
                        prop_assert_ne!(&stored, &keyspace.probe_key(identity, policy.counter()));
                    }
                    prop_assert_ne!(&stored, &keyspace.members_key());
                    prop_assert!(!keyspace.block_keys().contains(&stored));
                    let canonical = (canonical.clone(), *suffix);
                    if let Some(other) = seen.insert(stored, canonical.clone()) {
                        prop_assert_eq!(other, canonical);
                    }
                }
            }
            // Each can be split again, so different parts never make the same text.
            for (stored, ((name, _), suffix)) in &seen {
                let (own, tag, policy) = read(stored);
                prop_assert_eq!(own, prefix.as_bytes());
                prop_assert!((1..=Key::MAX_LENGTH).contains(&tag.len()));
                prop_assert_eq!(policy, [name.as_slice(), suffix].concat());
            }
        }

        #[test]
        fn one_policy_and_key_is_one_key_in_redis_under_each_prefix(
            policy in policy(),
            made in made(),
            prefixes in (prefix(), prefix()),
        ) {
            let stored = |prefix: &str| {
                Keyspace::new(prefix).expect("a usable prefix").current_key(&policy, &made.key())
            };
            let keys = (stored(&prefixes.0), stored(&prefixes.1));
            prop_assert_eq!(prefixes.0 == prefixes.1, keys.0 == keys.1);
        }

        #[test]
        fn prefix_with_a_brace_or_of_other_characters_is_refused(text in ".{0,80}") {
            let is_usable = (1..=64).contains(&text.len())
                && text.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && !b"{}".contains(&byte));
            prop_assert_eq!(Keyspace::new(&text).is_ok(), is_usable);
        }
    }

    #[test]
    fn probes_have_identities_of_their_own() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let policy = Policy::new("a", Quota::per_minute(5)).algorithm(Algorithm::SlidingLog);
        let key = keyspace.probe_key(b"!7", policy.counter());
        assert_eq!(read(&key), (&b"t"[..], &b"!7"[..], &b"probe#g"[..]));
        for key in [
            Key::new("!"),
            Key::new("!!"),
            Key::new("!7"),
            Key::new("").unlabelled(),
            Key::new("").labelled(""),
            Key::new("7").labelled(""),
            Key::GLOBAL,
        ] {
            assert!(![&b"!"[..], b"!7"].contains(&key.as_bytes()));
        }
    }

    #[test]
    fn hash_tag_of_a_key_is_its_identity() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let policy = Policy::new("a", Quota::per_minute(5));
        let key = keyspace.current_key(&policy, &Key::new("ada"));
        assert_eq!(hash_tag(&key), b"ada");
    }

    #[test]
    fn kinds_of_keys_are_known_once_a_charge_had_one() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let bucket = Policy::new("a", Quota::per_minute(5));
        let log = bucket.clone().algorithm(Algorithm::SlidingLog);
        let _ = keyspace.key_of(&log.charge(Key::GLOBAL));
        assert!(keyspace.is_used(log.counter()));
        assert!(!keyspace.is_used(bucket.counter()));
    }
}
