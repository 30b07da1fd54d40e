//! Counters with the state of every caller, and what they are compared with.

use std::collections::{HashMap, VecDeque};

use tollgate::{
    Quota,
    algorithm::{Algorithm, BucketState, Counter, Counting, LogState, SlidingState, WindowState},
    clock::Timestamp,
};

use crate::traffic::MINUTE;

/// A counter with the state of every caller.
pub(crate) struct Gate {
    counter: Counter,
    states: HashMap<u32, State>,
}

enum State {
    Bucket(BucketState),
    FixedWindow(WindowState),
    SlidingLog(LogState),
    SlidingWindow(SlidingState),
}

macro_rules! counted {
    ($gate:expr, $caller:expr, ($counter:ident, $state:ident) => $body:expr) => {{
        let counter = &$gate.counter;
        let state = $gate
            .states
            .entry($caller)
            .or_insert_with(|| State::fresh(counter));
        match (counter, state) {
            (Counter::Bucket($counter), State::Bucket($state)) => $body,
            (Counter::FixedWindow($counter), State::FixedWindow($state)) => $body,
            (Counter::SlidingLog($counter), State::SlidingLog($state)) => $body,
            (Counter::SlidingWindow($counter), State::SlidingWindow($state)) => $body,
            _ => unreachable!("states are made for their counter"),
        }
    }};
}

impl Gate {
    pub(crate) fn new(quota: Quota, algorithm: Algorithm) -> Self {
        Self {
            counter: Counter::new(quota, algorithm).expect("a usable quota"),
            states: HashMap::new(),
        }
    }

    pub(crate) fn admits(&mut self, caller: u32, now: u64) -> bool {
        let now = Timestamp::from_micros(now);
        counted!(self, caller, (counter, state) => counter.take(state, now, 1))
    }

    pub(crate) fn used(&mut self, caller: u32, now: u64) -> u64 {
        let now = Timestamp::from_micros(now);
        let usage = counted!(self, caller, (counter, state) => counter.usage(state, now));
        usage.limit - usage.remaining
    }
}

impl State {
    fn fresh(counter: &Counter) -> Self {
        match counter {
            Counter::Bucket(_) => Self::Bucket(BucketState::default()),
            Counter::FixedWindow(_) => Self::FixedWindow(WindowState::default()),
            Counter::SlidingLog(_) => Self::SlidingLog(LogState::default()),
            Counter::SlidingWindow(_) => Self::SlidingWindow(SlidingState::default()),
            other => unreachable!("no row counts by {other:?}"),
        }
    }
}

// === Truth ===

/// The times of each caller within the last minute.
#[derive(Default)]
pub(crate) struct Truth {
    times: HashMap<u32, VecDeque<u64>>,
}

impl Truth {
    pub(crate) fn count(&mut self, caller: u32, now: u64) -> u64 {
        let times = self.times.entry(caller).or_default();
        while times.front().is_some_and(|first| first + MINUTE <= now) {
            times.pop_front();
        }
        times.len() as u64
    }

    /// Counts one more: how many there are with it.
    pub(crate) fn with(&mut self, caller: u32, now: u64) -> u64 {
        let count = self.count(caller, now);
        self.times.entry(caller).or_default().push_back(now);
        count + 1
    }
}

// === Mean ===

#[derive(Default)]
pub(crate) struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    pub(crate) fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sum / f64::from(self.count)
    }
}
