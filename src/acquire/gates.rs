//! Which lines of this process may ask the store.
//!
//! Callers with different charges have different lines, also if they all wait for one key. If each of them asked by itself, a
//! store would have an entry for each, and read them all in each decision. So only a few lines ask for a key at a time: those
//! whose callers came first. The others wait here.
//!
//! ```text
//! a line's first question --> the store lets it wait for a key --> few others ask for that key: it asks
//!                                                              '-> it waits until one of those has had its turns
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::line::{GateKey, Line};
use crate::{charge::OwnedCharge, clock::Timestamp};

/// The lines that wait for keys.
#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: HashMap<GateKey, Gate>,
    /// Where each line waits, by its number.
    places: HashMap<u64, Place>,
}

/// The lines that wait for one key.
#[derive(Debug, Default)]
struct Gate {
    /// Number of lines that ask.
    asking: usize,
    /// The others, by the time at which their first caller came, and their number.
    waiting: BTreeMap<(Timestamp, u64), Arc<Line>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    gate: GateKey,
    /// The time under which the line waits. `None` if it asks.
    waits: Option<Timestamp>,
}

/// Whether a line may ask now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayAsk {
    No,
    /// For callers that came until then: other lines have older ones.
    Until(Timestamp),
    Yes,
}

impl Gates {
    /// Returns the number of keys that lines wait for.
    pub fn len(&self) -> usize {
        self.gates.len()
    }

    /// Returns the index of a charge of the line for whose key enough lines ask.
    pub fn full(&self, line: &Line) -> Option<usize> {
        (0..line.charges().len()).find(|index| {
            let gate = self.gates.get(&line.gate(*index));
            gate.is_some_and(|gate| gate.asking >= room(line, *index))
        })
    }

    /// Lets a line wait for the key of one of its charges. Returns whether it may ask for it.
    pub fn enter(&mut self, line: &Arc<Line>, index: usize) -> bool {
        let gate = line.gate(index);
        match self.places.get(&line.number()) {
            Some(place) if place.gate == gate => return place.waits.is_none(),
            Some(_) => self.leave(line),
            None => {}
        }
        let row = self.gates.entry(gate).or_default();
        let waits = if row.asking < room(line, index) {
            row.asking += 1;
            None
        } else {
            Some(row.wait(line))
        };
        self.places.insert(line.number(), Place { gate, waits });
        waits.is_none()
    }

    /// Returns whether a line may ask. If others have older callers, it lets one of them ask instead.
    pub fn may_ask(&mut self, line: &Arc<Line>) -> MayAsk {
        let Some(place) = self.places.get(&line.number()).copied() else {
            return MayAsk::Yes;
        };
        if place.waits.is_some() {
            return MayAsk::No;
        }
        let Some(next) = self.oldest_waiting(place.gate) else {
            return MayAsk::Yes;
        };
        if line.first_came().is_some_and(|first| first <= next) {
            return MayAsk::Until(next);
        }
        let row = self.gates.entry(place.gate).or_default();
        row.asking -= 1;
        let waits = Some(row.wait(line));
        self.places.insert(line.number(), Place { waits, ..place });
        self.open_next(place.gate);
        self.remove_if_empty(place.gate);
        MayAsk::No
    }

    /// Returns whether a line asks, or has not asked yet.
    pub fn asks(&self, line: &Line) -> bool {
        let place = self.places.get(&line.number());
        place.is_none_or(|place| place.waits.is_none())
    }

    /// Ends the wait of a line.
    pub fn leave(&mut self, line: &Line) {
        let Some(place) = self.places.remove(&line.number()) else {
            return;
        };
        let Some(row) = self.gates.get_mut(&place.gate) else {
            return;
        };
        match place.waits {
            Some(came) => {
                row.waiting.remove(&(came, line.number()));
            }
            None => {
                row.asking -= 1;
                self.open_next(place.gate);
            }
        }
        self.remove_if_empty(place.gate);
    }

    fn remove_if_empty(&mut self, gate: GateKey) {
        let is_empty = |row: &Gate| row.asking == 0 && row.waiting.is_empty();
        if self.gates.get(&gate).is_some_and(is_empty) {
            self.gates.remove(&gate);
        }
    }

    /// Lets the line ask whose first caller came first.
    fn open_next(&mut self, gate: GateKey) {
        if self.oldest_waiting(gate).is_none() {
            return;
        }
        let row = self.gates.entry(gate).or_default();
        if let Some(((_, number), line)) = row.waiting.pop_first() {
            row.asking += 1;
            self.places.insert(number, Place { gate, waits: None });
            line.wake();
        }
    }

    /// Returns when the first caller of the waiting lines came. Lines whose first callers have left are put in order.
    fn oldest_waiting(&mut self, gate: GateKey) -> Option<Timestamp> {
        let row = self.gates.get_mut(&gate)?;
        loop {
            let ((came, number), line) = row.waiting.pop_first()?;
            match line.first_came() {
                // Its task ends it, or asks for a caller that comes meanwhile.
                None => {
                    self.places.remove(&number);
                    line.wake();
                }
                Some(first) if first > came => {
                    let waits = Some(row.wait(&line));
                    self.places.insert(number, Place { gate, waits });
                }
                Some(_) => {
                    row.waiting.insert((came, number), line);
                    return Some(came);
                }
            }
        }
    }
}

impl Gate {
    /// Adds a line, and returns the time under which it waits.
    fn wait(&mut self, line: &Arc<Line>) -> Timestamp {
        let came = line.first_came().unwrap_or_default();
        self.waiting.insert((came, line.number()), Arc::clone(line));
        came
    }
}

/// Returns how many lines ask for the key of a charge at the same time: some more than have their turns within one question.
fn room(line: &Line, index: usize) -> usize {
    let charges = line.charges();
    let charge = charges.get(index).map(OwnedCharge::borrow);
    let step = charge.as_ref().and_then(|charge| {
        let bucket = charge.counter().bucket()?;
        Some(bucket.micros_up(charge.units()).max(1))
    });
    let turns = step.map_or(MOST_LINES, |micros| {
        let ahead = line.clock.ahead().as_micros() / u128::from(micros);
        usize::try_from(ahead).unwrap_or(MOST_LINES)
    });
    (LEAST_LINES + turns).min(MOST_LINES)
}

const MOST_LINES: usize = 16;
const LEAST_LINES: usize = 2;
