//! The part of a reserve that is lent.
//!
//! # How much of a reserve of slots is lent?
//!
//! A slot that is lent comes back when its request ends. So what the class needs soon is kept: half as much again as the most that it
//! had in flight in the last 10 to 20 s. The rest is lent, but for a twentieth of the limit, for the first requests after a pause.
//! Each process sees in the replies to other classes how many slots the class has, in all processes: those of the whole that
//! are not counted besides.
//!
//! A fixed twentieth would not do. Of 100 slots it is 5, and a class that has 8 to 16 in flight would find the others in its place each
//! time that it has fewer for a moment: 3 to 8 % of its requests were denied, in eight processes.
//!
//! A bucket gets back what it lends at its whole rate, so there a twentieth of the burst is enough.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{algorithm::Counter, clock::Timestamp, decision::Usage};

use super::consistency::Percent;

/// The part of a policy's limit that other classes may use.
#[derive(Debug)]
pub(crate) struct Loan {
    /// By how much is kept, in equal steps.
    counters: Box<[Counter]>,
    /// The part that is always kept.
    #[cfg(feature = "redis")]
    kept: Percent,
    /// Units that are kept besides if all of them are needed.
    spare: u64,
    needed: Needed,
}

/// How much a charge leaves to the class with the reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LoanStep(u8);

impl LoanStep {
    /// As much as possible.
    pub const LAST: Self = Self(u8::MAX);
}

impl Loan {
    /// Lends all but a part of what a counter admits.
    pub fn leaving(kept: Percent, counter: &Counter) -> Self {
        Self::new((kept, 0), counter)
    }

    /// Lends all slots of a counter, but for up to `spare` that are needed.
    pub fn of_slots(spare: u64, counter: &Counter) -> Self {
        Self::new((Percent::whole(0), spare), counter)
    }

    fn new((kept, spare): (Percent, u64), counter: &Counter) -> Self {
        let last = (STEPS - 1).min(spare);
        let lent = counter.leaving(kept.of_up(counter.limit()));
        let keeping = |step| lent.keeping(spare * step / last.max(1));
        Self {
            counters: (0..=last).map(keeping).collect(),
            #[cfg(feature = "redis")]
            kept,
            spare,
            needed: Needed::default(),
        }
    }

    /// Returns the loan of an instance that grants `units` of a limit, by its counter.
    #[cfg(feature = "redis")]
    pub fn part(&self, counter: &Counter, (units, limit): (u64, u64)) -> Self {
        Self::new((self.kept, self.spare * units / limit.max(1)), counter)
    }

    /// Returns the counter of a step.
    #[inline]
    pub fn counter(&self, LoanStep(step): LoanStep) -> &Counter {
        let last = self.counters.len() - 1;
        &self.counters[usize::from(step).min(last)]
    }

    /// Returns how much the next request is to leave.
    pub fn step(&self) -> LoanStep {
        let kept = (self.needed.most() * 3).div_ceil(2).min(self.spare);
        let last = self.counters.len() as u64 - 1;
        let step = (kept * last).div_ceil(self.spare.max(1));
        LoanStep(u8::try_from(step).unwrap_or(u8::MAX))
    }

    /// Notes how many slots are used in all, and how many of them by other classes.
    pub fn note(&self, [whole, others]: [Usage; 2], now: Timestamp) {
        let used = |usage: Usage| usage.limit.saturating_sub(usage.remaining);
        self.needed
            .note(used(whole).saturating_sub(used(others)), now);
    }
}

/// The most slots that the class had in a period of 10 s, and in the one before: 18 bits each, after the number of the period.
#[derive(Debug, Default)]
struct Needed(AtomicU64);

impl Needed {
    fn most(&self) -> u64 {
        let [_, before, latest] = unpack(self.0.load(Relaxed));
        before.max(latest)
    }

    fn note(&self, slots: u64, now: Timestamp) {
        let period = now.as_micros() / PERIOD;
        let next = |packed| {
            let [known, before, latest] = unpack(packed);
            let [before, latest] = match period.saturating_sub(known) {
                0 => [before, latest.max(slots)],
                1 => [latest, slots],
                _ => [0, slots],
            };
            let next = pack([period.max(known), before, latest]);
            (next != packed).then_some(next)
        };
        // An error: nothing has changed.
        let _ = self.0.fetch_update(Relaxed, Relaxed, next);
    }
}

fn pack([period, before, latest]: [u64; 3]) -> u64 {
    let slots = |count: u64| count.min((1 << SLOT_BITS) - 1);
    period << (2 * SLOT_BITS) | slots(before) << SLOT_BITS | slots(latest)
}

fn unpack(packed: u64) -> [u64; 3] {
    let slots = |packed: u64| packed & ((1 << SLOT_BITS) - 1);
    [
        packed >> (2 * SLOT_BITS),
        slots(packed >> SLOT_BITS),
        slots(packed),
    ]
}

const STEPS: u64 = 9;
/// Microseconds.
const PERIOD: u64 = 10_000_000;
const SLOT_BITS: u32 = 18;
