//! Months, for windows that follow the calendar.

/// Returns the end of the month that contains `millis`. Both are milliseconds since the Unix epoch, UTC.
///
/// Days are counted in eras of 400 years that begin on 1 March (Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms"). The leap day is then the last day of a year, and the start of a month follows from its number.
pub(super) const fn month_end(millis: u64) -> u64 {
    let day = millis / DAY + EPOCH;
    let (era, of_era) = (day / ERA, day % ERA);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let start = year_start(year);
    let month = (5 * (of_era - start) + 2) / 153;
    let next = if month < 11 {
        start + (153 * (month + 1) + 2) / 5
    } else if year < 399 {
        year_start(year + 1)
    } else {
        ERA
    };
    (era * ERA + next - EPOCH) * DAY
}

/// Returns the first day of a year, counted in days from the start of its era.
const fn year_start(year: u64) -> u64 {
    365 * year + year / 4 - year / 100
}

const DAY: u64 = 86_400_000;
/// Days in 400 years.
const ERA: u64 = 146_097;
/// Days from 1 March of the year 0 to the Unix epoch.
const EPOCH: u64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_month_from_1970_to_2400_ends_where_the_next_begins() {
        let mut start = 0;
        for year in 1970..2400_u64 {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let february = if is_leap { 29 } else { 28 };
            for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
                let end = start + days * DAY;
                for moment in [start, start + DAY / 2, end - DAY, end - 1] {
                    assert_eq!(month_end(moment), end, "{year}: {moment}");
                }
                start = end;
            }
        }
    }
}
