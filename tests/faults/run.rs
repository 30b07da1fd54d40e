//! One row: from the start of the servers to the figures.

use std::{
    thread,
    time::{Duration, Instant},
};

use tollgate::OnOutage;

use crate::{
    fleet::{self, DEADLINE, Fleet, RATE, Watch},
    histogram::Histogram,
    load::{KEYS, Load, Samples},
    place::Place,
    rows::Row,
};

/// The figures of a row.
pub(crate) struct Figures {
    pub(crate) requests: usize,
    pub(crate) lost: usize,
    pub(crate) errors: usize,
    /// How long decisions took from the start of the fault until all instances asked Redis again.
    pub(crate) during: Histogram,
    /// How late a timer was meanwhile.
    pub(crate) timers: Histogram,
    /// What was admitted in that time, over the whole run, and in the 3 s after it, in parts of the limit.
    pub(crate) admitted_during: f64,
    pub(crate) admitted_in_all: f64,
    pub(crate) admitted_after: f64,
    /// When the first breaker opened.
    pub(crate) opened_after: Option<Duration>,
    /// How long after the end of the fault each instance had closed its breaker, and had a decision by Redis.
    pub(crate) closed_after: Vec<Duration>,
    pub(crate) decided_after: Vec<Option<Duration>>,
    /// The most probes of one instance, and the most that its backoff allows.
    pub(crate) probes: u64,
    pub(crate) max_probes: u64,
    pub(crate) outage: OnOutage,
}

/// Runs a row on a fleet of its own.
pub(crate) fn run(row: &Row, outage: OnOutage, instances: usize) -> Figures {
    let mut place = Place::start(row.kind, instances);
    (row.prepare)(&mut place);
    let fleet = Fleet::start(&place, row, outage, instances);
    let started = Instant::now();
    let load = Load::start(fleet.subjects(outage), row.callers, DEADLINE);
    let watch = Watch::start(&fleet);
    thread::sleep(BEFORE / 2);
    (row.before)(&mut place);
    thread::sleep(BEFORE / 2);

    let probed = fleet.probes();
    let struck = Instant::now();
    (row.strike)(&mut place);
    while struck.elapsed() < row.lasts {
        (row.repeat)(&mut place);
        thread::sleep(Duration::from_millis(100).min(row.lasts.saturating_sub(struck.elapsed())));
    }
    (row.mend)(&mut place);
    let mended = Instant::now();

    let recovered = until_recovered(&fleet, mended);
    thread::sleep(AFTER);
    let probes = fleet.probes();
    let (samples, outages) = (load.stop(), watch.stop());
    let ended = Instant::now();

    let probes = probes.iter().zip(&probed).map(|(now, before)| now - before);
    let closed = outages.iter().map(|one| {
        let last = one.closed.last().copied();
        last.map_or(Duration::ZERO, |at| at.saturating_duration_since(mended))
    });
    let decided = (0..instances).map(|instance| {
        let requests = samples.requests.iter();
        let shared = requests.filter(|sample| {
            sample.instance == instance && sample.asked >= mended && sample.response.is_shared()
        });
        // Samples are not in the order of time: each caller keeps its own.
        let first = shared.map(|sample| sample.asked + sample.took).min();
        first.map(|at| at - mended)
    });
    let opened = outages.iter().filter_map(|one| one.opened.first());
    let in_all = fleet::limit(ended - started) + (KEYS as u64 * RATE) as f64;
    Figures {
        requests: samples.requests.len(),
        lost: samples.count(|response| response == crate::load::Response::Lost),
        errors: samples.count(|response| response == crate::load::Response::Error),
        during: samples.took(struck, recovered),
        timers: samples.late(struck, recovered),
        admitted_during: samples.admitted(struck, recovered) as f64
            / fleet::limit(recovered - struck),
        admitted_in_all: samples.admitted(started, ended) as f64 / in_all,
        admitted_after: samples.admitted(recovered, recovered + AFTER) as f64 / fleet::limit(AFTER),
        opened_after: opened.min().map(|at| at.saturating_duration_since(struck)),
        closed_after: closed.collect(),
        decided_after: decided.collect(),
        probes: probes.max().unwrap_or_default(),
        max_probes: most_probes(recovered - struck) * row.kind.nodes(),
        outage,
    }
}

/// Waits until no breaker has been open for half a second, and returns when the last one closed.
fn until_recovered(fleet: &Fleet, mended: Instant) -> Instant {
    let mut recovered = mended;
    while recovered.elapsed() < STEADY && mended.elapsed() < PATIENCE {
        let mut limiters = fleet.limiters.iter();
        if limiters.any(|limiter| limiter.health().is_degraded()) {
            recovered = Instant::now();
        }
        thread::sleep(Duration::from_millis(2));
    }
    recovered
}

/// Returns the most probes in an outage of this length: the waits double from 100 ms to 1 s after four short ones, each
/// may be half as long, and two good probes end the outage.
fn most_probes(span: Duration) -> u64 {
    let waits = [100, 100, 100, 100, 200, 400, 800].into_iter();
    let mut waits = waits.chain(std::iter::repeat(1_000));
    let (mut elapsed, mut probes) = (Duration::ZERO, 2);
    while elapsed < span {
        elapsed += Duration::from_millis(waits.next().expect("endless")) / 2;
        probes += 1;
    }
    probes
}

impl Samples {
    fn count(&self, is_meant: impl Fn(crate::load::Response) -> bool) -> usize {
        let requests = self.requests.iter();
        requests.filter(|sample| is_meant(sample.response)).count()
    }

    fn took(&self, from: Instant, to: Instant) -> Histogram {
        let mut all = Histogram::default();
        let between = |at: Instant| from <= at && at < to.max(from + SHORTEST);
        let requests = self.requests.iter();
        requests
            .filter(|sample| between(sample.asked))
            .for_each(|sample| all.record(sample.took));
        all
    }

    fn late(&self, from: Instant, to: Instant) -> Histogram {
        let mut all = Histogram::default();
        let between = |at: Instant| from <= at && at < to.max(from + SHORTEST);
        let timers = self.timers.iter();
        timers
            .filter(|(at, _)| between(*at))
            .for_each(|(_, late)| all.record(*late));
        all
    }

    /// Returns the number of requests that were allowed in this time.
    fn admitted(&self, from: Instant, to: Instant) -> usize {
        let requests = self.requests.iter();
        let between = |at: Instant| from <= at && at < to;
        requests
            .filter(|sample| sample.response.is_allowed() && between(sample.asked + sample.took))
            .count()
    }
}

const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(3);
const STEADY: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(15);
/// The shortest time whose decisions are shown.
const SHORTEST: Duration = Duration::from_secs(1);
