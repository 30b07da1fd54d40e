//! Protocol Buffers messages of gRPC error details, encoded by hand, since a code generator is too much for four messages.
//!
//! They are defined in googleapis' `status.proto` and `error_details.proto`, and protobuf's `any.proto` and `duration.proto`.

use std::time::Duration;

/// An encoded message. Fields must be written in the order of their numbers. A field of value 0 is omitted, as it is the
/// default.
#[derive(Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// `google.rpc.Status`.
    pub fn status(code: u8, message: &str, details: &[Self]) -> Self {
        let status = Self::default().number(1, u64::from(code)).text(2, message);
        details
            .iter()
            .fold(status, |status, detail| status.nested(3, &detail.bytes))
    }

    /// `google.rpc.RetryInfo` as a detail.
    pub fn retry_info(wait: Duration) -> Self {
        let wait = Self::default()
            .number(1, wait.as_secs())
            .number(2, u64::from(wait.subsec_nanos()));
        Self::default().nested(1, &wait.bytes).detail("RetryInfo")
    }

    /// `google.rpc.QuotaFailure` as a detail, with a subject and a description for each violation.
    pub fn quota_failure<'a>(violations: impl Iterator<Item = (&'a str, String)>) -> Self {
        let failure = violations.fold(Self::default(), |failure, (subject, description)| {
            let violation = Self::default().text(1, subject).text(2, &description);
            failure.nested(1, &violation.bytes)
        });
        failure.detail("QuotaFailure")
    }

    /// Returns the message in base64 without padding, as headers of binary values contain it.
    pub fn base64(&self) -> String {
        let mut text = String::with_capacity(self.bytes.len().div_ceil(3) * 4);
        for chunk in self.bytes.chunks(3) {
            let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or_default());
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            let digits = (0..=chunk.len()).map(|index| bits >> (18 - 6 * index) & 0x3F);
            text.extend(digits.map(|digit| char::from(ALPHABET[digit as usize])));
        }
        text
    }

    /// Wraps a message of `google.rpc` in `google.protobuf.Any`.
    fn detail(self, name: &str) -> Self {
        let kind = format!("type.googleapis.com/google.rpc.{name}");
        Self::default().text(1, &kind).nested(2, &self.bytes)
    }

    fn number(mut self, field: u8, number: u64) -> Self {
        if number > 0 {
            self.bytes.push(field << 3);
            self.push_varint(number);
        }
        self
    }

    fn text(self, field: u8, text: &str) -> Self {
        if text.is_empty() {
            self
        } else {
            self.nested(field, text.as_bytes())
        }
    }

    /// Writes bytes of a known length: text, or an encoded message.
    fn nested(mut self, field: u8, bytes: &[u8]) -> Self {
        self.bytes.push(field << 3 | 2);
        self.push_varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn push_varint(&mut self, mut number: u64) {
        while number > 0x7F {
            self.bytes.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.bytes.push(number.to_le_bytes()[0]);
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
