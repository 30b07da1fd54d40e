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

use futures_util::future::join_all;

use crate::{
    charge::{Charge, Fingerprint, MAX_CHARGES, OwnedCharge},
    decision::{CountedBy, Decision, PolicyState},
    error::Error,
    key::Key,
    limiter::RateLimiter,
    policy::OnOutage,
    store::{KeyLease, StoreFuture},
};

use super::explanation::{Explanation, PolicyExplanation};

impl RateLimiter {
    /// Returns the state of a key under every policy of the limiter, for an operator who asks why it was limited.
    ///
    /// Charges nothing. A policy is of the limiter once a builder or a layer has added it, and is shown with its own quota:
    /// [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) also knows tiers and modes. Takes at most three calls for
    /// 16 policies, one for each, and one more for each with a penalty, each within the deadline of the store. See
    /// [`explain`](crate::explain) for an example.
    ///
    /// # Errors
    ///
    /// The error of the store, if it could not return the state. A limiter with a fallback always returns it.
    pub fn explain(&self, key: &Key) -> StoreFuture<Explanation> {
        let policies = self.policies();
        let charges = policies.iter().map(|policy| policy.charge(*key).to_owned());
        let (limiter, charges) = (self.clone(), charges.collect());
        StoreFuture::boxed(async move { limiter.explain_charges(charges).await })
    }

    /// As [`explain`](Self::explain), for these charges in their order.
    ///
    /// Policies with different outage choices are asked separately: together, one that denies would hide the others. So there
    /// are at most three calls for 16 charges. Then the bans and the pauses of the keys are read, all at once, each within the
    /// deadline of the store.
    pub(crate) async fn explain_charges(
        &self,
        charges: Vec<OwnedCharge>,
    ) -> Result<Explanation, Error> {
        self.blocks.refresh().await;
        let mut explained: Vec<Option<PolicyExplanation>> = charges.iter().map(|_| None).collect();
        for choice in [OnOutage::Allow, OnOutage::Local, OnOutage::Deny] {
            let asked = charges.iter().zip(&mut explained);
            let asked =
                asked.filter(|(charge, _)| charge.borrow().policy().outage_choice() == choice);
            let mut asked: Vec<_> = asked.collect();
            for asked in asked.chunks_mut(MAX_CHARGES) {
                let peek = {
                    let peeks = asked.iter().map(|(charge, _)| charge.borrow().cost(0));
                    self.store.decide(&peeks.collect::<Vec<_>>())
                };
                let decision = peek.await?;
                let states = asked.iter().zip(decision.states());
                let explaining = states.map(|((charge, _), state)| {
                    self.explain_state(charge.borrow(), state, &decision)
                });
                let explanations = join_all(explaining).await;
                for ((_, explained), explanation) in asked.iter_mut().zip(explanations) {
                    **explained = Some(explanation?);
                }
            }
        }
        let health = self.store.health();
        let mut policies: Vec<_> = explained.into_iter().flatten().collect();
        for policy in &mut policies {
            policy.outage_age = health.outage_age();
        }
        Ok(Explanation { health, policies })
    }

    async fn explain_state(
        &self,
        charge: Charge<'_>,
        state: &PolicyState,
        decision: &Decision,
    ) -> Result<PolicyExplanation, Error> {
        let (policy, key) = (charge.policy(), charge.key());
        let counted_by = match state.usage() {
            Some(_) => state.counted_by().unwrap_or(decision.counted_by()),
            None => CountedBy::Uncounted,
        };
        let ban_status = match policy.ban_penalty() {
            Some(penalty) if counted_by != CountedBy::Uncounted => {
                let record = self.store.ban_record(policy, key).await?;
                record.and_then(|record| penalty.ban_status(&record, decision.decided_at()))
            }
            Some(_) | None => None,
        };
        let now = decision.decided_at();
        let paused_until = match counted_by {
            // Nobody heeds a pause of the server while it is unavailable.
            CountedBy::Fallback | CountedBy::Uncounted => None,
            _ => self.store.paused_until(&charge).await?,
        };
        let view = self.store.local_view(&charge);
        let has_units = |lease: KeyLease| lease.units() >= charge.units();
        let counted_by = match view.denied_for() {
            _ if charge.units() == 0 => counted_by,
            // The next request is not asked of the store.
            _ if view.lease().is_some_and(has_units) => CountedBy::Lease,
            Some(_) => CountedBy::DenialCache,
            None => counted_by,
        };
        let denials = self.recorders.denials.as_ref();
        Ok(PolicyExplanation {
            ban_status,
            block: self.blocks.list.block_of(policy, key),
            policy: policy.clone(),
            cost: charge.units(),
            paused_until: paused_until.filter(|until| *until > now),
            waiting: self.lines.key_wait(Fingerprint::of(policy, key)),
            state: *state,
            counted_by,
            view,
            counted_at: now,
            outage_age: None,
            last_denial: denials.and_then(|denials| denials.last(policy, key)),
        })
    }
}
