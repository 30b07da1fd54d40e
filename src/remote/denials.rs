//! Denials of one server: those that hold are repeated, and new ones are kept.

use smallvec::SmallVec;

use crate::{
    charge::{Charge, OwnedCharge},
    clock::Timestamp,
    decision::{CountedBy, Decision, Outcome, PolicyState},
    resilience::Guard,
};

use super::{
    client::Client,
    denial_cache::{self, Found, Validity},
};

/// The kept denials of charges.
pub(super) enum DeniedBefore {
    /// It has denied one of them until later.
    Denied(Decision),
    /// The denial of one was over just now. The number identifies its key.
    JustOver(u64),
    Nothing,
}

/// Returns what is known of charges that the server has denied.
#[inline]
pub(super) fn denied_before(
    client: &Client,
    guard: &Guard,
    charges: &[Charge<'_>],
) -> DeniedBefore {
    let denials = &client.denials;
    if !denials.has_any() {
        return DeniedBefore::Nothing;
    }
    let now = client.now();
    if !denials.may_cover(now) {
        return DeniedBefore::Nothing;
    }
    denied_until(client, guard, charges, now)
}

#[inline(never)]
fn denied_until(
    client: &Client,
    guard: &Guard,
    charges: &[Charge<'_>],
    now: Timestamp,
) -> DeniedBefore {
    if !charges.iter().all(denial_cache::may_be_denied_here) {
        return DeniedBefore::Nothing;
    }
    let validity = client.denials.validity();
    let decided_at = guard.server_clock.now();
    let (mut is_denied, mut just_over) = (false, None);
    let mut state = |charge: &Charge<'_>| {
        match client.denials.find(charge, validity, now) {
            Found::Holds(denial) => {
                is_denied = true;
                return denial.state(charge, now, decided_at);
            }
            Found::JustOver(key) => just_over = just_over.or(Some(key)),
            Found::Nothing => {}
        }
        PolicyState::uncounted(*charge.policy().name(), Outcome::Allowed)
    };
    let states: SmallVec<[PolicyState; 1]> = charges.iter().map(&mut state).collect();
    if is_denied {
        let denial = Decision::of_states(CountedBy::DenialCache, decided_at, states);
        return DeniedBefore::Denied(denial.timed_by(&guard.server_clock));
    }
    just_over.map_or(DeniedBefore::Nothing, DeniedBefore::JustOver)
}

/// Keeps the denials in a decision that was sent after this time.
#[cold]
pub(super) fn note_denial(
    client: &Client,
    charges: &[OwnedCharge],
    decision: &Decision,
    (sent_at, validity): (Timestamp, Validity),
) {
    if decision.counted_by() != CountedBy::Shared {
        return;
    }
    let decided_at = decision.decided_at();
    // The caller's clock is that of the script too.
    let sent_at = match client.clock {
        Some(_) => decided_at,
        None => sent_at,
    };
    for (charge, state) in charges.iter().zip(decision.states()) {
        let charge = charge.borrow();
        if denial_cache::is_repeatable(charge.policy()) && !charge.is_shadow() && !charge.is_away()
        {
            client
                .denials
                .put(&charge, state, (sent_at, decided_at), validity);
        }
    }
}
