//! What the headers of one answer will say.

use std::time::Duration;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{Entry, RETRY_AFTER},
};
use smallvec::SmallVec;

use crate::{decision::Decision, state::Usage};

use super::text::Text;

/// The fields of one answer, taken from the decision before it moves on.
#[derive(Debug, Default)]
pub(in crate::middleware) struct Fields {
    /// The narrowest policy's three and `Retry-After` lie inline.
    list: SmallVec<[(HeaderName, HeaderValue); 4]>,
}

impl Fields {
    pub(super) fn push(&mut self, name: HeaderName, value: HeaderValue) {
        self.list.push((name, value));
    }

    pub(super) fn push_number(&mut self, name: HeaderName, number: u64) {
        self.push(name, Text::default().number(number).value());
    }

    pub(super) fn push_wait(&mut self, wait: Duration) {
        self.push_number(RETRY_AFTER, whole_seconds(wait));
    }

    /// Adds the fields to an answer. One that the inner service set itself knows better, and stays.
    pub(in crate::middleware) fn write(self, headers: &mut HeaderMap) {
        for (name, value) in self.list {
            if let Entry::Vacant(entry) = headers.entry(name) {
                entry.insert(value);
            }
        }
    }
}

/// Whole seconds until all is back, rounded up.
pub(super) fn seconds_to(usage: Usage, decision: &Decision) -> u64 {
    let span = usage.reset_at.since(decision.decided_at());
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// A wait as `Retry-After` says it: rounded up, so that nobody comes back too early, and never 0.
pub(in crate::middleware) fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    seconds.max(1)
}
