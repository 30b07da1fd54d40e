//! When held slots are renewed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{algorithm::Counter, clock::Timestamp, retry, store::Settlement};

/// The slots of one hold.
pub(super) type Slots = Arc<[Settlement]>;

/// Renewals in the order in which they are due.
///
/// ```text
/// taken                                                              lease ends
///   |--------------- 1/3 of the lease ---------------|------|------|------|
///                    ^ first renewal: at random here ^   if it fails, again every 1/24 .. 1/12
/// ```
///
/// Slots that are taken at the same time are so renewed at different times. Those that are due about the same time travel
/// together.
///
/// Its time is that of the waits between renewals, and runs on with the clock in between: so it moves in tests that pause
/// Tokio's time, too.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    entries: HashMap<u64, Entry>,
    /// When each entry is due, and its number.
    due: BTreeSet<(Duration, u64)>,
    numbers: u64,
    time: Duration,
    /// The clock at that time.
    clock: Timestamp,
}

#[derive(Debug)]
struct Entry {
    slots: Slots,
    /// A third of the lease.
    period: Duration,
    due: Duration,
    /// Whether a renewal was sent and not confirmed since.
    is_unconfirmed: bool,
}

impl Schedule {
    /// Adds the slots of a hold. Returns its number, and how soon it must be renewed.
    pub(super) fn add(&mut self, slots: Slots, now: Timestamp) -> (u64, Duration) {
        self.run_on(now, Duration::ZERO);
        self.numbers += 1;
        let period = third(&slots);
        let due = self.time + retry::shortened(period);
        self.due.insert((due, self.numbers));
        let entry = Entry {
            slots,
            period,
            due,
            is_unconfirmed: false,
        };
        self.entries.insert(self.numbers, entry);
        (self.numbers, period / 2)
    }

    /// Removes a hold. Returns whether a renewal of it may still be on its way.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        self.entries.remove(&number).is_some_and(|entry| {
            self.due.remove(&(entry.due, number));
            entry.is_unconfirmed
        })
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.entries.contains_key(&number)
    }

    /// Lets the time run on to `now`, and at least by what was waited.
    pub(super) fn run_on(&mut self, now: Timestamp, waited: Duration) {
        self.time += now.since(self.clock).max(waited);
        self.clock = now;
    }

    /// Takes up to [`BATCH`] holds that are due. Each is due again soon, in case its renewal fails.
    pub(super) fn take_due(&mut self) -> Vec<(u64, Slots)> {
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some((_, number)) = self.due.first().copied()
            && let Some(entry) = self.entries.get_mut(&number)
            && entry.due <= self.time + entry.period / 32
        {
            batch.push((number, Arc::clone(&entry.slots)));
            entry.is_unconfirmed = true;
            let again = self.time + retry::shortened(entry.period / 4);
            self.due.remove(&(entry.due, number));
            self.due.insert((again, number));
            entry.due = again;
        }
        batch
    }

    /// Notes that a hold was renewed.
    pub(super) fn renewed(&mut self, number: u64) {
        if let Some(entry) = self.entries.get_mut(&number) {
            let next = self.time + retry::shortened(entry.period);
            self.due.remove(&(entry.due, number));
            self.due.insert((next, number));
            entry.due = next;
            entry.is_unconfirmed = false;
        }
    }

    /// Returns how long to wait for the next renewal; `None` when nothing is held.
    pub(super) fn wait(&self) -> Option<Duration> {
        let (due, number) = self.due.first()?;
        let tick = self.entries.get(number)?.period / 32;
        Some(due.saturating_sub(self.time).max(tick))
    }
}

/// A third of the shortest lease.
fn third(slots: &[Settlement]) -> Duration {
    let lease = |settlement: &Settlement| match settlement.charge().policy().counter() {
        Counter::Slots(slots) => Some(slots.lease()),
        _ => None,
    };
    let shortest = slots.iter().filter_map(lease).min();
    shortest.unwrap_or(Duration::from_secs(1)) / 3
}

/// Holds that are renewed at once: more would keep Redis from others for longer than a few hundred microseconds.
const BATCH: usize = 200;
