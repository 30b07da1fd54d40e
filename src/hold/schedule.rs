//! The times at which held slots are renewed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use crate::{charge::Settlement, clock::Timestamp, task::backoff};

/// The slots of one hold, each as the settlement that releases it.
pub(super) type HeldSlots = Arc<[Settlement]>;

/// Holds in the order in which their renewals are due.
///
/// ```text
/// taken                                                         lease ends
///   |----- 1/6 -----|----- 1/6 -----|-------------- 2/3 --------------|
///                   └── renewal, ───┘  retried every 1/24 to 1/12 of the lease
///                     at a random time
/// ```
///
/// So slots that are taken together are not renewed together, but renewals due at about the same time share a call.
///
/// # Time
///
/// The schedule has its own time: the sum of the waits between renewals. Within a wait it follows the clock. So a clock that
/// is set back does not delay renewals.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// The holds, by their numbers.
    holds: HashMap<u64, ScheduledHold>,
    /// Time of the next renewal and number of each hold.
    due: BTreeSet<(Duration, u64)>,
    /// Number of the latest hold.
    latest: u64,
    /// Current time of the schedule.
    time: Duration,
    /// The clock at `time`.
    clock: Timestamp,
    /// Time of the schedule at the end of the last wait.
    woken_at: Duration,
}

#[derive(Debug)]
struct ScheduledHold {
    slots: HeldSlots,
    /// A third of the shortest lease.
    period: Duration,
    /// Time of the next renewal.
    due: Duration,
    /// Time at which the slots were taken, or a renewal was last confirmed.
    renewed_at: Duration,
    /// Number of renewals that were sent and not confirmed. The reply to a later one does not confirm an earlier one.
    unconfirmed: u32,
}

impl Schedule {
    /// Adds a hold. Returns its number, and the shortest wait before its first renewal.
    pub fn add(&mut self, slots: HeldSlots, now: Timestamp) -> (u64, Duration) {
        self.follow_clock(now);
        if self.holds.is_empty() {
            self.woken_at = self.time;
        }
        self.latest += 1;
        let period = renewal_period(&slots);
        let due = self.time + backoff::jittered(period);
        self.due.insert((due, self.latest));
        let hold = ScheduledHold {
            slots,
            period,
            due,
            renewed_at: self.time,
            unconfirmed: 0,
        };
        self.holds.insert(self.latest, hold);
        (self.latest, period / 2)
    }

    /// Removes a hold. Returns whether one of its renewals may still be on its way.
    pub fn remove(&mut self, number: u64) -> bool {
        self.holds.remove(&number).is_some_and(|hold| {
            self.due.remove(&(hold.due, number));
            hold.unconfirmed > 0
        })
    }

    /// Returns whether half of a hold's lease has passed since it was last renewed.
    pub fn is_lapsing(&self, number: u64) -> bool {
        let hold = self.holds.get(&number);
        hold.is_some_and(|hold| self.time >= hold.renewed_at + hold.period / 2 * 3)
    }

    /// Returns whether a hold has not ended.
    pub fn contains(&self, number: u64) -> bool {
        self.holds.contains_key(&number)
    }

    /// Advances the time to `now`, and at least by `waited` since the last call.
    pub fn wake(&mut self, now: Timestamp, waited: Duration) {
        self.follow_clock(now);
        self.time = self.time.max(self.woken_at + waited);
        self.woken_at = self.time;
    }

    fn follow_clock(&mut self, now: Timestamp) {
        self.time += now.since(self.clock);
        self.clock = now;
    }

    /// Returns up to [`BATCH`] holds that are due. Each becomes due again soon, in case its renewal fails.
    pub fn take_due(&mut self) -> Vec<(u64, HeldSlots)> {
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some((_, number)) = self.due.first().copied()
            && let Some(hold) = self.holds.get_mut(&number)
            && hold.due <= self.time + hold.period / 32
        {
            batch.push((number, Arc::clone(&hold.slots)));
            hold.unconfirmed += 1;
            let again = self.time + backoff::jittered(hold.period / 4);
            self.due.remove(&(hold.due, number));
            self.due.insert((again, number));
            hold.due = again;
        }
        batch
    }

    /// Confirms a renewal of a hold. The next one is due after up to a period.
    pub fn confirm(&mut self, number: u64) {
        if let Some(hold) = self.holds.get_mut(&number) {
            let next = self.time + backoff::jittered(hold.period);
            self.due.remove(&(hold.due, number));
            self.due.insert((next, number));
            hold.due = next;
            hold.renewed_at = self.time;
            hold.unconfirmed = hold.unconfirmed.saturating_sub(1);
        }
    }

    /// Returns the wait before the next renewal, or `None` if nothing is held.
    pub fn wait(&self) -> Option<Duration> {
        let (due, _) = self.due.first()?;
        let tick = self.period()? / 32;
        Some(due.saturating_sub(self.time).max(tick))
    }

    /// Returns a third of the lease of the hold that is due first, or `None` if nothing is held.
    pub fn period(&self) -> Option<Duration> {
        let (_, number) = self.due.first()?;
        Some(self.holds.get(number)?.period)
    }
}

/// Returns a third of the shortest lease.
fn renewal_period(slots: &[Settlement]) -> Duration {
    let shortest = slots.iter().filter_map(Settlement::lease).min();
    shortest.unwrap_or(Duration::from_secs(1)) / 3
}

/// Maximum number of holds renewed at once. More would block Redis for longer than a few hundred microseconds.
const BATCH: usize = 200;

#[cfg(test)]
mod tests {
    use crate::{Key, Policy, Quota, algorithm::Algorithm};

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn slots() -> HeldSlots {
        let policy = Policy::new("p", Quota::in_flight(1_000));
        let policy = policy.algorithm(Algorithm::Concurrency { lease: LEASE });
        let charge = policy.charge(Key::GLOBAL);
        Arc::from([Settlement::release(charge.to_owned(), false)])
    }

    // Regression: slots that were taken together were all renewed together, a third of a lease later.
    #[test]
    fn renewals_of_slots_that_were_taken_together_are_spread_and_batched() {
        let mut schedule = Schedule::default();
        let mut clock = Timestamp::from_micros(1_700_000_000_000_000);
        let taken_at = clock;
        for _ in 0..1_000 {
            schedule.add(slots(), clock);
        }
        let mut moments = Vec::new();
        let mut renewed = 0;
        while renewed < 1_000 {
            let wait = schedule.wait().expect("slots are held");
            clock = clock + wait;
            schedule.wake(clock, wait);
            let due = schedule.take_due();
            assert!(due.len() < BATCH, "{} together", due.len());
            due.iter().for_each(|(number, _)| schedule.confirm(*number));
            renewed += due.len();
            moments.push(clock.since(taken_at));
        }
        assert!((8..64).contains(&moments.len()), "{moments:?}");
        let (first, last) = (moments[0], moments[moments.len() - 1]);
        assert!(first >= LEASE / 6 - LEASE / 64, "{first:?}");
        assert!(last <= LEASE / 3 + LEASE / 64, "{last:?}");
    }

    // Regression: a wait counted twice if a hold was made meanwhile, so renewals came twice as often.
    #[test]
    fn wait_counts_once_though_holds_are_made_meanwhile() {
        let mut schedule = Schedule::default();
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        schedule.add(slots(), start);
        schedule.wake(start, Duration::ZERO);
        let before = schedule.time;
        let wait = Duration::from_secs(10);
        schedule.add(slots(), start + wait);
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
        let (confirmed, _) = schedule.add(slots(), clock);
        let (failed, _) = schedule.add(slots(), clock);
        for _ in 0..2 {
            schedule.wake(clock, LEASE);
            assert_eq!(schedule.take_due().len(), 2);
            schedule.confirm(confirmed);
        }
        schedule.confirm(failed);
        assert!(schedule.remove(failed));
        assert!(!schedule.remove(confirmed));
    }

    // Regression: one missed reply was logged as leases that could not be renewed, while all of them were.
    #[test]
    fn lease_lapses_only_if_renewals_fail_for_half_of_it() {
        let mut schedule = Schedule::default();
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        let (number, _) = schedule.add(slots(), start);
        let at = |schedule: &mut Schedule, passed: Duration| {
            schedule.wake(start + passed, Duration::ZERO);
            schedule.is_lapsing(number)
        };
        assert!(!at(&mut schedule, LEASE / 3));
        assert!(at(&mut schedule, LEASE / 2));
        schedule.confirm(number);
        assert!(!at(&mut schedule, LEASE * 5 / 6));
        assert!(at(&mut schedule, LEASE));
    }
}
