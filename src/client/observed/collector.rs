//! Collects the limits of a response from its headers.

use std::time::Duration;

use http::HeaderMap;

use super::{
    drafts::{self, Item},
    families::{self, FAMILIES, Family, Found, Part},
    limit::{ObservedLimit, ResetKind},
    numbers::{LONGEST, count, seconds},
    values::{MAX_VALUES, text},
    waits::SentAt,
};

/// Returns the limits that the headers show.
pub(super) fn limits(headers: &HeaderMap, sent: SentAt) -> Vec<ObservedLimit> {
    let mut collector = Collector {
        sent,
        parts: Vec::new(),
        listed: Vec::new(),
        policies: Vec::new(),
    };
    let found = headers
        .iter()
        .filter_map(|(name, value)| Some((families::find(name.as_str())?, value)));
    for (found, value) in found.take(MAX_VALUES) {
        if let Some(text) = text(value) {
            collector.add(&found, text);
        }
    }
    collector.finish()
}

#[derive(Debug)]
struct Collector {
    sent: SentAt,
    /// Limits whose parts are in headers of their own.
    parts: Vec<Parts>,
    /// Limits of lists.
    listed: Vec<ObservedLimit>,
    policies: Vec<Item>,
}

impl Collector {
    /// Adds what a header contains.
    fn add(&mut self, found: &Found<'_>, text: &str) {
        match found.part {
            Part::Limits => {
                let items = drafts::items(text);
                let limits = items.iter().map(|item| listed(item, found.name, self.sent));
                self.listed.extend(limits);
            }
            Part::Policies => self.policies.extend(drafts::items(text)),
            Part::RemainingByName => self.listed.extend(text.split(',').filter_map(remaining)),
            _ => {
                if found.part == Part::LimitAndPolicies {
                    let policies = drafts::items(text).into_iter();
                    let with_window = policies.filter(|policy| policy.parameter(&["w"]).is_some());
                    self.policies.extend(with_window);
                }
                let sent = self.sent;
                self.parts_of(found).add(found.part, text, sent);
            }
        }
    }

    fn parts_of(&mut self, found: &Found<'_>) -> &mut Parts {
        let is_same = |parts: &Parts| {
            parts.family == found.family && parts.observed.name.as_deref() == found.name
        };
        let index = self.parts.iter().position(is_same).unwrap_or_else(|| {
            self.parts.push(Parts::new(found));
            self.parts.len() - 1
        });
        &mut self.parts[index]
    }

    fn finish(self) -> Vec<ObservedLimit> {
        let mut limits: Vec<ObservedLimit> = Vec::new();
        let parts = self.parts.into_iter().map(Parts::finish);
        for limit in parts.chain(self.listed) {
            // Some APIs send the same limit by the headers of two families.
            let is_known =
                limit.name.is_none() && limits.iter_mut().any(|known| known.merge(&limit));
            if !is_known && !limit.is_empty() {
                limits.push(limit);
            }
        }
        // Each policy looks at all limits, so both are bounded first.
        limits.truncate(MAX_LIMITS);
        for policy in self.policies.iter().take(MAX_LIMITS) {
            add_policy(policy, &mut limits);
        }
        limits.truncate(MAX_LIMITS);
        limits
    }
}

/// Reads a limit of a list.
fn listed(item: &Item, name: Option<&str>, sent: SentAt) -> ObservedLimit {
    let number = |names: &[&str]| item.parameter(names).and_then(count);
    ObservedLimit {
        name: name.map(Into::into).or_else(|| item.name.clone()),
        limit: number(&["limit", "total", "q", "l"]),
        remaining: number(&["remaining", "r", "a"]),
        reset: item
            .parameter(&["reset", "resets", "t", "w"])
            .and_then(|reset| sent.wait(reset)),
        ..ObservedLimit::default()
    }
}

/// Reads `Microsoft.Compute/GetOperation3Min;197`.
fn remaining(text: &str) -> Option<ObservedLimit> {
    let (name, remaining) = text.split_once(';')?;
    Some(ObservedLimit {
        name: Some(name.trim().into()),
        remaining: Some(count(remaining)?),
        ..ObservedLimit::default()
    })
}

/// Adds quota, window and unit of a policy to its limits, or to the end if it has none.
fn add_policy(policy: &Item, limits: &mut Vec<ObservedLimit>) {
    let own_quota = policy.name.as_deref().filter(|_| !policy.is_quoted);
    let own_quota = own_quota.and_then(count);
    let name = policy.name.as_ref().filter(|_| own_quota.is_none());
    let quota = policy.parameter(&["q", "l", "limit"]).and_then(count);
    let quota = quota.or(own_quota);
    let described = ObservedLimit {
        name: name.cloned(),
        unit: policy.parameter(&["qu"]).map(Into::into),
        limit: quota,
        window: policy.parameter(&["w"]).and_then(seconds),
        ..ObservedLimit::default()
    };
    let mut is_known = false;
    for limit in limits
        .iter_mut()
        .filter(|limit| limit.name == described.name)
    {
        // Limits without names are found by their quotas.
        if name.is_some() || limit.limit.is_none_or(|limit| Some(limit) == quota) {
            limit.limit = limit.limit.or(quota);
            limit.window = limit.window.or(described.window);
            limit.unit.clone_from(&described.unit);
            is_known = true;
        }
    }
    if !is_known && quota.is_some() {
        limits.push(described);
    }
}

// === Parts ===

/// A limit whose parts are in headers of their own.
#[derive(Debug)]
struct Parts {
    family: usize,
    observed: ObservedLimit,
    used: Option<u64>,
    next_units: Option<Duration>,
    refill: Option<u64>,
    interval: Option<Duration>,
    /// Whether the limit is sent as zero or less, which is how APIs show that they do not know it.
    is_limit_unknown: bool,
}

impl Parts {
    fn new(found: &Found<'_>) -> Self {
        let observed = ObservedLimit {
            name: found.name.map(Into::into),
            reset_kind: FAMILIES[found.family].reset_kind,
            ..ObservedLimit::default()
        };
        Self {
            family: found.family,
            observed,
            used: None,
            next_units: None,
            refill: None,
            interval: None,
            is_limit_unknown: false,
        }
    }

    /// Adds a part. If it is there, the first limit, the smaller remaining and the longer time count.
    fn add(&mut self, part: Part, text: &str, sent: SentAt) {
        let observed = &mut self.observed;
        match part {
            Part::Limit | Part::LimitAndPolicies => match count(text) {
                Some(0) => self.is_limit_unknown = true,
                limit => {
                    self.is_limit_unknown |= text.starts_with('-');
                    observed.limit = observed.limit.or(limit);
                }
            },
            Part::Remaining => {
                let counts = text.split(',').filter_map(count);
                observed.remaining = counts.chain(observed.remaining).min();
            }
            Part::Status if text.eq_ignore_ascii_case("rejected") => observed.remaining = Some(0),
            Part::Reset => observed.reset = observed.reset.max(sent.wait(text)),
            Part::ResetMillis => observed.reset = observed.reset.max(sent.wait_millis(text)),
            Part::NextUnits => self.next_units = self.next_units.max(sent.wait(text)),
            Part::WindowMillis => observed.window = sent.wait_millis(text),
            Part::Interval => self.interval = seconds(text),
            Part::Refill => self.refill = count(text),
            Part::Used => self.used = count(text),
            Part::UsedOfLimit => {
                let Some((used, limit)) = text.split_once('/') else {
                    return;
                };
                (self.used, observed.limit) = (count(used), count(limit));
            }
            Part::Status | Part::Limits | Part::Policies | Part::RemainingByName => {}
        }
    }

    fn finish(self) -> ObservedLimit {
        let mut observed = self.observed;
        let Family {
            zero_needs_limit, ..
        } = FAMILIES[self.family];
        if self.is_limit_unknown || (zero_needs_limit && observed.limit.is_none()) {
            observed.remaining = observed.remaining.filter(|remaining| *remaining > 0);
        }
        match (observed.limit, observed.remaining, self.used) {
            (None, Some(remaining), Some(used)) => observed.limit = remaining.checked_add(used),
            (Some(limit), None, Some(used)) => {
                observed.remaining = Some(limit.saturating_sub(used));
            }
            _ => {}
        }
        if self.next_units.is_some() {
            (observed.reset, observed.reset_kind) = (self.next_units, ResetKind::WindowEnd);
        }
        if let (Some(refill), Some(interval), Some(limit)) =
            (self.refill, self.interval, observed.limit)
        {
            observed.window = refilled(limit, refill, interval);
            if observed.reset.is_none()
                && let Some(remaining) = observed.remaining
            {
                let missing = limit.saturating_sub(remaining);
                observed.reset = refilled(missing, refill, interval);
                observed.reset_kind = ResetKind::FullAgain;
            }
        }
        observed
    }
}

/// Returns the time in which a bucket gets `units`, if it gets `refill` in each interval.
fn refilled(units: u64, refill: u64, interval: Duration) -> Option<Duration> {
    let intervals = (refill > 0).then(|| units.div_ceil(refill))?;
    let span = interval.checked_mul(u32::try_from(intervals).ok()?);
    span.filter(|span| *span <= LONGEST)
}

/// The most limits that are kept.
const MAX_LIMITS: usize = 32;
