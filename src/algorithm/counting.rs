//! What every way of counting can do.

use std::fmt::Debug;

use crate::{
    clock::Timestamp,
    state::{Retry, Usage},
};

/// One way of counting, over the state of one key.
///
/// The default state is that of a key that owes nothing.
pub trait Counting {
    /// What is remembered of a key.
    type State: Clone + Debug + Default + PartialEq;

    /// Brings a state that was made under another shape of the policy over to this one.
    ///
    /// To be stored whatever is decided, or the state would go on draining by the old shape.
    fn adopt(&self, state: &mut Self::State, now: Timestamp);

    /// Whether a charge fits. A cost of 0 always does.
    fn admits(&self, state: &Self::State, now: Timestamp, cost: u64) -> bool;

    /// Makes a charge that fits.
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: u64);

    /// Makes a charge that fits; leaves the state alone and answers `false` when it does not.
    #[inline]
    fn take(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> bool {
        let admits = self.admits(state, now, cost);
        if admits && cost > 0 {
            self.charge(state, now, cost);
        }
        admits
    }

    /// Counts a denied attempt: as a charge, but at most until nothing is left.
    fn penalise(&self, state: &mut Self::State, now: Timestamp, cost: u64);

    /// Makes a charge whether it fits or not: for what was used already and is known only now.
    fn overcharge(&self, state: &mut Self::State, now: Timestamp, cost: u64);

    /// Takes back units of an earlier charge, which is known by the time when all was to be back after it.
    ///
    /// Never more than the charge still weighs: what time has given back since is not given back again.
    fn refund(&self, state: &mut Self::State, now: Timestamp, made: Timestamp, units: u64);

    /// What is used and left.
    fn usage(&self, state: &Self::State, now: Timestamp) -> Usage;

    /// When a charge that was denied can succeed, if nothing else is charged.
    fn retry(&self, state: &Self::State, now: Timestamp, cost: u64) -> Retry;

    /// When a charge that was just made may be used: later than now when it waits in a queue.
    #[inline]
    fn turn(&self, _state: &Self::State, now: Timestamp) -> Timestamp {
        now
    }

    /// From when on the state is that of a key that owes nothing, in microseconds.
    fn owes_until(state: &Self::State) -> u64;

    /// The state of a key that has nothing left and may owe until then.
    fn spent(&self, until: Timestamp) -> Self::State;
}
