//! What each policy's outage choice makes of a request.

use smallvec::SmallVec;

use crate::{
    charge::Charge,
    clock::Timestamp,
    decision::Decision,
    policy::OnOutage,
    state::{CountedBy, Outcome, PolicyState},
    store::Store,
};

/// Decides without the shared store.
///
/// One policy that refuses decides for all, and then nothing is counted. Else those that count locally are decided
/// together, and those that allow are left out. Usage that nobody counted is left unknown.
pub(super) fn decide(local: &dyn Store, charges: &[Charge<'_>], now: Timestamp) -> Decision {
    let choice = |charge: &Charge<'_>| charge.policy().outage_choice();
    if charges
        .iter()
        .any(|charge| choice(charge) == OnOutage::Deny)
    {
        return refuse(charges, now);
    }
    let counted: SmallVec<[Charge<'_>; 4]> = charges
        .iter()
        .filter(|charge| choice(charge) == OnOutage::Local)
        .copied()
        .collect();
    if counted.is_empty() {
        return Decision::new(
            CountedBy::Nobody,
            now,
            charges
                .iter()
                .map(|charge| uncounted(charge, Outcome::Allowed)),
        );
    }
    // The local store answers at once. One that does not cannot be waited for here, so nobody has counted.
    let Some(Ok(decision)) = local.decide(&counted).take_ready() else {
        return refuse(charges, now);
    };
    if decision.states().len() != counted.len() {
        return refuse(charges, now);
    }
    let mut states = decision.states().iter();
    let states = charges.iter().map(|charge| match choice(charge) {
        OnOutage::Local => *states.next().expect("one state per charge"),
        _ => uncounted(charge, Outcome::Allowed),
    });
    Decision::new(CountedBy::Fallback, decision.decided_at(), states)
}

fn refuse(charges: &[Charge<'_>], now: Timestamp) -> Decision {
    let states = charges.iter().map(|charge| {
        let outcome = match charge.policy().outage_choice() {
            OnOutage::Allow => Outcome::Allowed,
            OnOutage::Local | OnOutage::Deny => Outcome::Unavailable,
        };
        uncounted(charge, outcome)
    });
    Decision::new(CountedBy::Nobody, now, states)
}

fn uncounted(charge: &Charge<'_>, outcome: Outcome) -> PolicyState {
    PolicyState::uncounted(*charge.policy().name(), outcome)
}
