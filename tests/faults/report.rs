//! The targets, and the table.

use std::time::Duration;

use tollgate::OnOutage;

use crate::{fleet::DEADLINE, run::Figures};

impl Figures {
    /// Returns the names of the targets that were missed.
    pub(crate) fn missed(&self) -> Vec<&'static str> {
        let is_local = matches!(self.outage, OnOutage::Local);
        let p999 = self.during.quantile(0.999);
        let has_recovered = |after: &Option<Duration>| after.is_some_and(|after| after <= RECOVERY);
        let targets = [
            ("lost requests", self.lost == 0),
            ("errors", self.errors == 0),
            (
                "p99.9",
                p999 <= DEADLINE + GRACE + self.timers.quantile(0.999),
            ),
            ("admitted during", !is_local || self.admitted_during <= 1.05),
            ("admitted in all", !is_local || self.admitted_in_all <= 1.05),
            ("recovery", self.decided_after.iter().all(has_recovered)),
            ("probes", self.probes <= self.max_probes),
        ];
        let missed = targets.into_iter().filter(|(_, is_met)| !is_met);
        missed.map(|(name, _)| name).collect()
    }

    /// Returns the cells of the row.
    pub(crate) fn cells(&self) -> Vec<String> {
        let missed = self.missed();
        let decided: Option<Vec<Duration>> = self.decided_after.iter().copied().collect();
        vec![
            self.requests.to_string(),
            format!("{} / {}", self.lost, self.errors),
            [0.5, 0.99, 0.999, 1.0]
                .map(|share| millis(self.during.quantile(share)))
                .join(" / "),
            [0.999, 1.0]
                .map(|share| millis(self.timers.quantile(share)))
                .join(" / "),
            self.opened_after.map_or("-".to_owned(), seconds),
            format!("{:.2}", self.admitted_during),
            format!("{:.2}", self.admitted_after),
            format!("{:.2}", self.admitted_in_all),
            middle_and_last(self.closed_after.clone()),
            decided.map_or("never".to_owned(), middle_and_last),
            format!("{} / {}", self.probes, self.max_probes),
            if missed.is_empty() {
                "ok".to_owned()
            } else {
                format!("**{}**", missed.join(", "))
            },
        ]
    }
}

/// The names of the columns.
pub(crate) const COLUMNS: [&str; 13] = [
    "fault",
    "requests",
    "lost / errors",
    "decision during the fault: p50 / p99 / p99.9 / max, ms",
    "timer late: p99.9 / max, ms",
    "breaker opened after, s",
    "admitted during",
    "after",
    "in all",
    "breakers closed after, s: median / last",
    "Redis decided after, s: median / last",
    "probes / most",
    "targets",
];

/// Returns a line of a table in Markdown.
pub(crate) fn line(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {} |", cells.join(" | "))
}

fn middle_and_last(mut durations: Vec<Duration>) -> String {
    durations.sort_unstable();
    let middle = durations[durations.len() / 2];
    let last = durations[durations.len() - 1];
    format!("{} / {}", seconds(middle), seconds(last))
}

fn millis(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}

fn seconds(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64())
}

/// How long a decision may take beyond its deadline, besides the lateness of timers.
const GRACE: Duration = Duration::from_millis(10);
/// How soon after the end of a fault each instance must have a decision of Redis.
const RECOVERY: Duration = Duration::from_secs(2);
