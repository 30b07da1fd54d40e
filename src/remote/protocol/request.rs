//! The arguments of the decision script for one request.

use std::{collections::HashMap, time::Duration};

use redis::Cmd;
use smallvec::SmallVec;

use crate::{
    algorithm::{Algorithm, Counter, WindowStart},
    charge::Charge,
    key::Key,
    policy::Policy,
    quota::Quota,
    settlement::Settlement,
};

use super::{
    codec::{self, Arguments, MAX_TICKETS},
    departure::Departure,
    keyspace::{Keyspace, WireKey},
};

/// Keys and arguments that the script takes for one request: charges to decide together, or one job on a charge.
#[derive(Debug)]
pub(in crate::remote) struct Request {
    keys: SmallVec<[WireKey; 1]>,
    arguments: Arguments,
    /// Per charge, the number of integers that the reply holds about its state.
    reply_lens: SmallVec<[u8; 1]>,
    /// For a caller who must know whether it was sent.
    departure: Option<Departure>,
}

impl Request {
    /// Charges to decide together.
    pub(in crate::remote) fn decide(keyspace: &Keyspace, charges: &[Charge<'_>]) -> Self {
        let mut arguments = codec::group_of(charges.len());
        for charge in charges {
            codec::ask(&mut arguments, charge);
        }
        Self {
            keys: charges.iter().map(|charge| keyspace.of(charge)).collect(),
            arguments,
            reply_lens: charges.iter().map(codec::reply_len).collect(),
            departure: None,
        }
    }

    /// Lets the caller know whether the request was sent.
    pub(in crate::remote) fn departure(&mut self) -> Departure {
        self.departure.get_or_insert_default().clone()
    }

    /// Corrects charges that were made. Releases of slots of one key travel in one request. Returns with each request the
    /// places of the settlements that it carries; those that need no correction are in none.
    pub(in crate::remote) fn settle_all(
        keyspace: &Keyspace,
        settlements: &[Settlement],
    ) -> Vec<(Self, Vec<usize>)> {
        let is_slots = |settlement: &Settlement| takes_slots(&settlement.charge());
        let mut requests = Vec::new();
        for (place, settlement) in settlements.iter().enumerate() {
            if !is_slots(settlement)
                && let Some(arguments) = codec::correct(settlement)
            {
                requests.push((
                    Self::of_one(keyspace, &settlement.charge(), arguments),
                    vec![place],
                ));
            }
        }
        for pending in [false, true] {
            let released = settlements.iter().enumerate();
            let released = released.filter(|(_, settlement)| {
                is_slots(settlement) && settlement.is_acquire_pending() == pending
            });
            let released = released.map(|(place, settlement)| (place, settlement.charge()));
            requests.extend(Self::upkeep(keyspace, released, |charges| {
                codec::release(charges, pending)
            }));
        }
        requests
    }

    /// Renews the leases of slots, those of one key in one request. Returns with each request the places of the charges
    /// that it carries, in the order of the bits of [`Reply::missing`].
    ///
    /// Slots whose lease has ended are taken again if that is asked for.
    ///
    /// [`Reply::missing`]: super::Reply::missing
    pub(in crate::remote) fn renew_all(
        keyspace: &Keyspace,
        charges: &[Charge<'_>],
        take_again: bool,
    ) -> Vec<(Self, Vec<usize>)> {
        let charges = charges.iter().copied().enumerate();
        let slots = charges.filter(|(_, charge)| takes_slots(charge));
        Self::upkeep(keyspace, slots, |charges| codec::renew(charges, take_again))
    }

    /// Makes requests of charges that take slots, each for up to [`MAX_TICKETS`](codec::MAX_TICKETS) of one key.
    fn upkeep<'a>(
        keyspace: &Keyspace,
        slots: impl Iterator<Item = (usize, Charge<'a>)>,
        arguments: impl Fn(&[Charge<'a>]) -> Arguments,
    ) -> Vec<(Self, Vec<usize>)> {
        let mut by_key: HashMap<_, (Vec<Charge<'a>>, Vec<usize>)> = HashMap::new();
        for (place, charge) in slots {
            let (charges, places) = by_key
                .entry((*charge.policy().name(), *charge.key()))
                .or_default();
            charges.push(charge);
            places.push(place);
        }
        let mut requests = Vec::new();
        for (charges, places) in by_key.into_values() {
            let parts = charges.chunks(MAX_TICKETS).zip(places.chunks(MAX_TICKETS));
            requests.extend(parts.map(|(charges, places)| {
                let request = Self::of_one(keyspace, &charges[0], arguments(charges));
                (request, places.to_vec())
            }));
        }
        requests
    }

    fn of_one(keyspace: &Keyspace, charge: &Charge<'_>, arguments: Arguments) -> Self {
        Self {
            keys: SmallVec::from_iter([keyspace.of(charge)]),
            arguments,
            reply_lens: SmallVec::from_iter([codec::reply_len(charge)]),
            departure: None,
        }
    }

    /// Charges that are always made, to keys of the store's own. They do what decisions did so far: one charge per
    /// algorithm, in two slots of a cluster, with the same commands. So they succeed only where decisions would.
    pub(in crate::remote) fn probe(keyspace: &Keyspace) -> Self {
        let mut policies = probe_policies();
        let is_used = |policy: &Policy| keyspace.is_used(policy.counter());
        if policies.iter().any(is_used) {
            policies.retain(is_used);
        } else {
            policies.truncate(1);
        }
        let mut request = Self {
            keys: SmallVec::new(),
            arguments: codec::group_of(2 * policies.len()),
            reply_lens: SmallVec::new(),
            departure: None,
        };
        for policy in &policies {
            // Only the wire knows the keys of probes: they are none that a charge can have.
            for key in keyspace.probes(policy.counter()) {
                let charge = policy.charge(Key::GLOBAL);
                request.keys.push(key);
                codec::probe(&mut request.arguments, &charge);
                request.reply_lens.push(codec::reply_len(&charge));
            }
        }
        request
    }

    /// Returns the number of charges.
    pub(in crate::remote) fn charges(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of keys and arguments.
    pub(in crate::remote) fn arguments(&self) -> usize {
        self.keys.len() + self.arguments.len()
    }

    /// Returns, per charge, the number of integers that the reply holds about its state.
    pub(in crate::remote) fn reply_lens(&self) -> &[u8] {
        &self.reply_lens
    }

    /// Appends the keys. In a command, the keys of all requests come before all arguments.
    pub(in crate::remote) fn write_keys(&self, command: &mut Cmd) {
        for key in &self.keys {
            command.arg(key.as_slice());
        }
    }

    /// Appends the arguments. The request is taken for sent from here on.
    pub(in crate::remote) fn write_arguments(&self, command: &mut Cmd) {
        if let Some(departure) = &self.departure {
            departure.note_sent();
        }
        for argument in &self.arguments {
            argument.write(command);
        }
    }

    /// Notes that the request was not sent after all.
    pub(in crate::remote) fn note_not_sent(&self) {
        if let Some(departure) = &self.departure {
            departure.note_not_sent();
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(departure) = &self.departure {
            departure.end();
        }
    }
}

fn takes_slots(charge: &Charge<'_>) -> bool {
    matches!(charge.policy().counter(), Counter::Concurrency(_)) && charge.units() > 0
}

/// One policy per algorithm, with the widest limit that it has and the shortest time, so that probes leave next to nothing.
fn probe_policies() -> Vec<Policy> {
    let policy = |count| Policy::new("probe", Quota::per_second(count));
    let lease = Duration::from_millis(100);
    vec![
        policy(1_000_000),
        policy(1_000_000).algorithm(Algorithm::FixedWindow(WindowStart::Clock)),
        policy(1_000_000).algorithm(Algorithm::SlidingWindow),
        policy(10_000).algorithm(Algorithm::SlidingLog),
        Policy::concurrency("probe", 10_000).algorithm(Algorithm::Concurrency { lease }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_can_be_probed() {
        for policy in probe_policies() {
            policy.validate().expect("a usable policy");
        }
    }

    #[test]
    fn probe_charges_two_keys_per_algorithm_in_use() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        assert_eq!(Request::probe(&keyspace).charges(), 2, "a bucket, at first");
        for (used, policy) in probe_policies().iter().skip(1).enumerate() {
            let _ = Request::decide(&keyspace, &[policy.charge(Key::GLOBAL)]);
            assert_eq!(Request::probe(&keyspace).charges(), 2 * (used + 1));
        }
    }
}
