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
//! A turn that is on its way back to the store is not there yet: a newcomer that is decided meanwhile gets a later one.
//!
//! # Who is woken when a request leaves?
//!
//! Only the first one in the queue. To wake all that move up would take as many wake-ups as requests wait, for each request that
//! leaves. A request learns its turn when it has become the first one. If the first one is not polled, those behind it start at the
//! turns that they last knew. A request that was never polled has not joined.

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
    algorithm::TurnShape,
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
    shape: TurnShape,
    units: u64,
    counted_by: CountedBy,
}

#[derive(Debug)]
struct Queue {
    /// The length of each turn.
    length: Duration,
    /// The turns of all that wait, by when they are over in the store, and by the number of the request that brought them. With the
    /// time at which they begin here, which is never before that of an earlier one.
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

    /// Adds a request whose turn begins at this time; `None` if the charge has no turn.
    pub fn join(self: &Arc<Self>, charge: &Settlement, begins: Moment) -> Option<PlaceInQueue> {
        let key = QueueKey::of(charge)?;
        let length = || {
            let bucket = charge.charge().policy().counter().bucket().copied();
            let micros = bucket.map(|bucket| bucket.micros_up(key.units));
            Duration::from_micros(micros.unwrap_or_default())
        };
        let mut queues = self.queues.lock();
        let queue = queues.entry(key).or_insert_with(|| Queue::new(length()));
        let (number, moved_up) = queue.add(charge.mark().reset_at, begins);
        drop(queues);
        wake(moved_up);
        Some(PlaceInQueue {
            turns: Arc::clone(self),
            key,
            number: Some(number),
        })
    }

    /// Changes a queue, and removes it once it is empty. Wakes the first request if it has become the first by that. Wakers that are
    /// dropped may drop a request, which locks: `change` returns them.
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
            shape: bucket.turn_shape(),
            units: charge.units(),
            counted_by: settlement.counted_by(),
        })
    }
}

impl Queue {
    fn new(length: Duration) -> Self {
        Self {
            length,
            turns: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Adds a request and its turn. Returns its number, and the first request if that has an earlier turn now.
    fn add(&mut self, over: Timestamp, begins: Moment) -> (u64, Option<Waker>) {
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.insert(number, Waker::noop().clone());
        // A reply or a lookup that took longer makes no other request wait: a turn has begun once a later one has.
        let later = self.turns.range((over, number)..).next();
        let begins = later.map_or(begins, |(_, later)| begins.min(*later));
        let mut is_first = true;
        for (_, earlier) in self.turns.range_mut(..(over, number)).rev() {
            if *earlier <= begins {
                is_first = false;
                break;
            }
            *earlier = begins;
        }
        self.turns.insert((over, number), begins);
        (number, if is_first { self.first() } else { None })
    }

    /// Returns the waker of the request that goes first.
    fn first(&self) -> Option<Waker> {
        self.waiting.values().next().cloned()
    }

    /// Returns the turn of a request, if it has begun by this time.
    fn begun(&self, number: u64, by: Moment) -> Option<(Timestamp, u64)> {
        let places = self.waiting.keys().zip(&self.turns);
        let mut begun = places.take_while(|(_, (_, begins))| **begins <= by);
        let (_, (turn, _)) = begun.find(|(other, _)| **other == number)?;
        Some(*turn)
    }

    /// Takes the turn of a request, and returns when it is over in the store; or keeps the waker, and returns when to ask again.
    /// Also returns the waker before.
    fn take(&mut self, number: u64, now: Moment, waker: &Waker) -> Taken {
        if let Some(turn) = self.begun(number, now) {
            self.turns.remove(&turn);
            return (Ok(turn.0), self.waiting.remove(&number));
        }
        let begins = if self.waiting.keys().next_back() == Some(&number) {
            self.turns.values().next_back()
        } else {
            let mut places = self.waiting.keys().zip(self.turns.values());
            let own = places.find(|(other, _)| **other == number);
            own.map(|(_, begins)| begins)
        };
        let begins = *begins.expect(HAS_PLACE);
        let before = self.waiting.insert(number, waker.clone());
        (Err(begins), before)
    }

    /// Removes a request, and returns when the turn is over in the store that nobody has by that: the last one, and those behind the
    /// request move up. Or its own, if that has passed: those who came later must not start together in place of it. Also returns its
    /// waker.
    fn leave(&mut self, number: u64, now: Moment) -> (Option<Timestamp>, Option<Waker>) {
        let passed = self.turns.first_key_value();
        let passed = passed.filter(|(_, begins)| **begins + self.length <= now);
        let own = passed.and_then(|_| self.begun(number, now));
        let own = own.filter(|own| self.turns[own] + self.length <= now);
        let waker = self.waiting.remove(&number);
        let over = match own {
            Some(own) => {
                self.turns.remove(&own);
                Some(own.0)
            }
            None => self.turns.pop_last().map(|((over, _), _)| over),
        };
        (over, waker)
    }
}

/// When a turn is over in the store, or when to ask again; and a waker that is no longer needed.
type Taken = (Result<Timestamp, Moment>, Option<Waker>);

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
        let take = |queue: &mut Queue| queue.take(number, Moment::now(), context.waker());
        let (taken, _waker) = self.turns.change(&self.key, take).expect(HAS_PLACE);
        match taken {
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
        let leave = |queue: &mut Queue| queue.leave(number, Moment::now());
        let (over, _waker) = self.turns.change(&self.key, leave)?;
        over
    }
}

impl Drop for PlaceInQueue {
    fn drop(&mut self) {
        self.give_up();
    }
}

const HAS_PLACE: &str = "a request that waits has a place";

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_millis(100);

    /// When a turn is over in the store.
    fn over(turn: u64) -> Timestamp {
        Timestamp::from_micros(turn * 100_000)
    }

    fn is_begun(queue: &Queue, number: u64, by: Moment) -> bool {
        queue.begun(number, by).is_some()
    }

    // Reproducer: a request whose reply or lookup took long made others wait as long.
    #[test]
    fn turn_has_begun_once_a_later_one_has() {
        let now = Moment::now();
        for is_late_first in [true, false] {
            let mut queue = Queue::new(TURN);
            let late = (over(1), now + TURN * 20);
            let (first, second) = match is_late_first {
                true => (late, (over(2), now + TURN * 2)),
                false => ((over(2), now + TURN * 2), late),
            };
            let (one, _) = queue.add(first.0, first.1);
            let (other, first_moved) = queue.add(second.0, second.1);
            assert!(first_moved.is_some(), "the first one has to know");
            assert!(!is_begun(&queue, one, now + TURN));
            assert!(is_begun(&queue, one, now + TURN * 2));
            assert!(is_begun(&queue, other, now + TURN * 2));
        }
    }

    // Reproducer: after a stall of the runtime, as many newcomers started together as clients had gone.
    #[test]
    fn turns_that_have_passed_are_not_handed_on() {
        let now = Moment::now();
        let mut queue = Queue::new(TURN);
        let gone: Vec<u64> = (0..3).map(|turn| queue.add(over(turn), now).0).collect();
        let (next, _) = queue.add(over(50), now + TURN * 50);
        for (turn, number) in (0..).zip(gone) {
            let (left, _) = queue.leave(number, now + TURN * 20);
            assert_eq!(left, Some(over(turn)), "its own");
        }
        assert!(!is_begun(&queue, next, now + TURN * 49));
        assert!(is_begun(&queue, next, now + TURN * 50));
    }

    #[test]
    fn turn_that_is_not_over_is_handed_on() {
        let now = Moment::now();
        let mut queue = Queue::new(TURN);
        let (gone, _) = queue.add(over(1), now);
        let (next, _) = queue.add(over(2), now + TURN);
        let (left, _) = queue.leave(gone, now + TURN / 2);
        assert_eq!(left, Some(over(2)));
        assert!(is_begun(&queue, next, now + TURN / 2));
    }
}
