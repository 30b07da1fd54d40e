//! What wakes the task of a call.

use std::{
    sync::atomic::{AtomicU8, Ordering},
    task::Context,
};

use futures_util::task::AtomicWaker;

/// Wakes the task of a call when the time is up.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    level: AtomicU8,
    waker: AtomicWaker,
}

impl Alarm {
    /// Has this task woken when the alarm is raised. Poll the call after it, so that no alarm is missed.
    pub(super) fn register(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }

    /// Whether the deadline has passed, and nobody has dealt with it.
    pub(super) fn is_due(&self) -> bool {
        self.level.load(Ordering::Acquire) == DUE
    }

    /// Whether the call was given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.level.load(Ordering::Acquire) == GIVEN_UP
    }

    /// Wakes the task. Not under a lock.
    pub(super) fn ring(&self) {
        self.waker.wake();
    }

    /// Whether the deadline has not passed yet.
    pub(super) fn is_quiet(&self) -> bool {
        self.level.load(Ordering::Acquire) == QUIET
    }

    /// Whether the jobs got their timeout error.
    pub(super) fn is_expired(&self) -> bool {
        self.level.load(Ordering::Acquire) >= EXPIRED
    }

    /// Notes that the deadline has passed.
    pub(super) fn note_due(&self) {
        self.level.fetch_max(DUE, Ordering::AcqRel);
    }

    /// Notes that the jobs were answered.
    pub(super) fn note_expired(&self) {
        self.level.fetch_max(EXPIRED, Ordering::AcqRel);
    }

    /// Notes that the call was given up.
    pub(super) fn note_given_up(&self) {
        self.level.fetch_max(GIVEN_UP, Ordering::AcqRel);
    }

    /// Notes that the deadline was put off.
    pub(super) fn put_off(&self) {
        let _ = self
            .level
            .compare_exchange(DUE, QUIET, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Before the deadline.
const QUIET: u8 = 0;
/// The deadline has passed, which the task has not seen yet.
const DUE: u8 = 1;
/// The jobs were answered that no reply came in time.
const EXPIRED: u8 = 2;
/// The call was given up, with its connection or because nobody polled it.
const GIVEN_UP: u8 = 3;
