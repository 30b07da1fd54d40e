//! Waits of requests with blocked keys that last longer than the blocks.

use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    clock::Timestamp,
    decision::{Decision, DeniedBy, PolicyState, Retry, Usage},
    policy::{BanRecord, Penalty, Policy},
    store::{Store, StoreFuture, TimeLeft},
};

/// Returns the denial with the waits of quotas and bans that end after the blocks. If the store fails, or is not in time, they
/// are unknown.
///
/// Quotas and bans are asked for at the same time: one after the other, they would take several deadlines of a slow store.
pub(crate) async fn with_waits(
    mut denial: Decision,
    charges: SmallVec<[OwnedCharge; 1]>,
    store: &dyn Store,
    time: TimeLeft,
) -> Decision {
    let asking = time.ask(|| ask(&charges, store));
    let bans = charges.iter().map(|charge| ban_of(charge, store, time));
    let (Ok(asked), bans) = join(asking, join_all(bans)).await else {
        return denial;
    };
    let now = asked.decided_at();
    for (index, (charge, ban)) in charges.iter().zip(bans).enumerate() {
        let asked = asked.states()[index];
        let Some(usage) = asked.usage().filter(|_| !charge.borrow().is_shadow()) else {
            continue;
        };
        let mut retry = {
            let charge = charge.borrow();
            charge
                .policy()
                .counter()
                .retry_under(usage, charge.units(), now)
        };
        if let Some((penalty, ban)) = ban
            && let Some(until) = penalty.banned_until(&ban, now)
        {
            retry = retry.max(Retry::At(until));
        }
        let state = denial.states()[index];
        if retry > state.retry() {
            let reset_at = match retry {
                Retry::At(at) => usage.reset_at.max(at),
                Retry::Never | Retry::Now => usage.reset_at,
            };
            let state = match state.denied_by() {
                Some(_) => blocked_state(&charge.borrow(), reset_at, retry),
                None => PolicyState::counted(*asked.policy(), usage, Retry::Now).with_retry(retry),
            };
            denial.replace_state(index, state);
        }
    }
    denial
}

/// Asks a store for the usage of the charges' keys, and changes nothing but what a change of a limit requires.
///
/// Each charge costs a unit more than its limit, so it is denied, and its debt is converted to the limit of its tier. A peek would
/// not do that: the debt would go on to shrink by the old limit. What notes denials is left out.
fn ask(charges: &[OwnedCharge], store: &dyn Store) -> StoreFuture<Decision> {
    let policy = |charge: &OwnedCharge| {
        let policy = charge.borrow().policy().clone();
        policy.count_denied(false).penalty(None)
    };
    let policies: SmallVec<[Policy; 2]> = charges.iter().map(policy).collect();
    let asked = charges.iter().zip(&policies).map(|(charge, policy)| {
        let charge = charge.borrow();
        let is_peek = charge.is_shadow() || charge.units() == 0 || policy.is_concurrency();
        let too_much = policy.counter().limit().saturating_add(1);
        policy
            .charge(*charge.key())
            .cost(if is_peek { 0 } else { too_much })
    });
    let asked: Charges<'_> = asked.collect();
    store.decide(&asked)
}

/// Returns the ban of a charge's key with the penalty of its policy. `None` if the key has none, or if the store fails or is
/// late.
async fn ban_of(
    charge: &OwnedCharge,
    store: &dyn Store,
    time: TimeLeft,
) -> Option<(Penalty, BanRecord)> {
    let (penalty, asking) = {
        let charge = charge.borrow();
        let penalty = *charge.policy().ban_penalty()?;
        if charge.is_shadow() {
            return None;
        }
        (penalty, store.ban_record(charge.policy(), charge.key()))
    };
    Some((penalty, time.limit(asking).await?.ok()??))
}

/// Returns the state of a charge whose key is blocked: nothing is left meanwhile.
pub(crate) fn blocked_state(charge: &Charge<'_>, reset_at: Timestamp, retry: Retry) -> PolicyState {
    let policy = charge.policy();
    let usage = Usage::new(policy.counter().limit(), 0, reset_at);
    let state = PolicyState::counted(*policy.name(), usage, retry)
        .with_denied_by(DeniedBy::Block)
        .with_shadow(charge.is_shadow());
    if policy.is_concurrency() {
        state.for_concurrency()
    } else {
        state
    }
}
