//! The store over all regions.

use std::{sync::Arc, time::Duration};

use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use crate::{
    algorithm::Counter,
    charge::{Away, Charge, Correction, OwnedCharge, Receipt, Site},
    clock::{Clock, Timestamp},
    decision::{CountedBy, Decision, Outcome},
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
    remote::protocol::PotNote,
    store::{Health, Stats, Store, StoreFuture},
    task::timer::sleep,
};

use super::{home::Home, pots::Pots, refund, report};

/// Counts in several regions: each key at its home, and by units that are leased from there in the others.
#[derive(Debug)]
pub(crate) struct RegionStore {
    pots: Arc<Pots>,
}

type OwnedCharges = SmallVec<[OwnedCharge; 2]>;

impl RegionStore {
    pub(super) fn new(pots: Pots) -> Self {
        Self {
            pots: Arc::new(pots),
        }
    }
}

impl Store for RegionStore {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.pots.here)
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let pots = &self.pots;
        let placed: SmallVec<[Charge<'_>; 4]> = charges
            .iter()
            .map(|charge| charge.at(pots.site_of(charge.policy(), charge.key())))
            .collect();
        let decided = pots.here.decide(&placed);
        if !placed.iter().any(Charge::is_away) {
            return decided;
        }
        let charges: OwnedCharges = placed.iter().map(Charge::to_owned).collect();
        let pots = Arc::clone(pots);
        StoreFuture::boxed(async move { decide_away(&pots, decided, charges).await })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let here = self.pots.here.reset_leased(policy, key);
        let Some(home) = self.pots.home_of(key) else {
            return here;
        };
        let there = home.store.reset_leased(policy, key);
        StoreFuture::boxed(async move {
            let (here, there) = join(here, there).await;
            here.and(there)
        })
    }

    fn settle(&self, receipt: Receipt) -> StoreFuture<()> {
        let pots = &self.pots;
        let (mut elsewhere, mut others) = (Vec::new(), Vec::new());
        for mut settlement in receipt.into_settlements() {
            let key = *settlement.charge().key();
            let home = pots.home_of(&key);
            settlement.set_site(match home {
                Some(_) => Site::Away(Away::default()),
                None => Site::Home,
            });
            let home = home.filter(|_| settlement.counted_by() == CountedBy::Shared);
            match (home, settlement.correction()) {
                (Some(_), Correction::Refund(_)) => {
                    let refund = refund::run(Arc::clone(pots), settlement);
                    elsewhere.push(StoreFuture::boxed(refund));
                }
                (Some(home), Correction::Charge(_)) if !home.is_cut_off() => {
                    // It may be more than a pot has, and must not expire with it.
                    settlement.set_site(Site::Home);
                    elsewhere.push(home.store.settle(Receipt::with(vec![settlement])));
                }
                _ => others.push(settlement),
            }
        }
        let settled = pots.here.settle(Receipt::with(others));
        if elsewhere.is_empty() {
            return settled;
        }
        StoreFuture::boxed(async move {
            let (settled, elsewhere) = join(settled, join_all(elsewhere)).await;
            elsewhere.into_iter().fold(settled, Result::and)
        })
    }

    fn stats(&self) -> Stats {
        self.pots.metrics.show();
        self.pots.here.stats().of_region(self.pots.units())
    }

    fn health(&self) -> Health {
        let health = self.pots.here.health();
        health.with_cut_off_regions(self.pots.cut_off())
    }

    /// A request may wait for a home besides.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    fn check_policy(&self, policy: &Policy) -> Result<(), Error> {
        let reason = match policy.counter() {
            Counter::Bucket(bucket) if bucket.is_queue() => {
                "each request of a queue needs its own turn"
            }
            Counter::Bucket(_) if policy.counts_denied() => {
                "a region does not ask the others about each request that is denied: remove count_denied()"
            }
            Counter::Bucket(_) if policy.loan().is_some() => {
                "a region does not ask the others what they have lent: remove lend()"
            }
            Counter::Bucket(_) => return Ok(()),
            Counter::Concurrency(_) => "slots are held, not spent",
            Counter::FixedWindow(_) | Counter::SlidingLog(_) | Counter::SlidingWindow(_) => {
                "only token and leaky buckets can be leased to another region"
            }
        };
        Err(Error::new(
            ErrorKind::InvalidPolicy,
            format!(
                "policy {:?} cannot be shared by regions: {reason}",
                policy.name()
            ),
        ))
    }
}

/// Ends a decision on charges of which some are away from their homes, and counts it.
async fn decide_away(
    pots: &Arc<Pots>,
    decided: StoreFuture<Decision>,
    mut charges: OwnedCharges,
) -> Result<Decision, Error> {
    let decision = wait_for_units(pots, decided, &mut charges).await?;
    if is_by_share(&charges, &decision) {
        pots.metrics.decided_by_share();
    }
    Ok(decision)
}

/// Starts the reports that are due, and waits for those which may bring enough units.
async fn wait_for_units(
    pots: &Arc<Pots>,
    decided: StoreFuture<Decision>,
    charges: &mut OwnedCharges,
) -> Result<Decision, Error> {
    let began_at = now();
    let first = decided.await?;
    start_reports(pots, charges, &first);
    if !is_worth_waiting(pots, charges, &first) {
        return Ok(first);
    }
    pots.metrics.missed();
    let mut last = first.clone();
    loop {
        let left = (began_at + pots.wait).since(now());
        let is_silent = is_silent(charges, (&first, &last));
        for charge in charges.iter_mut() {
            let borrowed = charge.borrow();
            let (policy, key) = (borrowed.policy(), borrowed.key());
            if let Site::Away(mut away) = pots.site_of(policy, key) {
                away.is_again = true;
                if left.is_zero() && is_silent {
                    away.share = pots.share_of(policy);
                }
                charge.set_site(Site::Away(away));
            }
        }
        if !left.is_zero() {
            sleep(pause(pots, charges).min(left)).await;
        }
        let borrowed: SmallVec<[Charge<'_>; 2]> = charges.iter().map(OwnedCharge::borrow).collect();
        last = pots.here.decide(&borrowed).await?;
        start_reports(pots, charges, &last);
        let is_over = left.is_zero() || is_answered(charges, (&first, &last));
        if is_over || !is_worth_waiting(pots, charges, &last) {
            return Ok(last);
        }
    }
}

/// Starts the reports that a decision has found to be due.
fn start_reports(pots: &Arc<Pots>, charges: &[OwnedCharge], decision: &Decision) {
    for (charge, _) in notes(charges, decision).filter(|(_, note)| note.is_due()) {
        report::start(pots, &charge);
    }
}

/// Returns whether shares have admitted a request, or one has denied it.
fn is_by_share(charges: &[OwnedCharge], decision: &Decision) -> bool {
    if decision.is_allowed() {
        return notes(charges, decision)
            .any(|(charge, note)| charge.has_share() && note.is_under_way());
    }
    let mut states = charges.iter().zip(decision.states());
    decision.counted_by() == CountedBy::Shared
        && states.any(|(charge, state)| {
            charge.borrow().has_share() && state.enforced_outcome() == Outcome::Limited
        })
}

/// Returns whether a request is denied only since units are missing here, of which their homes may have some.
fn is_worth_waiting(pots: &Pots, charges: &[OwnedCharge], decision: &Decision) -> bool {
    if decision.is_allowed() {
        return false;
    }
    let missing = notes(charges, decision).filter(|(charge, note)| {
        note.is_missing() && !charge.is_shadow() && !pots.is_out_of_reach(charge)
    });
    let denials = decision
        .states()
        .iter()
        .filter(|state| state.enforced_outcome() == Outcome::Limited);
    denials.count() == missing.count()
}

/// Returns whether the homes have replied to the reports that asked for the units of a request, which others have got then.
fn is_answered(charges: &[OwnedCharge], (first, last): (&Decision, &Decision)) -> bool {
    missing_notes(charges, first, last).all(|(first, last)| {
        let reports = last.reports_since(first);
        !last.has_failed() && (reports >= 2 || reports == 1 && !last.is_under_way())
    })
}

/// Returns whether the homes have not replied while a request has waited: its reports have failed, or the first is still under way.
fn is_silent(charges: &[OwnedCharge], (first, last): (&Decision, &Decision)) -> bool {
    missing_notes(charges, first, last).all(|(first, last)| {
        let reports = last.reports_since(first);
        let is_first = reports == 0 || reports == 1 && !first.is_under_way();
        last.has_failed() || is_first && last.is_under_way()
    })
}

/// Returns the notes of two decisions, for each charge whose units are missing in the last one.
fn missing_notes<'a>(
    charges: &'a [OwnedCharge],
    first: &'a Decision,
    last: &'a Decision,
) -> impl Iterator<Item = (PotNote, PotNote)> {
    let notes = notes(charges, first).zip(notes(charges, last));
    notes
        .map(|((_, first), (_, last))| (first, last))
        .filter(|(_, last)| last.is_missing())
}

/// Returns what the server has replied besides, for each charge that is away from its home.
fn notes<'a>(
    charges: &'a [OwnedCharge],
    decision: &'a Decision,
) -> impl Iterator<Item = (Charge<'a>, PotNote)> {
    let is_shared = decision.counted_by() == CountedBy::Shared;
    let states = charges.iter().zip(decision.states());
    states.filter_map(move |(charge, state)| {
        let charge = charge.borrow();
        let note = PotNote(state.store_note());
        (is_shared && charge.is_away()).then_some((charge, note))
    })
}

/// Returns how long to wait before the next look at the units here: a quarter of the way to the farthest home.
fn pause(pots: &Pots, charges: &[OwnedCharge]) -> Duration {
    let homes = charges
        .iter()
        .filter_map(|charge| pots.home_of(charge.borrow().key()));
    let longest = homes.map(Home::round_trip).max().unwrap_or_default();
    (longest / 4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

fn now() -> Timestamp {
    Clock::system().now()
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
