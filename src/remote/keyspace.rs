//! Where a count lies in Redis: the only place that forms keys.

use smallvec::SmallVec;

use crate::{
    algorithm::Counter,
    error::{Error, ErrorKind},
    key::Key,
    policy::{Charge, Policy},
};

/// A key as it goes over the wire.
pub(super) type WireKey = SmallVec<[u8; 128]>;

/// The prefix that all of a store's keys share.
///
/// A key is `prefix:{identity}:policy`, and what is no bucket has a mark behind the policy's name, so that a policy that
/// changes its algorithm does not find a state that it cannot read. The identity is the hash tag, so all policies about one identity lie in one
/// slot of a cluster; neither prefix, identity nor policy holds a brace, so there is exactly one tag and it is whole.
#[derive(Clone, Debug)]
pub(super) struct Keyspace {
    prefix: Box<str>,
}

impl Keyspace {
    pub(super) fn new(prefix: &str) -> Result<Self, Error> {
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
        })
    }

    /// The key that a charge is counted under.
    pub(super) fn of(&self, charge: &Charge<'_>) -> WireKey {
        self.of_policy(charge.policy(), charge.key())
    }

    /// The key of a policy's count for an identity, as the policy counts now.
    fn of_policy(&self, policy: &Policy, key: &Key) -> WireKey {
        self.marked(policy, key, mark(policy.counter()))
    }

    /// All keys that the policy's count for an identity may have had, however it was counted.
    pub(super) fn all_of(&self, policy: &Policy, key: &Key) -> impl Iterator<Item = WireKey> {
        MARKS.iter().map(|mark| self.marked(policy, key, mark))
    }

    fn marked(&self, policy: &Policy, key: &Key, mark: &[u8]) -> WireKey {
        let mut wire = self.join(key.as_bytes(), policy.name().as_bytes());
        wire.extend_from_slice(mark);
        wire
    }

    /// A key of the store's own that no identity can have: `!` alone is none.
    pub(super) fn probe(&self) -> WireKey {
        self.join(b"!", b"probe")
    }

    fn join(&self, identity: &[u8], policy: &[u8]) -> WireKey {
        let mut wire = WireKey::new();
        wire.extend_from_slice(self.prefix.as_bytes());
        wire.extend_from_slice(b":{");
        wire.extend_from_slice(identity);
        wire.extend_from_slice(b"}:");
        wire.extend_from_slice(policy);
        wire
    }
}

/// What stands behind the policy's name: no name holds a `#`.
const fn mark(counter: &Counter) -> &'static [u8] {
    match counter {
        Counter::Bucket(_) => MARKS[0],
        Counter::FixedWindow(_) => MARKS[1],
        Counter::SlidingLog(_) => MARKS[2],
        Counter::SlidingWindow(_) => MARKS[3],
        Counter::Slots(_) => MARKS[4],
    }
}

const MARKS: [&[u8]; 5] = [b"", b"#f", b"#g", b"#s", b"#c"];
