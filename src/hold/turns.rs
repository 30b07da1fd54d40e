//! Requests of this instance that wait for their turn in a queue, in order.
//!
//! The store gives each request a turn when it admits it. A request that leaves gives back the last turn of this instance, and those
//! behind it move up. So no turn stays unused while a request of this instance waits:
//!
//! ```text
//!                 turns    1   2   3   4
//!                          A   B   C   D
//! B leaves                 A   C   D        4 goes back to the store
//! E comes, and gets 4      A   C   D   E
//! ```
//!
//! The store may give a newcomer an earlier turn than those who wait here have, because a request of another instance left. Then
//! these move up, too, and the newcomer gets the last turn.
//!
//! Requests exchange their turns only if these are equally long: of the same key, quota and cost, and counted in the same place.
//!
//! # Who is woken when a request leaves?
//!
//! Only the first one in the queue. To wake all that move up would take as many wake-ups as requests wait, for each request that
//! leaves. A request learns its turn when it has become the first one. If the first one is not polled, those behind it start at the
//! turns that they last knew.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Sleep;

use crate::{
    charge::{Fingerprint, Settlement},
    clock::{Moment, Timestamp},
    decision::CountedBy,
    task::Mutex,
};

/// The queues in which requests of a limiter wait.
#[derive(Default)]
pub(crate) struct Turns {
    queues: Mutex<HashMap<QueueKey, Queue>>,
}

/// Turns that requests can exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct QueueKey {
    key: Fingerprint,
    quota_tag: u32,
    units: u64,
    counted_by: CountedBy,
}

#[derive(Debug, Default)]
struct Queue {
    /// The turns of all that wait, by when they are over in the store, and by the number of the request that brought them. With the
    /// time at which they begin here.
    turns: BTreeMap<(Timestamp, u64), Moment>,
    /// The requests in the order in which they came. The first one has the first turn, and so on.
    waiting: BTreeMap<u64, Waker>,
    next_number: u64,
}

impl Turns {
    /// Returns whether requests wait that could exchange their turns with this charge.
    pub fn has_waiting(&self, charge: &Settlement) -> bool {
        QueueKey::of(charge).is_some_and(|key| self.queues.lock().contains_key(&key))
    }

    /// Adds a request whose turn begins after this time; `None` if the charge has no turn.
    pub fn join(self: &Arc<Self>, charge: &Settlement, after: Duration) -> Option<PlaceInQueue> {
        let key = QueueKey::of(charge)?;
        let mut queues = self.queues.lock();
        let queue = queues.entry(key).or_default();
        let number = queue.next_number;
        queue.next_number += 1;
        queue.waiting.insert(number, Waker::noop().clone());
        let turn = (charge.mark().reset_at, number);
        queue.turns.insert(turn, Moment::now() + after);
        let is_first = queue.turns.first_key_value().map(|(first, _)| *first) == Some(turn);
        let moved_up = if is_first { queue.first() } else { None };
        drop(queues);
        wake(moved_up);
        Some(PlaceInQueue {
            turns: Arc::clone(self),
            key,
            number: Some(number),
        })
    }

    /// Changes a queue, and removes it once it is empty. Wakes the first request if it has become the first by that.
    fn change<T>(&self, key: &QueueKey, change: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(key)?;
        let number = |queue: &Queue| queue.waiting.keys().next().copied();
        let before = number(queue);
        let changed = change(queue);
        let is_same = number(queue) == before;
        let first = if is_same { None } else { queue.first() };
        if queue.waiting.is_empty() {
            queues.remove(key);
        }
        drop(queues);
        wake(first);
        Some(changed)
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").finish_non_exhaustive()
    }
}

impl QueueKey {
    fn of(settlement: &Settlement) -> Option<Self> {
        let charge = settlement.charge();
        let bucket = charge.policy().counter().bucket()?;
        bucket.is_queue().then(|| Self {
            key: Fingerprint::of(charge.policy(), charge.key()),
            quota_tag: bucket.quota_tag(),
            units: charge.units(),
            counted_by: settlement.counted_by(),
        })
    }
}

impl Queue {
    /// Returns the waker of the request that goes first.
    fn first(&self) -> Option<Waker> {
        self.waiting.values().next().cloned()
    }

    /// Takes the turn of a request, and returns when it is over in the store; or when to ask again.
    fn take(&mut self, number: u64, now: Moment) -> Result<Timestamp, Moment> {
        let mut places = self.waiting.keys().zip(&self.turns);
        let begun = places
            .by_ref()
            .find(|(other, (_, begins))| **other == number || **begins > now);
        let (found, (turn, begins)) = begun.expect(HAS_PLACE);
        if *found == number && *begins <= now {
            let turn = *turn;
            self.waiting.remove(&number);
            self.turns.remove(&turn);
            return Ok(turn.0);
        }
        // A turn before its own may begin later, if its reply took longer.
        let before = *begins;
        let own = if *found == number {
            before
        } else if self.waiting.keys().next_back() == Some(&number) {
            *self.turns.values().next_back().expect(HAS_PLACE)
        } else {
            let own = places.find(|(other, _)| **other == number);
            *own.expect(HAS_PLACE).1.1
        };
        Err(own.max(before))
    }

    /// Removes a request, and returns when the last turn is over in the store: those behind the request move up.
    fn leave(&mut self, number: u64) -> Option<Timestamp> {
        self.waiting.remove(&number)?;
        self.turns.pop_last().map(|((over, _), _)| over)
    }
}

// === PlaceInQueue ===

/// The place of a request that waits. If it is dropped, its turn is lost: [`leave`](Self::leave) returns a turn to refund.
#[derive(Debug)]
pub(crate) struct PlaceInQueue {
    turns: Arc<Turns>,
    key: QueueKey,
    /// `None` once it has left.
    number: Option<u64>,
}

impl PlaceInQueue {
    /// Waits for the turn of the request, and returns when it is over in the store. `sleep` is its timer.
    pub fn poll(
        &mut self,
        mut sleep: Pin<&mut Sleep>,
        context: &mut Context<'_>,
    ) -> Poll<Timestamp> {
        let number = self.number.expect("a place is not polled after its turn");
        let taken = self.turns.change(&self.key, |queue| {
            let taken = queue.take(number, Moment::now());
            if let Some(waker) = queue.waiting.get_mut(&number) {
                waker.clone_from(context.waker());
            }
            taken
        });
        match taken.expect(HAS_PLACE) {
            Ok(over) => {
                self.number = None;
                Poll::Ready(over)
            }
            Err(until) => {
                until.set(sleep.as_mut());
                if sleep.poll(context).is_ready() {
                    // It is over already.
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    /// Gives the place up, and returns when the turn is over in the store that is left by that.
    pub fn leave(mut self) -> Option<Timestamp> {
        self.give_up()
    }

    fn give_up(&mut self) -> Option<Timestamp> {
        let number = self.number.take()?;
        self.turns.change(&self.key, |queue| queue.leave(number))?
    }
}

impl Drop for PlaceInQueue {
    fn drop(&mut self) {
        self.give_up();
    }
}

const HAS_PLACE: &str = "a request that waits has a place";
