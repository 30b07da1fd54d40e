//! Waits of requests with blocked keys that last longer than the blocks.

use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    clock::Timestamp,
    decision::Decision,
    policy::Policy,
    state::{DeniedBy, PolicyState, Retry, Usage},
    store::{Store, StoreFuture},
};

/// Returns the denial with the waits of quotas and bans that end after the blocks. If the store fails, they are unknown.
pub(crate) async fn with_waits(
    mut denial: Decision,
    charges: SmallVec<[OwnedCharge; 1]>,
    store: &dyn Store,
) -> Decision {
    let asking = ask(&charges, store);
    let Ok(asked) = asking.await else {
        return denial;
    };
    let now = asked.decided_at();
    for (index, (charge, asked)) in charges.iter().zip(asked.states()).enumerate() {
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
        if let Some(until) = ban_of(charge, store, now).await {
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
/// Each charge costs more than any limit, so it is denied, and its debt is converted to the limit of its tier. A peek would not do
/// that: the debt would go on to shrink by the old limit. What notes denials is left out.
fn ask(charges: &[OwnedCharge], store: &dyn Store) -> StoreFuture<Decision> {
    let policy = |charge: &OwnedCharge| {
        let policy = charge.borrow().policy().clone();
        policy.count_denied(false).penalty(None)
    };
    let policies: SmallVec<[Policy; 2]> = charges.iter().map(policy).collect();
    let asked = charges.iter().zip(&policies).map(|(charge, policy)| {
        let charge = charge.borrow();
        let is_peek = charge.is_shadow() || charge.units() == 0 || policy.is_concurrency();
        policy
            .charge(*charge.key())
            .cost(if is_peek { 0 } else { u64::MAX })
    });
    let asked: Charges<'_> = asked.collect();
    store.decide(&asked)
}

/// Returns when the ban of a charge's key ends; `None` if it is not banned, or if the store fails.
async fn ban_of(charge: &OwnedCharge, store: &dyn Store, now: Timestamp) -> Option<Timestamp> {
    let (penalty, asking) = {
        let charge = charge.borrow();
        let penalty = *charge.policy().ban_penalty()?;
        (penalty, store.ban_state(charge.policy(), charge.key()))
    };
    penalty.banned_until(&asking.await.ok()??, now)
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
