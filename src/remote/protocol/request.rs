//! The arguments of the decision script for one request.

use redis::Cmd;
use smallvec::SmallVec;

use crate::{policy::Charge, settlement::Settlement};

use super::{
    codec::{self, Argument, Arguments},
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
            arguments.extend([Argument::mark(b'*'), Argument::Number(charges.len() as u64)]);
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

    /// Corrects a charge that was made; `None` when it needs no correction.
    pub(in crate::remote) fn settle(keyspace: &Keyspace, settlement: &Settlement) -> Option<Self> {
        let charge = settlement.charge();
        Some(Self {
            keys: SmallVec::from_iter([keyspace.of(&charge)]),
            arguments: codec::correct(settlement)?,
            reply_lens: SmallVec::from_iter([codec::reply_len(&charge)]),
        })
    }

    /// Releases the slots of a charge; `None` when it takes none.
    pub(in crate::remote) fn release(keyspace: &Keyspace, charge: &Charge<'_>) -> Option<Self> {
        let arguments = codec::release(charge)?;
        Some(Self {
            keys: SmallVec::from_iter([keyspace.of(charge)]),
            arguments,
            reply_lens: SmallVec::from_iter([codec::reply_len(charge)]),
        })
    }

    /// Renews the lease of a charge's slots; `None` when it has none.
    pub(in crate::remote) fn renew(keyspace: &Keyspace, charge: &Charge<'_>) -> Option<Self> {
        Some(Self {
            keys: SmallVec::from_iter([keyspace.of(charge)]),
            arguments: codec::renew(charge)?,
            reply_lens: SmallVec::from_iter([codec::reply_len(charge)]),
        })
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
