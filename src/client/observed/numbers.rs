//! Numbers, and spans such as `1m30s`.

use std::time::Duration;

/// Returns a number of units, rounded down. The first of a list counts.
///
/// `None` for negative numbers and for all that is not a decimal number, such as `NaN` and `1e3`.
pub(super) fn count(text: &str) -> Option<u64> {
    let first = text.split([',', ';']).next()?;
    decimal(first.trim()).map(|number| number.as_secs())
}

/// Returns a decimal number of seconds.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    decimal(text).filter(|span| *span <= LONGEST)
}

/// Returns a decimal number as seconds. Digits after the ninth decimal place are ignored.
pub(super) fn decimal(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Some(Duration::new(whole.parse().ok()?, nanos))
}

/// Returns a span such as `6m0s`, `1h2m3.5s` or `12ms`.
pub(super) fn span(text: &str) -> Option<Duration> {
    let mut total = None;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| c != '.' && !c.is_ascii_digit())?);
        let end = after.find(|c: char| c.is_ascii_digit());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        // Nanoseconds of the number are billionths of the unit.
        let nanos = decimal(number)?.as_nanos().checked_mul(*nanos)? / 1_000_000_000;
        let part = Duration::from_nanos(u64::try_from(nanos).ok()?);
        total = Some(part.checked_add(total.unwrap_or_default())?);
        rest = after;
    }
    total
}

/// 10,000 years, the longest span of Protocol Buffers. Any clock can add it.
pub(super) const LONGEST: Duration = Duration::from_secs(315_576_000_000);
/// Units of spans, in nanoseconds.
const UNITS: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("ms", 1_000_000),
    ("ns", 1),
    ("s", 1_000_000_000),
    ("us", 1_000),
];
