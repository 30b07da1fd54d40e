//! The arguments of the decision script for one request.

use std::time::Duration;

use redis::Cmd;
use smallvec::SmallVec;

use crate::{
    algorithm::{Algorithm, Opening},
    key::Key,
    policy::{Charge, Policy},
    quota::Quota,
    settlement::Settlement,
};

use super::{
    codec::{self, Arguments},
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
        let mut arguments = codec::group_of(charges.len());
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

    /// Appends the arguments.
    pub(in crate::remote) fn write_arguments(&self, command: &mut Cmd) {
        for argument in &self.arguments {
            argument.write(command);
        }
    }
}

/// One policy per algorithm, with the widest limit that it has and the shortest time, so that probes leave next to nothing.
fn probe_policies() -> Vec<Policy> {
    let policy = |count| Policy::new("probe", Quota::per_second(count));
    let lease = Duration::from_millis(100);
    vec![
        policy(1_000_000),
        policy(1_000_000).algorithm(Algorithm::FixedWindow(Opening::Clock)),
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
