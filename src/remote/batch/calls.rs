//! The calls in flight, and when each must have ended.

use std::{sync::Arc, time::Duration};

use crate::clock::Timestamp;

use super::{alarm::Alarm, queue::Answer};

/// Names a call in flight, and the connection that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) lane: usize,
    pub(super) generation: u64,
}

/// All calls whose replies have not come yet.
#[derive(Debug)]
pub(super) struct Calls {
    deadline: Duration,
    in_flight: Vec<InFlight>,
    charges: usize,
    /// Per lane, the generation of the connection on which the latest reply came, and when.
    replied: Box<[(u64, Timestamp)]>,
}

/// A call whose reply has not come yet.
#[derive(Debug)]
pub(super) struct InFlight {
    call: Call,
    pub(super) sent_at: Timestamp,
    /// When its oldest job must be answered.
    due: Timestamp,
    /// The same before it was put off, see [`Calls::expire`].
    first_due: Timestamp,
    pub(super) charges: usize,
    /// Where its results go; empty for a call in its caller's own future.
    pub(super) answers: Vec<Answer>,
    pub(super) alarm: Arc<Alarm>,
}

impl InFlight {
    /// Whether its deadline was put off, since its task was polled late.
    fn is_put_off(&self) -> bool {
        self.due != self.first_due
    }
}

/// Calls that are overdue, and what has to be done about them.
#[derive(Debug, Default)]
pub(super) struct OverdueCalls {
    /// Jobs of calls whose tasks nobody polls any more.
    pub(super) unpolled: Vec<Answer>,
    /// Connections without a reply for a deadline: lane and generation.
    pub(super) mute: Vec<(usize, u64)>,
    /// Whether a call among them failed that nobody else reports.
    pub(super) is_unreported: bool,
    /// Tasks to wake.
    pub(super) woken: Vec<Arc<Alarm>>,
    /// When to look again; `None` if nothing is in flight.
    pub(super) next: Option<Timestamp>,
}

impl Calls {
    pub(super) fn new(deadline: Duration, lanes: usize) -> Self {
        Self {
            deadline,
            in_flight: Vec::new(),
            charges: 0,
            replied: vec![(NO_CONNECTION, Timestamp::default()); lanes].into(),
        }
    }

    /// Returns the number of calls.
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the number of charges in all calls.
    pub(super) fn charges(&self) -> usize {
        self.charges
    }

    /// Returns the number of calls on a lane.
    pub(super) fn on_lane(&self, lane: usize) -> usize {
        let calls = self.in_flight.iter();
        calls.filter(|other| other.call.lane == lane).count()
    }

    /// Adds a call that is sent now, and must be answered by `due`.
    pub(super) fn add(
        &mut self,
        call: Call,
        now: Timestamp,
        due: Timestamp,
        charges: usize,
        answers: Vec<Answer>,
    ) -> Arc<Alarm> {
        let alarm = Arc::new(Alarm::default());
        self.charges += charges;
        self.in_flight.push(InFlight {
            call,
            sent_at: now,
            due,
            first_due: due,
            charges,
            answers,
            alarm: Arc::clone(&alarm),
        });
        alarm
    }

    /// Removes a call that has ended.
    pub(super) fn remove(&mut self, call: Call) -> Option<InFlight> {
        let mut calls = self.in_flight.iter();
        let place = calls.position(|other| other.call == call)?;
        let removed = self.in_flight.swap_remove(place);
        self.charges -= removed.charges;
        Some(removed)
    }

    /// Notes that a reply came on the connection of this call.
    pub(super) fn note_reply(&mut self, call: Call, now: Timestamp) {
        self.replied[call.lane] = (call.generation, now);
    }

    /// Decides about a call whose task is polled after its deadline.
    ///
    /// If the task was polled long after it was woken, its runtime was busy, and the reply may have arrived: once, the call is
    /// given as long again, but twice the deadline at most. Otherwise its jobs get no reply in time: they are returned.
    pub(super) fn expire(&mut self, call: Call, now: Timestamp) -> Option<Vec<Answer>> {
        let mut calls = self.in_flight.iter_mut();
        let in_flight = calls.find(|other| other.call == call)?;
        let late = now.since(in_flight.due);
        let last = in_flight.first_due + self.deadline;
        if late > LAG && !in_flight.is_put_off() && now < last {
            in_flight.due = (now + late).min(last);
            in_flight.alarm.put_off();
            return None;
        }
        in_flight.alarm.note_expired();
        Some(std::mem::take(&mut in_flight.answers))
    }

    /// Finds what is overdue, and when to look again.
    pub(super) fn overdue(&mut self, now: Timestamp) -> OverdueCalls {
        let mut overdue = OverdueCalls::default();
        let mut moments = Vec::new();
        for one in &mut self.in_flight {
            if one.alarm.is_quiet() && one.due <= now {
                one.alarm.note_due();
                overdue.woken.push(Arc::clone(&one.alarm));
            }
            let replied_at = match self.replied[one.call.lane] {
                (generation, at) if generation == one.call.generation => at,
                _ => Timestamp::default(),
            };
            let mute_at = (one.sent_at.max(replied_at) + self.deadline).max(one.due);
            let last = one.first_due + self.deadline;
            let mut was_looked_at = one.alarm.is_expired();
            if last <= now && !one.alarm.is_expired() {
                overdue.unpolled.append(&mut one.answers);
                // Otherwise nobody has looked since its deadline, and its reply may have come.
                was_looked_at = one.is_put_off();
                overdue.is_unreported |= was_looked_at;
            }
            if was_looked_at && mute_at <= now && one.call.generation != NO_CONNECTION {
                overdue.mute.push((one.call.lane, one.call.generation));
            }
            moments.extend([one.due, mute_at, last]);
        }
        for (lane, generation) in &overdue.mute {
            overdue
                .woken
                .extend(self.end_connection(*lane, *generation));
        }
        overdue.woken.extend(self.remove_overdue(now));
        overdue.next = moments.into_iter().filter(|at| *at > now).min();
        overdue
    }

    /// Has the tasks of all calls on a connection end. Returns their alarms.
    pub(super) fn end_connection(&mut self, lane: usize, generation: u64) -> Vec<Arc<Alarm>> {
        let on_it = |call: &Call| call.lane == lane && call.generation == generation;
        let calls = self.in_flight.iter().filter(|other| on_it(&other.call));
        let alarms = calls.map(|call| {
            call.alarm.note_given_up();
            Arc::clone(&call.alarm)
        });
        alarms.collect()
    }

    /// Removes calls whose tasks may never come to end them: calls in flight are few. Returns their alarms.
    fn remove_overdue(&mut self, now: Timestamp) -> Vec<Arc<Alarm>> {
        let is_overdue = |one: &mut InFlight| one.first_due + self.deadline <= now;
        let removed: Vec<InFlight> = self.in_flight.extract_if(.., is_overdue).collect();
        let alarms = removed.into_iter().map(|removed| {
            self.charges -= removed.charges;
            removed.alarm.note_given_up();
            removed.alarm
        });
        alarms.collect()
    }
}

/// The generation of a command that is not bound to a connection.
pub(super) const NO_CONNECTION: u64 = 0;
/// A task that runs so much later than it was woken is on a busy runtime.
const LAG: Duration = Duration::from_millis(2);
