//! The callers of this process that wait for the same charges, in order.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use super::{error::AcquireError, permit::Grant, server_clock::ServerClock};
use crate::{
    charge::{Fingerprint, OwnedCharge, Priority, TurnRequest, WaitingCaller},
    clock::Timestamp,
    decision::{PolicyName, Ticket},
    error::Error,
    policy::LoanStep,
    task::Mutex,
};

/// Identifies a line by the priority and all charges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LineKey {
    priority: Priority,
    charges: SmallVec<[ChargeKey; 2]>,
}

/// A key that lines wait for, and their priority.
pub(super) type GateKey = (Fingerprint, Priority);

/// Identifies a charge: callers under a changed limit wait in another line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ChargeKey {
    key: Fingerprint,
    units: u64,
    /// Count, capacity and period.
    quota: (u64, u64, Duration),
    algorithm: &'static str,
    loan: Option<LoanStep>,
    is_shadow: bool,
}

impl LineKey {
    pub fn new(charges: &[OwnedCharge], priority: Priority) -> Self {
        let charges = charges.iter().map(|charge| {
            let charge = charge.borrow();
            let (policy, quota) = (charge.policy(), charge.policy().quota());
            ChargeKey {
                key: Fingerprint::of(policy, charge.key()),
                units: charge.units(),
                quota: (quota.count(), quota.capacity(), quota.period()),
                algorithm: policy.algorithm_name(),
                loan: charge.loan(),
                is_shadow: charge.is_shadow(),
            }
        });
        Self {
            priority,
            charges: charges.collect(),
        }
    }
}

/// Callers that wait for the same charges with the same priority.
#[derive(Debug)]
pub(super) struct Line {
    pub key: LineKey,
    /// As they were asked for the last time.
    charges: Mutex<Arc<[OwnedCharge]>>,
    priority: Priority,
    /// Identifies the queue in the store.
    queue: u64,
    /// Whether all charges are of buckets, so that units can be granted ahead.
    pub is_of_buckets: bool,
    /// Whether the callers wait for slots, which come back at a time that is not known.
    pub has_slots: bool,
    /// The clock of the server that has the keys.
    pub clock: ServerClock,
    /// The microseconds that each caller takes at the slowest rate.
    interval: AtomicU64,
    state: Mutex<State>,
    /// Notified when the last caller leaves, or when slots may be free.
    pub woken: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By the order in which they came.
    callers: BTreeMap<u64, Caller>,
    next_number: u64,
    /// Number of callers that are granted their turn, and have not had it.
    granted: usize,
    /// When the first caller behind them is to have its turn, by the local clock. `None` if that is not known.
    due: Option<Timestamp>,
    /// The index of the charge that the callers wait for.
    waits_for: usize,
    /// Whether slots may be free, or the line may ask now.
    is_woken: bool,
    /// Whether each caller has been granted its turn, so that the next one must be asked for.
    is_served: bool,
    /// The error of the last question, if it had no reply.
    failure: Option<Error>,
}

/// A caller that waits.
#[derive(Debug)]
struct Caller {
    came: Timestamp,
    /// When it gives up.
    until: Timestamp,
    turn: oneshot::Sender<CallerResult>,
}

/// The turn of a caller, or why it has none.
pub(super) type CallerResult = Result<Grant, AcquireError>;

impl Line {
    pub fn new(
        (queue, key): (u64, LineKey),
        charges: Arc<[OwnedCharge]>,
        priority: Priority,
    ) -> Self {
        let mut borrowed = charges.iter().map(OwnedCharge::borrow);
        let is_of_buckets = borrowed
            .clone()
            .all(|charge| charge.counter().bucket().is_some());
        Self {
            key,
            priority,
            queue,
            is_of_buckets,
            has_slots: borrowed.any(|charge| charge.ticket().is_some()),
            clock: ServerClock::default(),
            interval: AtomicU64::new(interval_of(&charges)),
            charges: Mutex::new(charges),
            state: Mutex::default(),
            woken: Notify::new(),
        }
    }

    /// Returns a number that identifies the line.
    pub fn number(&self) -> u64 {
        self.queue
    }

    /// Returns where lines wait for the key of a charge.
    pub fn gate(&self, index: usize) -> GateKey {
        // A candidate's state is no charge.
        let charge = self.key.charges.get(index).or(self.key.charges.first());
        let key = charge.map_or(Fingerprint::EMPTY, |charge| charge.key);
        (key, self.priority)
    }

    /// Returns when the first caller came that is not granted its turn yet.
    pub fn first_came(&self) -> Option<Timestamp> {
        let state = self.state.lock();
        let first = state.callers.values().nth(state.granted);
        first.map(|caller| caller.came)
    }

    /// Adds a caller at the end. Returns its number and its turn.
    ///
    /// # Errors
    ///
    /// How long its turn is away, if that is longer than it waits.
    pub fn join(
        &self,
        came: Timestamp,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(u64, oneshot::Receiver<CallerResult>), Duration> {
        let mut state = self.state.lock();
        if let Some(turn) = state.turn_of(state.callers.len(), self.interval())
            && turn > until
        {
            return Err(turn.since(now));
        }
        let (turn, receiver) = oneshot::channel();
        let number = state.next_number;
        state.next_number += 1;
        state.callers.insert(number, Caller { came, until, turn });
        if std::mem::take(&mut state.is_served) || state.callers.len() == 1 {
            self.woken.notify_one();
        }
        Ok((number, receiver))
    }

    /// Removes a caller that leaves. Those behind it move up.
    pub fn leave(&self, number: u64) {
        let mut state = self.state.lock();
        let left = state.callers.remove(&number);
        let is_empty = state.callers.is_empty();
        drop(state);
        if left.is_some() && is_empty {
            self.woken.notify_one();
        }
    }

    /// Returns whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.state.lock().callers.is_empty()
    }

    /// Returns the number of callers.
    #[cfg(feature = "explain")]
    pub fn callers(&self) -> usize {
        self.state.lock().callers.len()
    }

    /// Returns whether the callers wait for this key, among others.
    #[cfg(feature = "explain")]
    pub fn waits_for(&self, key: Fingerprint) -> bool {
        self.key.charges.iter().any(|charge| charge.key == key)
    }

    /// Returns how long the first turn is away.
    pub fn first_turn(&self, now: Timestamp) -> Option<Duration> {
        let state = self.state.lock();
        let turn = state.turn_of(state.callers.len(), self.interval())?;
        Some(turn.since(now))
    }

    /// Notes that slots may be free, or that the line may ask now.
    pub fn wake(&self) {
        self.state.lock().is_woken = true;
        self.woken.notify_one();
    }

    /// Returns whether the line was woken since the last call.
    pub fn take_wake(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_woken)
    }

    /// Returns a question for the callers behind those whose turn is granted already, if they came `until` then.
    pub fn question(
        &self,
        (granted, until): (usize, Option<Timestamp>),
        now: Timestamp,
        (ahead, poll): (Duration, Duration),
    ) -> TurnRequest {
        let mut state = self.state.lock();
        let callers = state
            .callers
            .values()
            .skip(granted)
            .take_while(|caller| until.is_none_or(|until| caller.came <= until))
            .take(TurnRequest::MAX_CALLERS);
        let callers: SmallVec<[WaitingCaller; 2]> = callers
            .map(|caller| WaitingCaller {
                age: now.since(caller.came),
                ticket: Ticket::random(),
            })
            .collect();
        state.is_served = callers.is_empty();
        drop(state);
        self.request(callers, ahead, poll)
    }

    /// Returns a question for nobody, which ends the place of the queue.
    pub fn last_question(&self) -> TurnRequest {
        TurnRequest {
            is_listed: false,
            ..self.request(SmallVec::new(), Duration::ZERO, Duration::ZERO)
        }
    }

    /// Returns a question for one caller that has just come.
    pub fn first_question(
        &self,
        (is_listed, may_wait): (bool, bool),
        (ahead, poll): (Duration, Duration),
    ) -> TurnRequest {
        let caller = WaitingCaller {
            age: Duration::ZERO,
            ticket: Ticket::random(),
        };
        TurnRequest {
            is_listed,
            may_wait,
            ..self.request(SmallVec::from_iter([caller]), ahead, poll)
        }
    }

    fn request(
        &self,
        callers: SmallVec<[WaitingCaller; 2]>,
        ahead: Duration,
        poll: Duration,
    ) -> TurnRequest {
        TurnRequest {
            queue: self.queue,
            priority: self.priority,
            charges: self.charges_at_present(),
            callers,
            ahead: if self.is_of_buckets {
                ahead
            } else {
                Duration::ZERO
            },
            poll,
            is_listed: true,
            may_wait: true,
            pause: None,
        }
    }

    /// Notes how many callers are granted their turn, and when the first one behind them is to have it. Callers that do not wait
    /// so long get an error.
    pub fn note_due(
        &self,
        granted: usize,
        (due, waits_for): (Option<Timestamp>, usize),
        now: Timestamp,
    ) {
        let charges = self.charges();
        let waits_for_slot = charges
            .get(waits_for)
            .is_some_and(|charge| charge.borrow().ticket().is_some());
        let mut state = self.state.lock();
        state.waits_for = waits_for;
        (state.granted, state.failure) = (granted, None);
        // Slots may be free at any time.
        state.due = due.filter(|_| !waits_for_slot);
        if state.due.is_none() {
            return;
        }
        let late: Vec<(u64, Timestamp)> = state
            .callers
            .iter()
            .enumerate()
            .skip(granted)
            .take(TurnRequest::MAX_CALLERS)
            .filter_map(|(place, (number, caller))| {
                let turn = state.turn_of(place, self.interval())?;
                (turn > caller.until).then_some((*number, turn))
            })
            .collect();
        let late: Vec<(Caller, Timestamp)> = late
            .into_iter()
            .filter_map(|(number, turn)| Some((state.callers.remove(&number)?, turn)))
            .collect();
        drop(state);
        let policy = self.policy();
        for (caller, turn) in late {
            let error = AcquireError::too_long(Some(turn.since(now)), policy);
            let _ = caller.turn.send(Err(error.after(now.since(caller.came))));
        }
    }

    /// Notes that a question had no reply.
    pub fn note_failure(&self, error: Error) {
        self.state.lock().failure = Some(error);
    }

    /// Returns the error of a caller that has waited in vain.
    pub fn expired(&self, number: u64, now: Timestamp) -> AcquireError {
        let state = self.state.lock();
        match &state.failure {
            Some(failure) => AcquireError::failed(failure.clone()),
            None => {
                let place = state.callers.range(..number).count();
                let turn = state.turn_of(place, self.interval());
                let away = turn.map(|turn| turn.since(now));
                drop(state);
                AcquireError::too_long(away, self.policy())
            }
        }
    }

    /// Notes that no caller is granted its turn any more.
    pub fn forget_granted(&self) {
        self.state.lock().granted = 0;
    }

    /// Gives a turn to the first caller. Without one, everything is given back.
    pub fn hand_out(&self, mut grant: Grant) {
        let mut state = self.state.lock();
        state.granted = state.granted.saturating_sub(1);
        drop(state);
        loop {
            let first = self.state.lock().callers.pop_first();
            let Some((_, caller)) = first else {
                return;
            };
            // Sent without the lock: the caller may be woken here. One that has just left is passed over.
            match caller.turn.send(Ok(grant)) {
                Ok(()) => return,
                Err(Ok(returned)) => grant = returned,
                Err(Err(_)) => return,
            }
        }
    }

    /// Ends the waits of all callers.
    pub fn fail_all(&self, error: &AcquireError, now: Timestamp) {
        let callers = std::mem::take(&mut self.state.lock().callers);
        for caller in callers.into_values() {
            let waited = now.since(caller.came);
            let _ = caller.turn.send(Err(error.clone().after(waited)));
        }
    }

    /// Returns the name of the policy that the callers wait for.
    pub fn policy(&self) -> Option<PolicyName> {
        let waits_for = self.state.lock().waits_for;
        let charges = self.charges();
        let charge = charges.get(waits_for).or(charges.first())?;
        Some(*charge.borrow().policy().name())
    }

    /// Returns the fingerprints of the keys whose slots the callers wait for.
    pub fn slots(&self) -> SmallVec<[Fingerprint; 2]> {
        let charges = self.charges();
        let charges = charges.iter().map(OwnedCharge::borrow);
        let slots = charges.filter(|charge| charge.ticket().is_some());
        slots
            .map(|charge| Fingerprint::of(charge.policy(), charge.key()))
            .collect()
    }

    /// Returns the charges as they were asked for the last time.
    pub fn charges(&self) -> Arc<[OwnedCharge]> {
        Arc::clone(&self.charges.lock())
    }

    /// Returns the charges at the present rates of their keys. Without them, callers that came before a rate was changed would
    /// be charged at the old one.
    fn charges_at_present(&self) -> Arc<[OwnedCharge]> {
        let mut charges = self.charges.lock();
        let present = OwnedCharge::at_present(&charges);
        if !Arc::ptr_eq(&charges, &present) {
            self.interval
                .store(interval_of(&present), Ordering::Relaxed);
            charges.clone_from(&present);
        }
        present
    }

    fn interval(&self) -> Duration {
        Duration::from_micros(self.interval.load(Ordering::Relaxed))
    }
}

/// Returns the microseconds that each caller takes at the slowest rate.
fn interval_of(charges: &[OwnedCharge]) -> u64 {
    let intervals = charges.iter().filter_map(|charge| {
        let charge = charge.borrow();
        let bucket = charge.counter().bucket()?;
        Some(bucket.micros_up(charge.units()))
    });
    intervals.max().unwrap_or(0)
}

impl State {
    /// Returns when the caller at this place is to have its turn, by the local clock.
    fn turn_of(&self, place: usize, interval: Duration) -> Option<Timestamp> {
        let behind = u32::try_from(place.checked_sub(self.granted)?).unwrap_or(u32::MAX);
        Some(self.due? + interval.saturating_mul(behind))
    }
}

#[cfg(all(test, feature = "client"))]
mod tests {
    use super::*;
    use crate::{
        algorithm::{MicroRate, Quota},
        key::Key,
        policy::{Policy, PresentRate},
    };

    /// Returns the charge of one unit at the present rate.
    fn charges(rate: &PresentRate) -> Arc<[OwnedCharge]> {
        let policy = Policy::new("api", Quota::per_second(100));
        let charge = OwnedCharge::following(&policy.charge(Key::GLOBAL), rate);
        Arc::from([OwnedCharge::for_waiting(&charge.borrow())])
    }

    /// Returns the microseconds that a caller takes in a question.
    fn step(line: &Line) -> u64 {
        let pace = (Duration::ZERO, Duration::ZERO);
        line.question((0, None), Timestamp::default(), pace).steps()[0]
    }

    #[test]
    fn callers_of_a_line_follow_the_rate_of_its_key() {
        let rate = PresentRate::new(MicroRate::from_micros(1_000_000));
        let before = charges(&rate);
        let key = LineKey::new(&before, Priority::Normal);
        let line = Line::new((1, key.clone()), before, Priority::Normal);
        assert_eq!(step(&line), 1_000_000);
        rate.set(MicroRate::from_micros(50_000_000));
        assert_eq!(step(&line), 20_000);
        assert_eq!(line.interval(), Duration::from_millis(20));
        let counter = *line.charges()[0].borrow().policy().counter();
        assert_eq!(counter.limit(), 1, "as they are charged, and given back");
        assert_eq!(LineKey::new(&charges(&rate), Priority::Normal), key);
    }
}
