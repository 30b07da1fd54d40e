//! What every way of counting can do.

use std::fmt::Debug;

use crate::{
    clock::Timestamp,
    state::{Retry, Usage},
};

/// By what a charge is known when it is put right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChargeMark {
    /// When all was to be back after it.
    pub made: Timestamp,
    /// The sum of what had been taken back of the key's earlier charges: what is added to it since moved this charge
    /// forward, so that less of it weighs than `made` alone would tell. 0 where nothing was.
    pub returned: u64,
}

impl ChargeMark {
    /// The sum counts up to here and begins anew, so that the Lua twin can compute with it in doubles.
    pub const MODULUS: u64 = 1 << 52;

    /// What was taken back between the mark and a later sum.
    #[must_use]
    pub fn returned_since(self, returned: u64) -> u64 {
        returned.wrapping_sub(self.returned) % Self::MODULUS
    }
}

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

    /// Takes back units of an earlier charge, which is known by its mark.
    ///
    /// Never more than the charge still weighs: what time has given back since is not given back again. `returned` is
    /// the key's sum of what was taken back before, which [`ChargeMark`] speaks of; some ways of counting need none.
    fn refund(
        &self,
        state: &mut Self::State,
        returned: &mut u64,
        now: Timestamp,
        mark: ChargeMark,
        units: u64,
    );

    /// What is used and left.
    fn usage(&self, state: &Self::State, now: Timestamp) -> Usage;

    /// When a charge that was denied can succeed, if nothing else is charged.
    fn retry(&self, state: &Self::State, now: Timestamp, cost: u64) -> Retry;

    /// Drops what no longer counts from a state that grows with every charge, for the memory that it takes.
    #[inline]
    fn drop_lapsed(&self, _state: &mut Self::State, _now: Timestamp) {}

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
