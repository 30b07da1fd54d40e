//! The circuit breaker: when to stop asking a store that fails.
//!
//! ```text
//!            5 failures in a row that last
//!            5 refused writes that last, and no write between them     two good probes
//!   Closed ─ 3 errors that waiting does not cure, each within ─▶  Open ────────────────▶ Closed
//!            10 s of the one before
//!            8 bad quarters of a second among the last 16
//! ```
//!
//! One stall ends many calls at once, so each rule also wants time to pass. Calls that a stall of 100 ms catches fail
//! one deadline (50 ms) after it began, and those sent then fail at its end: 50 ms lie between the first failure and the
//! last, where two deadlines are needed. Answers that the stall held up make one or two quarters of a second bad, where
//! eight are needed.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind, Phase},
    sync::Mutex,
};

/// Counts how calls end, and opens when too many end badly. Pure: the time is an argument.
#[derive(Debug)]
pub(super) struct Breaker {
    /// Read by every decision; written under the lock.
    is_open: AtomicBool,
    /// Whether a write was refused and none was done since. Read by every decision; written under the lock.
    is_refused: AtomicBool,
    state: Mutex<State>,
    deadline: Duration,
}

#[derive(Debug, Default)]
struct State {
    outage: Option<Outage>,
    record: Record,
}

/// An open breaker: since when, and why.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    pub(super) since: Timestamp,
    pub(super) cause: Error,
}

/// How a call to the store ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call<'a> {
    /// The caller left before there was an answer.
    Abandoned { after: Duration },
    /// The store answered, and took this long itself.
    Answered { took: Duration },
    /// The store did not decide.
    Failed { error: &'a Error },
}

impl Breaker {
    /// A closed breaker before a store whose decisions have this deadline.
    pub(super) fn new(deadline: Duration) -> Self {
        Self {
            is_open: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            state: Mutex::new(State::default()),
            deadline,
        }
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns whether the store refused a write and did none since.
    #[inline]
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Returns whether an answer that took this long counts as bad.
    pub(super) fn is_slow(&self, took: Duration) -> bool {
        took > self.deadline / 2
    }

    /// Returns when the breaker opened and why; `None` while it is closed.
    pub(super) fn outage(&self) -> Option<Outage> {
        self.state.lock().outage.clone()
    }

    /// Replaces the cause of the outage. Returns whether the new cause reads differently.
    pub(super) fn replace_cause(&self, cause: &Error) -> bool {
        let mut state = self.state.lock();
        let Some(outage) = &mut state.outage else {
            return false;
        };
        let is_new = outage.cause.to_string() != cause.to_string();
        outage.cause = cause.clone();
        is_new
    }

    /// Counts a call. Returns the cause if this call opened the breaker.
    pub(super) fn record(&self, call: Call<'_>, now: Timestamp) -> Option<Error> {
        let mut state = self.state.lock();
        // ## Open => Open: a call that was under way when it opened adds nothing
        if state.outage.is_some() {
            return None;
        }
        // ## Closed => Closed
        let cause = self.judge(&mut state.record, call, now)?;
        // ## Closed => Open
        state.outage = Some(Outage {
            since: now,
            cause: cause.clone(),
        });
        self.is_open.store(true, Ordering::Release);
        Some(cause)
    }

    /// Notes that the store did a write, so the writes that it refused before were not refused for all.
    pub(super) fn wrote(&self) {
        let mut state = self.state.lock();
        state.record.refusals = Row::default();
        self.is_refused.store(false, Ordering::Relaxed);
    }

    /// ## Open => Closed, with a clean record
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        *state = State::default();
        self.is_refused.store(false, Ordering::Relaxed);
        self.is_open.store(false, Ordering::Release);
    }

    /// Adds a call to the record. Returns the cause if the record is too bad now.
    fn judge(&self, record: &mut Record, call: Call<'_>, now: Timestamp) -> Option<Error> {
        match call {
            Call::Abandoned { after } => {
                // One caller who leaves early is no evidence. Many of them are, while nobody gets an answer.
                let since = *record.unanswered_since.get_or_insert(now - after);
                let is_bad = now.since(since) > self.deadline && {
                    record.failures.add(now);
                    record.quarters.add(now, true);
                    self.is_down(record, now)
                };
                is_bad.then(|| {
                    late("no caller got an answer, and none waited for the deadline".to_owned())
                })
            }
            Call::Answered { took } => {
                record.failures = Row::default();
                record.unanswered_since = None;
                let is_slow = self.is_slow(took);
                record.quarters.add(now, is_slow);
                let is_bad = is_slow && record.quarters.are_bad(now);
                is_bad.then(|| {
                    late(format!(
                        "most calls take longer than {:?}, half of the deadline",
                        self.deadline / 2
                    ))
                })
            }
            Call::Failed { error } => {
                record.failures.add(now);
                record.quarters.add(now, true);
                if error.kind() == ErrorKind::Unavailable {
                    record.refusals.add(now);
                    self.is_refused.store(true, Ordering::Relaxed);
                }
                if !is_curable(error) {
                    record.incurable.forget(now, INCURABLE_SPAN);
                    record.incurable.add(now);
                }
                self.is_down(record, now).then(|| error.clone())
            }
        }
    }

    /// Returns whether the failures on the record are enough to give the store up.
    fn is_down(&self, record: &Record, now: Timestamp) -> bool {
        let span = (self.deadline * 2).clamp(SHORTEST_ROW, LONGEST_ROW);
        let is_long = |row: &Row| row.length >= FAILURES && now.since(row.since) >= span;
        is_long(&record.failures)
            || is_long(&record.refusals)
            || record.incurable.length >= INCURABLE_FAILURES
            || record.quarters.are_bad(now)
    }
}

/// Returns whether waiting may cure the cause of a failure.
pub(super) fn is_curable(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::InvalidConfig | ErrorKind::Script)
}

fn late(message: String) -> Error {
    Error::new(ErrorKind::Timeout(Phase::Reply), message)
}

// === Record ===

/// The latest calls.
#[derive(Debug, Default)]
struct Record {
    /// Failures with no answer between them.
    failures: Row,
    /// Calls that the server refused, with no write between them. A demoted primary answers what needs no write, as denials
    /// do, so answers do not end this row.
    refusals: Row,
    /// Errors that waiting does not cure. A cluster answers calls whose keys share a slot, so answers do not end this row.
    incurable: Row,
    quarters: Quarters,
    /// When the first of the callers asked who left without an answer, if nobody has had one since.
    unanswered_since: Option<Timestamp>,
}

/// Failures that belong together.
#[derive(Debug, Default)]
struct Row {
    length: u32,
    since: Timestamp,
    latest: Timestamp,
}

impl Row {
    fn add(&mut self, now: Timestamp) {
        if self.length == 0 {
            self.since = now;
        }
        self.length = self.length.saturating_add(1);
        self.latest = now;
    }

    /// Begins anew if the latest failure is longer ago than `span`.
    fn forget(&mut self, now: Timestamp, span: Duration) {
        if now.since(self.latest) > span {
            *self = Self::default();
        }
    }
}

// === Quarters ===

/// The last quarters of a second in which there were calls.
#[derive(Debug, Default)]
struct Quarters {
    ring: [Quarter; QUARTERS],
    newest: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Quarter {
    /// Quarters of a second since the Unix epoch.
    number: u64,
    calls: u32,
    bad: u32,
}

impl Quarters {
    fn add(&mut self, now: Timestamp, is_bad: bool) {
        let number = now.as_micros() / QUARTER_MICROS;
        if self.ring[self.newest].number != number {
            self.newest = (self.newest + 1) % QUARTERS;
            self.ring[self.newest] = Quarter {
                number,
                ..Quarter::default()
            };
        }
        let quarter = &mut self.ring[self.newest];
        quarter.calls = quarter.calls.saturating_add(1);
        quarter.bad = quarter.bad.saturating_add(u32::from(is_bad));
    }

    /// Returns whether half of the quarters were bad: each one votes by what happened to at least half of its calls.
    fn are_bad(&self, now: Timestamp) -> bool {
        let oldest = (now - QUARTERS_SPAN).as_micros() / QUARTER_MICROS;
        let is_bad = |quarter: &&Quarter| {
            quarter.number >= oldest && quarter.bad > 0 && quarter.bad * 2 >= quarter.calls
        };
        self.ring.iter().filter(is_bad).count() >= BAD_QUARTERS
    }
}

const FAILURES: u32 = 5;
/// How long a row of failures lasts at least: two deadlines, but within these bounds.
const SHORTEST_ROW: Duration = Duration::from_millis(100);
const LONGEST_ROW: Duration = Duration::from_secs(1);
const INCURABLE_FAILURES: u32 = 3;
const INCURABLE_SPAN: Duration = Duration::from_secs(10);
const QUARTERS: usize = 16;
const BAD_QUARTERS: usize = 8;
const QUARTER_MICROS: u64 = 250_000;
/// Quarters longer ago do not count.
const QUARTERS_SPAN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(50);
    const QUICK: Call<'_> = Call::Answered {
        took: Duration::from_millis(1),
    };
    const LATE: Call<'_> = Call::Answered {
        took: Duration::from_millis(26),
    };

    fn breaker() -> Breaker {
        Breaker::new(DEADLINE)
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, format!("{kind:?}"))
    }

    /// Records failures of one kind, and returns whether one of them opened the breaker.
    fn fail(breaker: &Breaker, kind: ErrorKind, times: impl IntoIterator<Item = u64>) -> bool {
        let error = error(kind);
        let mut times = times.into_iter();
        times.any(|millis| {
            let failed = Call::Failed { error: &error };
            breaker.record(failed, at(millis)).is_some()
        })
    }

    #[test]
    fn fifth_failure_in_a_row_that_lasts_opens_it_and_one_caller_gets_the_cause() {
        let breaker = breaker();
        let error = error(ErrorKind::Connect);
        let opened: Vec<bool> = [0, 30, 60, 90, 110, 110]
            .map(|millis| {
                let failed = Call::Failed { error: &error };
                breaker.record(failed, at(millis)).is_some()
            })
            .into();
        assert_eq!(opened, [false, false, false, false, true, false]);
        assert!(breaker.is_open());
        let outage = breaker.outage().expect("it is open");
        assert_eq!(outage.since, at(110));
        assert_eq!(outage.cause.kind(), ErrorKind::Connect);
    }

    #[test]
    fn failures_of_one_stall_are_not_an_outage() {
        let breaker = breaker();
        assert!(!fail(&breaker, ErrorKind::Timeout(Phase::Reply), [50; 30]));
        assert!(!fail(
            &breaker,
            ErrorKind::Timeout(Phase::Connect),
            [102; 30]
        ));
        assert!(breaker.record(QUICK, at(103)).is_none());
        assert!(!fail(&breaker, ErrorKind::Timeout(Phase::Reply), [170; 30]));
    }

    #[test]
    fn row_lasts_a_tenth_of_a_second_at_least_and_a_second_at_most() {
        let short = Breaker::new(Duration::from_millis(2));
        assert!(!fail(&short, ErrorKind::Connect, (0..100).step_by(5)));
        assert!(fail(&short, ErrorKind::Connect, [100]));
        let long = Breaker::new(Duration::from_secs(3_600));
        assert!(!fail(&long, ErrorKind::Connect, (0..1_000).step_by(250)));
        assert!(fail(&long, ErrorKind::Connect, [1_000]));
    }

    #[test]
    fn callers_who_leave_open_it_when_nobody_gets_an_answer() {
        let breaker = breaker();
        let after = Duration::from_millis(10);
        let opened = (0..40).position(|call| {
            breaker
                .record(Call::Abandoned { after }, at(10 * call))
                .is_some()
        });
        assert_eq!(opened, Some(15), "a deadline, and a row that lasts");
    }

    #[test]
    fn callers_who_leave_say_nothing_while_others_get_answers() {
        let breaker = breaker();
        let after = Duration::from_millis(10);
        for call in 0..200 {
            let now = at(10 * call);
            assert!(breaker.record(Call::Abandoned { after }, now).is_none());
            assert!(breaker.record(QUICK, now).is_none());
        }
    }

    #[test]
    fn answer_breaks_the_row_of_failures_and_not_that_of_refused_writes() {
        for (kind, opens) in [
            (ErrorKind::Connect, false),
            (ErrorKind::Timeout(Phase::Reply), false),
            (ErrorKind::Unavailable, true),
        ] {
            let breaker = breaker();
            let opened = (0..100).any(|round| {
                for _ in 0..9 {
                    assert!(breaker.record(QUICK, at(30 * round)).is_none());
                }
                fail(&breaker, kind, [30 * round])
            });
            assert_eq!(opened, opens, "{kind:?}");
            assert_eq!(breaker.is_open(), opens);
        }
    }

    #[test]
    fn write_that_is_done_breaks_the_row_of_refused_writes() {
        let breaker = breaker();
        for round in 0..100 {
            assert!(!fail(&breaker, ErrorKind::Unavailable, [30 * round; 4]));
            assert!(breaker.is_refused());
            breaker.record(QUICK, at(30 * round));
            breaker.wrote();
            assert!(!breaker.is_refused());
            // Enough good calls that failures do not prevail.
            (0..5).for_each(|_| drop(breaker.record(QUICK, at(30 * round))));
        }
    }

    #[test]
    fn third_error_that_waiting_does_not_cure_opens_it_at_once() {
        for kind in [ErrorKind::Script, ErrorKind::InvalidConfig] {
            let breaker = breaker();
            let opened: Vec<bool> = (0..3)
                .map(|millis| {
                    breaker.record(QUICK, at(millis));
                    breaker.wrote();
                    fail(&breaker, kind, [millis])
                })
                .collect();
            assert_eq!(opened, [false, false, true], "{kind:?}");
        }
    }

    #[test]
    fn errors_that_waiting_does_not_cure_are_forgotten_when_they_are_rare() {
        let breaker = breaker();
        for round in 0..20 {
            breaker.record(QUICK, at(11_000 * round));
            assert!(!fail(&breaker, ErrorKind::Script, [11_000 * round]));
            breaker.record(QUICK, at(11_000 * round));
        }
    }

    /// Calls every 5 ms from `start` on, all ending like this one.
    fn last(breaker: &Breaker, call: Call<'_>, start: u64, millis: u64) -> Option<u64> {
        let mut times = (start..start + millis).step_by(5);
        times.find(|time| breaker.record(call, at(*time)).is_some())
    }

    #[test]
    fn slowness_opens_it_once_it_has_lasted_for_two_seconds() {
        let breaker = breaker();
        assert_eq!(last(&breaker, QUICK, 0, 60_000), None);
        let opened = last(&breaker, LATE, 60_000, 10_000).expect("it opens");
        assert!((61_750..=62_000).contains(&opened), "{opened}");
        let cause = breaker.outage().expect("it is open").cause;
        assert!(cause.to_string().contains("25ms"), "{cause}");
    }

    #[test]
    fn one_slow_burst_among_few_calls_does_not_open_it() {
        let breaker = breaker();
        for round in 0..100 {
            // Nearly all calls are slow, in one moment of each ten seconds.
            let start = 10_000 * round;
            (0..30).for_each(|_| assert!(breaker.record(LATE, at(start + 240)).is_none()));
            (0..30).for_each(|_| assert!(breaker.record(LATE, at(start + 260)).is_none()));
            for second in 1..10 {
                assert!(breaker.record(QUICK, at(start + 1_000 * second)).is_none());
            }
        }
    }

    #[test]
    fn half_of_the_calls_failing_opens_it() {
        let breaker = breaker();
        let opened = (0..10_000).step_by(5).find(|time| {
            breaker.record(QUICK, at(*time));
            fail(&breaker, ErrorKind::Connect, [*time])
        });
        assert_eq!(opened, Some(1_750), "in the eighth quarter");
    }

    #[test]
    fn few_failures_among_many_answers_do_not_open_it() {
        let breaker = breaker();
        for time in (0..60_000).step_by(5) {
            (0..9).for_each(|_| drop(breaker.record(QUICK, at(time))));
            assert!(!fail(&breaker, ErrorKind::Connect, [time, time, time]));
        }
    }

    #[test]
    fn quarters_of_more_than_a_minute_ago_do_not_count() {
        let breaker = breaker();
        for call in 0..100 {
            assert!(breaker.record(LATE, at(9_000 * call)).is_none());
        }
    }

    #[test]
    fn closes_with_a_clean_record() {
        let breaker = breaker();
        assert!(fail(
            &breaker,
            ErrorKind::Unavailable,
            [0, 50, 100, 150, 200]
        ));
        breaker.close();
        assert!(!breaker.is_open() && !breaker.is_refused());
        assert!(breaker.outage().is_none());
        assert!(!fail(
            &breaker,
            ErrorKind::Unavailable,
            [210, 220, 230, 240]
        ));
    }

    #[test]
    fn cause_is_replaced_only_while_it_is_open() {
        let breaker = breaker();
        let refused = error(ErrorKind::Unavailable);
        assert!(!breaker.replace_cause(&refused));
        assert!(fail(&breaker, ErrorKind::Script, [0; 3]));
        assert!(breaker.replace_cause(&refused));
        assert!(!breaker.replace_cause(&refused), "the same once more");
        let outage = breaker.outage().expect("it is open");
        assert_eq!(
            (outage.since, outage.cause.kind()),
            (at(0), ErrorKind::Unavailable)
        );
    }
}
