//! When held slots are renewed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::runtime::Handle;

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
/// Slots taken together are renewed at different times. Renewals due at about the same time share a call.
///
/// Its time is that of the waits between renewals, and runs on with the clock in between: a clock that is set back stops
/// no renewal.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    entries: HashMap<u64, Entry>,
    /// When each entry is due, and its number.
    due: BTreeSet<(Duration, u64)>,
    numbers: u64,
    time: Duration,
    /// The clock at that time.
    clock: Timestamp,
    /// The time when a wait last ended.
    woken_at: Duration,
}

#[derive(Debug)]
struct Entry {
    slots: Slots,
    /// The runtime on which they are held, until it is found to have ended.
    runtime: Option<Handle>,
    /// A third of the lease.
    period: Duration,
    due: Duration,
    /// Renewals that were sent and not confirmed. The reply to a later one does not show what became of an earlier one.
    unconfirmed: u32,
}

impl Schedule {
    /// Adds the slots of a hold. Returns its number, and how soon it must be renewed.
    pub(super) fn add(
        &mut self,
        slots: Slots,
        runtime: Option<Handle>,
        now: Timestamp,
    ) -> (u64, Duration) {
        self.run_on(now);
        if self.entries.is_empty() {
            self.woken_at = self.time;
        }
        self.numbers += 1;
        let period = third(&slots);
        let due = self.time + retry::shortened(period);
        self.due.insert((due, self.numbers));
        let entry = Entry {
            slots,
            runtime,
            period,
            due,
            unconfirmed: 0,
        };
        self.entries.insert(self.numbers, entry);
        (self.numbers, period / 2)
    }

    /// Removes a hold. Returns whether a renewal of it may still be on its way.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        self.entries.remove(&number).is_some_and(|entry| {
            self.due.remove(&(entry.due, number));
            entry.unconfirmed > 0
        })
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.entries.contains_key(&number)
    }

    /// Lets the time run on to `now`, and at least by what was waited since the last call.
    pub(super) fn wake(&mut self, now: Timestamp, waited: Duration) {
        self.run_on(now);
        self.time = self.time.max(self.woken_at + waited);
        self.woken_at = self.time;
    }

    fn run_on(&mut self, now: Timestamp) {
        self.time += now.since(self.clock);
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
            entry.unconfirmed += 1;
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
            entry.unconfirmed = entry.unconfirmed.saturating_sub(1);
        }
    }

    /// Returns how long to wait for the next renewal; `None` when nothing is held.
    pub(super) fn wait(&self) -> Option<Duration> {
        let (due, _) = self.due.first()?;
        let tick = self.period()? / 32;
        Some(due.saturating_sub(self.time).max(tick))
    }

    /// Returns a third of the lease of what is due first; `None` when nothing is held.
    pub(super) fn period(&self) -> Option<Duration> {
        let (_, number) = self.due.first()?;
        Some(self.entries.get(number)?.period)
    }

    /// Offers the runtimes of holds, from a random one on, until `start` starts a task on one. Where it cannot, the runtime
    /// has ended, and is not offered again.
    ///
    /// At random, since nobody knows which of them are driven.
    pub(super) fn start_on_any<T>(&mut self, start: impl Fn(&Handle) -> Option<T>) -> Option<T> {
        let holds = self.entries.len();
        let first = retry::random() % holds.max(1) as u64;
        let first = usize::try_from(first).unwrap_or_default();
        for (skipped, taken) in [(first, holds), (0, first)] {
            for entry in self.entries.values_mut().skip(skipped).take(taken) {
                let started = entry.runtime.as_ref().and_then(&start);
                if started.is_some() {
                    return started;
                }
                entry.runtime = None;
            }
        }
        None
    }
}

/// A third of the shortest lease.
fn third(slots: &[Settlement]) -> Duration {
    let lease = |settlement: &Settlement| match settlement.charge().policy().counter() {
        Counter::Concurrency(slots) => Some(slots.lease()),
        _ => None,
    };
    let shortest = slots.iter().filter_map(lease).min();
    shortest.unwrap_or(Duration::from_secs(1)) / 3
}

/// Holds that are renewed at once: more would keep Redis from others for longer than a few hundred microseconds.
const BATCH: usize = 200;

#[cfg(test)]
mod tests {
    use crate::{Key, Policy, Quota, algorithm::Algorithm};

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn slots() -> Slots {
        let policy = Policy::new("p", Quota::in_flight(1_000));
        let policy = policy.algorithm(Algorithm::Concurrency { lease: LEASE });
        let charge = policy.charge(Key::GLOBAL);
        Arc::from([Settlement::release(charge.to_owned(), false)])
    }

    // Regression: slots that were taken together were all renewed at one time, a third of a lease later.
    #[test]
    fn renewals_of_slots_that_were_taken_together_are_spread_and_batched() {
        let mut schedule = Schedule::default();
        let mut clock = Timestamp::from_micros(1_700_000_000_000_000);
        let taken_at = clock;
        for _ in 0..1_000 {
            schedule.add(slots(), None, clock);
        }
        let mut moments = Vec::new();
        let mut renewed = 0;
        while renewed < 1_000 {
            let wait = schedule.wait().expect("slots are held");
            clock = clock + wait;
            schedule.wake(clock, wait);
            let due = schedule.take_due();
            assert!(due.len() < BATCH, "{} together", due.len());
            due.iter().for_each(|(number, _)| schedule.renewed(*number));
            renewed += due.len();
            moments.push(clock.since(taken_at));
        }
        assert!((8..64).contains(&moments.len()), "{moments:?}");
        let (first, last) = (moments[0], moments[moments.len() - 1]);
        assert!(first >= LEASE / 6 - LEASE / 64, "{first:?}");
        assert!(last <= LEASE / 3 + LEASE / 64, "{last:?}");
    }

    // Regression: the time of a wait counted twice if a hold was made meanwhile, so renewals came twice as often.
    #[test]
    fn wait_counts_once_though_holds_are_made_meanwhile() {
        let mut schedule = Schedule::default();
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        schedule.add(slots(), None, start);
        schedule.wake(start, Duration::ZERO);
        let before = schedule.time;
        let wait = Duration::from_secs(10);
        schedule.add(slots(), None, start + wait);
        schedule.wake(start + wait, wait);
        assert_eq!(schedule.time - before, wait);
        // The clock was set back.
        schedule.wake(start, wait);
        assert_eq!(schedule.time - before, wait * 2);
    }

    #[test]
    fn renewal_that_failed_may_arrive_however_many_succeed_after_it() {
        let mut schedule = Schedule::default();
        let clock = Timestamp::from_micros(1_700_000_000_000_000);
        let (confirmed, _) = schedule.add(slots(), None, clock);
        let (failed, _) = schedule.add(slots(), None, clock);
        for _ in 0..2 {
            schedule.wake(clock, LEASE);
            assert_eq!(schedule.take_due().len(), 2);
            schedule.renewed(confirmed);
        }
        schedule.renewed(failed);
        assert!(schedule.remove(failed));
        assert!(!schedule.remove(confirmed));
    }
}
