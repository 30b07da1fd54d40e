//! Snapshots as bytes, for instances that exchange them.
//!
//! ```text
//! version         1 byte: 1
//! shown by        8 bytes, little endian: identifies the secret; 0 for plain text
//! since, until    numbers: microseconds since the Unix epoch
//! capacity        number
//! policies        number, then for each, in ascending order of the names:
//!   name          length in 1 byte, and the name
//!   total         number
//!   unlisted      number
//!   keys          number, then for each, in ascending order of the keys:
//!     key         length in 1 byte, and the key in its shown form
//!     count       number
//!     error       number
//! ```
//!
//! A number is a LEB128: 7 bits a byte, the lowest first, and the highest bit set in all bytes but the last.

use crate::{
    clock::Timestamp,
    decision::PolicyName,
    error::{Error, ErrorKind},
    key::Key,
};

use super::{
    snapshot::{PolicyTopKeys, Snapshot, TopKey},
    summary::MAX_CAPACITY,
};

impl Snapshot {
    /// Returns the snapshot as bytes, for another instance.
    ///
    /// At most 34 bytes, 70 for each policy and 67 for each key. A hashed key with counts below 16,384 takes 38.
    /// [`truncated`](Self::truncated) limits the keys.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let keys: usize = self.policies.iter().map(|list| list.keys.len()).sum();
        let mut bytes = Vec::with_capacity(34 + 70 * self.policies.len() + 67 * keys);
        bytes.push(VERSION);
        bytes.extend(self.shown_by.to_le_bytes());
        put_number(&mut bytes, self.since.as_micros());
        put_number(&mut bytes, self.until.as_micros());
        put_number(&mut bytes, self.capacity as u64);
        put_number(&mut bytes, self.policies.len() as u64);
        for list in &self.policies {
            put_text(&mut bytes, list.policy.as_str());
            put_number(&mut bytes, list.total);
            put_number(&mut bytes, list.unlisted);
            put_number(&mut bytes, list.keys.len() as u64);
            let mut keys: Vec<&TopKey> = list.keys.iter().collect();
            keys.sort_unstable_by_key(|top| top.key.as_str());
            for top in keys {
                put_text(&mut bytes, &top.key);
                put_number(&mut bytes, top.count);
                put_number(&mut bytes, top.error);
            }
        }
        bytes
    }

    /// Reads a snapshot that [`encode`](Self::encode) wrote.
    ///
    /// Accepts any bytes: the memory that it uses is proportional to their number, and the counts of each policy must be
    /// within the bounds of their total.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ForeignValue`] if no instance can have written these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = SnapshotReader { bytes };
        let snapshot = reader.snapshot().filter(|_| reader.bytes.is_empty());
        snapshot.ok_or_else(|| {
            Error::new(
                ErrorKind::ForeignValue,
                "a snapshot of top keys has an unknown form: another version of tollgate may have written it",
            )
        })
    }
}

fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7F {
        #[expect(clippy::cast_possible_truncation, reason = "7 bits")]
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most 7 bits are left")]
    bytes.push(number as u8);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(u8::try_from(text.len()).expect("names and keys are short"));
    bytes.extend_from_slice(text.as_bytes());
}

const VERSION: u8 = 1;

// === SnapshotReader ===

/// The bytes that have not been read yet. `None` means that they are invalid.
struct SnapshotReader<'a> {
    bytes: &'a [u8],
}

impl<'a> SnapshotReader<'a> {
    fn snapshot(&mut self) -> Option<Snapshot> {
        if self.take(1)? != [VERSION] {
            return None;
        }
        let shown_by = u64::from_le_bytes(self.take(8)?.try_into().ok()?);
        let [since, until] = [self.number()?, self.number()?].map(Timestamp::from_micros);
        let capacity = usize::try_from(self.number()?).ok()?;
        if since > until || !(1..=MAX_CAPACITY).contains(&capacity) {
            return None;
        }
        let mut policies: Vec<PolicyTopKeys> = Vec::new();
        for _ in 0..self.number()? {
            let list = self.list(capacity)?;
            let previous = policies.last();
            if previous.is_some_and(|previous| previous.policy.as_str() >= list.policy.as_str()) {
                return None;
            }
            policies.push(list);
        }
        Some(Snapshot {
            since,
            until,
            capacity,
            shown_by,
            unread: 0,
            policies,
        })
    }

    fn list(&mut self, capacity: usize) -> Option<PolicyTopKeys> {
        let policy = PolicyName::new(self.text()?).ok()?;
        let (total, unlisted) = (self.number()?, self.number()?);
        let mut keys: Vec<TopKey> = Vec::new();
        for _ in 0..self.number()? {
            let top = self.key()?;
            if keys.last().is_some_and(|previous| previous.key >= top.key) {
                return None;
            }
            keys.push(top);
        }
        keys.sort_by_key(|top| std::cmp::Reverse(top.count));
        let list = PolicyTopKeys {
            policy,
            total,
            unlisted,
            keys,
        };
        list.is_within_bounds(capacity).then_some(list)
    }

    fn key(&mut self) -> Option<TopKey> {
        let key = self.text()?;
        let is_key = (1..=Key::MAX_LENGTH).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_graphic());
        Some(TopKey {
            key: is_key.then(|| key.to_owned())?,
            count: self.number()?,
            error: self.number()?,
        })
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::from(*self.take(1)?.first()?);
        std::str::from_utf8(self.take(length)?).ok()
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = *self.take(1)?.first()?;
            let bits = u64::from(byte & 0x7F);
            // Each number has one form: too many bits are refused, and so is a last byte that adds none.
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(taken)
    }
}
