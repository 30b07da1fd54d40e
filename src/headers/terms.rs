//! Quota and window of a policy, as the drafts define them.

use std::time::Duration;

use crate::{
    algorithm::{Counter, SlidingWindow, WindowStart},
    clock::{Timestamp, whole_seconds},
    decision::{PolicyName, PolicyState, Retry, Usage},
    policy::Policy,
};

use super::{choice::ShownLimit, value_buffer::ValueBuffer};

/// A policy as `RateLimit-Policy` describes it.
#[derive(Clone, Debug)]
pub(crate) struct PolicyTerms {
    name: PolicyName,
    counter: Counter,
    /// The limit that headers show.
    shown_limit: u64,
    /// Other classes see less of a limit whose reserve is lent.
    least_limit: u64,
    /// `None` for limits on concurrency.
    window: Option<QuotaWindow>,
    /// Unit of the quota. `None` for requests.
    unit: Option<Box<str>>,
}

impl PolicyTerms {
    pub fn of(policy: &Policy, shown: ShownLimit) -> Self {
        let shown_limit = shown_limit_of(policy, shown);
        Self {
            name: *policy.name(),
            counter: *policy.counter(),
            shown_limit,
            least_limit: policy.least_lent(),
            window: QuotaWindow::of(policy, shown_limit),
            unit: policy
                .quota_unit()
                .filter(|unit| *unit != REQUESTS)
                .map(Into::into),
        }
    }

    /// Whether a policy is counted under these terms. A tier may have given it another quota.
    pub fn are_of(&self, policy: &Policy, shown: ShownLimit) -> bool {
        self.name == *policy.name()
            && self.counter == *policy.counter()
            && self.shown_limit == shown_limit_of(policy, shown)
    }

    /// Whether the name and limit of a state are those of these terms. A custom store may return another limit.
    pub fn apply_to(&self, state: &PolicyState) -> bool {
        let limits = self.least_limit..=self.counter.limit();
        let has_same_limit = |usage: Usage| limits.contains(&usage.limit);
        *state.policy() == self.name && state.usage().is_none_or(has_same_limit)
    }

    pub fn name(&self) -> &PolicyName {
        &self.name
    }

    pub fn shown_limit(&self) -> u64 {
        self.shown_limit
    }

    /// Writes the policy as a member of `RateLimit-Policy`. Draft 6 requires a window, so it omits a policy without one.
    pub(super) fn write(&self, draft: Draft, list: &mut ValueBuffer) {
        let text = match (draft, self.window) {
            (Draft::Six, None) => return,
            (Draft::Six, Some(_)) => list.begin_member(),
            (Draft::Eleven, _) => list.begin_member().name(&self.name).text(";q="),
        };
        let limit = self.counter.limit();
        text.integer(self.window.map_or(limit, |window| window.units));
        let unit = match self.counter.concurrency() {
            Some(_) => Some(CONCURRENT_REQUESTS),
            None => self.unit.as_deref(),
        };
        if let (Draft::Eleven, Some(unit)) = (draft, unit) {
            text.text(";qu=\"").text(unit).text("\"");
        }
        if let Some(window) = self.window {
            text.text(";w=").integer(window.seconds);
        }
    }

    /// Returns the effective window: the seconds over which to spread the remaining units. `None` for limits on concurrency.
    ///
    /// It is at most the policy's window, except for a sliding window with nothing left and for a debt beyond the limit.
    pub fn effective_window(&self, state: &PolicyState, now: Timestamp) -> Option<u64> {
        let usage = state.header_usage()?;
        let recovery = match &self.counter {
            Counter::Bucket(bucket) if usage.remaining == 0 => {
                let full_at = state.usage()?.reset_at;
                let next_unit_at = full_at + Duration::from_micros(bucket.micros_up(1));
                (next_unit_at - Duration::from_micros(bucket.span())).since(now)
            }
            Counter::Bucket(bucket) => Duration::from_micros(bucket.micros_up(usage.remaining)),
            Counter::Concurrency(_) => return None,
            Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => {
                usage.reset_at.since(now)
            }
        };
        let span = match state.retry() {
            Retry::At(at) => at.since(now).max(MICROSECOND),
            Retry::Never | Retry::Now => recovery,
        };
        let Some(window) = self.window else {
            return Some(whole_seconds(span));
        };
        // Zero means that nothing is out: the next window is then a whole one.
        let seconds = if span.is_zero() {
            window.seconds
        } else {
            whole_seconds(span)
        };
        Some(match &self.counter {
            Counter::SlidingLog(_) => seconds.min(window.seconds),
            // It resets within two windows, but the remaining units can be taken at any time of one.
            Counter::SlidingWindow(_) if usage.remaining > 0 => seconds.min(window.seconds),
            Counter::SlidingWindow(sliding) => {
                seconds.min(whole_seconds(longest_recovery(sliding)))
            }
            Counter::Bucket(_) | Counter::Concurrency(_) | Counter::FixedWindow(_) => seconds,
        })
    }
}

/// Returns the longest time until a unit comes back. If the whole limit is taken as the window opens, it counts in full until
/// the window closes, and then expires unit by unit.
fn longest_recovery(window: &SlidingWindow) -> Duration {
    let micros = window.millis() * 1_000;
    Duration::from_micros(micros + micros.div_ceil(window.limit()) + window.tick())
}

/// Returns the limit of a policy that headers show.
fn shown_limit_of(policy: &Policy, shown: ShownLimit) -> u64 {
    let at_once = policy.counter().limit();
    match (shown, policy.counter()) {
        (ShownLimit::PerPeriod, Counter::Bucket(_)) => at_once.max(policy.quota().count()),
        _ => at_once,
    }
}

// === Draft ===

/// A format of `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    /// `"name";q=100;w=60`
    Eleven,
    /// `100;w=60`
    Six,
}

impl Draft {
    /// All drafts, each at the index `draft as usize`.
    pub const ALL: [Self; 2] = [Self::Eleven, Self::Six];
}

/// Writes a policy whose terms are unknown as a member of `RateLimit-Policy`, with its limit alone.
pub(super) fn write_limit_only(state: &PolicyState, draft: Draft, list: &mut ValueBuffer) {
    if let (Draft::Eleven, Some(usage)) = (draft, state.usage()) {
        let text = list.begin_member().name(state.policy());
        text.text(";q=").integer(usage.limit);
    }
}

// === QuotaWindow ===

/// Units that come back within a time.
#[derive(Clone, Copy, Debug)]
struct QuotaWindow {
    units: u64,
    seconds: u64,
}

impl QuotaWindow {
    /// Returns the whole seconds in which these units come back, of a bucket at its rate, and the units that come back in
    /// them. That is the sustained rate if the seconds come out even, and less than a unit below it if not.
    ///
    /// A calendar month counts as the longest one.
    fn of(policy: &Policy, limit: u64) -> Option<Self> {
        let quota = policy.quota();
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

const CONCURRENT_REQUESTS: &str = "concurrent-requests";
const LONGEST_MONTH: u64 = 31 * 86_400;
const MICROSECOND: Duration = Duration::from_micros(1);
/// The default unit, which is not sent.
const REQUESTS: &str = "requests";
const SECOND: u128 = 1_000_000_000;
