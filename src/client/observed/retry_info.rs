//! The wait in the error details of a gRPC response: `google.rpc.RetryInfo`.
//!
//! The header is base64 of the message `google.rpc.Status`:
//!
//! ```text
//! Status { details (3): [Any { type_url (1): "type.googleapis.com/google.rpc.RetryInfo", value (2): RetryInfo }] }
//! RetryInfo { retry_delay (1): Duration { seconds (1), nanos (2) } }
//! ```

use std::time::Duration;

use http::HeaderMap;

use super::{numbers::LONGEST, values::bounded};

/// Returns the delay that the error details contain.
pub(super) fn retry_delay(headers: &HeaderMap) -> Option<Duration> {
    let text = bounded(headers.get("grpc-status-details-bin")?, MAX_BYTES)?;
    let status = base64(text)?;
    let mut details = Fields(&status).filter_map(|field| field.bytes(3));
    details.find_map(|detail| {
        let kind = Fields(detail).find_map(|field| field.bytes(1))?;
        let value = Fields(detail).find_map(|field| field.bytes(2))?;
        let delay = Fields(value).find_map(|field| field.bytes(1))?;
        let number = |wanted| Fields(delay).find_map(|field| field.number(wanted));
        let (seconds, nanos) = (number(1).unwrap_or(0), number(2).unwrap_or(0));
        let is_valid = kind.ends_with(b"/google.rpc.RetryInfo")
            // A negative number is above it.
            && seconds < LONGEST.as_secs()
            && nanos < 1_000_000_000;
        is_valid.then(|| Duration::from_secs(seconds) + Duration::from_nanos(nanos))
    })
}

/// Decodes base64, with or without padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0_u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        let value = ALPHABET.iter().position(|known| *known == digit)?;
        bits = bits << 6 & 0xFFFF | u32::try_from(value).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            let [.., byte] = (bits >> count).to_be_bytes();
            bytes.push(byte);
        }
    }
    Some(bytes)
}

// === Fields ===

/// The fields of a message. Ends at the first one that is malformed.
#[derive(Debug)]
struct Fields<'a>(&'a [u8]);

#[derive(Debug)]
struct Field<'a> {
    number: u64,
    value: Value<'a>,
}

#[derive(Debug)]
enum Value<'a> {
    Bytes(&'a [u8]),
    Number(u64),
}

impl<'a> Field<'a> {
    fn bytes(&self, number: u64) -> Option<&'a [u8]> {
        match self.value {
            Value::Bytes(bytes) if self.number == number => Some(bytes),
            _ => None,
        }
    }

    fn number(&self, number: u64) -> Option<u64> {
        match self.value {
            Value::Number(value) if self.number == number => Some(value),
            _ => None,
        }
    }
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return None,
        };
        Some(Field {
            number: tag >> 3,
            value,
        })
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Error details are longer than other values: they often contain texts and links.
const MAX_BYTES: usize = 8_192;
