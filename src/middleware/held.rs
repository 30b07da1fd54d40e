//! Charges of an admitted request or call, until it has ended.

use std::{
    mem,
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    charge::{Charges, OwnedCharge, Receipt},
    clock::{Clock, Timestamp},
    decision::Decision,
    hold::Hold,
    limiter::RateLimiter,
    policy::Policy,
};

/// Charges of an admitted request or call, and whether the service has been called for it.
///
/// ```text
/// in a queue --> start --> run, again and again --> settle at the real cost
///     | dropped: refunded    | panics: is_running stays set
/// ```
#[derive(Debug, Default)]
pub struct HeldCharges {
    /// One for each decision with a charge. Empty once they are settled.
    pub(crate) holds: SmallVec<[Hold; 1]>,
    /// `None` while the request waits in a queue.
    started: Option<Timestamp>,
    /// Whether the service or its response's body runs. Still set if that panicked.
    is_running: bool,
}

impl HeldCharges {
    /// Holds the charges of an admitting decision; `None` if nothing was charged.
    pub(crate) fn of(
        limiter: &RateLimiter,
        charges: &[OwnedCharge],
        decision: &Decision,
    ) -> Option<Self> {
        let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
        let receipt = Receipt::of(&charges, decision)?;
        Some(Self {
            holds: SmallVec::from_buf([limiter.hold(receipt)]),
            ..Self::default()
        })
    }

    /// Notes that the service is about to be called, or that the charges count although it is not.
    #[inline]
    pub(crate) fn start(&mut self) {
        self.started.get_or_insert_with(|| Clock::system().now());
    }

    /// Notes that the request waits, and is refunded if it ends before the next start.
    pub(super) fn wait(&mut self) {
        self.started = None;
    }

    /// Runs a part of the service, or of the body of its response.
    #[inline]
    pub(crate) fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.set_running(true);
        let done = work();
        self.set_running(false);
        done
    }

    /// Notes that the service begins to run, or that it has returned.
    #[inline]
    pub(super) fn set_running(&mut self, is_running: bool) {
        self.is_running = is_running;
    }

    /// Returns whether the service runs: if so while the request ends, it has panicked.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        let now = Clock::system().now();
        now.since(self.started.unwrap_or(now))
    }

    /// Settles the charges at the cost that `price` returns for each policy and the units charged. The charge is kept if
    /// `price` panics, and refunded if the request was not started.
    pub(crate) fn settle(mut self, price: impl Fn(&Self, &Policy, u64) -> u64) {
        for hold in mem::take(&mut self.holds) {
            hold.settle(|policy, charged| match self.started {
                None => 0,
                Some(_) => {
                    let price = || price(&self, policy, charged);
                    // A second panic while one unwinds would abort the process.
                    panic::catch_unwind(AssertUnwindSafe(price)).unwrap_or(charged)
                }
            });
        }
    }
}
