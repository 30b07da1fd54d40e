//! Metrics and log lines of calls that go out.
//!
//! # Why is the number of log lines limited by time?
//!
//! A layer may have a key for each host or tenant, and an API that is down refuses the calls of all of them. So there are at most
//! ten lines in ten seconds for each layer, and the next line has the number of pauses without one.

use std::{collections::HashSet, time::Duration};

use http::StatusCode;

use crate::{
    clock::Moment,
    decision::PolicyName,
    diagnosis::{ErrorChain, log},
    error::Error,
    policy::Policy,
    task::Mutex,
    telemetry::{OutgoingMetrics, RefusalKind},
};

use super::observed::{Observed, Refusal};

/// The metrics and the log of one layer. Clones of the layer share it.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub metrics: OutgoingMetrics,
    lines: Mutex<LineBudget>,
    /// The policies whose last change in the store failed.
    failing: Mutex<HashSet<PolicyName>>,
}

/// The log lines of the present span.
#[derive(Debug, Default)]
struct LineBudget {
    since: Option<Moment>,
    written: u32,
    left_out: u64,
}

impl Records {
    /// Counts a refusal.
    pub fn refused(&self, policy: &Policy, refusal: Refusal) {
        self.metrics.refused(policy, kind_of(refusal));
    }

    /// Logs that a key is paused, unless there were too many lines lately.
    pub fn paused(
        &self,
        policy: &Policy,
        length: Duration,
        status: StatusCode,
        observed: &Observed,
    ) {
        let Some(left_out) = self.lines.lock().next(Moment::now()) else {
            return;
        };
        let refusal = observed.refusal().unwrap_or(Refusal::Limited);
        log::event!(
            WARN,
            "an API refused a call, so its key is paused",
            policy = policy.name(),
            pause_secs = length.as_secs_f64(),
            status = status.as_u16(),
            refusal = kind_of(refusal).name(),
            wait_from = observed.wait_from().unwrap_or("none"),
            unlogged_pauses = left_out,
        );
    }

    /// Notes whether a change that nobody awaits was made. Logs the first of several failures in a row of a policy.
    pub fn changed(&self, policy: PolicyName, change: &'static str, made: Result<(), Error>) {
        let mut failing = self.failing.lock();
        let Err(error) = made else {
            failing.remove(&policy);
            return;
        };
        let is_first = failing.len() < MAX_FAILING && failing.insert(policy);
        drop(failing);
        if is_first {
            log::event!(
                WARN,
                "what an API asked for could not be stored, so calls may go out too early",
                policy = policy,
                change = change,
                error = ErrorChain(&error),
            );
        }
    }
}

impl LineBudget {
    /// Begins a line. Returns the number of those left out since the last one; `None` if this one is left out too.
    fn next(&mut self, now: Moment) -> Option<u64> {
        if self.since.is_none_or(|since| now.since(since) >= SPAN) {
            self.since = Some(now);
            self.written = 0;
        }
        if self.written >= MOST_LINES {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

const fn kind_of(refusal: Refusal) -> RefusalKind {
    match refusal {
        Refusal::Limited => RefusalKind::Limited,
        Refusal::Overloaded => RefusalKind::Overloaded,
    }
}

const MOST_LINES: u32 = 10;
const SPAN: Duration = Duration::from_secs(10);
/// A limiter has at most 1,000 policies.
const MAX_FAILING: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn at_most_ten_lines_in_ten_seconds_and_the_next_has_the_number_of_the_others() {
        let mut lines = LineBudget::default();
        let now = Moment::now();
        let written = (0..25).filter_map(|_| lines.next(now));
        assert_eq!(written.collect::<Vec<_>>(), [0; 10]);
        assert_eq!(lines.next(now + SPAN), Some(15));
        assert_eq!(lines.next(now + SPAN), Some(0));
    }
}
