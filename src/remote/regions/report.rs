//! Reports of this region to the homes of its keys.

use std::sync::Arc;

use crate::{
    algorithm::{Admitted, Counter, TokenBucket},
    charge::{Charge, Merge, OwnedCharge, Site},
    clock::{Clock, Timestamp},
    error::Error,
    remote::{
        protocol::{
            LeaseReply, LeaseReport, PotEnd, PotReply, PotStep, PotUpdate, Request, malformed,
        },
        route,
        store::RedisStore,
    },
    task::{Running, home as background, timer::sleep},
    telemetry::ReportResult,
};

use super::{home::Home, pots::Pots, size::Demand};

use std::time::Duration;

/// Reports the units of a key in the background, unless this process does already. `charge` is one of that key.
pub(super) fn start(pots: &Arc<Pots>, charge: &Charge<'_>) {
    start_with(pots, charge, PotStep::Begin);
}

fn start_with(pots: &Arc<Pots>, charge: &Charge<'_>, first: PotStep) {
    if !pots.begin_report(charge) {
        return;
    }
    let reporting = Reporting {
        pots: Arc::clone(pots),
        charge: charge.to_owned(),
    };
    // Without a thread, the next request or sweep tries again.
    background::spawn(async move {
        let reporting = reporting;
        let charge = reporting.charge.borrow();
        run(&reporting.pots, &charge, first).await;
    });
}

/// A key of which this process makes a report.
struct Reporting {
    pots: Arc<Pots>,
    charge: OwnedCharge,
}

impl Drop for Reporting {
    fn drop(&mut self) {
        self.pots.end_report(&self.charge.borrow());
    }
}

/// Makes a report: begins it here, sends it to the home, and ends it here by the reply.
async fn run(pots: &Arc<Pots>, charge: &Charge<'_>, first: PotStep) {
    let counter = charge.policy().counter();
    let (Some(home), Some(bucket)) = (pots.home_of(charge.key()), counter.bucket()) else {
        return;
    };
    // If it fails, or its reply is lost, the next report waits until this one is too old.
    let Ok(begun) = step(&pots.here, charge, first).await else {
        return;
    };
    if !begun.has_begun {
        if begun.left + begun.spent == 0 {
            pots.forget(charge);
        } else {
            pots.note_busy(charge, begun.due_in, Clock::system().now());
        }
        return;
    }
    let gives_back = first != PotStep::Begin;
    let demand = Demand::new(&begun, home.round_trip(), gives_back);
    let report = demand.report(&begun, bucket, pots.even_share());
    let began_at = Clock::system().now();
    let (paid, reply, took) = call(home, charge, &begun, report).await;
    let (end, update) = match &reply {
        Ok(reply) => {
            home.note_reply(took);
            let update = demand.update((&begun, &report), reply, bucket, paid);
            let end = if reply.is_late {
                PotEnd::Late
            } else {
                PotEnd::Replied
            };
            pots.metrics.reported(if reply.is_late {
                ReportResult::Late
            } else {
                ReportResult::Accepted
            });
            (end, update)
        }
        Err(error) => {
            pots.metrics.reported(ReportResult::Failed);
            home.note_failure(error, began_at, Clock::system().now());
            let wait = if home.is_cut_off() {
                RETRY_CUT_OFF
            } else {
                RETRY
            };
            let end = if error.was_not_executed() {
                PotEnd::NotSent
            } else {
                PotEnd::Lost
            };
            let update = PotUpdate::without_reply(&begun, wait, paid);
            (end, update)
        }
    };
    let ended = step(&pots.here, charge, PotStep::End(begun.at, end, update)).await;
    if let (Ok(reply), Ok(ended)) = (&reply, &ended) {
        home.note_times(reply.decided_at, ended.at);
    }
    let (left, spent) = ended.map_or((0, 0), |pot| (pot.left, pot.spent));
    if left + spent > 0 {
        let kept = (demand.idle(), demand.reserve(bucket));
        pots.note_held(charge, left, kept, Clock::system().now());
        start_sweep(pots);
    } else if gives_back {
        pots.forget(charge);
    }
}

/// Charges the home for what was admitted without it, and reports. Returns the units that were charged, and how long the report took.
async fn call(
    home: &Home,
    charge: &Charge<'_>,
    begun: &PotReply,
    report: LeaseReport,
) -> (u64, Result<LeaseReply, Error>, Duration) {
    let owed = async {
        if begun.owed == 0 {
            return 0;
        }
        match merge(home, charge, begun).await {
            Ok(true) => begun.owed,
            Ok(false) | Err(_) => 0,
        }
    };
    let reported = async {
        let sent_at = Clock::system().now();
        let reply = lease(&home.store, charge, report).await;
        (reply, Clock::system().now().since(sent_at))
    };
    let (paid, (reply, took)) = futures_util::future::join(owed, reported).await;
    (paid, reply, took)
}

/// Sends a report to the server of the home.
async fn lease(
    store: &RedisStore,
    charge: &Charge<'_>,
    report: LeaseReport,
) -> Result<LeaseReply, Error> {
    let node = store.node_for(charge.key());
    let charge = charge.at(Site::Home);
    let request = Request::lease(&node.client.keyspace, &charge, report);
    let reply = route::submit(&node.client, Box::new(request)).await?;
    reply.check()?;
    reply.into_lease().ok_or_else(malformed)
}

/// Charges the home for units that were admitted without it, at most up to the limit. Returns whether it did: without an earlier
/// reply, the home's time is not known, and the next report does it.
async fn merge(home: &Home, charge: &Charge<'_>, begun: &PotReply) -> Result<bool, Error> {
    let Counter::Bucket(bucket) = charge.policy().counter() else {
        return Ok(false);
    };
    let Some(from) = home.time_there(begun.owed_since) else {
        return Ok(false);
    };
    let node = home.store.node_for(charge.key());
    let (admitted, id) = owed(bucket, begun, from);
    let merge = Merge::new(charge.at(Site::Home).to_owned(), admitted, id);
    let Some(request) = Request::merge(&node.client.keyspace, &merge) else {
        return Ok(false);
    };
    route::submit(&node.client, Box::new(request))
        .await?
        .check()?;
    Ok(true)
}

/// Returns what the home is charged for units that were admitted without it from this time of its clock on, and the number of this
/// merge: the same for the same units, if it is not known whether they were charged.
pub(super) fn owed(bucket: &TokenBucket, begun: &PotReply, from: Timestamp) -> (Admitted, u64) {
    let admitted = Admitted::new(
        bucket.micros_up(begun.owed),
        from.as_micros(),
        from + Duration::from_micros(bucket.span()) + LONGEST_OWED,
    );
    (admitted, begun.owed_since.as_micros() * 31 + begun.owed)
}

/// Makes a step of a report at the server of this region.
async fn step(here: &RedisStore, charge: &Charge<'_>, step: PotStep) -> Result<PotReply, Error> {
    let node = here.node_for(charge.key());
    let request =
        Request::pot_report(&node.client.keyspace, charge, &step).ok_or_else(malformed)?;
    let reply = route::submit(&node.client, Box::new(request)).await?;
    reply.check()?;
    reply.into_pot().ok_or_else(malformed)
}

fn start_sweep(pots: &Arc<Pots>) {
    let sweep = |running| sweep(Arc::clone(pots), running);
    pots.sweep.start(sweep);
}

/// Gives back the units of idle keys, until there are none.
async fn sweep(pots: Arc<Pots>, running: Running) {
    while pots.holds_any() {
        sleep(SWEEP_INTERVAL).await;
        for held in pots.idle(Clock::system().now()) {
            let (idle, reserve) = (held.idle, held.reserve);
            let step = PotStep::GiveBack { idle, reserve };
            // A home that does not reply delays no other one.
            start_with(&pots, &held.charge.borrow(), step);
        }
    }
    drop(running);
    // A key may have been added just before.
    if pots.holds_any() {
        start_sweep(&pots);
    }
}

const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// How long the next report waits after one that failed.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_CUT_OFF: Duration = Duration::from_millis(500);
/// What was admitted without the home is charged to it until this long after it has come back to the bucket.
const LONGEST_OWED: Duration = Duration::from_secs(60);
