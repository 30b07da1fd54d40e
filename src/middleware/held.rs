//! Charges of an admitted request or call, until it has ended.

use std::{
    future::Future,
    mem,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::Sleep;

use crate::{
    charge::{Actual, Charges, OwnedCharge, Receipt},
    clock::{Clock, Moment, Timestamp},
    decision::Decision,
    hold::{Hold, PlaceInQueue},
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
    /// When the turn begins of a request that has not begun to wait for it.
    turn: Option<Moment>,
    /// The place of a request that waits for its turn, if it can exchange that with others.
    place: Option<Box<PlaceInQueue>>,
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

    /// Returns how long the request must wait for its turn, after the decision that made the charges; `None` if it may start at once.
    pub(crate) fn delay(&self, decision: &Decision) -> Option<Duration> {
        let has_others_before = || self.only_hold().is_some_and(Hold::has_others_before);
        let delay = decision.delay();
        delay.or_else(|| has_others_before().then_some(Duration::ZERO))
    }

    /// Notes that the request has a turn, which begins after this time.
    pub(super) fn set_delay(&mut self, delay: Duration) {
        self.turn = Some(Moment::now() + delay);
    }

    /// Waits for the turn. `sleep` is the timer, which ends at the turn that the request was given.
    pub(super) fn poll_turn(
        &mut self,
        sleep: Pin<&mut Sleep>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        // A request that nobody polls has no place before others.
        if let Some(begins) = self.turn.take() {
            let hold = self.only_hold();
            let place = hold.and_then(|hold| hold.wait_in_queue(begins));
            self.place = place.map(Box::new);
        }
        let Some(place) = &mut self.place else {
            return sleep.poll(context);
        };
        let over = ready!(place.poll(sleep, context));
        self.place = None;
        self.set_turn(over);
        Poll::Ready(())
    }

    /// Returns the hold of the charges, unless several decisions made them.
    fn only_hold(&self) -> Option<&Hold> {
        match self.holds.as_slice() {
            [hold] => Some(hold),
            _ => None,
        }
    }

    fn set_turn(&mut self, over: Timestamp) {
        self.holds.iter_mut().for_each(|hold| hold.set_turn(over));
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

    /// Settles the charges at the cost that `actual` returns for each policy and the units charged. The charge is kept if
    /// `actual` panics, and refunded if the request was not started.
    pub(crate) fn settle<A: Into<Actual>>(mut self, actual: impl Fn(&Self, &Policy, u64) -> A) {
        if let Some(over) = self.place.take().and_then(|place| place.leave()) {
            self.set_turn(over);
        }
        for hold in mem::take(&mut self.holds) {
            hold.settle_at(|policy, charged| match self.started {
                None => 0.into(),
                Some(_) => {
                    let actual = || actual(&self, policy, charged).into();
                    // A second panic while one unwinds would abort the process.
                    panic::catch_unwind(AssertUnwindSafe(actual)).unwrap_or(charged.into())
                }
            });
        }
    }
}
