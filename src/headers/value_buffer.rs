//! The text of a header's value, on the stack until it is whole.

use http::HeaderValue;
use smallvec::SmallVec;

/// A value in the making: one allocation when it is done, whatever went into it.
#[derive(Debug, Default)]
pub(super) struct ValueBuffer {
    bytes: SmallVec<[u8; 96]>,
}

impl ValueBuffer {
    #[inline]
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.text(itoa::Buffer::new().format(number))
    }

    /// An Integer of structured fields.
    pub(super) fn integer(&mut self, number: u64) -> &mut Self {
        self.number(capped(number))
    }

    /// Seconds with three decimals.
    pub(super) fn millis(&mut self, millis: u64) -> &mut Self {
        let rest = millis % 1_000;
        let zeros = match rest {
            0..10 => ".00",
            10..100 => ".0",
            _ => ".",
        };
        self.number(millis / 1_000).text(zeros).number(rest)
    }

    /// Begins the next member of a list.
    pub(super) fn next(&mut self) -> &mut Self {
        match self.bytes.is_empty() {
            true => self,
            false => self.text(", "),
        }
    }

    /// The value, or `None` when there is no text.
    pub(super) fn some_value(&self) -> Option<HeaderValue> {
        (!self.bytes.is_empty()).then(|| self.value())
    }

    pub(super) fn value(&self) -> HeaderValue {
        // Invariant: only names of policies, digits and our own punctuation come in.
        HeaderValue::from_bytes(&self.bytes).expect("visible ASCII makes a header value")
    }
}

/// A number as a value: one allocation, where `HeaderValue::from(u64)` makes two.
pub(super) fn digits(number: u64) -> HeaderValue {
    let value = HeaderValue::from_str(itoa::Buffer::new().format(number));
    value.expect("digits make a header value")
}

/// The number as an Integer of structured fields can hold it (RFC 9651, section 3.3.1): at most 15 digits.
pub(super) fn capped(number: u64) -> u64 {
    number.min(LARGEST)
}

const LARGEST: u64 = 999_999_999_999_999;
