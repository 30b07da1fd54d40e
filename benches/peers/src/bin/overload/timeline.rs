//! A run with an event, second by second.

use super::{
    responses::{Seen, quantile},
    scenario::Scenario,
    server::CAPACITY,
};

/// The responses and limits before, during and after an event.
pub struct Timeline {
    scenario: Scenario,
    /// Responses in time in each tenth of a second, by when they came back.
    tenths: Vec<f64>,
    /// The limit at the end of each second; empty if the server does not print it.
    limits: Vec<f64>,
    /// Milliseconds.
    pub p99: f64,
    /// The longest delay of the clients in seconds, and when it was.
    pub delay: (f64, f64),
}

impl Timeline {
    pub fn new(scenario: Scenario, seen: &[Seen], limits: Vec<f64>) -> Self {
        let mut tenths = vec![0.0; (scenario.seconds * 10.0).round() as usize];
        let served = seen
            .iter()
            .filter_map(|seen| Some(seen.came_at + seen.took?));
        for at in served {
            // The last ones come after the end.
            if let Some(tenth) = tenths.get_mut((at * 10.0) as usize) {
                *tenth += 1.0;
            }
        }
        let delays = seen.iter().map(|seen| (seen.delay, seen.came_at));
        Self {
            scenario,
            tenths,
            limits,
            p99: quantile(0.99, seen.iter()),
            delay: delays.fold(
                (0.0, 0.0),
                |most, one| if one.0 > most.0 { one } else { most },
            ),
        }
    }

    /// Returns the responses in time in each whole second.
    pub fn served(&self) -> Vec<f64> {
        let seconds = self.tenths.chunks_exact(10);
        seconds.map(|tenths| tenths.iter().sum()).collect()
    }

    /// Returns the limit at the end of each whole second.
    pub fn limits(&self) -> &[f64] {
        let seconds = self.scenario.seconds as usize;
        &self.limits[..self.limits.len().min(seconds)]
    }

    /// Returns the responses in time as a part of those that were possible, in the whole run.
    pub fn share(&self) -> Option<f64> {
        self.share_when(|_| true)
    }

    /// Returns the same during the event; `None` if hardly any were possible.
    pub fn share_during(&self) -> Option<f64> {
        self.share_when(|at| self.scenario.is_during(at))
    }

    fn share_when(&self, picks: impl Fn(f64) -> bool) -> Option<f64> {
        let scenario = &self.scenario;
        let (mut served, mut possible) = (0.0, 0.0);
        for (tenth, count) in self.tenths.iter().enumerate() {
            let at = (tenth as f64 + 0.5) / 10.0;
            if picks(at) {
                served += count;
                possible += CAPACITY / 10.0 * scenario.load.min(1.0 / scenario.slowness(at));
            }
        }
        (possible >= 1.0).then(|| served / possible)
    }

    /// Returns the mean of the limit before, during and after the event.
    pub fn mean_limits(&self) -> [Option<f64>; 3] {
        self.means(self.limits())
    }

    /// Returns the responses in time a second before the event, or after one that the run begins with.
    pub fn usual(&self) -> f64 {
        let [before, _, after] = self.means(&self.served());
        before.or(after).unwrap_or_default()
    }

    /// Returns whether something has ended from which the service can recover: it has served half of the possible before.
    pub fn can_recover(&self) -> bool {
        let possible = CAPACITY * self.scenario.load.min(1.0);
        self.scenario.recovers() && self.usual() >= 0.5 * possible
    }

    /// Returns the seconds from the end of the event until responses in time are back at 0.9 of the usual ones, for 3 s at least.
    pub fn recovery(&self) -> Option<f64> {
        let enough = 0.9 * self.usual();
        let end = (self.scenario.until * 10.0).round() as usize;
        let seconds: Vec<f64> = self.tenths[end..]
            .windows(10)
            .map(|tenths| tenths.iter().sum())
            .collect();
        let mut spans = seconds.windows(21);
        let back = spans.position(|seconds| seconds.iter().all(|served| *served >= enough));
        back.map(|tenths| tenths as f64 / 10.0)
    }

    /// Returns the worst second from 5 s after the event, as a part of the usual ones.
    pub fn worst_after(&self) -> Option<f64> {
        let served = self.served();
        let after = served.get(self.scenario.until.ceil() as usize + 5..)?;
        let worst = after.iter().copied().reduce(f64::min)?;
        Some(worst / self.usual())
    }

    /// Returns means of the second half of the time before, during and after the event: at first each limit has to find its place.
    fn means(&self, seconds: &[f64]) -> [Option<f64>; 3] {
        let scenario = &self.scenario;
        let parts = [
            (0.0, scenario.from),
            (scenario.from, scenario.until),
            (scenario.until, scenario.seconds),
        ];
        parts.map(|(from, until)| {
            let place = |at: f64| (at as usize).min(seconds.len());
            let values = &seconds[place(f64::midpoint(from, until))..place(until)];
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        })
    }
}
