//! The monotonic clock of the process, read from the CPU's time stamp counter where there is one.
//!
//! `Instant::now()` waits for all earlier instructions, which makes it the most expensive part of a decision in process:
//! 30 ns where the bare counter takes 11 (AMD EPYC in a virtual machine). The counter alone drifts from the system's clock,
//! by 80 us a second in a known case, and its rate is not certain. So it only bridges the time between two readings of the
//! system's clock:
//!
//! ```text
//! system clock   |                     |                     |
//!                v                     v                     v
//! this clock     =======counter=======>=======counter=======>===  ...
//!                <------- 1 ms ------->
//! ```
//!
//! - The result is never ahead of the system's clock and at most 2 us behind. The error does not accumulate, because each
//!   span starts at a reading of the system's clock. A span runs 0.1 % slow, so the next one never starts before its end.
//!   A thread that cannot read a span reads the system's clock, so its next reading may step back by up to 2 us.
//! - The rate is measured over at least 10 ms, and used once two measurements agree within 0.05 %. Until then, and outside
//!   of a span, the system's clock is read. A counter that jumps or runs faster (a virtual machine that is moved, a
//!   suspended laptop) is therefore off for at most one span. A counter that runs slower makes the span longer in
//!   proportion; `quanta` only uses counters that the CPU reports as invariant.
//! - Where a reading of the system's clock takes more than 400 ns, no span begins, and the system's clock is read.
//! - `quanta` knows how to read the counter without `unsafe` here. It keeps a core busy for up to 200 ms when it is first
//!   used, so that happens in a short-lived thread, and the system's clock is read until it has finished.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering, fence},
    },
    thread,
    time::Instant,
};

/// A clock that counts from its start. See the [module docs](self).
#[derive(Debug)]
pub(super) struct Monotonic {
    started: Instant,
    span: CounterSpan,
}

impl Monotonic {
    /// Starts the clock now.
    pub fn start() -> Self {
        let started = Instant::now();
        let calibrate = || drop(COUNTER.set(quanta::Clock::new()));
        // Without a thread, the system's clock is read for ever.
        let _ = thread::Builder::new()
            .name("tollgate-clock".to_owned())
            .spawn(calibrate);
        Self {
            started,
            span: CounterSpan::default(),
        }
    }

    /// Returns the microseconds since the start. Calls `at_span` outside of a span: at least once a millisecond.
    #[inline]
    pub fn micros(&self, at_span: impl FnOnce(&Self)) -> u64 {
        let counter = COUNTER.get();
        let nanos = match counter.and_then(|counter| self.span.nanos(|| counter.raw())) {
            Some(nanos) => nanos,
            None => {
                at_span(self);
                counter.map_or_else(|| self.nanos(), |counter| self.begin_span(counter))
            }
        };
        nanos / 1_000
    }

    /// Begins a new span if the current one has ended. Returns the system's time until the first span begins.
    #[cold]
    fn begin_span(&self, counter: &quanta::Clock) -> u64 {
        // Another thread may have begun one just now.
        if let Some(nanos) = self.span.nanos(|| counter.raw()) {
            return nanos;
        }
        let nanos = self.nanos();
        if self.span.is_due(nanos) {
            let ticks = counter.raw();
            let gap = self.nanos().wrapping_sub(nanos);
            self.span.begin(Sample { ticks, nanos }, gap);
        }
        // Not the system's time where a span is valid, which is behind: the next reading would step back.
        let retries = if self.span.is_certain() { RETRIES } else { 0 };
        let mut spans = (0..retries).map(|_| self.span.nanos(|| counter.raw()));
        spans.find_map(|span| span).unwrap_or(nanos)
    }

    /// Returns the nanoseconds since the start by the system's clock.
    pub fn nanos(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

static COUNTER: OnceLock<quanta::Clock> = OnceLock::new();

// === CounterSpan ===

/// The current span, and the rate of the counter.
///
/// A sequence lock: a reader that sees the same even version before and after has read values of one span. Alone on its
/// cache line, which is written once a millisecond.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterSpan {
    version: AtomicU64,
    start_ticks: AtomicU64,
    start_nanos: AtomicU64,
    /// Nanoseconds per tick, times 2^32.
    rate: AtomicU64,
    /// Ticks in the span; 0 while the rate is not certain.
    length: AtomicU64,
    /// The start of the current measurement of the rate. Written with the version odd only.
    measured_ticks: AtomicU64,
    measured_nanos: AtomicU64,
    /// Time before which no span begins, because the last sample took too long to read.
    retry_nanos: AtomicU64,
}

/// A moment by the counter and by the system's clock.
#[derive(Clone, Copy, Debug)]
struct Sample {
    ticks: u64,
    nanos: u64,
}

impl CounterSpan {
    /// Returns the time at which `ticks` reads the counter, or `None` outside of the span.
    #[inline]
    fn nanos(&self, ticks: impl FnOnce() -> u64) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        let elapsed = ticks().wrapping_sub(self.start_ticks.load(Ordering::Relaxed));
        let start = self.start_nanos.load(Ordering::Relaxed);
        let rate = self.rate.load(Ordering::Relaxed);
        let length = self.length.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_consistent =
            version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed);
        (is_consistent && elapsed < length).then(|| start + ((elapsed * rate) >> 32))
    }

    /// Returns whether the rate of the counter is certain.
    fn is_certain(&self) -> bool {
        self.length.load(Ordering::Relaxed) > 0
    }

    /// Returns whether a span may begin at `nanos`, or the rate be measured while it is not certain.
    fn is_due(&self, nanos: u64) -> bool {
        let (last, wait) = if self.is_certain() {
            (&self.start_nanos, SPAN)
        } else {
            (&self.measured_nanos, MEASUREMENT)
        };
        let elapsed = nanos.saturating_sub(last.load(Ordering::Relaxed));
        elapsed >= wait && nanos >= self.retry_nanos.load(Ordering::Relaxed)
    }

    /// Begins a span at a sample that was read within `gap` nanoseconds, if it is due.
    #[cold]
    fn begin(&self, anchor: Sample, gap: u64) {
        if gap > MAX_GAP {
            // The thread was interrupted, or the system's clock is slow: then most readings must not pay for samples.
            let retry_nanos = anchor.nanos + SPAN;
            self.retry_nanos.store(retry_nanos, Ordering::Relaxed);
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        let (locked, read) = (Ordering::Acquire, Ordering::Relaxed);
        // Without need nothing is written: a change of the version fails every reader, who would then come here too.
        let is_locked = self.is_due(anchor.nanos)
            && version.is_multiple_of(2)
            && self
                .version
                .compare_exchange(version, version + 1, locked, read)
                .is_ok();
        if is_locked {
            // Keeps the writes below from becoming visible before the odd version.
            fence(Ordering::Release);
            if self.is_due(anchor.nanos) {
                self.measure(anchor);
                self.start_ticks.store(anchor.ticks, Ordering::Relaxed);
                self.start_nanos.store(anchor.nanos, Ordering::Relaxed);
            }
            self.version.store(version + 2, Ordering::Release);
        }
    }

    /// Measures the rate if the last measurement was long enough ago.
    fn measure(&self, anchor: Sample) {
        let set = Ordering::Relaxed;
        let nanos = anchor.nanos.saturating_sub(self.measured_nanos.load(set));
        let ticks = anchor.ticks.wrapping_sub(self.measured_ticks.load(set));
        if nanos < MEASUREMENT {
            return;
        }
        let rate = (u128::from(nanos) << 32) / u128::from(ticks.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        let is_fine = rate <= MAX_TICK << 32;
        let rate = rate - rate / SLOWER;
        let is_certain = rate.abs_diff(self.rate.load(set)) <= rate / CERTAIN;
        let length = (SPAN << 32).checked_div(rate).unwrap_or(0);
        let is_usable = is_certain && is_fine;
        self.rate.store(rate, set);
        self.length.store(if is_usable { length } else { 0 }, set);
        self.measured_ticks.store(anchor.ticks, set);
        self.measured_nanos.store(anchor.nanos, set);
    }
}

/// Nanoseconds in a span.
const SPAN: u64 = 1_000_000;
/// Nanoseconds over which the rate is measured, at least.
const MEASUREMENT: u64 = 10_000_000;
/// Nanoseconds between the two readings of the system's clock around that of the counter, at most.
///
/// A span loses at least 500 ns against the system's clock: the part that it is slower, less the error of the rate. So the
/// next one, which starts at most this much behind, never starts before its end.
const MAX_GAP: u64 = 400;
/// Nanoseconds in a tick of the counter, at most: the clock may be ahead of the system's by as much.
const MAX_TICK: u64 = 100;
/// Attempts to read the span that another thread is about to begin.
const RETRIES: usize = 4;
/// A span is slower than the measured rate by one part in so many.
const SLOWER: u64 = 1_024;
/// Two measurements agree when they differ by at most one part in so many.
const CERTAIN: u64 = 2_048;

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicBool,
        time::{Duration, Instant},
    };

    use super::*;

    /// A machine whose counter counts 2.5 ticks a nanosecond.
    fn ticks(nanos: u64) -> u64 {
        1_000_000 + nanos * 5 / 2
    }

    /// Begins a span as [`Monotonic`] does when none covers the moment, and returns the time.
    fn read(span: &CounterSpan, nanos: u64, ticks: u64) -> u64 {
        span.nanos(|| ticks).unwrap_or_else(|| {
            span.begin(Sample { ticks, nanos }, 60);
            nanos
        })
    }

    /// A span whose rate is certain, and a moment in nanoseconds after which it is read.
    fn certain() -> (CounterSpan, u64) {
        let span = CounterSpan::default();
        for nanos in (0..=4 * MEASUREMENT).step_by(1_000) {
            read(&span, nanos, ticks(nanos));
        }
        assert!(span.length.load(Ordering::Relaxed) > 0);
        (span, 4 * MEASUREMENT)
    }

    #[test]
    fn spans_join_without_a_step_back_and_never_run_ahead() {
        let (span, start) = certain();
        let (mut last, mut spans) = (0, 0);
        for nanos in (start..start + 50 * SPAN).step_by(377) {
            let version = span.version.load(Ordering::Relaxed);
            let time = read(&span, nanos, ticks(nanos));
            assert!(time >= last, "{time} after {last}");
            assert!(time <= nanos, "ahead by {}", time - nanos);
            assert!(nanos - time < 2_000, "behind by {}", nanos - time);
            last = time;
            spans += u64::from(version != span.version.load(Ordering::Relaxed));
        }
        assert!((49..=51).contains(&spans), "{spans} spans of a millisecond");
    }

    #[test]
    fn rate_is_used_once_two_measurements_agree() {
        let span = CounterSpan::default();
        for nanos in (0..4 * MEASUREMENT).step_by(100_000) {
            assert_eq!(read(&span, nanos, ticks(nanos)), nanos);
            let is_measured = span.rate.load(Ordering::Relaxed) > 0;
            assert_eq!(is_measured, nanos >= MEASUREMENT);
            let is_certain = span.length.load(Ordering::Relaxed) > 0;
            assert_eq!(is_certain, nanos >= 3 * MEASUREMENT);
            if is_certain {
                return;
            }
        }
        panic!("the rate is never certain");
    }

    #[test]
    fn counter_that_jumps_or_changes_its_rate_is_off_for_one_span() {
        let (span, start) = certain();
        let jumps: [fn(u64) -> u64; 3] = [
            |nanos| ticks(nanos) / 1_000,
            |nanos| ticks(nanos) + (1 << 40),
            |nanos| ticks(nanos) / 2 * 3,
        ];
        let mut nanos = start;
        for jumped in jumps {
            // At the first reading after a jump, a span may hide it.
            let seen = nanos + 3 * MEASUREMENT;
            while nanos < seen + 50 * SPAN {
                let time = read(&span, nanos, jumped(nanos));
                assert!(time.abs_diff(nanos) < SPAN, "{time} at {nanos}");
                if nanos > seen {
                    assert!(time.abs_diff(nanos) < 2_000, "{time} at {nanos}");
                }
                nanos += 1_007;
            }
        }
    }

    #[test]
    fn thread_that_comes_late_changes_nothing_in_a_span_that_has_begun() {
        let (span, start) = certain();
        let nanos = start + 2 * SPAN;
        span.begin(
            Sample {
                ticks: ticks(nanos),
                nanos,
            },
            60,
        );
        let version = span.version.load(Ordering::Relaxed);
        for late in [nanos, nanos + 1, nanos + SPAN / 2] {
            span.begin(
                Sample {
                    ticks: ticks(late),
                    nanos: late,
                },
                60,
            );
            assert_eq!(span.version.load(Ordering::Relaxed), version);
        }
    }

    #[test]
    fn coarse_counter_is_not_used() {
        for (nanos_per_tick, is_used) in [(100, true), (120, false), (1_000, false)] {
            let span = CounterSpan::default();
            for nanos in (0..=5 * MEASUREMENT).step_by(10_000) {
                span.begin(
                    Sample {
                        ticks: nanos / nanos_per_tick,
                        nanos,
                    },
                    60,
                );
            }
            assert_eq!(span.is_certain(), is_used, "{nanos_per_tick} ns a tick");
        }
    }

    #[test]
    fn anchor_that_took_long_to_read_begins_no_span() {
        let (span, start) = certain();
        let nanos = start + 2 * SPAN;
        let ticks = ticks(nanos);
        span.begin(Sample { ticks, nanos }, MAX_GAP + 1);
        assert_eq!(span.nanos(|| ticks), None);
        assert!(!span.is_due(nanos), "the next attempt is a span later");
        let (nanos, ticks) = (nanos + SPAN, self::ticks(nanos + SPAN));
        span.begin(Sample { ticks, nanos }, MAX_GAP);
        assert_eq!(span.nanos(|| ticks), Some(nanos));
    }

    #[test]
    fn clock_keeps_to_the_systems_in_all_threads() {
        let clock = Monotonic::start();
        let (end, has_failed) = (Duration::from_millis(400), AtomicBool::new(false));
        let watch = || {
            let mut last = 0;
            while clock.started.elapsed() < end && !has_failed.load(Ordering::Relaxed) {
                let before = clock.nanos() / 1_000;
                let micros = clock.micros(|_| ());
                let after = clock.nanos() / 1_000;
                // A thread that is interrupted while it begins a span leaves the others with the system's time.
                let is_right = micros + 2 >= last && micros + 3 >= before && micros <= after;
                has_failed.fetch_or(!is_right, Ordering::Relaxed);
                assert!(is_right, "{last}: {before} <= {micros} <= {after}");
                last = micros;
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(watch))));
        assert!(Instant::now() >= clock.started + end);
    }
}
