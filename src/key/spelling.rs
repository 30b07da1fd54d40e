//! How addresses and numbers are written as keys: quickly, since it is done for each request.

use std::{
    fmt::{self, Write as _},
    ops::Range,
};

use super::identity::Key;

impl Key {
    /// As `Display` would write it, many times as fast: it is done for each request.
    pub(super) fn dotted(octets: [u8; 4]) -> Self {
        let mut bytes = [0; Self::MAX_LENGTH];
        let mut length = 0;
        for octet in octets {
            let (text, more) = &OCTETS[usize::from(octet)];
            bytes[length..][..4].copy_from_slice(text);
            length += usize::from(*more);
        }
        // No dot behind the last, and zeros behind the identity.
        bytes[length - 1] = 0;
        let length = u8::try_from(length - 1).expect("an IPv4 address has 15 characters at most");
        Self { length, bytes }
    }

    /// As `Display` would write it (RFC 5952, section 4), several times as fast.
    pub(super) fn coloned(segments: [u16; 8]) -> Self {
        let mut buffer = Buffer::default();
        let gap = longest_gap(&segments);
        let written = (0..8).try_for_each(|index| {
            if gap.contains(&index) {
                let is_last = index + 1 == gap.end;
                // The two colons: one here, and one before what follows or at the very end.
                return match (index == gap.start, is_last && gap.end == 8) {
                    (true, _) | (_, true) => buffer.push(b':'),
                    _ => Some(()),
                };
            }
            if index > 0 {
                buffer.push(b':')?;
            }
            buffer.push_segment(segments[index])
        });
        debug_assert!(written.is_some(), "an address fits in 46 characters");
        buffer.key
    }

    /// Digits only: shorter than 46 characters and plain, so they are written in place.
    pub(super) fn written(identity: impl fmt::Display) -> Self {
        let mut buffer = Buffer::default();
        let written = write!(buffer, "{identity}");
        debug_assert!(
            written.is_ok(),
            "numbers and addresses fit in 46 characters"
        );
        buffer.key
    }
}

// === Buffer ===

/// A key that is being written.
pub(super) struct Buffer {
    pub(super) key: Key,
}

impl Buffer {
    pub(super) fn push(&mut self, byte: u8) -> Option<()> {
        *self.key.bytes.get_mut(usize::from(self.key.length))? = byte;
        self.key.length += 1;
        Some(())
    }

    pub(super) fn push_hex(&mut self, byte: u8) -> Option<()> {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        self.push(DIGITS[usize::from(byte >> 4)])?;
        self.push(DIGITS[usize::from(byte & 15)])
    }
}

impl Buffer {
    /// Lower case and without leading zeros.
    fn push_segment(&mut self, segment: u16) -> Option<()> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = [
            segment >> 12,
            segment >> 8 & 15,
            segment >> 4 & 15,
            segment & 15,
        ];
        let first = digits.iter().position(|digit| *digit > 0).unwrap_or(3);
        let mut digits = digits[first..].iter();
        digits.try_for_each(|digit| self.push(DIGITS[usize::from(*digit)]))
    }
}

/// The longest run of two zeros or more, and the first of several.
fn longest_gap(segments: &[u16; 8]) -> Range<usize> {
    let (mut longest, mut start) = (0..0, 0);
    for (index, segment) in segments.iter().enumerate() {
        if *segment > 0 {
            start = index + 1;
        } else if index + 1 - start > longest.len().max(1) {
            longest = start..index + 1;
        }
    }
    longest
}

impl Default for Buffer {
    fn default() -> Self {
        Self {
            key: Key {
                length: 0,
                bytes: [0; Key::MAX_LENGTH],
            },
        }
    }
}

impl fmt::Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes()
            .try_for_each(|byte| self.push(byte))
            .ok_or(fmt::Error)
    }
}

/// Each octet in decimal with the dot behind it, then zeros; and the length of both.
const OCTETS: [([u8; 4], u8); 256] = {
    let mut octets = [([0; 4], 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let mut next = match octet {
            0..10 => 2,
            10..100 => 1,
            _ => 0,
        };
        let (text, length) = &mut octets[octet];
        while next < 3 {
            text[*length as usize] = b"0123456789"[digits[next]];
            *length += 1;
            next += 1;
        }
        text[*length as usize] = b'.';
        *length += 1;
        octet += 1;
    }
    octets
};
