//! Asks the store for the state of charges without making them.
//!
//! # Why does an explanation ask the store?
//!
//! A log shows why a request was denied then, and not what the next one gets. So the states are read by a peek, on the
//! way of a decision: from Redis, in process, or from the fallback with its share. One test makes 400 random requests, and
//! compares each with the explanation before it. Policies with different outage choices are asked separately. During an outage, a
//! decision with an `OnOutage::Deny` policy is denied as a whole, and the other states would be unknown.
//!
//! A denial is past, so it must be recorded. A list of the latest denials would be full of one client that retries fast. So the
//! record has one entry for each policy and key, in sets of eight like a cache of a CPU: the memory is fixed, a record takes one
//! short lock, and a client evicts others only if it is denied under many keys.

use std::sync::Arc;

use crate::{
    block::BlockList,
    charge::{Charge, MAX_CHARGES, OwnedCharge},
    decision::CountedBy,
    error::Error,
    policy::OnOutage,
    store::Store,
};

use super::{
    denials::RecentDenials,
    explanation::{Explanation, PolicyExplanation},
};

/// Returns the state of each charge, in their order.
///
/// Policies with different outage choices are asked separately: together, one that denies would hide the others. So there
/// are at most three calls for 16 charges, and one for each of them with a penalty, each within the deadline of the store.
///
/// # Errors
///
/// Those of the store.
pub(crate) async fn ask(
    (store, blocks): (Arc<dyn Store>, &BlockList),
    denials: Option<RecentDenials>,
    charges: Vec<OwnedCharge>,
) -> Result<Explanation, Error> {
    let mut explained: Vec<Option<PolicyExplanation>> = charges.iter().map(|_| None).collect();
    for choice in [OnOutage::Allow, OnOutage::Local, OnOutage::Deny] {
        let numbers = (0..charges.len())
            .filter(|number| charges[*number].borrow().policy().outage_choice() == choice);
        let numbers: Vec<usize> = numbers.collect();
        for numbers in numbers.chunks(MAX_CHARGES) {
            let peek = {
                let borrowed = numbers.iter().map(|number| charges[*number].borrow());
                let peeks: Vec<Charge<'_>> = borrowed.map(|charge| charge.cost(0)).collect();
                store.decide(&peeks)
            };
            let decision = peek.await?;
            for (number, state) in numbers.iter().zip(decision.states()) {
                let charge = charges[*number].borrow();
                let last = denials.as_ref();
                let counted_by = match state.usage() {
                    Some(_) => state.counted_by().unwrap_or(decision.counted_by()),
                    None => CountedBy::Uncounted,
                };
                let ban_status = match charge.policy().ban_penalty() {
                    Some(penalty) if counted_by != CountedBy::Uncounted => {
                        let state = store.ban_record(charge.policy(), charge.key()).await?;
                        state.and_then(|state| penalty.ban_status(&state, decision.decided_at()))
                    }
                    Some(_) | None => None,
                };
                explained[*number] = Some(PolicyExplanation {
                    ban_status,
                    block: blocks.block_of(charge.policy(), charge.key()),
                    policy: charge.policy().clone(),
                    cost: charge.units(),
                    state: *state,
                    counted_by,
                    counted_at: decision.decided_at(),
                    outage_age: None,
                    last_denial: last.and_then(|last| last.last(charge.policy(), charge.key())),
                });
            }
        }
    }
    let policies = explained.into_iter().flatten().collect();
    Ok(Explanation::new(store.health(), policies))
}
