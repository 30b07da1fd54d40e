//! Header values.

use http::HeaderValue;
use smallvec::SmallVec;

use crate::decision::PolicyName;

/// Text of a header value, built on the stack.
#[derive(Debug, Default)]
pub(super) struct ValueBuffer {
    bytes: SmallVec<[u8; 96]>,
}

impl ValueBuffer {
    /// Appends text, which must be visible ASCII.
    #[inline]
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes.extend_from_slice(text.as_bytes());
        self
    }

    /// Appends a name as a String of structured fields. None of its characters needs an escape.
    pub fn name(&mut self, name: &PolicyName) -> &mut Self {
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(name.as_bytes());
        self.text("\"")
    }

    #[inline]
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.text(itoa::Buffer::new().format(number))
    }

    /// Appends an Integer of structured fields.
    pub fn integer(&mut self, number: u64) -> &mut Self {
        self.number(capped(number))
    }

    /// Begins the next member of a list.
    pub fn begin_member(&mut self) -> &mut Self {
        if self.bytes.is_empty() {
            self
        } else {
            self.text(", ")
        }
    }

    /// Returns the text as a value; `None` if the buffer is empty.
    pub fn value(&self) -> Option<HeaderValue> {
        (!self.bytes.is_empty()).then(|| HeaderValue::from_bytes(&self.bytes).expect(VISIBLE_ASCII))
    }
}

/// The number as an Integer of structured fields can hold it (RFC 9651, section 3.3.1): at most 15 digits.
pub(super) fn capped(number: u64) -> u64 {
    number.min(LARGEST_INTEGER)
}

const LARGEST_INTEGER: u64 = 999_999_999_999_999;
/// Only policy names, units, digits and punctuation are appended.
const VISIBLE_ASCII: &str = "visible ASCII makes a header value";
