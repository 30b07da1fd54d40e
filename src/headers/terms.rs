//! What a policy's quota is in the drafts' words.

use std::time::Duration;

use crate::{
    algorithm::{Counter, SlidingWindow, WindowStart},
    clock::{Timestamp, whole_seconds},
    policy::Policy,
    state::PolicyName,
    state::{PolicyState, Retry, Usage},
};

use super::value_buffer::ValueBuffer;

/// A policy as `RateLimit-Policy` tells of it, and the span that its remaining units are for.
#[derive(Clone, Debug)]
pub(crate) struct PolicyTerms {
    name: PolicyName,
    counter: Counter,
    window: Option<Window>,
    /// `None` for requests.
    unit: Option<Box<str>>,
}

impl PolicyTerms {
    pub(super) fn of(policy: &Policy) -> Self {
        Self {
            name: *policy.name(),
            counter: *policy.counter(),
            window: Window::of(policy),
            unit: policy
                .quota_unit()
                .filter(|unit| *unit != REQUESTS)
                .map(Into::into),
        }
    }

    /// Whether a policy is counted under these terms: a tier may have given it another quota.
    pub(super) fn are_of(&self, policy: &Policy) -> bool {
        self.name == *policy.name() && self.counter == *policy.counter()
    }

    /// Whether a state was made under these terms, as far as it tells: a store of one's own may say another limit.
    pub(super) fn fit(&self, state: &PolicyState) -> bool {
        let is_of = |usage: Usage| usage.limit == self.counter.limit();
        *state.policy() == self.name && state.usage().is_none_or(is_of)
    }

    pub(super) fn name(&self) -> &PolicyName {
        &self.name
    }

    /// Writes the policy as a member of `RateLimit-Policy`; one without a window has no place in draft 6.
    pub(super) fn write(&self, draft: Draft, text: &mut ValueBuffer) {
        match (draft, self.window) {
            (Draft::Six, None) => return,
            (Draft::Six, Some(_)) => text.next(),
            (Draft::Eleven, _) => named(text.next(), &self.name).text(";q="),
        };
        let limit = self.counter.limit();
        text.integer(self.window.map_or(limit, |window| window.units));
        let unit = match &self.counter {
            Counter::Concurrency(_) => Some(IN_FLIGHT),
            _ => self.unit.as_deref(),
        };
        if let (Draft::Eleven, Some(unit)) = (draft, unit) {
            text.text(";qu=\"").text(unit).text("\"");
        }
        if let Some(window) = self.window {
            text.text(";w=").integer(window.seconds);
        }
    }

    /// Returns the effective window: the seconds over which to spread the remaining units. `None` where units come back when
    /// requests end.
    ///
    /// Never longer than the policy's window, but for a sliding window with nothing left and for a debt beyond the limit.
    pub(super) fn effective_window(&self, state: &PolicyState, now: Timestamp) -> Option<u64> {
        let usage = state.header_usage()?;
        let span = match (&self.counter, state.retry()) {
            (Counter::Concurrency(_), _) => return None,
            (_, Retry::At(at)) => at.since(now).max(A_MOMENT),
            (Counter::Bucket(bucket), _) if usage.remaining == 0 => {
                let full_at = state.usage()?.reset_at;
                let next = full_at + Duration::from_micros(bucket.micros_up(1));
                (next - Duration::from_micros(bucket.span())).since(now)
            }
            (Counter::Bucket(bucket), _) => {
                Duration::from_micros(bucket.micros_up(usage.remaining))
            }
            _ => usage.reset_at.since(now),
        };
        let Some(window) = self.window else {
            return Some(whole_seconds(span));
        };
        // Nothing is out yet, so the next window is a whole one.
        let seconds = match span.is_zero() {
            true => window.seconds,
            false => whole_seconds(span),
        };
        Some(match &self.counter {
            Counter::SlidingLog(_) => seconds.min(window.seconds),
            // All is back within two windows; what is left now can be had at any time of one.
            Counter::SlidingWindow(_) if usage.remaining > 0 => seconds.min(window.seconds),
            Counter::SlidingWindow(sliding) => seconds.min(whole_seconds(first_back(sliding))),
            _ => seconds,
        })
    }
}

/// Returns the longest time until something comes back: when the whole limit was taken as the window opened, it counts in full
/// until the window closes, and then goes unit by unit.
fn first_back(window: &SlidingWindow) -> Duration {
    let micros = window.millis() * 1_000;
    Duration::from_micros(micros + micros.div_ceil(window.limit()) + window.tick())
}

// === Draft ===

/// A form of `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    /// `"name";q=100;w=60`
    Eleven,
    /// `100;w=60`
    Six,
}

impl Draft {
    /// Each at its own number.
    pub(super) const BOTH: [Self; 2] = [Self::Eleven, Self::Six];
}

/// Writes a policy whose limit is not that of its terms: what is known of it is the limit.
pub(super) fn write_unknown(state: &PolicyState, draft: Draft, text: &mut ValueBuffer) {
    if let (Draft::Eleven, Some(usage)) = (draft, state.usage()) {
        named(text.next(), state.policy())
            .text(";q=")
            .integer(usage.limit);
    }
}

/// A String of structured fields: no character of a policy's name needs an escape.
pub(super) fn named<'a>(text: &'a mut ValueBuffer, policy: &PolicyName) -> &'a mut ValueBuffer {
    text.text("\"").text(policy.as_str()).text("\"")
}

// === Window ===

/// So many units in so many seconds.
#[derive(Clone, Copy, Debug)]
struct Window {
    units: u64,
    seconds: u64,
}

impl Window {
    /// The whole seconds in which all that can be taken at once comes back, and what comes in them: the sustained rate
    /// exactly where the seconds come out even, and less than a unit below it where not. Of calendar months the longest.
    fn of(policy: &Policy) -> Option<Self> {
        let (limit, quota) = (policy.counter().limit(), policy.quota());
        if let Counter::FixedWindow(window) = policy.counter()
            && window.window_start() == WindowStart::Month
        {
            return Some(Self {
                units: limit,
                seconds: LONGEST_MONTH,
            });
        }
        let (count, nanos) = (u128::from(quota.count()), quota.period().as_nanos());
        if nanos == 0 || count == 0 {
            return None;
        }
        let seconds = (u128::from(limit) * nanos).div_ceil(count * SECOND).max(1);
        let units = (seconds * count * SECOND / nanos).max(u128::from(limit));
        Some(Self {
            units: u64::try_from(units).unwrap_or(u64::MAX),
            seconds: u64::try_from(seconds).unwrap_or(u64::MAX),
        })
    }
}

/// The unit that a policy has unless it names one.
const REQUESTS: &str = "requests";
const IN_FLIGHT: &str = "concurrent-requests";
const A_MOMENT: Duration = Duration::from_micros(1);
const LONGEST_MONTH: u64 = 31 * 86_400;
const SECOND: u128 = 1_000_000_000;
