//! The circuit breaker: when to stop asking a store that fails.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{clock::Timestamp, sync::Mutex};

/// Counts how calls end, and opens when too many end badly. Pure: the time is an argument.
#[derive(Debug)]
pub(super) struct Breaker {
    /// Read by every decision; written under the lock.
    is_open: AtomicBool,
    state: Mutex<State>,
    slow: Duration,
}

#[derive(Debug)]
enum State {
    Closed(Window),
    Open { since: Timestamp },
}

/// How a call to the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Answered { after: Duration },
    Failed,
}

impl Breaker {
    /// A closed breaker to which answers later than `slow` count as bad.
    pub(super) fn new(slow: Duration) -> Self {
        Self {
            is_open: AtomicBool::new(false),
            state: Mutex::new(State::Closed(Window::default())),
            slow,
        }
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Whether an answer that took so long counts as bad.
    pub(super) fn is_slow(&self, after: Duration) -> bool {
        after > self.slow
    }

    pub(super) fn open_since(&self) -> Option<Timestamp> {
        match *self.state.lock() {
            State::Closed(_) => None,
            State::Open { since } => Some(since),
        }
    }

    /// Counts a call. `true` when this one opened the breaker: exactly one caller is told so.
    pub(super) fn record(&self, call: Call, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        // ## Open => Open: a call that was under way when it opened tells nothing new
        let State::Closed(window) = &mut *state else {
            return false;
        };
        let is_bad = match call {
            Call::Answered { after } => self.is_slow(after),
            Call::Failed => true,
        };
        window.count(now, is_bad, call == Call::Failed);
        if !window.is_too_bad() {
            // ## Closed => Closed
            return false;
        }
        // ## Closed => Open
        *state = State::Open { since: now };
        self.is_open.store(true, Ordering::Release);
        true
    }

    /// ## Open => Closed, with a clean record
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        *state = State::Closed(Window::default());
        self.is_open.store(false, Ordering::Release);
    }
}

// === Window ===

/// How the calls of the last ten seconds ended.
#[derive(Debug, Default)]
struct Window {
    buckets: [Bucket; BUCKETS],
    failures_in_a_row: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    second: u64,
    calls: u32,
    bad: u32,
}

impl Window {
    fn count(&mut self, now: Timestamp, is_bad: bool, is_failure: bool) {
        self.failures_in_a_row = if is_failure {
            self.failures_in_a_row + 1
        } else {
            0
        };
        let second = now.as_micros() / 1_000_000;
        // The newest second that was counted: old buckets are judged against it, not against a clock.
        let index = usize::try_from(second % BUCKETS as u64).expect("below ten");
        let bucket = &mut self.buckets[index];
        if bucket.second != second {
            *bucket = Bucket {
                second,
                ..Bucket::default()
            };
        }
        bucket.calls = bucket.calls.saturating_add(1);
        bucket.bad = bucket.bad.saturating_add(u32::from(is_bad));
    }

    fn is_too_bad(&self) -> bool {
        if self.failures_in_a_row >= FAILURES_IN_A_ROW {
            return true;
        }
        let newest = self
            .buckets
            .iter()
            .map(|bucket| bucket.second)
            .max()
            .unwrap_or(0);
        let recent = self
            .buckets
            .iter()
            .filter(|bucket| bucket.second + BUCKETS as u64 > newest);
        let (calls, bad) = recent.fold((0_u64, 0_u64), |(calls, bad), bucket| {
            (calls + u64::from(bucket.calls), bad + u64::from(bucket.bad))
        });
        calls >= CALLS_TO_JUDGE && bad * 2 >= calls
    }
}

const BUCKETS: usize = 10;
const CALLS_TO_JUDGE: u64 = 20;
const FAILURES_IN_A_ROW: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(25);
    const QUICK: Call = Call::Answered {
        after: Duration::from_millis(1),
    };
    const LATE: Call = Call::Answered {
        after: Duration::from_millis(26),
    };

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + second * 1_000_000)
    }

    #[test]
    fn opens_at_the_fifth_failure_in_a_row_and_tells_one_caller() {
        let breaker = Breaker::new(SLOW);
        let told: Vec<bool> = (0..7)
            .map(|_| breaker.record(Call::Failed, at(0)))
            .collect();
        assert_eq!(told, [false, false, false, false, true, false, false]);
        assert!(breaker.is_open());
        assert_eq!(breaker.open_since(), Some(at(0)));
    }

    #[test]
    fn a_success_breaks_the_row() {
        let breaker = Breaker::new(SLOW);
        for _ in 0..4 {
            for _ in 0..4 {
                assert!(!breaker.record(Call::Failed, at(0)));
            }
            for _ in 0..9 {
                assert!(!breaker.record(QUICK, at(0)));
            }
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn opens_when_half_of_twenty_calls_are_slow() {
        let breaker = Breaker::new(SLOW);
        for call in 0..19 {
            assert!(
                !breaker.record(LATE, at(call / 10)),
                "call {call}: too few to judge"
            );
        }
        assert!(breaker.record(LATE, at(2)));
    }

    #[test]
    fn calls_of_eleven_seconds_ago_do_not_count() {
        let breaker = Breaker::new(SLOW);
        for _ in 0..19 {
            breaker.record(LATE, at(0));
        }
        assert!(!breaker.record(LATE, at(10)));
        assert!(!breaker.is_open());
    }

    #[test]
    fn closes_with_a_clean_record() {
        let breaker = Breaker::new(SLOW);
        for _ in 0..5 {
            breaker.record(Call::Failed, at(0));
        }
        breaker.close();
        assert!(!breaker.is_open());
        assert_eq!(breaker.open_since(), None);
        assert!(
            !breaker.record(Call::Failed, at(0)),
            "the old row is forgotten"
        );
    }
}
