//! The held slots of a limiter, and the task that renews them.

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
    timer::{Sleep, sleep},
};

use super::schedule::{Schedule, Slots};

/// The schedule of renewals, and the task that follows it for all holds, on the runtime of one of them.
///
/// ```text
/// the task wakes, or is to       alarm: it has not woken       alarm
///   |------------ patience ------------|------ patience ------|-- ..
///                                      a task on the runtime of another hold
/// ```
///
/// The timer's thread rings the alarm, so neither a runtime that ends nor one that nobody drives stops renewals.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) schedule: Schedule,
    running: Option<AbortHandle>,
    /// Number of the task that renews. Another one ends when it wakes, unless this one is late.
    task: u64,
    tasks: u64,
    /// Whether the task waits for the store.
    is_renewing: bool,
    /// When the task wakes, if anybody drives its runtime.
    wakes_at: Timestamp,
    /// When the task is late, and the alarm rings.
    late_at: Timestamp,
    /// Tasks that were started since one has woken.
    in_vain: u32,
    alarm: Option<Sleep>,
}

impl Held {
    /// Whether a task wakes in time for a hold that must be renewed so soon. One that is late has lost its runtime.
    pub(super) fn is_looked_after(&self, now: Timestamp, soonest: Duration) -> bool {
        let is_running = self
            .running
            .as_ref()
            .is_some_and(|task| !task.is_finished());
        let is_running = is_running && self.alarm.is_some();
        is_running && self.wakes_at <= now + soonest && now <= self.wakes_at + soonest
    }

    /// Returns the number of a task that is about to be started, and wakes after this wait.
    pub(super) fn next_task(&mut self, wait: Duration) -> u64 {
        self.tasks += 1;
        self.task = self.tasks;
        self.wakes_at = Clock::system().now() + wait;
        self.task
    }

    /// Notes the task that was started. Wakes `lookout` when that is late.
    pub(super) fn note_task(&mut self, started: Option<AbortHandle>, lookout: &Waker) {
        let former = mem::replace(&mut self.running, started);
        // One that renews ends when the store has answered, which is not to be lost.
        if let Some(former) = former.filter(|_| !self.is_renewing) {
            former.abort();
        }
        self.is_renewing = false;
        // A task that never woke may have been meant to renew by then.
        let pending = self.alarm.take().map(|_| self.late_at);
        let pending = pending.filter(|late_at| *late_at > Clock::system().now());
        if self.running.is_some() {
            let late_at = self.wakes_at + self.patience();
            self.set_alarm(
                pending.map_or(late_at, |pending| pending.min(late_at)),
                lookout,
            );
        }
    }

    /// When the alarm rings: returns whether the task is late, so that another is to be started.
    pub(super) fn must_replace(&mut self) -> bool {
        if self.schedule.wait().is_none() {
            self.running = None;
            return false;
        }
        // It may have woken, and set another alarm, just now.
        let is_late = self.is_late();
        self.in_vain += u32::from(is_late);
        is_late
    }

    /// Some of what is due, after a wait; nothing if another task has taken over.
    pub(super) fn due(
        &mut self,
        task: u64,
        waited: Duration,
        lookout: &Waker,
    ) -> Vec<(u64, Slots)> {
        if self.task != task && !self.is_late() {
            return Vec::new();
        }
        (self.task, self.in_vain) = (task, 0);
        let now = Clock::system().now();
        self.schedule.wake(now, waited);
        let due = self.schedule.take_due();
        self.is_renewing = !due.is_empty();
        // The store may take a while, and another task would only ask it for more.
        self.wakes_at = now + self.patience() * 4;
        self.set_alarm(self.wakes_at + self.patience(), lookout);
        due
    }

    /// How long the task is to wait. `None` ends it: nothing is held, or another task has taken over.
    pub(super) fn wait(&mut self, task: u64, lookout: &Waker) -> Option<Duration> {
        if self.task != task {
            return None;
        }
        let now = Clock::system().now();
        self.schedule.wake(now, Duration::ZERO);
        let wait = self.schedule.wait();
        self.is_renewing = false;
        match wait {
            Some(wait) => {
                self.wakes_at = now + wait;
                self.set_alarm(self.wakes_at + self.patience(), lookout);
            }
            None => (self.running, self.alarm) = (None, None),
        }
        wait
    }

    /// Ends the task.
    pub(super) fn abort(&mut self) {
        if let Some(task) = self.running.take() {
            task.abort();
        }
    }

    fn is_late(&self) -> bool {
        Clock::system().now() >= self.late_at
    }

    /// How late the task may be. Longer after some tasks in vain: where nothing runs at all, they would pile up.
    fn patience(&self) -> Duration {
        let period = self.schedule.period().unwrap_or_default();
        let doublings = (self.in_vain / 4).min(16);
        period / 8 * (1 << doublings)
    }

    fn set_alarm(&mut self, late_at: Timestamp, lookout: &Waker) {
        self.late_at = late_at;
        let mut alarm = sleep(late_at.since(Clock::system().now()));
        let polled = Pin::new(&mut alarm).poll(&mut Context::from_waker(lookout));
        self.alarm = polled.is_pending().then_some(alarm);
    }
}
