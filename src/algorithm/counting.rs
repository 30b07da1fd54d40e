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

    /// Makes a charge, whether it fits or not.
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

    /// What is used and left.
    fn usage(&self, state: &Self::State, now: Timestamp) -> Usage;

    /// When a charge that was denied can succeed, if nothing else is charged.
    fn retry(&self, state: &Self::State, now: Timestamp, cost: u64) -> Retry;

    /// From when on the state is that of a key that owes nothing, in microseconds.
    fn owes_until(state: &Self::State) -> u64;

    /// The state of a key that has nothing left and may owe until then.
    fn spent(&self, until: Timestamp) -> Self::State;
}
