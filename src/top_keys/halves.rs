//! Counts of the last minutes, in two summaries that take turns.
//!
//! ```text
//! half of the window       17        18        19
//! counts in                current   previous  (cleared)
//!                                    current   previous
//!                                              current
//! ```
//!
//! Both together contain the current half and the whole previous one: between half a window and a whole window of the
//! past. Halves are aligned to the Unix epoch, so that they begin at the same time on all instances.

use crate::key::Key;

use super::summary::Summary;

/// The counts of the current half of the window and of the previous half.
#[derive(Debug)]
pub(super) struct Halves {
    /// The number of the current half since the Unix epoch.
    number: u64,
    current: Summary,
    previous: Summary,
}

impl Halves {
    /// Allocates both halves, each with this many counters.
    pub fn new(capacity: usize, number: u64) -> Self {
        let [current, previous] = [(); 2].map(|()| Summary::new(capacity));
        Self {
            number,
            current,
            previous,
        }
    }

    /// Counts units of a key in the half with this number.
    pub fn record(&mut self, number: u64, hash: u64, key: &Key, units: u64) {
        self.rotate_to(number);
        self.current.record(hash, key, units);
    }

    /// Returns the summary of the half with this number. `None` if it is neither the current half nor the previous one.
    pub fn of(&self, number: u64) -> Option<&Summary> {
        match self.number.checked_sub(number)? {
            0 => Some(&self.current),
            1 => Some(&self.previous),
            _ => None,
        }
    }

    /// Begins the half with this number. An earlier number changes nothing: threads read the clock in any order.
    fn rotate_to(&mut self, number: u64) {
        if number <= self.number {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if number > self.number + 1 {
            self.previous.clear();
        }
        self.number = number;
    }
}
