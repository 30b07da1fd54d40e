//! Durations and rates, as people write them.

use std::time::Duration;

/// Parses a duration such as `30s`, `1m30s`, `500ms`, `1 hour` or `7 days`.
///
/// # Errors
///
/// The text to write instead.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    let (mut sum, mut last) = (Duration::ZERO, u128::MAX);
    if rest.is_empty() {
        return Err(AS_DURATION.to_owned());
    }
    while !rest.is_empty() {
        let digits = rest.find(|next: char| !next.is_ascii_digit() && next != '_');
        let (number, after) = rest.split_at(digits.unwrap_or(rest.len()));
        let after = after.trim_start();
        let letters = after.find(|next: char| !next.is_alphabetic());
        let (name, next) = after.split_at(letters.unwrap_or(after.len()));
        let number = whole(number).ok_or_else(|| AS_DURATION.to_owned())?;
        let unit = unit(name)?;
        if unit.as_nanos() >= last {
            return Err(
                "write each unit once, from the largest to the smallest: `1m30s`".to_owned(),
            );
        }
        last = unit.as_nanos();
        let count = u32::try_from(number).map_err(|_| "write a shorter time".to_owned())?;
        let part = unit
            .checked_mul(count)
            .and_then(|part| sum.checked_add(part));
        sum = part.ok_or_else(|| "write a shorter time".to_owned())?;
        rest = next.trim_start();
    }
    Ok(sum)
}

/// Parses a rate such as `100/min`, `5 per second`, `1_000/hour` or `10/30s`: a count and a period.
///
/// # Errors
///
/// The text to write instead.
pub(super) fn rate(text: &str) -> Result<(u64, Duration), String> {
    let parts = text.split_once('/').or_else(|| text.split_once(" per "));
    let Some((count, period)) = parts else {
        return Err(AS_RATE.to_owned());
    };
    let count = whole(count.trim()).ok_or_else(|| instead_of_count(count.trim()))?;
    let period = period.trim();
    let is_unit = period.chars().all(char::is_alphabetic);
    let period = if is_unit {
        unit(period)?
    } else {
        duration(period)?
    };
    Ok((count, period))
}

/// Returns what to write instead of a count that is not a whole number, or too large.
fn instead_of_count(count: &str) -> String {
    if !count.is_empty() && count.bytes().all(|next| next.is_ascii_digit()) {
        return "write a smaller number".to_owned();
    }
    if count.parse::<f64>().is_ok_and(|count| count.fract() != 0.0) {
        return "write whole numbers: `3/2s` in place of `1.5/s`".to_owned();
    }
    let digits = count.trim_end_matches(|last: char| "kKmM".contains(last));
    match whole(digits) {
        Some(number) if count[digits.len()..].eq_ignore_ascii_case("k") => {
            format!("write the number in full: `{number}_000`")
        }
        Some(number) if count.len() == digits.len() + 1 => {
            format!("write the number in full: `{number}_000_000`")
        }
        _ => AS_RATE.to_owned(),
    }
}

/// Returns a duration as it can be written.
pub(super) fn write_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    let units: [(u128, &str); 6] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
        (1, "us"),
    ];
    let exact = units
        .iter()
        .find(|(size, _)| micros >= *size && micros.is_multiple_of(*size));
    exact.map_or("0s".to_owned(), |(size, name)| {
        format!("{}{name}", micros / size)
    })
}

/// Returns a whole number, in which `_` may separate digits.
fn whole(text: &str) -> Option<u64> {
    let is_whole = text.starts_with(|first: char| first.is_ascii_digit())
        && text
            .chars()
            .all(|next| next.is_ascii_digit() || next == '_');
    is_whole
        .then(|| text.replace('_', "").parse().ok())
        .flatten()
}

fn unit(name: &str) -> Result<Duration, String> {
    Ok(match name {
        "us" | "microsecond" | "microseconds" => Duration::from_micros(1),
        "ms" | "millisecond" | "milliseconds" => Duration::from_millis(1),
        "s" | "sec" | "secs" | "second" | "seconds" => Duration::from_secs(1),
        "m" | "min" | "mins" | "minute" | "minutes" => Duration::from_secs(60),
        "h" | "hr" | "hour" | "hours" => Duration::from_secs(3_600),
        "d" | "day" | "days" => Duration::from_secs(86_400),
        "w" | "week" | "weeks" => Duration::from_secs(7 * 86_400),
        "mo" | "month" | "months" => Duration::from_secs(31 * 86_400),
        "" => return Err("write the unit: `30s`, `1m30s`, `500ms`, `2h` or `1d`".to_owned()),
        "M" => return Err("write `min` for minutes, or `month`".to_owned()),
        other => {
            return Err(format!(
                "`{other}` is not a unit of time: write `ms`, `s`, `min`, `h`, `d`, `week` or `month`"
            ));
        }
    })
}

pub(super) const AS_DURATION: &str =
    "write a duration such as `30s`, `1m30s`, `500ms`, `2h` or `1d`";
const AS_RATE: &str = "write a rate such as `100/min`, `5 per second`, `10/30s` or `1_000/hour`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1 min 30 sec", 90_000),
            ("500ms", 500),
            ("2 hours", 7_200_000),
            ("1d12h", 129_600_000),
            ("1_000 ms", 1_000),
            ("1 week", 604_800_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
            let written = write_duration(Duration::from_millis(millis));
            assert_eq!(
                duration(&written),
                Ok(Duration::from_millis(millis)),
                "{written}"
            );
        }
        for text in [
            "",
            "30",
            "s",
            "1.5h",
            "-1s",
            "30s1m",
            "1s1s",
            "5 fortnights",
            "1M",
            "9999999999999w",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, count, seconds) in [
            ("100/min", 100, 60),
            ("5 per second", 5, 1),
            ("1_000/hour", 1_000, 3_600),
            ("10/30s", 10, 30),
            ("10 / 1m30s", 10, 90),
            ("1/d", 1, 86_400),
        ] {
            assert_eq!(
                rate(text),
                Ok((count, Duration::from_secs(seconds))),
                "{text}"
            );
        }
        for text in [
            "",
            "100",
            "/min",
            "100/",
            "100/0",
            "x/min",
            "1.5/s",
            "100/min/s",
            "10k/day",
        ] {
            assert!(rate(text).is_err(), "{text}");
        }
        let remedy = rate("10k/day").expect_err("ambiguous");
        assert_eq!(remedy, "write the number in full: `10_000`");
        let remedy = rate("2M/month").expect_err("ambiguous");
        assert_eq!(remedy, "write the number in full: `2_000_000`");
    }
}
