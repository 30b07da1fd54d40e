//! Waiting decisions, calls in flight, and the rules for both.

use std::{sync::Arc, time::Duration};

use crate::clock::Timestamp;

use super::{
    alarm::Alarm,
    calls::{Call, Calls},
    queue::{Answer, Job, Queue},
    step::Gatherer,
    window::Window,
};

/// The traffic to one server. See the [module docs](super) for the rules.
#[derive(Debug)]
pub(super) struct State {
    deadline: Duration,
    pub(super) queue: Queue,
    pub(super) calls: Calls,
    pub(super) window: Window,
    pub(super) gatherer: Option<Gatherer>,
    /// Whether the latest call carried one decision. After one of several, others are about to ask with the next.
    pub(super) is_alone: bool,
    /// When decisions were last turned away.
    full_at: Timestamp,
    /// The number of the next call or gatherer.
    next: u64,
}

impl State {
    pub(super) fn new(deadline: Duration, lanes: usize) -> Self {
        Self {
            deadline,
            queue: Queue::default(),
            calls: Calls::new(deadline, lanes),
            window: Window::new(deadline),
            gatherer: None,
            is_alone: true,
            full_at: Timestamp::default(),
            next: 0,
        }
    }

    /// Whether the next decision may make its call itself, without a wait for others.
    pub(super) fn may_lead(&self) -> bool {
        let is_idle = self.calls.len() == 0 && self.queue.is_empty() && self.gatherer.is_none();
        is_idle && self.is_alone
    }

    /// Notes a call that is sent now.
    pub(super) fn begin(
        &mut self,
        (lane, generation): (usize, u64),
        now: Timestamp,
        due: Timestamp,
        charges: usize,
        answers: Vec<Answer>,
    ) -> (Call, Arc<Alarm>) {
        let is_idle = self.calls.len() == 0;
        if self.calls.charges() == 0 {
            self.window.note_idle();
        }
        self.window.note_connection(generation, now, is_idle);
        let call = Call {
            number: self.number(),
            lane,
            generation,
        };
        let alarm = self.calls.add(call, now, due, charges, answers);
        (call, alarm)
    }

    /// Removes the jobs for the next call.
    pub(super) fn take(&mut self, now: Timestamp) -> Vec<Job> {
        let most = match self.window.wants_probe(now) {
            true => 1,
            // Half of the window at most, so that the server is not idle while a reply travels.
            false => (self.window.capacity() / 2).min(MOST_CHARGES),
        };
        let newest_first = self.is_late(now);
        self.queue.take(most, newest_first)
    }

    pub(super) fn is_gatherer(&self, gatherer: Gatherer) -> bool {
        self.gatherer
            .is_some_and(|current| current.number == gatherer.number)
    }

    /// Makes the caller the gatherer if something waits that may be sent, and nobody gathers.
    pub(super) fn start_gathering(&mut self, now: Timestamp) -> Option<Gatherer> {
        if self.gatherer.is_some() || self.queue.is_empty() || !self.may_send(now) {
            return None;
        }
        self.gatherer = Some(Gatherer {
            number: self.number(),
            since: now,
        });
        self.gatherer
    }

    /// Whether what waits may be sent: the window has room, and the call is one of few, or large beside those in flight.
    pub(super) fn may_send(&mut self, now: Timestamp) -> bool {
        if self.is_window_full() {
            self.window.note_full();
            return false;
        }
        if self.waits_for_probe(now) {
            return false;
        }
        let share = self.calls.charges() / PART_CALLS;
        let share = share.clamp(LEAST_TOGETHER, MOST_CHARGES);
        self.calls.len() < PART_CALLS || self.queue.charges() >= share
    }

    fn is_window_full(&self) -> bool {
        self.calls.charges() >= self.window.capacity()
    }

    /// Whether nothing else may be sent beside what is in flight, so that the network is measured.
    fn waits_for_probe(&self, now: Timestamp) -> bool {
        self.calls.charges() > 0 && (self.window.is_probing() || self.window.wants_probe(now))
    }

    /// Whether more waits for the window than the server answers in an eighth of the deadline and a turn of the runtime, and
    /// it is not just a burst. Until the server has shown what it answers, nobody is turned away.
    pub(super) fn is_full(&mut self, now: Timestamp) -> bool {
        let time = self.deadline / 8 + self.window.turn();
        let most = self.window.answered_in(time).max(LEAST_WAITING);
        // Otherwise ten times the load would be let in for a sixth of the deadline again and again.
        let was_full = now.since(self.full_at) < self.deadline * 4;
        // A wait for a probe is no overload.
        let is_overload = match self.is_window_full() {
            true => was_full || self.is_late(now),
            false => was_full && self.waits_for_probe(now),
        };
        let is_full = self.window.is_measured() && self.queue.charges() > most && is_overload;
        if is_full {
            self.full_at = now;
        }
        is_full
    }

    /// Removes jobs that waited too long to be answered in time.
    pub(super) fn shed(&mut self, now: Timestamp) -> Vec<Answer> {
        let mut shed = Vec::new();
        while let Some(oldest) = self.queue.oldest()
            && self.window.waited(oldest, now) > self.deadline / 2
        {
            shed.extend(self.queue.pop_oldest().map(|job| job.answer));
        }
        shed
    }

    /// Whether the oldest job has waited so long that the newest is the better one to send.
    fn is_late(&self, now: Timestamp) -> bool {
        let patience = self.deadline / 6 + self.window.turn();
        let oldest = self.queue.oldest();
        oldest.is_some_and(|asked_at| self.window.waited(asked_at, now) > patience)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Charges in one call, unless one decision has more. More would make each call longer than it saves: 64 take Redis
/// about 0.2 ms.
const MOST_CHARGES: usize = 64;
/// Calls in flight, beyond which a call must be full, or have as many charges as one of so many has on average.
const PART_CALLS: usize = 16;
/// Charges in a call beyond that at least.
const LEAST_TOGETHER: usize = 4;
/// Charges that may wait however slow the server is.
const LEAST_WAITING: usize = 4;
