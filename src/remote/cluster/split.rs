//! A decision on keys in several slots of a cluster: no single script can make it.
//!
//! ```text
//! user, in slot 1   charge ──▶ admitted ──┐                  ┌──▶ all admitted: allowed
//!                                         ├─ all replies ────┤
//! ip, in slot 2     charge ──▶ denied   ──┘                  └──▶ denied; the charge to `user` is refunded
//! ```
//!
//! All parts are charged at the same time, each by one atomic script. If one part is denied, the charges of the others
//! are refunded in the background, by their marks. So
//!
//! - no limit is ever exceeded: a request is admitted only if all its charges were made;
//! - until the refund is executed, about a round trip after the reply, others may find the quota used. So a request is
//!   wrongly denied only while another one that is denied by a second policy holds the last units;
//! - a process that ends before the refund leaves the charge, until time gives it back;
//! - an error of the server or a timeout of one part refunds the others too, and leaves the charge of that part if it
//!   was made;
//! - a refund that was not executed is tried again, at the node that then has the slot. One whose fate is unknown is
//!   not;
//! - slots are released as after any other decision, at the latest when their lease ends.
//!
//! The times of the parts come from the clocks of several nodes. The decision has the earliest of them, so that no
//! retry time is too short.
//!
//! # Why are charges in several slots refunded, and not reserved first?
//!
//! A reservation is a charge under another name: it takes a round trip, others find the quota used meanwhile, and a process that
//! dies leaves it behind. An admitted request would pay a second round trip to confirm it. Most requests are admitted, so the
//! charges are made at once, and the rare denial pays, in the background. A refund names its charge by its mark, so it never
//! returns more than that charge, also if others have charged the key since. A bucket with little debt may get slightly less
//! back.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::{
    charge::{Charge, Charges, OwnedCharge, Receipt, Settlement},
    clock::Timestamp,
    decision::{CountedBy, Decision, PolicyState},
    error::Error,
    store::{StoreFuture, waited},
    task::home,
};

use super::super::node::Node;

/// Returns whether the charges have keys in several slots.
#[inline]
pub(in crate::remote) fn spans_slots(charges: &[Charge<'_>]) -> bool {
    let Some((first, others)) = charges.split_first() else {
        return false;
    };
    let has_another_key = others.iter().any(|charge| charge.key() != first.key());
    has_another_key && {
        let slot = first.key().slot();
        others.iter().any(|charge| charge.key().slot() != slot)
    }
}

/// Decides the charges in one part per slot.
///
/// # Errors
///
/// The error of the first part that has one. The charges of the other parts are refunded.
///
/// # Cancel safety
///
/// If the future is dropped, the decision goes on in the background, and its slots are released.
pub(in crate::remote) fn decide(
    charges: &[Charge<'_>],
    node_of: impl Fn(u16) -> Node,
) -> StoreFuture<Decision> {
    decide_since(charges, node_of, None)
}

/// Decides the charges at a server that turned out to be a node of a cluster, in one part per slot. It redirects each part.
pub(in crate::remote) fn decide_in_parts(
    server: Node,
    charges: &[OwnedCharge],
    submitted_at: Timestamp,
) -> StoreFuture<Decision> {
    let charges: Charges<'_> = charges.iter().map(OwnedCharge::borrow).collect();
    decide_since(&charges, |_| server.clone(), Some(submitted_at))
}

fn decide_since(
    charges: &[Charge<'_>],
    node_of: impl Fn(u16) -> Node,
    submitted_at: Option<Timestamp>,
) -> StoreFuture<Decision> {
    let mut parts: SmallVec<[Part; 4]> = SmallVec::new();
    for (index, charge) in charges.iter().enumerate() {
        let slot = charge.key().slot();
        let part = parts.iter_mut().find(|part| part.slot == slot);
        match part {
            Some(part) => part.charges.push((index, charge.to_owned())),
            None => parts.push(Part {
                slot,
                node: node_of(slot),
                submitted_at,
                charges: SmallVec::from_iter([(index, charge.to_owned())]),
            }),
        }
    }
    let waited = waited::so_far();
    let deciding = parts.into_iter().map(|part| part.decide(waited));
    let deciding = join_all(deciding);
    StoreFuture::boxed(SplitDecision {
        deciding: Some(Box::pin(async move { combine(deciding.await) })),
    })
}

/// The charges of a request to one slot, each with its place in the request.
struct Part {
    slot: u16,
    node: Node,
    /// When the deadline began, if that is not when the part is decided.
    submitted_at: Option<Timestamp>,
    charges: SmallVec<[(usize, OwnedCharge); 2]>,
}

/// A part, and its decision.
type DecidedPart = (Part, Result<Decision, Error>);

impl Part {
    async fn decide(self, waited: Duration) -> DecidedPart {
        let deciding = {
            let charges = self.charges();
            match self.submitted_at {
                Some(at) => self.node.decide_since(&charges, at, decide_in_parts),
                None => waited::after(waited, || self.node.decide(&charges, decide_in_parts)),
            }
        };
        let decision = deciding.await;
        (self, decision)
    }

    fn charges(&self) -> Charges<'_> {
        let charges = self.charges.iter();
        charges.map(|(_, charge)| charge.borrow()).collect()
    }

    /// Refunds the charges that the decision made, in the background. Attempts that count although they are denied are
    /// not refunded.
    fn give_back(&self, decision: &Decision) {
        let receipt = Receipt::of(&self.charges(), decision);
        let Some(receipt) = receipt else { return };
        let receipt = receipt.actual_cost(
            |policy, charged| {
                if policy.counts_denied() { charged } else { 0 }
            },
        );
        self.settle(receipt.into_settlements());
    }

    /// Releases the slots that the decision took, in the background: its caller has left.
    fn release_slots(&self, decision: &Decision) {
        let receipt = Receipt::of(&self.charges(), decision);
        let settlements = receipt.into_iter().flat_map(Receipt::into_settlements);
        self.settle(settlements.filter(Settlement::is_release));
    }

    /// Settles each charge on its own, so that a retry of one does not repeat another one.
    fn settle(&self, settlements: impl IntoIterator<Item = Settlement>) {
        for settlement in settlements {
            let node = self.node.clone();
            home::spawn_lasting(Box::pin(async move {
                let settled = node.settle(Receipt::with(vec![settlement.clone()])).await;
                if settled.is_err_and(|error| settlement.may_retry(&error))
                    && let Some(nodes) = node.client.nodes()
                {
                    nodes.settle_later(settlement);
                }
            }));
        }
    }
}

/// Puts the decisions of all parts together, and refunds charges if one part was not admitted.
fn combine(parts: Vec<DecidedPart>) -> (Vec<DecidedPart>, Result<Decision, Error>) {
    let is_allowed = |part: &DecidedPart| part.1.as_ref().is_ok_and(Decision::is_allowed);
    let are_all_allowed = parts.iter().all(is_allowed);
    if !are_all_allowed {
        for (part, decision) in &parts {
            if let Ok(decision) = decision {
                part.give_back(decision);
            }
        }
    }
    let mut states: SmallVec<[(usize, PolicyState); 4]> = SmallVec::new();
    let mut earliest: Option<&Decision> = None;
    let mut counted_by: Option<CountedBy> = None;
    for (part, decision) in &parts {
        let decision = match decision {
            Ok(decision) => decision,
            Err(error) => {
                let error = error.clone();
                return (parts, Err(error));
            }
        };
        if earliest.is_none_or(|earliest| decision.decided_at() < earliest.decided_at()) {
            earliest = Some(decision);
        }
        counted_by = Some(counted_by.map_or(decision.counted_by(), |least| {
            least.least(decision.counted_by())
        }));
        for ((index, charge), state) in part.charges.iter().zip(decision.states()) {
            let state = if decision.is_allowed() && !are_all_allowed {
                charge.borrow().after_denial(*state, decision)
            } else {
                *state
            };
            states.push((*index, state.with_counted_by(decision.counted_by())));
        }
    }
    states.sort_unstable_by_key(|(index, _)| *index);
    let decision = Decision::new(
        counted_by.unwrap_or(CountedBy::Shared),
        earliest.map(Decision::decided_at).unwrap_or_default(),
        states.into_iter().map(|(_, state)| state),
    );
    let decision = match earliest {
        Some(earliest) => decision.timed_as(earliest),
        None => decision,
    };
    (parts, Ok(decision))
}

// === SplitDecision ===

/// A decision of several parts. If it is dropped, it goes on in the background, so that no part stays charged alone.
struct SplitDecision {
    /// `None` once it has ended.
    deciding: Option<DecidingParts>,
}

/// The future of all parts, and of the decision that they make together.
type DecidingParts =
    Pin<Box<dyn Future<Output = (Vec<DecidedPart>, Result<Decision, Error>)> + Send>>;

impl Future for SplitDecision {
    type Output = Result<Decision, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let deciding = self.deciding.as_mut();
        let deciding = deciding.expect("a future is not polled after it ended");
        let (_, decision) = ready!(deciding.as_mut().poll(context));
        self.deciding = None;
        Poll::Ready(decision)
    }
}

impl Drop for SplitDecision {
    fn drop(&mut self) {
        let Some(deciding) = self.deciding.take() else {
            return;
        };
        home::spawn_lasting(Box::pin(async move {
            let (parts, decision) = deciding.await;
            if decision.is_ok_and(|decision| decision.is_allowed()) {
                for (part, decision) in &parts {
                    if let Ok(decision) = decision {
                        part.release_slots(decision);
                    }
                }
            }
        }));
    }
}
