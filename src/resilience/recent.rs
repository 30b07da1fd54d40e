//! How many of the latest decisions were made without the primary.
//!
//! ```text
//! marks     ──┬────┬────┬── .. ──┬────┬──▶ now       the counts so far, once a second while there are calls
//!           -10   -9   -8       -1    0
//!             └────── share ──────────┘   (failed + shed + in an outage) / all, since the oldest mark of the last 10 s
//! ```
//!
//! A single decision that fails or is shed is not yet a state of the store: a process at its limit sheds now and then. So
//!
//! | | begins | ends |
//! |---|---|---|
//! | failing | 1 % failed, and the first of them over a second ago: an outage opens the breaker before | less than 0.5 % |
//! | shedding | 1 % were shed | less than 0.5 % |
//!
//! Of a few decisions, one may be 1 %: three must be affected, or half of all.
//!
//! # Why is a share of decisions a mode, and not a decision?
//!
//! Health that alarms for each shed or lost decision is ill most of the time, and nobody looks. Health that alarms only while the
//! breaker is open is silent about 5 % of failures forever. So the modes follow the share of the last ten seconds. Counting costs
//! a decision in Redis one atomic addition and no clock: the reports on calls bring the time.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::{clock::Timestamp, error::Error, task::Mutex};

use super::modes::Modes;

/// Counts decisions, and how many of the latest ones were made without the primary.
#[derive(Debug)]
pub(super) struct RecentDecisions {
    by_primary: AtomicU64,
    failed: AtomicU64,
    in_outage: AtomicU64,
    shed: AtomicU64,
    /// Whether a recent decision was made without the primary. Read by every decision; written under the lock.
    is_affected: AtomicBool,
    /// Whether a recent decision was shed.
    has_shed: AtomicBool,
    /// When to look at the counts again, in microseconds.
    next_look: AtomicU64,
    /// When to keep the cause of a decision again, in microseconds.
    next_cause: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    /// From the oldest. At least one.
    marks: VecDeque<Mark>,
    /// When the first of the recent failures was.
    failing_since: Option<Timestamp>,
    is_failing: bool,
    is_shedding: bool,
    /// The latest cause of a decision that failed or was shed, and its time.
    cause: Option<(Timestamp, Error)>,
}

/// The counts at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: Timestamp,
    by_primary: u64,
    failed: u64,
    in_outage: u64,
    shed: u64,
}

/// Whether decisions fail or are shed, when that has changed.
#[derive(Debug)]
pub(super) struct RecentChange {
    is_failing: bool,
    is_shedding: bool,
    was_failing: bool,
    was_shedding: bool,
    /// The affected part of the recent decisions.
    pub share: f64,
    /// Decisions so far.
    pub failed: u64,
    pub shed: u64,
    pub cause: Option<Error>,
}

impl RecentDecisions {
    pub fn new(now: Timestamp) -> Self {
        let window = Window {
            marks: VecDeque::from([Mark {
                at: now,
                ..Mark::default()
            }]),
            failing_since: None,
            is_failing: false,
            is_shedding: false,
            cause: None,
        };
        Self {
            by_primary: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            in_outage: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            is_affected: AtomicBool::new(false),
            has_shed: AtomicBool::new(false),
            next_look: AtomicU64::new(0),
            next_cause: AtomicU64::new(0),
            window: Mutex::new(window),
        }
    }

    /// Returns the number of decisions so far that were made without the primary, in an outage or since they failed.
    pub fn without_primary(&self) -> u64 {
        self.failed.load(Ordering::Relaxed) + self.in_outage.load(Ordering::Relaxed)
    }

    /// Returns the number of decisions that were shed so far.
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// Returns whether a recent decision was made without the primary.
    #[inline]
    pub fn is_affected(&self) -> bool {
        self.is_affected.load(Ordering::Relaxed)
    }

    /// Returns whether a recent decision was shed.
    #[inline]
    pub fn has_shed(&self) -> bool {
        self.has_shed.load(Ordering::Relaxed)
    }

    /// Counts decisions of the primary, or by what it has granted or denied before.
    #[inline]
    pub fn note_decided(&self, count: u64) {
        self.by_primary.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a decision that the primary failed to make. The primary is not in an outage.
    pub fn note_failed(&self, error: &Error, now: Timestamp) -> Option<RecentChange> {
        self.note(&self.failed, Some(error), now)
    }

    /// Counts a decision that the primary was not asked for, since it is or was in an outage.
    pub fn note_in_outage(&self, now: Timestamp) -> Option<RecentChange> {
        self.note(&self.in_outage, None, now)
    }

    /// Counts a decision that was shed.
    pub fn note_shed(&self, error: &Error, now: Timestamp) -> Option<RecentChange> {
        self.has_shed.store(true, Ordering::Relaxed);
        self.note(&self.shed, Some(error), now)
    }

    fn note(
        &self,
        count: &AtomicU64,
        error: Option<&Error>,
        now: Timestamp,
    ) -> Option<RecentChange> {
        // Not the cause of each decision: to keep one takes the lock, and may free the one before.
        let keeps_cause =
            error.is_some() && now.as_micros() >= self.next_cause.load(Ordering::Relaxed);
        if self.is_affected() && !self.is_due(now) && !keeps_cause {
            count.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let mut window = self.window.lock();
        self.mark(&mut window, now);
        count.fetch_add(1, Ordering::Relaxed);
        if let Some(error) = error {
            window.cause = Some((now, error.clone()));
            self.next_cause
                .store((now + LOOK_INTERVAL).as_micros(), Ordering::Relaxed);
        }
        self.evaluate(&mut window, now)
    }

    /// Looks at the counts, if the last look was a while ago.
    #[inline]
    pub fn look_if_due(&self, now: Timestamp) -> Option<RecentChange> {
        if self.is_due(now) {
            self.look(now)
        } else {
            None
        }
    }

    /// Looks at the counts.
    #[cold]
    pub fn look(&self, now: Timestamp) -> Option<RecentChange> {
        let mut window = self.window.lock();
        self.mark(&mut window, now);
        self.evaluate(&mut window, now)
    }

    /// Returns the part of the recent decisions that was made without the primary, and the latest cause.
    pub fn affected(&self, now: Timestamp) -> (f64, Option<Error>) {
        let window = self.window.lock();
        let recent = self.counts(now).since(window.base(now));
        let cause = window.cause.as_ref();
        let cause = cause.filter(|(at, _)| now.since(*at) <= RECENT);
        (recent.share(), cause.map(|(_, cause)| cause.clone()))
    }

    /// Sets the mode by the present state. Under the lock, so that of two changes the later one is set last.
    pub fn set_mode(&self, modes: &Modes, now: Timestamp) {
        let window = self.window.lock();
        modes.set_affected(window.is_failing, window.is_shedding, now);
    }

    /// Begins anew, since an outage has begun or ended.
    pub fn forget(&self, now: Timestamp) {
        let mut window = self.window.lock();
        window.marks = VecDeque::from([self.counts(now)]);
        (window.failing_since, window.cause) = (None, None);
        (window.is_failing, window.is_shedding) = (false, false);
    }

    #[inline]
    fn is_due(&self, now: Timestamp) -> bool {
        now.as_micros() >= self.next_look.load(Ordering::Relaxed)
    }

    fn counts(&self, now: Timestamp) -> Mark {
        Mark {
            at: now,
            by_primary: self.by_primary.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            in_outage: self.in_outage.load(Ordering::Relaxed),
            shed: self.shed(),
        }
    }

    /// Adds a mark, unless the youngest one is younger than a second.
    fn mark(&self, window: &mut Window, now: Timestamp) {
        let youngest = window.marks.back().map(|mark| mark.at);
        if youngest.is_some_and(|youngest| now.since(youngest) < MARK_INTERVAL) {
            return;
        }
        window.marks.push_back(self.counts(now));
        while window.marks.len() > MARKS {
            window.marks.pop_front();
        }
    }

    /// Returns whether decisions fail or are shed, if that has changed.
    fn evaluate(&self, window: &mut Window, now: Timestamp) -> Option<RecentChange> {
        let base = window.base(now);
        let recent = self.counts(now).since(base);
        let is_affected = recent.affected() > 0;
        self.is_affected.store(is_affected, Ordering::Relaxed);
        self.has_shed.store(recent.shed > 0, Ordering::Relaxed);
        let wait = if is_affected {
            LOOK_INTERVAL
        } else {
            MARK_INTERVAL
        };
        self.next_look
            .store((now + wait).as_micros(), Ordering::Relaxed);
        let since = window.failing_since.unwrap_or(now).max(base.at);
        window.failing_since = (recent.failed > 0).then_some(since);
        let (was_failing, was_shedding) = (window.is_failing, window.is_shedding);
        let lasts = was_failing || now.since(since) >= FAILING_SPAN;
        window.is_failing = lasts && recent.is_much(recent.failed, was_failing);
        window.is_shedding = recent.is_much(recent.shed, was_shedding);
        let has_changed = (was_failing, was_shedding) != (window.is_failing, window.is_shedding);
        has_changed.then(|| RecentChange {
            is_failing: window.is_failing,
            is_shedding: window.is_shedding,
            was_failing,
            was_shedding,
            share: recent.share(),
            failed: self.failed.load(Ordering::Relaxed),
            shed: self.shed(),
            cause: window.cause.as_ref().map(|(_, cause)| cause.clone()),
        })
    }
}

impl Window {
    /// Returns the oldest mark since which all decisions are recent.
    ///
    /// Not an older one: after a pause, the decisions between that and the next mark are those before the pause.
    fn base(&self, now: Timestamp) -> Mark {
        let mut marks = self.marks.iter();
        let base = marks.find(|mark| now.since(mark.at) <= RECENT);
        base.or(self.marks.back()).copied().unwrap_or_default()
    }
}

impl Mark {
    /// Returns the counts since an earlier mark.
    fn since(self, base: Self) -> Self {
        Self {
            at: self.at,
            by_primary: self.by_primary.saturating_sub(base.by_primary),
            failed: self.failed.saturating_sub(base.failed),
            in_outage: self.in_outage.saturating_sub(base.in_outage),
            shed: self.shed.saturating_sub(base.shed),
        }
    }

    fn affected(&self) -> u64 {
        self.failed + self.in_outage + self.shed
    }

    fn all(&self) -> u64 {
        self.by_primary + self.affected()
    }

    /// Returns whether this many of the decisions make a state of the store. Once they do, half as many are enough.
    fn is_much(&self, affected: u64, is_state: bool) -> bool {
        if is_state {
            return affected * 200 >= self.all() && affected > 0;
        }
        affected * 100 >= self.all()
            && (affected >= FEW || affected * 2 >= self.all())
            && affected > 0
    }

    /// Returns the part of the decisions that was made without the primary.
    #[expect(
        clippy::cast_precision_loss,
        reason = "nobody makes 2^52 decisions in seconds"
    )]
    fn share(&self) -> f64 {
        let (affected, all) = (self.affected(), self.all().max(1));
        affected as f64 / all as f64
    }
}

impl RecentChange {
    pub fn begins_failing(&self) -> bool {
        self.is_failing && !self.was_failing
    }

    pub fn ends_failing(&self) -> bool {
        self.was_failing && !self.is_failing
    }

    pub fn begins_shedding(&self) -> bool {
        self.is_shedding && !self.was_shedding
    }

    pub fn ends_shedding(&self) -> bool {
        self.was_shedding && !self.is_shedding
    }
}

/// The age up to which a decision counts as recent.
const RECENT: Duration = Duration::from_secs(10);
/// The least time between two marks, and the number of those that can be recent.
const MARK_INTERVAL: Duration = Duration::from_secs(1);
const MARKS: usize = 11;
/// The least time between two looks at the counts while decisions fail or are shed.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How long decisions must fail. With usual traffic, an outage opens the breaker earlier.
const FAILING_SPAN: Duration = Duration::from_secs(1);
/// The number of affected decisions from which on they are not few.
const FEW: u64 = 3;

#[cfg(test)]
mod tests {
    use crate::error::ErrorKind;

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "an error")
    }

    /// Makes decisions for this time, of which one in `nth` is shed. Returns what they are at its end.
    fn shed_one_in(recent: &RecentDecisions, seconds: std::ops::Range<u64>, nth: u64) -> bool {
        let overloaded = error(ErrorKind::Overloaded);
        let mut is_shedding = recent.window.lock().is_shedding;
        for number in seconds.start * 1_000..seconds.end * 1_000 {
            let change = if number % nth == 0 {
                recent.note_shed(&overloaded, at(number))
            } else {
                recent.note_decided(1);
                recent.look_if_due(at(number))
            };
            is_shedding = change.map_or(is_shedding, |change| change.is_shedding);
        }
        is_shedding
    }

    // Regression: a process that shed 0.4 % of its decisions looked ill in most looks, and one shed decision did for 10 s.
    #[test]
    fn few_shed_decisions_are_no_state_and_many_are_until_they_are_few() {
        let recent = RecentDecisions::new(at(0));
        assert!(!shed_one_in(&recent, 0..60, 250), "0.4 %");
        assert!(recent.affected(at(60_000)).0 > 0.003);
        assert!(shed_one_in(&recent, 60..75, 50), "2 %");
        let (share, cause) = recent.affected(at(75_000));
        assert!((0.018..0.022).contains(&share), "{share}");
        assert_eq!(cause.expect("a cause").kind(), ErrorKind::Overloaded);
        assert!(shed_one_in(&recent, 75..90, 150), "0.7 %: it goes on");
        assert!(!shed_one_in(&recent, 90..102, 1_000_000), "none");
        assert_eq!(recent.affected(at(102_000)).0, 0.0);
        assert!(recent.affected(at(102_000)).1.is_none());
    }

    #[test]
    fn failures_are_a_state_only_after_a_second() {
        let recent = RecentDecisions::new(at(0));
        let refused = error(ErrorKind::Connect);
        let failing = |millis| {
            let change = recent.note_failed(&refused, at(millis));
            change.is_some_and(|change| change.begins_failing())
        };
        let began: Vec<u64> = (0..3_000).step_by(100).filter(|at| failing(*at)).collect();
        assert_eq!(began, [1_000]);
        recent.forget(at(3_000));
        assert_eq!(recent.affected(at(3_000)).0, 0.0);
        assert!(recent.affected(at(3_000)).1.is_none());
        assert!(recent.look(at(3_001)).is_none(), "it begins anew");
    }

    // Regression: decisions that failed just before a pause were recent after it, and a store without any decision began to
    // fail.
    #[test]
    fn decisions_before_a_pause_are_not_recent_after_it() {
        let recent = RecentDecisions::new(at(0));
        let refused = error(ErrorKind::Connect);
        for millis in (0..900).step_by(100) {
            assert!(recent.note_failed(&refused, at(millis)).is_none());
        }
        assert!(recent.look(at(60_000)).is_none());
        assert_eq!(recent.affected(at(60_000)).0, 0.0);
        let again = recent.note_failed(&refused, at(120_000));
        assert!(again.is_none(), "it fails only now: {again:?}");
    }

    #[test]
    fn share_is_zero_after_a_pause_of_any_length() {
        let refused = error(ErrorKind::Connect);
        for pause in [12_000, 60_000, 3_600_000] {
            let recent = RecentDecisions::new(at(0));
            recent.look(at(900));
            for millis in 1_000..1_400 {
                recent.note_failed(&refused, at(millis));
            }
            assert_eq!(recent.affected(at(2_000)).0, 1.0);
            let after = 1_400 + pause;
            assert!(recent.look(at(after)).is_none(), "after {pause} ms");
            assert_eq!(recent.affected(at(after)).0, 0.0);
            recent.note_decided(1);
            let change = recent.look_if_due(at(after + 1));
            assert!(change.is_none(), "after {pause} ms");
            assert!(recent.affected(at(after + 2_000)).0 < 0.01);
        }
    }
}
