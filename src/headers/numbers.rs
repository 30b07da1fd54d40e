//! Numbers as header values.
//!
//! # Why may `Retry-After` be the wait of a policy that admits?
//!
//! A policy with `count_denied` counts a request that another policy denies, and this may take its last units. For example, one a
//! second and 2 an hour with `count_denied`: the second request at once is denied for 1 s, and uses up the hour. A client that
//! waits for the denying policy alone is counted and denied again. So the wait is computed after everything that the decision
//! charges, and is the longest of all enforced policies. The reason still names the policy that denies.
//!
//! For a blocked request the store is asked what is left, because a quota may be back later than the block ends. A shared store
//! is not asked if the block outlasts the windows of all policies, so a client that keeps sending costs it nothing. A policy
//! whose key needs a lookup is not included, since a denial before the lookups saves them. It may deny once more, with its own
//! wait. Layers do not know each other's waits: put policies that are to be decided together into one layer.
//!
//! # Why does a reset never exceed the window?
//!
//! `RateLimit-Reset: 61` beside a limit per minute looks like a mistake, and `t=61` beside `w=60` contradicts itself. Rounding up
//! to seconds makes a whole second of any excess. So a window that the first request opens ends on an exact microsecond. A bucket
//! whose interval is not whole microseconds may end one microsecond late, and a long log keeps ticks. Both report how much they
//! may have rounded up, and headers subtract that from a reset. They do not subtract it from `Retry-After`, because a wait that
//! is too short by a microsecond ends in a denial.

use std::cell::RefCell;

use bytes::Bytes;
use http::HeaderValue;

use super::value_buffer::ValueBuffer;

/// Returns a number as a value.
pub(super) fn number(number: u64) -> HeaderValue {
    small_number(number).unwrap_or_else(|| new_number(number))
}

/// Returns a number that many responses contain: a limit, a time in whole seconds since the epoch, or a wait.
///
/// A thread keeps its last ones, since a clone needs no allocation, and a third of the time of a new value.
pub(super) fn recurring_number(number: u64) -> HeaderValue {
    // Fibonacci hashing, so that consecutive times have different places.
    let [.., place] = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    let recent = || {
        RECENT_NUMBERS.try_with(|recent| {
            let row = &mut recent.borrow_mut()[usize::from(place) % ROWS];
            if let Some((_, value)) = row.iter().find(|(kept, _)| *kept == number) {
                return value.clone();
            }
            // The oldest of the row makes room.
            row.rotate_right(1);
            row[0] = (number, new_number(number));
            row[0].1.clone()
        })
    };
    // A thread that is about to end has no recent values.
    small_number(number).unwrap_or_else(|| recent().unwrap_or_else(|_| new_number(number)))
}

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

// `HeaderValue::from(u64)` takes two allocations, and this takes one.
fn new_number(number: u64) -> HeaderValue {
    let value = HeaderValue::from_str(itoa::Buffer::new().format(number));
    value.expect(DIGITS_MAKE_A_VALUE)
}

/// Returns a number of at most four digits as a static value.
fn small_number(number: u64) -> Option<HeaderValue> {
    static DIGITS: [[u8; 4]; SMALL] = four_digits();
    let digits = DIGITS.get(usize::try_from(number).ok()?)?;
    let zeros = match number {
        0..10 => 3,
        10..100 => 2,
        100..1_000 => 1,
        _ => 0,
    };
    let value = HeaderValue::from_maybe_shared(Bytes::from_static(&digits[zeros..]));
    Some(value.expect(DIGITS_MAKE_A_VALUE))
}

/// Returns each number below [`SMALL`] in four digits.
const fn four_digits() -> [[u8; 4]; SMALL] {
    let mut digits = [*b"0000"; SMALL];
    let mut number = 1;
    while number < SMALL {
        let mut next = digits[number - 1];
        let mut place = 3;
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

/// Numbers and their values.
type Recent = [[(u64, HeaderValue); ROW]; ROWS];

thread_local! {
    static RECENT_NUMBERS: RefCell<Recent> =
        const { RefCell::new([const { [const { (0, HeaderValue::from_static("0")) }; ROW] }; ROWS]) };
}

const DIGITS_MAKE_A_VALUE: &str = "digits make a header value";
/// Values in a row. The numbers of one response fit, even if all have the same row.
const ROW: usize = 4;
const ROWS: usize = 4;
/// Numbers below it have static values, which take 40 KB: most limits, and what is left of them.
const SMALL: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_digits() {
        let limits = [9_999, 10_000, 10_001, 1_700_000_000, u64::MAX];
        for expected in (0..30_000).chain(limits).chain(limits) {
            let digits = expected.to_string();
            assert_eq!(number(expected), digits);
            assert_eq!(recurring_number(expected), digits);
        }
    }

    #[test]
    fn numbers_of_one_response_do_not_displace_each_other() {
        for first in 10_000..12_000 {
            let numbers = [first, 50_000, 36_000, 1_700_000_000];
            let values = numbers.map(recurring_number);
            for (number, value) in numbers.into_iter().zip(values) {
                let again = recurring_number(number);
                assert_eq!(value.as_bytes().as_ptr(), again.as_bytes().as_ptr());
            }
        }
    }

    #[test]
    fn seconds_are_rounded_up_to_three_decimals() {
        for (micros, expected) in [
            (0, "0.000"),
            (1, "0.001"),
            (10_000, "0.010"),
            (999_001, "1.000"),
            (1_700_000_000_250_000, "1700000000.250"),
        ] {
            assert_eq!(seconds(micros), expected);
        }
    }
}
