//! Times until a limit is reset.
//!
//! # Why does the size of a number show its unit?
//!
//! Under one header name, APIs send seconds from now, seconds since 1970 and milliseconds since 1970. For example,
//! `X-RateLimit-Reset` of Reddit, GitHub and Rocket.Chat. Nobody waits 30 years, so a number above 10^9 is a point in time. One
//! below 10^11 is in seconds, which lasts until the year 5138, and one below 10^14 in milliseconds.
//!
//! # Why do absolute times count against the `Date` of the response?
//!
//! The clock that made the time of the reset also made `Date`. If our clock is 30 s ahead, a reset in 20 s would seem to be over.
//! A `Date` that differs from our clock by more than a day is not believed, since then either clock may be wrong.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, header::DATE};

use super::{
    dates::{date, http_date},
    numbers::{decimal, span},
    values::texts,
};

/// The time at which a response was sent, as the time since the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentAt(Duration);

impl SentAt {
    /// Returns the `Date` of the response if it is within a day of `now`, and else `now`.
    pub fn of(headers: &HeaderMap, now: SystemTime) -> Self {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let sent = texts(headers, DATE.as_str()).next().and_then(http_date);
        let is_near = |sent: &Duration| sent.abs_diff(now) <= DAY;
        Self(sent.filter(is_near).unwrap_or(now))
    }

    /// Returns the wait that a value in seconds, a span or a date shows, or the longest of a list. A time in the past is zero.
    pub fn wait(self, text: &str) -> Option<Duration> {
        // A date contains commas too.
        let one = |text: &str| self.one_wait(text.trim());
        one(text).or_else(|| text.split(',').filter_map(one).max())
    }

    fn one_wait(self, text: &str) -> Option<Duration> {
        let Some(number) = decimal(text) else {
            return span(text).or_else(|| date(text).map(|until| self.until(until)));
        };
        match number.as_secs() {
            ..FIRST_EPOCH_SECONDS => Some(number),
            FIRST_EPOCH_SECONDS..FIRST_EPOCH_MILLIS => Some(self.until(number)),
            millis @ FIRST_EPOCH_MILLIS..END_OF_EPOCH_MILLIS => {
                Some(self.until(Duration::from_millis(millis)))
            }
            _ => None,
        }
    }

    /// Returns the wait that a value in milliseconds shows.
    pub fn wait_millis(self, text: &str) -> Option<Duration> {
        match decimal(text)?.as_secs() {
            millis @ ..FIRST_SURE_EPOCH_MILLIS => Some(Duration::from_millis(millis)),
            millis @ FIRST_SURE_EPOCH_MILLIS..END_OF_EPOCH_MILLIS => {
                Some(self.until(Duration::from_millis(millis)))
            }
            _ => None,
        }
    }

    fn until(self, time: Duration) -> Duration {
        time.saturating_sub(self.0)
    }
}

const DAY: Duration = Duration::from_secs(86_400);
const FIRST_EPOCH_SECONDS: u64 = 1_000_000_000;
const FIRST_EPOCH_MILLIS: u64 = 100_000_000_000;
const END_OF_EPOCH_MILLIS: u64 = 100_000_000_000_000;
/// Under a name that promises milliseconds, smaller numbers are waits of up to 31 years.
const FIRST_SURE_EPOCH_MILLIS: u64 = 1_000_000_000_000;
