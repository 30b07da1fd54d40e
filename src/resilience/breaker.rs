//! The circuit breaker: counts how calls to the store end, and opens when too many end badly.
//!
//! ```text
//!                one of the four conditions
//!   ┌────────┐ ─────────────────────────────▶ ┌──────┐ ──┐ a probe fails,
//!   │ Closed │                                │ Open │   │ or is slow
//!   └────────┘ ◀───────────────────────────── └──────┘ ◀─┘
//!               two good probes, 20 ms apart
//! ```
//!
//! | condition | opens after | ended by |
//! |---|---|---|
//! | consecutive failures | 5, over two deadlines | any reply |
//! | refused writes | 5, over two deadlines | a write that is done |
//! | permanent errors | 3, each within 10 s of the one before | 10 s without one |
//! | bad intervals of 250 ms | 8 of the last 16 with calls | good intervals, or 60 s |
//!
//! "Two deadlines" are at least 100 ms and at most 1 s. The breaker has no half-open state: while it is open, probes test
//! the store, and decisions do not.
//!
//! # Why failures must last
//!
//! A stall ends many calls at once, so each condition but the third also requires time to pass. A stall of 100 ms, with a
//! deadline of 50 ms and calls all the time:
//!
//! ```text
//! 0 ms              50 ms             100 ms
//! ├───────── the store stalls ────────┤
//! call sent ──────▶ fails
//!                   call sent ──────▶ fails
//!                   ├───── 50 ms ─────┤ from the first failure to the last: 100 ms would open the breaker
//! ```
//!
//! The replies that the stall delays make one or two intervals bad; eight would open the breaker. A server that hangs
//! opens it after 150 ms: the first call fails after 50 ms, and 100 ms later the failures have lasted two deadlines.
//!
//! # Why does the breaker judge calls and not decisions?
//!
//! The time of a decision includes the waits in this process, which on a busy runtime with an idle Redis are nearly all of it. A
//! breaker that judged decisions would give up a healthy server just when the service is overloaded. So the Redis store reports
//! each call, from writing it to reading the reply. One call carries up to 64 decisions, so a busy moment gives a few bad calls
//! and not thousands of bad decisions. What this process cannot send in time is shed, which does not count as a failure.
//!
//! # Why does the breaker also open on slowness?
//!
//! A store that replies just within the deadline does not fail, but makes every request that slow. So a call that takes more than
//! half of the deadline is bad. The share of bad calls alone misjudges bursts: one stall that delays 30 callers gives 30 slow
//! calls, in a quiet service most of the last ten seconds. So each interval of 250 ms counts once, and under load the breaker
//! opens after two seconds of slowness. Hystrix, resilience4j and Polly require 20 to 100 calls in 10 to 60 seconds, and half of
//! them bad, for many services of unknown speed. A limiter has one server that replies within a millisecond, and must decide
//! within 50 ms.
//!
//! Failures are worse, since each costs its caller a deadline. Envoy ejects a host after 5 failures in a row. Here they must last
//! for two deadlines, since a stall gives failures that lie one deadline apart (see above). The price is that a dead server is
//! given up after 150 ms and not after 50 ms. A wrong judgement costs little, because the first probe follows within 100 ms.
//!
//! # Why do successful denials not outweigh refused writes?
//!
//! Denials write nothing. A demoted primary, or a server without memory, still makes them, and refuses all other decisions.
//! During an attack, nearly all calls then succeed although no request is counted any more. So only a decision that wrote
//! something ends a row of refused writes. One such write ends it, because a write that fails for one policy only is not an
//! outage. Nothing outweighs errors that waiting does not cure, because a user without a permission may still make the decisions
//! that do not need it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    clock::Timestamp,
    error::{Error, ErrorKind, Phase},
    store::Outage,
    task::Mutex,
};

/// A circuit breaker. It reads no clock: each call passes the time.
#[derive(Debug)]
pub(super) struct Breaker {
    /// Read by every decision; written under the lock.
    is_open: AtomicBool,
    /// Set by a refused write, cleared by a write that is done. Read by every decision; written under the lock.
    refuses_writes: AtomicBool,
    state: Mutex<BreakerState>,
    deadline: Duration,
}

#[derive(Debug, Default)]
struct BreakerState {
    /// Present while the breaker is open.
    outage: Option<Outage>,
    history: History,
}

/// How a call to the store ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallResult<'a> {
    /// The caller stopped waiting, `after` this time, before a reply came.
    Abandoned { after: Duration },
    /// The store replied. It took this long, waits in this process excluded.
    Answered { took: Duration },
    /// The store did not decide.
    Failed { error: &'a Error },
}

impl Breaker {
    /// Creates a closed breaker for a store with this deadline per decision.
    pub fn new(deadline: Duration) -> Self {
        Self {
            is_open: AtomicBool::new(false),
            refuses_writes: AtomicBool::new(false),
            state: Mutex::new(BreakerState::default()),
            deadline,
        }
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns whether the store has refused a write, and has done none since.
    #[inline]
    pub fn refuses_writes(&self) -> bool {
        self.refuses_writes.load(Ordering::Relaxed)
    }

    /// Returns the deadline of a decision.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns how long failures must last: two deadlines, within bounds.
    pub fn run_span(&self) -> Duration {
        (self.deadline * 2).clamp(SHORTEST_RUN, LONGEST_RUN)
    }

    /// Returns whether a reply that took this long counts as bad: more than half of the deadline.
    pub fn is_slow(&self, took: Duration) -> bool {
        took > self.deadline / 2
    }

    /// Returns when the failures began that opened the breaker, and why; `None` while it is closed.
    pub fn outage(&self) -> Option<Outage> {
        self.state.lock().outage.clone()
    }

    /// Replaces the cause of the outage. Returns whether the text of the cause has changed; `false` while closed.
    pub fn replace_cause(&self, cause: &Error) -> bool {
        let mut state = self.state.lock();
        let Some(outage) = &mut state.outage else {
            return false;
        };
        let is_new = outage.cause.to_string() != cause.to_string();
        outage.cause = cause.clone();
        is_new
    }

    /// Records how a call ended. Returns the cause of the outage if this call opens the breaker.
    pub fn record(&self, result: CallResult<'_>, now: Timestamp) -> Option<Error> {
        let mut state = self.state.lock();
        // ## Open => Open: calls that were under way when it opened change nothing
        if state.outage.is_some() {
            return None;
        }
        // ## Closed => Closed
        let outage = self.add(&mut state.history, result, now)?;
        // ## Closed => Open
        let cause = outage.cause.clone();
        state.outage = Some(outage);
        self.is_open.store(true, Ordering::Release);
        Some(cause)
    }

    /// Records that the store has done a write: not all writes are refused.
    pub fn record_write(&self) {
        let mut state = self.state.lock();
        state.history.refused_writes = FailureRun::default();
        self.refuses_writes.store(false, Ordering::Relaxed);
    }

    /// ## Open => Closed
    ///
    /// The history is empty afterwards. Returns the outage that has ended.
    pub fn close(&self) -> Option<Outage> {
        let mut state = self.state.lock();
        let before = std::mem::take(&mut *state);
        self.refuses_writes.store(false, Ordering::Relaxed);
        self.is_open.store(false, Ordering::Release);
        before.outage
    }

    /// Adds a call to the history. Returns an outage if the history now meets one of the conditions.
    fn add(&self, history: &mut History, result: CallResult<'_>, now: Timestamp) -> Option<Outage> {
        match result {
            CallResult::Abandoned { after } => {
                // A single impatient caller proves nothing. Many do, if no caller gets a reply for a whole deadline.
                let since = *history.unanswered_since.get_or_insert(now - after);
                if now.since(since) <= self.deadline {
                    return None;
                }
                history.failures.add(now);
                history.intervals.add(now, true);
                let cause = || {
                    timeout_error(
                        "no caller got a decision, and none waited for the deadline".to_owned(),
                    )
                };
                self.outage_of(history, now, cause)
            }
            CallResult::Answered { took } => {
                history.failures = FailureRun::default();
                history.unanswered_since = None;
                let is_slow = self.is_slow(took);
                history.intervals.add(now, is_slow);
                let since = history.intervals.mostly_bad_since(now);
                since.filter(|_| is_slow).map(|since| Outage {
                    server: None,
                    stuck_slots: None,
                    since,
                    cause: timeout_error(format!(
                        "most calls take longer than {:?}, half of the deadline",
                        self.deadline / 2
                    )),
                })
            }
            CallResult::Failed { error } => {
                history.failures.add(now);
                history.intervals.add(now, true);
                if error.kind() == ErrorKind::Unavailable {
                    history.refused_writes.add(now);
                    self.refuses_writes.store(true, Ordering::Relaxed);
                }
                if is_permanent(error) {
                    history.permanent_errors.expire(now, PERMANENT_ERROR_SPAN);
                    history.permanent_errors.add(now);
                }
                self.outage_of(history, now, || error.clone())
            }
        }
    }

    /// Returns an outage if the history meets one of the conditions. It begins with the first failure that counts.
    fn outage_of(
        &self,
        history: &History,
        now: Timestamp,
        cause: impl FnOnce() -> Error,
    ) -> Option<Outage> {
        let span = self.run_span();
        let lasts = |run: &FailureRun| run.length >= FAILURES && now.since(run.since) >= span;
        let is_permanent = history.permanent_errors.length >= PERMANENT_ERRORS;
        let met = [
            lasts(&history.failures).then_some(history.failures.since),
            lasts(&history.refused_writes).then_some(history.refused_writes.since),
            is_permanent.then_some(history.permanent_errors.since),
            history.intervals.mostly_bad_since(now),
        ];
        let since = met.into_iter().flatten().min()?;
        let cause = cause();
        Some(Outage {
            since,
            cause,
            server: None,
            stuck_slots: None,
        })
    }
}

/// Returns whether an operator has to act before the store can decide: waiting does not help.
pub(super) fn is_permanent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidConfig | ErrorKind::Script)
}

fn timeout_error(message: String) -> Error {
    Error::new(ErrorKind::Timeout(Phase::Reply), message)
}

// === History ===

/// The latest calls, as far as the conditions need them.
#[derive(Debug, Default)]
struct History {
    /// Failures without a reply between them.
    failures: FailureRun,
    /// Refused writes without a write between them. A demoted primary still replies to calls that write nothing, such
    /// as denials, so replies do not end this run.
    refused_writes: FailureRun,
    /// Permanent errors. A user without one permission still gets replies to other calls, so replies do not end this run.
    permanent_errors: FailureRun,
    intervals: Intervals,
    /// Send time of the oldest call since the last reply whose caller stopped waiting.
    unanswered_since: Option<Timestamp>,
}

/// Consecutive failures of one sort.
#[derive(Debug, Default)]
struct FailureRun {
    length: u32,
    /// Time of the first failure.
    since: Timestamp,
    latest: Timestamp,
}

impl FailureRun {
    fn add(&mut self, now: Timestamp) {
        if self.length == 0 {
            self.since = now;
        }
        self.length = self.length.saturating_add(1);
        self.latest = now;
    }

    /// Empties the run if the latest failure is older than `span`.
    fn expire(&mut self, now: Timestamp, span: Duration) {
        if now.since(self.latest) > span {
            *self = Self::default();
        }
    }
}

// === Intervals ===

/// The last 16 intervals of 250 ms in which calls ended. Intervals without calls take no place.
#[derive(Debug, Default)]
struct Intervals {
    ring: [Interval; INTERVALS],
    /// Index of the current interval.
    newest: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    /// Count of 250 ms since the Unix epoch.
    number: u64,
    calls: u32,
    /// Calls that failed or were slow.
    bad: u32,
}

impl Intervals {
    fn add(&mut self, now: Timestamp, is_bad: bool) {
        let number = now.as_micros() / INTERVAL_MICROS;
        // Threads may come with times a little out of order: an interval that has ended is not opened again.
        if self.ring[self.newest].number < number {
            self.newest = (self.newest + 1) % INTERVALS;
            self.ring[self.newest] = Interval {
                number,
                ..Interval::default()
            };
        }
        let interval = &mut self.ring[self.newest];
        interval.calls = interval.calls.saturating_add(1);
        interval.bad = interval.bad.saturating_add(u32::from(is_bad));
    }

    /// Returns the start of the oldest bad interval if 8 intervals of the last 60 s are bad.
    ///
    /// An interval is bad if at least half of its calls are.
    fn mostly_bad_since(&self, now: Timestamp) -> Option<Timestamp> {
        let oldest = (now - INTERVALS_SPAN).as_micros() / INTERVAL_MICROS;
        let is_bad = |interval: &&Interval| {
            interval.number >= oldest && interval.bad > 0 && interval.bad * 2 >= interval.calls
        };
        let bad = || self.ring.iter().filter(is_bad);
        let first = bad().map(|interval| interval.number).min()?;
        let since = Timestamp::from_micros(first * INTERVAL_MICROS);
        (bad().count() >= BAD_INTERVALS).then_some(since)
    }
}

/// Length of a run of failures or refused writes that opens the breaker.
const FAILURES: u32 = 5;
/// Bounds of the time that such a run must last: two deadlines, but at least and at most this.
const SHORTEST_RUN: Duration = Duration::from_millis(100);
const LONGEST_RUN: Duration = Duration::from_secs(1);
const PERMANENT_ERRORS: u32 = 3;
/// Maximum time between two permanent errors of one run.
const PERMANENT_ERROR_SPAN: Duration = Duration::from_secs(10);
const INTERVALS: usize = 16;
const BAD_INTERVALS: usize = 8;
const INTERVAL_MICROS: u64 = 250_000;
/// Maximum age of an interval that counts.
const INTERVALS_SPAN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(50);
    const QUICK: CallResult<'_> = CallResult::Answered {
        took: Duration::from_millis(1),
    };
    const LATE: CallResult<'_> = CallResult::Answered {
        took: Duration::from_millis(26),
    };

    #[test]
    fn time_that_steps_back_over_a_boundary_opens_no_second_interval() {
        let boundary = Timestamp::from_micros(1_000 * INTERVAL_MICROS);
        let mut intervals = Intervals::default();
        for time in [boundary, boundary - Duration::from_micros(1), boundary] {
            intervals.add(time, true);
        }
        let used = intervals.ring.iter().filter(|interval| interval.calls > 0);
        assert_eq!(used.count(), 1);
    }

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
            let failed = CallResult::Failed { error: &error };
            breaker.record(failed, at(millis)).is_some()
        })
    }

    #[test]
    fn fifth_consecutive_failure_that_lasts_opens_it_and_one_caller_gets_the_cause() {
        let breaker = breaker();
        let error = error(ErrorKind::Connect);
        let opened: Vec<bool> = [0, 30, 60, 90, 110, 110]
            .map(|millis| {
                let failed = CallResult::Failed { error: &error };
                breaker.record(failed, at(millis)).is_some()
            })
            .into();
        assert_eq!(opened, [false, false, false, false, true, false]);
        assert!(breaker.is_open());
        let outage = breaker.outage().expect("it is open");
        assert_eq!(outage.since, at(0), "the first failure of the run");
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
    fn run_of_failures_lasts_at_least_a_tenth_of_a_second_and_at_most_a_second() {
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
                .record(CallResult::Abandoned { after }, at(10 * call))
                .is_some()
        });
        assert_eq!(opened, Some(15), "a deadline, and a run that lasts");
    }

    #[test]
    fn callers_who_leave_do_not_open_it_while_others_get_answers() {
        let breaker = breaker();
        let after = Duration::from_millis(10);
        for call in 0..200 {
            let now = at(10 * call);
            assert!(
                breaker
                    .record(CallResult::Abandoned { after }, now)
                    .is_none()
            );
            assert!(breaker.record(QUICK, now).is_none());
        }
    }

    #[test]
    fn answer_ends_a_run_of_failures_but_not_one_of_refused_writes() {
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
    fn write_that_is_done_ends_the_run_of_refused_writes() {
        let breaker = breaker();
        for round in 0..100 {
            assert!(!fail(&breaker, ErrorKind::Unavailable, [30 * round; 4]));
            assert!(breaker.refuses_writes());
            breaker.record(QUICK, at(30 * round));
            breaker.record_write();
            assert!(!breaker.refuses_writes());
            // Enough good calls that no interval is bad.
            (0..5).for_each(|_| drop(breaker.record(QUICK, at(30 * round))));
        }
    }

    #[test]
    fn third_permanent_error_opens_it_at_once() {
        for kind in [ErrorKind::Script, ErrorKind::InvalidConfig] {
            let breaker = breaker();
            let opened: Vec<bool> = (0..3)
                .map(|millis| {
                    breaker.record(QUICK, at(millis));
                    breaker.record_write();
                    fail(&breaker, kind, [millis])
                })
                .collect();
            assert_eq!(opened, [false, false, true], "{kind:?}");
        }
    }

    #[test]
    fn permanent_errors_do_not_open_it_when_they_are_rare() {
        let breaker = breaker();
        for round in 0..20 {
            breaker.record(QUICK, at(11_000 * round));
            assert!(!fail(&breaker, ErrorKind::Script, [11_000 * round]));
            breaker.record(QUICK, at(11_000 * round));
        }
    }

    /// Records this result every 5 ms from `start` on. Returns the time at which the breaker opens.
    fn repeat(breaker: &Breaker, call: CallResult<'_>, start: u64, millis: u64) -> Option<u64> {
        let mut times = (start..start + millis).step_by(5);
        times.find(|time| breaker.record(call, at(*time)).is_some())
    }

    #[test]
    fn slowness_opens_it_once_it_has_lasted_for_two_seconds() {
        let breaker = breaker();
        assert_eq!(repeat(&breaker, QUICK, 0, 60_000), None);
        let opened = repeat(&breaker, LATE, 60_000, 10_000).expect("it opens");
        assert!((61_750..=62_000).contains(&opened), "{opened}");
        let cause = breaker.outage().expect("it is open").cause;
        assert!(cause.to_string().contains("25ms"), "{cause}");
    }

    #[test]
    fn one_slow_burst_among_few_calls_does_not_open_it() {
        let breaker = breaker();
        for round in 0..100 {
            // Nearly all calls are slow, but only around one moment of each ten seconds.
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
        assert_eq!(opened, Some(1_750), "in the eighth interval");
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
    fn intervals_older_than_a_minute_do_not_count() {
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
        assert!(!breaker.is_open() && !breaker.refuses_writes());
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
