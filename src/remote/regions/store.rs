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
    remote::{protocol::PotNote, store::RedisStore},
    store::{Store, StoreFuture},
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
    pub(super) fn new(
        here: RedisStore,
        homes: Box<[Home]>,
        homes_of_slots: Box<[u8]>,
        share: u16,
        wait: Duration,
    ) -> Self {
        Self {
            pots: Arc::new(Pots::new(here, homes, homes_of_slots, share, wait)),
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
        let (mut refunds, mut others) = (Vec::new(), Vec::new());
        for mut settlement in receipt.into_settlements() {
            let site = match pots.home_of(settlement.charge().key()) {
                Some(_) => Site::Away(Away::default()),
                None => Site::Home,
            };
            settlement.set_site(site);
            let is_refund = matches!(settlement.correction(), Correction::Refund(_));
            let is_away = settlement.charge().is_away();
            if is_refund && is_away && settlement.counted_by() == CountedBy::Shared {
                refunds.push(refund::run(Arc::clone(pots), settlement));
            } else {
                others.push(settlement);
            }
        }
        let settled = pots.here.settle(Receipt::with(others));
        if refunds.is_empty() {
            return settled;
        }
        StoreFuture::boxed(async move {
            let (settled, refunded) = join(settled, join_all(refunds)).await;
            refunded.into_iter().fold(settled, Result::and)
        })
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

/// Ends a decision on charges of which some are away from their homes: starts the reports that are due, and waits for those which may
/// bring enough units.
async fn decide_away(
    pots: &Arc<Pots>,
    decided: StoreFuture<Decision>,
    mut charges: OwnedCharges,
) -> Result<Decision, Error> {
    let began_at = now();
    let mut decision = decided.await?;
    let first = decision.clone();
    loop {
        start_reports(pots, &charges, &decision);
        if decision.is_allowed() || !is_worth_waiting(&charges, &decision) {
            return Ok(decision);
        }
        if is_answered(pots, &charges, (&first, &decision), began_at) {
            return Ok(decision);
        }
        let left = (began_at + pots.wait).since(now());
        for charge in &mut charges {
            let borrowed = charge.borrow();
            let (policy, key) = (borrowed.policy(), borrowed.key());
            if let Site::Away(mut away) = pots.site_of(policy, key) {
                away.is_again = true;
                let home = pots.home_of(key);
                let is_reached = home.is_some_and(|home| home.has_replied_since(began_at));
                if left.is_zero() && !is_reached {
                    away.share = pots.share_of(policy);
                }
                *charge = borrowed.at(Site::Away(away)).to_owned();
            }
        }
        if !left.is_zero() {
            sleep(pause(pots, &charges).min(left)).await;
        }
        let borrowed: SmallVec<[Charge<'_>; 2]> = charges.iter().map(OwnedCharge::borrow).collect();
        decision = pots.here.decide(&borrowed).await?;
        if left.is_zero() {
            start_reports(pots, &charges, &decision);
            return Ok(decision);
        }
    }
}

/// Starts the reports that a decision has found to be due.
fn start_reports(pots: &Arc<Pots>, charges: &[OwnedCharge], decision: &Decision) {
    for (charge, note) in notes(charges, decision) {
        if note.is_due() {
            report::start(pots, &charge);
        }
    }
}

/// Returns whether a request is denied only since units are missing here, of which their homes may have some.
fn is_worth_waiting(charges: &[OwnedCharge], decision: &Decision) -> bool {
    let missing = notes(charges, decision).filter(|(_, note)| note.is_missing());
    let denials = decision
        .states()
        .iter()
        .filter(|state| state.enforced_outcome() == Outcome::Limited);
    denials.count() == missing.filter(|(charge, _)| !charge.is_shadow()).count()
}

/// Returns whether the homes have replied to the reports that asked for the units of a request, which others have got then.
fn is_answered(
    pots: &Pots,
    charges: &[OwnedCharge],
    (first, last): (&Decision, &Decision),
    began_at: Timestamp,
) -> bool {
    let notes = notes(charges, first).zip(notes(charges, last));
    let mut missing = notes.filter(|(_, (_, last))| last.is_missing());
    missing.all(|((charge, first), (_, last))| {
        let reports = last.reports_since(first);
        let home = pots.home_of(charge.key());
        (reports >= 2 || reports == 1 && !last.is_under_way())
            && home.is_some_and(|home| home.has_replied_since(began_at))
    })
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
