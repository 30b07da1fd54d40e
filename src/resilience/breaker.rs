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
    /// The caller left before there was an answer.
    Abandoned {
        after: Duration,
    },
    Answered {
        after: Duration,
    },
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
        let (is_bad, is_failure) = match call {
            // Callers who leave early say nothing by themselves; many of them, and no answer to anybody, do.
            Call::Abandoned { after } => match window.unanswered(now, after, self.slow * 2) {
                true => (true, true),
                false => return false,
            },
            Call::Answered { after } => (self.is_slow(after), false),
            Call::Failed => (true, true),
        };
        window.count(now, is_bad, is_failure);
        if matches!(call, Call::Answered { .. }) {
            window.unanswered_since = None;
        }
        if !window.is_too_bad(now, self.slow * 2) {
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
    /// When the first failure of the row was.
    failing_since: Timestamp,
    /// When the first of the callers asked who left without an answer, if nobody has had one since.
    unanswered_since: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    second: u64,
    calls: u32,
    bad: u32,
}

impl Window {
    fn count(&mut self, now: Timestamp, is_bad: bool, is_failure: bool) {
        self.note_failure(now, is_failure);
        let second = now.as_micros() / 1_000_000;
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

    fn note_failure(&mut self, now: Timestamp, is_failure: bool) {
        if !is_failure {
            self.failures_in_a_row = 0;
            return;
        }
        if self.failures_in_a_row == 0 {
            self.failing_since = now;
        }
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
    }

    /// Whether nobody has had an answer for longer than a decision may take, this abandoned one included.
    fn unanswered(&mut self, now: Timestamp, after: Duration, deadline: Duration) -> bool {
        let asked = now - after;
        let since = *self.unanswered_since.get_or_insert(asked);
        now.since(since) > deadline
    }

    /// Several callers may fail by one stall, so a row must also last.
    fn is_too_bad(&self, now: Timestamp, deadline: Duration) -> bool {
        if self.failures_in_a_row >= FAILURES_IN_A_ROW && now.since(self.failing_since) >= deadline
        {
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

    /// A little more than the deadline after the start of the second.
    fn late(second: u64) -> Timestamp {
        at(second) + SLOW * 2
    }

    #[test]
    fn opens_at_the_fifth_failure_in_a_row_and_tells_one_caller() {
        let breaker = Breaker::new(SLOW);
        let told: Vec<bool> = (0..7)
            .map(|call| breaker.record(Call::Failed, if call == 0 { at(0) } else { late(0) }))
            .collect();
        assert_eq!(told, [false, false, false, false, true, false, false]);
        assert!(breaker.is_open());
        assert_eq!(breaker.open_since(), Some(late(0)));
    }

    #[test]
    fn one_stall_that_fails_several_callers_is_no_outage() {
        let breaker = Breaker::new(SLOW);
        for _ in 0..15 {
            assert!(!breaker.record(Call::Failed, at(0)));
        }
        assert!(!breaker.record(QUICK, at(0)));
        assert!(!breaker.is_open());
    }

    #[test]
    fn callers_who_leave_open_it_when_nobody_gets_an_answer() {
        let breaker = Breaker::new(SLOW);
        let left = Call::Abandoned {
            after: Duration::from_millis(10),
        };
        // For a whole deadline nothing is made of it; then it counts, as a row that lasts.
        let opened =
            (0..40).position(|call| breaker.record(left, at(0) + Duration::from_millis(10) * call));
        let opened = opened.expect("given up");
        assert!((8..=16).contains(&opened), "{opened}");
    }

    #[test]
    fn callers_who_leave_say_nothing_while_others_get_answers() {
        let breaker = Breaker::new(SLOW);
        let left = Call::Abandoned {
            after: Duration::from_millis(10),
        };
        for call in 0..200 {
            let now = at(0) + Duration::from_millis(10) * call;
            assert!(!breaker.record(left, now));
            assert!(!breaker.record(QUICK, now));
        }
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
        breaker.record(Call::Failed, at(0));
        for _ in 0..4 {
            breaker.record(Call::Failed, late(0));
        }
        assert!(breaker.is_open());
        breaker.close();
        assert!(!breaker.is_open());
        assert_eq!(breaker.open_since(), None);
        assert!(
            !breaker.record(Call::Failed, at(0)),
            "the old row is forgotten"
        );
    }
}
