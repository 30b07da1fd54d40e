//! The numbers of the last minutes and hours, in bounded memory.
//!
//! ```text
//! track     step    slots   covers       slot of a time
//! fine      1 s     300     5 minutes    seconds since the Unix epoch, modulo 300
//! coarse    60 s    360     6 hours      minutes since the Unix epoch, modulo 360
//! ```
//!
//! A record is made shortly after a second has ended, and belongs to that second: of the record at 12:00:01.020, the fine slot
//! is 12:00:00 and the coarse one 12:00.
//!
//! A pair of policy and tier takes 660 slots of 28 bytes, 18 KB. There are at most 257 pairs, see
//! [`telemetry`](crate::telemetry#number-of-series), so all take at most 4.8 MB.

use std::time::Duration;

use serde::Serialize;

use crate::{
    clock::Timestamp,
    store::{CallLatency, DurationCounts},
    telemetry::{DecisionCount, KINDS},
};

/// The numbers of each slot, by policy and tier, and the latency of the shared store.
#[derive(Debug)]
pub(super) struct DecisionHistory {
    tracks: [Track; 2],
    series: Vec<DecisionSeries>,
}

impl DecisionHistory {
    /// Creates a history that begins now. Decisions and calls before are in no slot: another dashboard may have counted them.
    pub fn new<'a>(
        now: Timestamp,
        counts: impl Iterator<Item = DecisionCount<'a>>,
        latency: &CallLatency,
    ) -> Self {
        let ended = now - SECOND;
        let mut history = Self {
            tracks: [(FINE_STEP, FINE_SLOTS), (COARSE_STEP, COARSE_SLOTS)]
                .map(|(step, slots)| Track::new(step, slots, ended, latency)),
            series: Vec::new(),
        };
        for count in counts {
            find_or_add(&mut history.series, &count).totals = count.counts;
        }
        history
    }

    /// Adds the decisions and calls since the last record. Both counts only grow.
    pub fn record<'a>(
        &mut self,
        now: Timestamp,
        counts: impl Iterator<Item = DecisionCount<'a>>,
        latency: &CallLatency,
    ) {
        let ended = now - SECOND;
        let passed = self.tracks.each_mut().map(|track| track.advance(ended));
        for (number, (track, passed)) in self.tracks.iter_mut().zip(passed).enumerate() {
            for series in &mut self.series {
                let slots = &mut series.slots[number];
                track.clear(slots, passed);
            }
            track.add_latency(latency);
        }
        for count in counts {
            let series = find_or_add(&mut self.series, &count);
            let added = series.added(count.counts);
            for (number, (track, passed)) in self.tracks.iter().zip(passed).enumerate() {
                track.spread(&mut series.slots[number], passed, added);
            }
        }
    }

    pub fn tracks(&self) -> &[Track; 2] {
        &self.tracks
    }

    pub fn series(&self) -> &[DecisionSeries] {
        &self.series
    }

    /// Returns the start of the second of the latest record, in seconds since the Unix epoch.
    pub fn second(&self) -> u64 {
        let [fine, _] = &self.tracks;
        fine.latest_start()
    }
}

fn find_or_add<'a>(
    series: &'a mut Vec<DecisionSeries>,
    count: &DecisionCount<'_>,
) -> &'a mut DecisionSeries {
    let is_same =
        |known: &DecisionSeries| *known.policy == *count.policy && *known.tier == *count.tier;
    let index = series.iter().position(is_same).unwrap_or_else(|| {
        series.push(DecisionSeries::new(count.policy, count.tier));
        series.len() - 1
    });
    &mut series[index]
}

// === DecisionSeries ===

/// The numbers of one policy and tier.
#[derive(Debug, Serialize)]
pub(super) struct DecisionSeries {
    pub policy: Box<str>,
    pub tier: Box<str>,
    /// The numbers since the start.
    pub totals: [u64; KINDS],
    /// The slots of each track.
    #[serde(skip)]
    slots: [Box<[SlotCounts]>; 2],
}

/// The numbers of one slot.
pub(super) type SlotCounts = [u32; KINDS];

impl DecisionSeries {
    fn new(policy: &str, tier: &str) -> Self {
        Self {
            policy: policy.into(),
            tier: tier.into(),
            totals: [0; KINDS],
            slots: [FINE_SLOTS, COARSE_SLOTS]
                .map(|slots| vec![SlotCounts::default(); slots].into()),
        }
    }

    /// Returns the slots of a track.
    pub fn slots(&self, track: usize) -> &[SlotCounts] {
        &self.slots[track]
    }

    /// Sets the totals, and returns their growth.
    fn added(&mut self, totals: [u64; KINDS]) -> [u64; KINDS] {
        let before = std::mem::replace(&mut self.totals, totals);
        std::array::from_fn(|kind| totals[kind].saturating_sub(before[kind]))
    }
}

// === Track ===

/// The slots of one length.
#[derive(Debug)]
pub(super) struct Track {
    /// The length of a slot, in seconds.
    pub step: u64,
    /// The number of the latest slot since the Unix epoch.
    latest: u64,
    /// The number of the slot with which the history begins.
    first: u64,
    latency: Box<[Latency]>,
    /// The calls that were made before the latest slot, and those in it.
    before_slot: CallLatency,
    up_to_now: CallLatency,
}

impl Track {
    fn new(step: u64, slots: usize, first: Timestamp, latency: &CallLatency) -> Self {
        let latest = first.as_micros() / (step * MICROS);
        Self {
            step,
            latest,
            first: latest,
            latency: vec![Latency::default(); slots].into(),
            before_slot: latency.clone(),
            up_to_now: latency.clone(),
        }
    }

    /// Moves to the slot of this time. Returns by how many slots, at most all of them. A clock that was set back stays
    /// in its slot until it is reached again.
    fn advance(&mut self, now: Timestamp) -> usize {
        let number = now.as_micros() / (self.step * MICROS);
        let passed = number.saturating_sub(self.latest);
        let passed = usize::try_from(passed)
            .map_or(self.latency.len(), |passed| passed.min(self.latency.len()));
        self.latest = self.latest.max(number);
        if passed > 0 {
            self.before_slot = self.up_to_now.clone();
        }
        for age in 0..passed {
            let index = self.index(age);
            self.latency[index] = Latency::default();
        }
        passed
    }

    /// Empties the slots that were entered.
    fn clear(&self, slots: &mut [SlotCounts], passed: usize) {
        for age in 0..passed {
            slots[self.index(age)] = SlotCounts::default();
        }
    }

    /// Adds decisions to the slots that were entered, in equal parts, since they were made in all of them.
    fn spread(&self, slots: &mut [SlotCounts], passed: usize, added: [u64; KINDS]) {
        let parts = passed.max(1) as u64;
        for (kind, added) in added
            .into_iter()
            .enumerate()
            .filter(|(_, added)| *added > 0)
        {
            for age in 0..parts {
                // The first parts get the remainder.
                let part = added / parts + u64::from(age < added % parts);
                let index = self.index(usize::try_from(age).unwrap_or_default());
                let slot = &mut slots[index][kind];
                *slot = slot.saturating_add(u32::try_from(part).unwrap_or(u32::MAX));
            }
        }
    }

    fn add_latency(&mut self, latency: &CallLatency) {
        self.up_to_now.clone_from(latency);
        let queue_wait = latency.queue_wait.since(&self.before_slot.queue_wait);
        let round_trip = latency.round_trip.since(&self.before_slot.round_trip);
        let index = self.index(0);
        self.latency[index] = Latency::of(&queue_wait, &round_trip);
    }

    /// Returns the index of the slot that is this many slots old.
    fn index(&self, age: usize) -> usize {
        let slots = self.latency.len();
        let latest = usize::try_from(self.latest % slots as u64).unwrap_or_default();
        (latest + slots - age % slots) % slots
    }

    /// Returns the indices of all slots since the start, from the oldest.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        let covered = self.latest - self.first + 1;
        let covered = usize::try_from(covered).map_or(self.latency.len(), |covered| {
            covered.min(self.latency.len())
        });
        (0..covered).rev().map(|age| self.index(age))
    }

    /// Returns the start of the latest slot, in seconds since the Unix epoch.
    pub fn latest_start(&self) -> u64 {
        self.latest * self.step
    }

    pub fn latency(&self, index: usize) -> Latency {
        self.latency[index]
    }

    /// Returns the latency of the latest slot.
    pub fn latest_latency(&self) -> Latency {
        self.latency[self.index(0)]
    }
}

// === Latency ===

/// The latency of the shared store in one slot, in microseconds; `None` without calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Latency {
    pub median: Option<u32>,
    pub p99: Option<u32>,
    pub queue_p99: Option<u32>,
}

impl Latency {
    fn of(queue_wait: &DurationCounts, round_trip: &DurationCounts) -> Self {
        let micros = |counts: &DurationCounts, percent| {
            let duration = counts.percentile(percent)?;
            u32::try_from(duration.as_micros()).ok()
        };
        Self {
            median: micros(round_trip, 50),
            p99: micros(round_trip, 99),
            queue_p99: micros(queue_wait, 99),
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MICROS: u64 = 1_000_000;
const FINE_STEP: u64 = 1;
const FINE_SLOTS: usize = 300;
const COARSE_STEP: u64 = 60;
const COARSE_SLOTS: usize = 360;

#[cfg(test)]
mod tests {
    use crate::store::DurationCounter;

    use super::*;

    const START: u64 = 1_800_000_000;

    /// Returns the time of the record of this second: shortly after its end.
    fn after(second: u64) -> Timestamp {
        Timestamp::from_micros((START + second + 1) * MICROS + 30_000)
    }

    fn begun(second: u64) -> DecisionHistory {
        DecisionHistory::new(after(second), [].into_iter(), &CallLatency::default())
    }

    fn count(allowed: u64) -> impl Iterator<Item = DecisionCount<'static>> {
        let count = DecisionCount {
            policy: "api",
            tier: "none",
            counts: [allowed, 0, 0, 0, 0, 0, 0],
        };
        [count].into_iter()
    }

    fn record(history: &mut DecisionHistory, second: u64, allowed: u64) {
        history.record(after(second), count(allowed), &CallLatency::default());
    }

    fn allowed(history: &DecisionHistory, track: usize) -> Vec<u32> {
        let indices = history.tracks()[track].indices();
        let slots = history.series()[0].slots(track);
        indices.map(|index| slots[index][0]).collect()
    }

    #[test]
    fn growth_is_recorded_in_the_slot_of_its_time() {
        let mut history = begun(0);
        record(&mut history, 0, 3);
        record(&mut history, 1, 3);
        record(&mut history, 2, 10);
        assert_eq!(allowed(&history, 0), [3, 0, 7]);
        assert_eq!(allowed(&history, 1), [10]);
        assert_eq!(history.second(), START + 2);
        record(&mut history, 60, 11);
        assert_eq!(allowed(&history, 1), [10, 1]);
    }

    #[test]
    fn late_record_is_spread_over_the_slots_since_the_last_one() {
        let mut history = begun(0);
        record(&mut history, 0, 0);
        record(&mut history, 3, 10);
        assert_eq!(allowed(&history, 0), [0, 3, 3, 4]);
    }

    #[test]
    fn old_slots_are_overwritten_and_never_shown_again() {
        let mut history = begun(0);
        for second in 0..700 {
            record(&mut history, second, second);
        }
        let fine = allowed(&history, 0);
        assert_eq!((fine.len(), fine.iter().sum::<u32>()), (FINE_SLOTS, 300));
        // A day later, in one step.
        record(&mut history, 86_400, 699);
        assert_eq!(allowed(&history, 0), [0; FINE_SLOTS]);
        assert_eq!(allowed(&history, 1), [0; COARSE_SLOTS]);
    }

    #[test]
    fn clock_that_is_set_back_loses_no_decision() {
        let mut history = begun(10);
        record(&mut history, 10, 1);
        record(&mut history, 5, 2);
        record(&mut history, 11, 3);
        assert_eq!(allowed(&history, 0), [2, 1]);
    }

    #[test]
    fn latency_is_that_of_the_calls_in_the_slot() {
        let counter = DurationCounter::default();
        let mut history = begun(0);
        let mut record = |second, millis| {
            counter.add(Duration::from_millis(millis));
            let latency = CallLatency {
                queue_wait: DurationCounts::default(),
                round_trip: counter.counts(),
            };
            history.record(after(second), [].into_iter(), &latency);
            history.tracks().each_ref().map(Track::latest_latency)
        };
        record(0, 100);
        let [fine, coarse] = record(1, 1);
        let median = fine.median.expect("a call");
        assert!(median.abs_diff(1_000) <= 125, "{median}");
        assert!(coarse.p99 > Some(80_000), "{coarse:?}");
        assert_eq!(fine.queue_p99, None);
    }

    #[test]
    fn record_belongs_to_the_second_that_has_ended() {
        let midnight = Timestamp::from_micros(START * MICROS);
        let mut history = DecisionHistory::new(midnight, [].into_iter(), &CallLatency::default());
        let next = Timestamp::from_micros((START + 1) * MICROS + 20_000);
        history.record(next, count(5), &CallLatency::default());
        assert_eq!(history.second(), START);
        assert_eq!(allowed(&history, 0), [0, 5]);
        // The first second of an hour belongs to its first minute.
        assert_eq!(history.tracks()[1].latest_start(), START);
        assert_eq!(allowed(&history, 1), [0, 5]);
    }

    #[test]
    fn history_of_a_running_limiter_begins_without_a_spike() {
        let counter = DurationCounter::default();
        counter.add(Duration::from_millis(100));
        let latency = CallLatency {
            queue_wait: DurationCounts::default(),
            round_trip: counter.counts(),
        };
        let mut history = DecisionHistory::new(after(0), count(1_000), &latency);
        assert_eq!(history.series()[0].totals[0], 1_000);
        history.record(after(0), count(1_000), &latency);
        history.record(after(1), count(1_003), &latency);
        for track in 0..2 {
            assert_eq!(allowed(&history, track).iter().sum::<u32>(), 3);
            assert_eq!(history.tracks()[track].latest_latency(), Latency::default());
        }
    }
}
