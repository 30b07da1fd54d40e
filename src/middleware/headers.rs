//! The only place that knows header names.

use std::time::Duration;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{Entry, RETRY_AFTER},
};

use crate::{decision::Decision, state::PolicyState};

/// What the headers of an answer will say, taken from the decision before it moves on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    usage: Option<Numbers>,
    retry_after: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl Fields {
    /// The fields for a decision: those of its narrowest policy.
    pub(super) fn of(decision: &Decision) -> Self {
        let usage = decision.narrowest().and_then(PolicyState::usage);
        Self {
            usage: usage.map(|usage| Numbers {
                limit: usage.limit,
                remaining: usage.remaining,
                reset: usage.reset_at.as_secs_ceil(),
            }),
            retry_after: decision.retry_after().map(whole_seconds),
        }
    }

    /// Adds the fields to an answer. One that the inner service set itself knows better, and stays.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        if let Some(usage) = self.usage {
            set(headers, LIMIT, usage.limit);
            set(headers, REMAINING, usage.remaining);
            set(headers, RESET, usage.reset);
        }
        if let Some(seconds) = self.retry_after {
            set(headers, RETRY_AFTER, seconds);
        }
    }
}

/// A wait as `Retry-After` says it: rounded up, so that nobody comes back too early, and never 0.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    seconds.max(1)
}

fn set(headers: &mut HeaderMap, name: HeaderName, number: u64) {
    if let Entry::Vacant(entry) = headers.entry(name) {
        // From text that lies on the stack: one allocation, where `HeaderValue::from(u64)` makes two.
        let mut digits = itoa::Buffer::new();
        let value = HeaderValue::from_str(digits.format(number));
        entry.insert(value.expect("digits make a header value"));
    }
}

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
