//! The arguments of the decision script for one request.

use std::collections::HashMap;

use redis::Cmd;
use smallvec::SmallVec;

use crate::{algorithm::Counter, policy::Charge, settlement::Settlement};

use super::{
    codec::{self, Argument, Arguments, MAX_TICKETS, Tag},
    keyspace::{Keyspace, WireKey},
};

/// Keys and arguments that the script takes for one request: charges to decide together, or one job on a charge.
#[derive(Debug)]
pub(in crate::remote) struct Request {
    keys: SmallVec<[WireKey; 1]>,
    arguments: Arguments,
    /// Per charge, the number of integers that the reply holds about its state.
    reply_lens: SmallVec<[u8; 1]>,
}

impl Request {
    /// Charges to decide together.
    pub(in crate::remote) fn decide(keyspace: &Keyspace, charges: &[Charge<'_>]) -> Self {
        let mut arguments = Arguments::new();
        if charges.len() > 1 {
            arguments.extend([
                Argument::mark(Tag::Group),
                Argument::Number(charges.len() as u64),
            ]);
        }
        for charge in charges {
            codec::ask(&mut arguments, charge);
        }
        Self {
            keys: charges.iter().map(|charge| keyspace.of(charge)).collect(),
            arguments,
            reply_lens: charges.iter().map(codec::reply_len).collect(),
        }
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
                is_slots(settlement) && settlement.take_is_pending() == pending
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
        }
    }

    /// A charge that is always admitted and writes a key of the store's own, so it succeeds only where decisions would.
    pub(in crate::remote) fn probe(keyspace: &Keyspace) -> Self {
        Self {
            keys: SmallVec::from_iter([keyspace.probe()]),
            arguments: codec::always(),
            reply_lens: SmallVec::from_iter([1]),
        }
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

    /// Appends the arguments.
    pub(in crate::remote) fn write_arguments(&self, command: &mut Cmd) {
        for argument in &self.arguments {
            argument.write(command);
        }
    }
}

fn takes_slots(charge: &Charge<'_>) -> bool {
    matches!(charge.policy().counter(), Counter::Slots(_)) && charge.units() > 0
}
