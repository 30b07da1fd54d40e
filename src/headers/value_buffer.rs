//! Header values.

use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;

/// Text of a header value, built on the stack.
#[derive(Debug, Default)]
pub(super) struct ValueBuffer {
    bytes: SmallVec<[u8; 96]>,
}

impl ValueBuffer {
    /// Appends text, which must be visible ASCII.
    #[inline]
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes.extend_from_slice(text.as_bytes());
        self
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.text(itoa::Buffer::new().format(number))
    }

    /// Appends an Integer of structured fields.
    pub(super) fn integer(&mut self, number: u64) -> &mut Self {
        self.number(capped(number))
    }

    /// Begins the next member of a list.
    pub(super) fn begin_member(&mut self) -> &mut Self {
        if self.bytes.is_empty() {
            self
        } else {
            self.text(", ")
        }
    }

    /// Returns the text as a value; `None` if the buffer is empty.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        (!self.bytes.is_empty()).then(|| HeaderValue::from_bytes(&self.bytes).expect(VISIBLE_ASCII))
    }
}

// === Numbers ===

/// Returns microseconds as seconds with three decimals, rounded up.
pub(super) fn seconds(micros: u64) -> HeaderValue {
    let millis = micros.div_ceil(1_000);
    let rest = millis % 1_000;
    let zeros = match rest {
        0..10 => ".00",
        10..100 => ".0",
        _ => ".",
    };
    let mut text = ValueBuffer::default();
    text.number(millis / 1_000).text(zeros).number(rest);
    text.value().expect("there are digits")
}

/// Returns numbers as values. Small ones are static, and the others share one allocation.
pub(super) fn numbers<const N: usize>(numbers: [u64; N]) -> [HeaderValue; N] {
    let mut slots = Slots([[0; MOST_DIGITS]; N]);
    let mut lengths = [0; N];
    for ((slot, length), number) in slots.0.iter_mut().zip(&mut lengths).zip(numbers) {
        if number >= SMALL as u64 {
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(number).as_bytes();
            slot[..digits.len()].copy_from_slice(digits);
            *length = digits.len();
        }
    }
    let shared = if lengths == [0; N] {
        Bytes::new()
    } else {
        Bytes::from_owner(slots)
    };
    std::array::from_fn(|index| {
        let start = index * MOST_DIGITS;
        match lengths[index] {
            0 => HeaderValue::from_static(small(numbers[index])),
            length => HeaderValue::from_maybe_shared(shared.slice(start..start + length))
                .expect(VISIBLE_ASCII),
        }
    })
}

/// A slot for the digits of each number.
struct Slots<const N: usize>([[u8; MOST_DIGITS]; N]);

impl<const N: usize> AsRef<[u8]> for Slots<N> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_flattened()
    }
}

/// Returns the digits of a number below [`SMALL`].
fn small(number: u64) -> &'static str {
    static DIGITS: [[u8; 3]; SMALL] = three_digits();
    let digits = usize::try_from(number).ok();
    let digits = digits.and_then(|number| DIGITS.get(number));
    let digits = digits.expect("the number is small");
    let zeros = match number {
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    std::str::from_utf8(&digits[zeros..]).expect(VISIBLE_ASCII)
}

/// Returns each small number in three digits.
const fn three_digits() -> [[u8; 3]; SMALL] {
    let mut digits = [*b"000"; SMALL];
    let mut number = 1;
    while number < SMALL {
        let mut next = digits[number - 1];
        let mut place = 2;
        while next[place] == b'9' {
            next[place] = b'0';
            place -= 1;
        }
        next[place] += 1;
        digits[number] = next;
        number += 1;
    }
    digits
}

/// The number as an Integer of structured fields can hold it (RFC 9651, section 3.3.1): at most 15 digits.
pub(super) fn capped(number: u64) -> u64 {
    number.min(LARGEST_INTEGER)
}

const LARGEST_INTEGER: u64 = 999_999_999_999_999;
/// Digits of `u64::MAX`.
const MOST_DIGITS: usize = 20;
/// Numbers below it have static values.
const SMALL: usize = 1_000;
/// Only policy names, units, digits and punctuation are appended.
const VISIBLE_ASCII: &str = "visible ASCII makes a header value";
