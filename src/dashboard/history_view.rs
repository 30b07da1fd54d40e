//! The history as JSON.

use serde::Serialize;

use super::{
    history::{DecisionHistory, DecisionSeries, Track},
    state::{Decisions, LatencyState},
};

/// The numbers of all slots since the start, from the oldest.
#[derive(Serialize)]
pub(super) struct HistoryView {
    /// The numbers since the start, up to the latest slot. What later states add to them is in no slot here.
    decisions: Vec<Decisions>,
    tracks: Vec<TrackView>,
}

#[derive(Serialize)]
struct TrackView {
    /// The length of a slot, in seconds.
    step: u64,
    /// The start of the latest slot in seconds, by the clock of the history. Only that of a second is over.
    latest: u64,
    slots: usize,
    series: Vec<SeriesView>,
    latency: Vec<LatencyState>,
}

#[derive(Serialize)]
struct SeriesView {
    policy: String,
    tier: String,
    /// A list per kind, in the order of the totals in the state; empty if all its numbers are 0.
    counts: Vec<Vec<u32>>,
}

impl HistoryView {
    pub(super) fn of(history: &DecisionHistory) -> Self {
        let tracks = history.tracks().iter().enumerate();
        let tracks = tracks.map(|(number, track)| TrackView {
            step: track.step,
            latest: track.latest_start(),
            slots: track.indices().count(),
            series: history
                .series()
                .iter()
                .map(|series| SeriesView::of(series, number, track))
                .collect(),
            latency: track
                .indices()
                .map(|index| LatencyState::of(track.latency(index)))
                .collect(),
        });
        Self {
            decisions: history.series().iter().map(Decisions::of).collect(),
            tracks: tracks.collect(),
        }
    }
}

impl SeriesView {
    fn of(series: &DecisionSeries, number: usize, track: &Track) -> Self {
        let slots = series.slots(number);
        let counts = (0..series.totals.len()).map(|kind| {
            let counts: Vec<u32> = track.indices().map(|index| slots[index][kind]).collect();
            let has_any = counts.iter().any(|count| *count > 0);
            if has_any { counts } else { Vec::new() }
        });
        Self {
            policy: series.policy.to_string(),
            tier: series.tier.to_string(),
            counts: counts.collect(),
        }
    }
}
