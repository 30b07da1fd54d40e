//! The history as JSON.

use serde::Serialize;

use super::history::{DecisionHistory, DecisionSeries, Latency, Track};

/// The numbers of all slots since the start, from the oldest.
#[derive(Serialize)]
pub(super) struct HistoryView<'a> {
    /// The numbers since the start, up to the latest slot. What later states add to them is in no slot here.
    decisions: &'a [DecisionSeries],
    tracks: Vec<TrackView<'a>>,
}

#[derive(Serialize)]
struct TrackView<'a> {
    /// The length of a slot, in seconds.
    step: u64,
    /// The start of the latest slot in seconds, by the clock of the history. Only that of a second is over.
    latest: u64,
    slots: usize,
    series: Vec<SeriesView<'a>>,
    latency: Vec<Latency>,
}

#[derive(Serialize)]
struct SeriesView<'a> {
    policy: &'a str,
    tier: &'a str,
    /// A list per kind, in the order of the totals in the state; empty if all its numbers are 0.
    counts: Vec<Vec<u32>>,
}

impl<'a> HistoryView<'a> {
    pub fn of(history: &'a DecisionHistory) -> Self {
        let tracks = history.tracks().iter().enumerate();
        let tracks = tracks.map(|(number, track)| {
            let series = history.series().iter();
            let latency = track.indices().map(|index| track.latency(index));
            TrackView {
                step: track.step,
                latest: track.latest_start(),
                slots: track.indices().count(),
                series: series
                    .map(|series| SeriesView::of(series, number, track))
                    .collect(),
                latency: latency.collect(),
            }
        });
        Self {
            decisions: history.series(),
            tracks: tracks.collect(),
        }
    }
}

impl<'a> SeriesView<'a> {
    fn of(series: &'a DecisionSeries, number: usize, track: &Track) -> Self {
        let slots = series.slots(number);
        let counts = (0..series.totals.len()).map(|kind| {
            let counts: Vec<u32> = track.indices().map(|index| slots[index][kind]).collect();
            let has_any = counts.iter().any(|count| *count > 0);
            if has_any { counts } else { Vec::new() }
        });
        Self {
            policy: &series.policy,
            tier: &series.tier,
            counts: counts.collect(),
        }
    }
}
