//! The task that renews slot leases, and its replacement when it is late.

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use tokio::task::AbortHandle;

use crate::{
    clock::{Clock, Timestamp},
    task::{Sleep, timer::sleep},
};

use super::schedule::{HeldSlots, Schedule};

/// The schedule of renewals, and the task that follows it for all holds, on the runtime of one of them or at home.
///
/// ```text
/// wakes_at                          late_at
///    |---------- tolerance ------------|---------- tolerance ----------|-- ..
///    the task should wake              the alarm starts a task         the alarm starts another one
///                                      at home
/// ```
///
/// The alarm rings on the timer's thread, so renewals go on if the task's runtime ends or is not driven. The tolerance is
/// 1/24 of the lease.
#[derive(Debug, Default)]
pub(super) struct RenewalTask {
    pub(super) schedule: Schedule,
    handle: Option<AbortHandle>,
    /// Number of the current task. Any other task ends when it wakes, unless the current one is late.
    current: u64,
    /// Number of tasks that were started.
    started: u64,
    /// Whether the task awaits a reply of the store.
    is_renewing: bool,
    /// Time at which the task wakes, if its runtime is driven.
    wakes_at: Timestamp,
    /// Time at which the alarm rings.
    late_at: Timestamp,
    /// Number of tasks started since one has woken.
    futile_starts: u32,
    alarm: Option<Sleep>,
}

impl RenewalTask {
    /// Returns whether the task wakes in time for a hold whose first renewal is due after `soonest`. A task that is late has
    /// lost its runtime.
    pub(super) fn is_on_time(&self, now: Timestamp, soonest: Duration) -> bool {
        let is_running = self.handle.as_ref().is_some_and(|task| !task.is_finished());
        let is_running = is_running && self.alarm.is_some();
        is_running && self.wakes_at <= now + soonest && now <= self.wakes_at + soonest
    }

    /// Prepares for a task that wakes after this wait. Returns its number.
    pub(super) fn next_task(&mut self, wait: Duration) -> u64 {
        self.started += 1;
        self.current = self.started;
        self.wakes_at = Clock::system().now() + wait;
        self.current
    }

    /// Replaces the former task by one that was started, if any, and sets the alarm for it.
    pub(super) fn task_started(&mut self, started: Option<AbortHandle>, alarm: &Waker) {
        let former = mem::replace(&mut self.handle, started);
        // A task that is renewing ends after the store's reply, which must not be lost.
        if let Some(former) = former.filter(|_| !self.is_renewing) {
            former.abort();
        }
        self.is_renewing = false;
        if self.handle.is_none() {
            self.alarm = None;
            return;
        }
        // Each hold starts a task while none wakes. The alarm must not move later each time, not even one that is about to ring.
        let late_at = self.wakes_at + self.tolerance();
        if self.alarm.is_none() || late_at < self.late_at {
            self.set_alarm(late_at, alarm);
        }
    }

    /// Handles the alarm. Returns whether the task is late and another one must be started.
    pub(super) fn must_replace(&mut self, alarm: &Waker) -> bool {
        if self.schedule.wait().is_none() {
            self.handle = None;
            return false;
        }
        if !self.is_late() {
            // The task has woken just now, or the clock has stepped back by a few microseconds since the alarm rang.
            self.set_alarm(self.late_at, alarm);
        }
        let is_late = self.alarm.is_none() || self.is_late();
        if is_late {
            self.futile_starts += 1;
            self.alarm = None;
        }
        is_late
    }

    /// Returns some of the holds that are due, after a wait. Returns none if another task has taken over.
    pub(super) fn take_due(
        &mut self,
        task: u64,
        waited: Duration,
        alarm: &Waker,
    ) -> Vec<(u64, HeldSlots)> {
        if self.current != task && !self.is_late() {
            return Vec::new();
        }
        (self.current, self.futile_starts) = (task, 0);
        let now = Clock::system().now();
        self.schedule.wake(now, waited);
        let due = self.schedule.take_due();
        self.is_renewing = !due.is_empty();
        // If the store is slow, another task would only send it more renewals.
        self.wakes_at = now + self.tolerance() * 4;
        self.set_alarm(self.wakes_at + self.tolerance(), alarm);
        due
    }

    /// Returns how long the task must wait. Returns `None`, which ends it, if nothing is held or another task has taken over.
    pub(super) fn next_wait(&mut self, task: u64, alarm: &Waker) -> Option<Duration> {
        if self.current != task {
            return None;
        }
        let now = Clock::system().now();
        self.schedule.wake(now, Duration::ZERO);
        let wait = self.schedule.wait();
        self.is_renewing = false;
        match wait {
            Some(wait) => {
                self.wakes_at = now + wait;
                self.set_alarm(self.wakes_at + self.tolerance(), alarm);
            }
            None => (self.handle, self.alarm) = (None, None),
        }
        wait
    }

    /// Returns whether the alarm should have rung by now.
    fn is_late(&self) -> bool {
        Clock::system().now() >= self.late_at
    }

    /// Returns how late the task may be. Doubles after every 4 futile starts: where no runtime is driven, tasks would pile
    /// up.
    fn tolerance(&self) -> Duration {
        let period = self.schedule.period().unwrap_or_default();
        let doublings = (self.futile_starts / 4).min(16);
        period / 8 * (1 << doublings)
    }

    /// Replaces the alarm. A time that has passed sets none, and the task then does not count as on time.
    fn set_alarm(&mut self, late_at: Timestamp, alarm: &Waker) {
        self.late_at = late_at;
        let mut sleep = sleep(late_at.since(Clock::system().now()));
        let polled = Pin::new(&mut sleep).poll(&mut Context::from_waker(alarm));
        self.alarm = polled.is_pending().then_some(sleep);
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        if let Some(task) = &self.handle {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{Key, Policy, charge::Settlement};

    use super::*;

    // Regression: an alarm that rang a microsecond early by the clock of another thread was the last one.
    #[test]
    fn alarm_that_rings_early_is_set_again() {
        let mut renewal = RenewalTask::default();
        let charge = Policy::concurrency("slots", 10)
            .charge(Key::GLOBAL)
            .to_owned();
        let slots = Arc::from([Settlement::release(charge, false)]);
        let now = Clock::system().now();
        renewal.schedule.add(slots, now);
        renewal.late_at = now + Duration::from_secs(3_600);
        assert!(!renewal.must_replace(Waker::noop()));
        assert!(renewal.alarm.is_some(), "it rings again");
        renewal.late_at = now;
        assert!(renewal.must_replace(Waker::noop()));
    }

    // Regression: holds on runtimes that came and went moved an alarm that was due, and no other runtime took over.
    #[tokio::test]
    async fn alarm_that_is_due_is_not_moved_by_another_start() {
        let mut renewal = RenewalTask::default();
        let start = || Some(tokio::spawn(std::future::pending::<()>()).abort_handle());
        renewal.next_task(Duration::ZERO);
        renewal.task_started(start(), Waker::noop());
        renewal.set_alarm(
            Clock::system().now() + Duration::from_micros(50),
            Waker::noop(),
        );
        let due = renewal.late_at;
        while !renewal.is_late() {}
        renewal.next_task(Duration::from_secs(1));
        renewal.task_started(start(), Waker::noop());
        assert_eq!(renewal.late_at, due);
    }
}
