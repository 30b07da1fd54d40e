//! When slots are renewed, and how long the task that renews them sleeps.

use std::time::Duration;

use crate::clock::{Clock, Timestamp};

use super::schedule::{HeldSlots, Schedule};

/// The schedule of renewals, and the sleep of the task that follows it.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    pub schedule: Schedule,
    /// Time until which the task sleeps. `None` while it renews, or does not run.
    sleeps_until: Option<Timestamp>,
}

impl Renewals {
    /// Returns whether the task must be woken for a hold whose first renewal is due after `soonest`.
    pub fn oversleeps(&self, now: Timestamp, soonest: Duration) -> bool {
        self.sleeps_until.is_some_and(|until| until > now + soonest)
    }

    /// Returns some of the holds that are due, after a wait.
    pub fn take_due(&mut self, waited: Duration) -> Vec<(u64, HeldSlots)> {
        self.sleeps_until = None;
        self.schedule.wake(Clock::system().now(), waited);
        self.schedule.take_due()
    }

    /// Returns how long the task must sleep, or `None` if nothing is held.
    pub fn next_wait(&mut self) -> Option<Duration> {
        let now = Clock::system().now();
        self.schedule.wake(now, Duration::ZERO);
        let wait = self.schedule.wait();
        self.sleeps_until = wait.map(|wait| now + wait);
        wait
    }

    /// Returns the longest time of a renewal: five eighths of the period of the hold that is due first.
    pub fn longest_renewal(&self) -> Duration {
        self.schedule.period().unwrap_or_default() / 8 * 5
    }
}
