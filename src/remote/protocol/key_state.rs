//! The state of a key, as the script replies it.

use crate::{
    algorithm::{Counter, Counting},
    clock::Timestamp,
    decision::{Retry, Usage},
};

/// The integers of a reply that describe the state of a key: `codec.rs` lists them. The first ones are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::remote) struct KeyState(pub [u64; 3]);

impl KeyState {
    /// Returns the usage, and when a charge of these units can succeed if it is denied now. One of no units always does.
    ///
    /// They are computed by the Rust twin of the script's algorithm. Only a sliding log has too long a state for that, so the script
    /// returns its results.
    pub fn usage_and_retry(self, counter: &Counter, units: u64, now: Timestamp) -> (Usage, Retry) {
        let Self([first, second, third]) = self;
        match counter {
            Counter::Bucket(bucket) => under(bucket, &bucket.state(first), units, now),
            Counter::FixedWindow(window) => {
                let state = window.state(Timestamp::from_micros(first), second);
                under(window, &state, units, now)
            }
            Counter::SlidingLog(log) => {
                let retry = if units > log.limit() {
                    Retry::Never
                } else if first + units <= log.limit() {
                    // It has room, but the key is banned.
                    Retry::Now
                } else {
                    Retry::At(Timestamp::from_micros(second))
                };
                let reset_at = Timestamp::from_micros(third).max(now);
                let remaining = log.limit().saturating_sub(first);
                (Usage::new(log.limit(), remaining, reset_at), retry)
            }
            Counter::SlidingWindow(window) => {
                let state = window.state(first / 1_000, second, third);
                under(window, &state, units, now)
            }
            Counter::Concurrency(slots) => under(slots, &slots.state(first), units, now),
        }
    }

    /// Returns the state as if so many more units were spent, or fewer. Those of logs and slots stay as they are.
    pub fn after(self, units: i64, counter: &Counter, now: Timestamp) -> Self {
        let Self([first, second, third]) = self;
        Self(match counter {
            Counter::Bucket(bucket) => {
                let micros = bucket.micros_up(units.unsigned_abs()).cast_signed();
                let tat = first.max(now.as_micros());
                let moved = tat.saturating_add_signed(micros * units.signum());
                [moved, second, third]
            }
            Counter::FixedWindow(_) => [first, second.saturating_add_signed(units), third],
            Counter::SlidingWindow(_) => [first, second, third.saturating_add_signed(units)],
            Counter::Concurrency(_) | Counter::SlidingLog(_) => self.0,
        })
    }

    /// Returns when the window ends that units are counted in; `None` for other algorithms.
    pub fn window_ends_at(self, counter: &Counter) -> Option<Timestamp> {
        match counter {
            Counter::FixedWindow(_) | Counter::SlidingWindow(_) => {
                Some(Timestamp::from_micros(self.0[0]))
            }
            Counter::Bucket(_) | Counter::Concurrency(_) | Counter::SlidingLog(_) => None,
        }
    }
}

fn under<C: Counting>(counter: &C, state: &C::State, units: u64, now: Timestamp) -> (Usage, Retry) {
    let retry = if units == 0 {
        Retry::Now
    } else {
        counter.retry(state, now, units)
    };
    (counter.usage(state, now), retry)
}
