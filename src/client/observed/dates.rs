//! Dates in the formats that APIs send.

use std::time::{Duration, UNIX_EPOCH};

use super::numbers::decimal;

/// Returns the time from the Unix epoch to a date. `None` for a date before the epoch.
pub(super) fn date(text: &str) -> Option<Duration> {
    rfc3339(text)
        .or_else(|| http_date(text))
        .or_else(|| javascript(text))
}

/// Reads a date as `Date` and `Retry-After` contain it, in one of the three formats of RFC 9110.
pub(super) fn http_date(text: &str) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(UNIX_EPOCH).ok()
}

/// Reads `2025-01-15T14:24:00.5Z`. Seconds may be missing, and an offset may replace the `Z`.
fn rfc3339(text: &str) -> Option<Duration> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = fields(date, '-')?;
    let end = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (clock, zone) = time.split_at(end);
    since_epoch([number(year)?, number(month)?, number(day)?], clock, zone)
}

/// Reads `Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)`, the text of a date in JavaScript.
fn javascript(text: &str) -> Option<Duration> {
    let mut words = text.split(' ').skip(1);
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)?;
    let (day, year, clock) = (words.next()?, words.next()?, words.next()?);
    let zone = words.next()?.strip_prefix("GMT")?;
    let month = i64::try_from(month + 1).ok()?;
    since_epoch([number(year)?, month, number(day)?], clock, zone)
}

/// Returns the time from the epoch to a year, month and day with a time of the day.
fn since_epoch([year, month, day]: [i64; 3], clock: &str, zone: &str) -> Option<Duration> {
    let [hour, minute, second] = fields(clock, ':')
        .or_else(|| fields(clock, ':').map(|[hour, minute]| [hour, minute, "0"]))?;
    let (hour, minute, second) = (number(hour)?, number(minute)?, decimal(second)?);
    let is_valid = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        // A leap second has the number 60.
        && second.as_secs() <= 60;
    if !is_valid {
        return None;
    }
    // With March as the first month, the leap day is the last day of a year.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1 - DAYS_TO_1970;
    let minutes = (days * 24 + hour) * 60 + minute - offset_minutes(zone)?;
    let whole = Duration::from_secs(u64::try_from(minutes * 60).ok()?);
    Some(whole + second)
}

/// Returns the minutes by which a zone such as `+01:00` or `+0100` is ahead.
fn offset_minutes(zone: &str) -> Option<i64> {
    if zone.is_empty() || zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, digits) = zone.split_at_checked(1)?;
    let digits = digits.replace(':', "");
    let (hours, minutes) = digits.split_at_checked(2)?;
    let ahead = number(hours)? * 60 + number(minutes)?;
    match sign {
        "+" => Some(ahead),
        "-" => Some(-ahead),
        _ => None,
    }
}

/// Splits a text into exactly `N` fields.
fn fields<const N: usize>(text: &str, separator: char) -> Option<[&str; N]> {
    let fields: Vec<_> = text.splitn(N + 1, separator).collect();
    fields.try_into().ok()
}

/// Returns a number of up to four digits.
fn number(text: &str) -> Option<i64> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_TO_1970: i64 = 719_468;
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
