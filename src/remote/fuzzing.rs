//! Ways in for the fuzz targets, which are built with `--cfg fuzzing`; no part of the API.

use redis::Value;

use crate::{charge::OwnedCharge, decision::Decision, error::Error, key::Key, policy::Policy};

use super::protocol::{Keyspace, reply, reply_len};

/// The keys that a policy's count for an identity may have in Redis, the present one first.
///
/// # Errors
///
/// When the prefix is not usable.
pub fn wire_keys(prefix: &str, policy: &Policy, key: Key) -> Result<Vec<Vec<u8>>, Error> {
    let keyspace = Keyspace::new(prefix)?;
    let present = keyspace.of(&policy.charge(key));
    let all = keyspace.all_of(policy, &key);
    Ok(std::iter::once(present)
        .chain(all)
        .map(|key| key.to_vec())
        .collect())
}

/// What a reply of the decision script says about groups of charges.
///
/// # Errors
///
/// When it is no such reply.
pub fn decisions(
    reply: &Value,
    groups: &[Vec<OwnedCharge>],
) -> Result<Vec<Result<Decision, Error>>, Error> {
    let of_charge = |charge: &OwnedCharge| reply_len(&charge.borrow());
    let reply_lens: Vec<Vec<u8>> = groups
        .iter()
        .map(|group| group.iter().map(of_charge).collect())
        .collect();
    let verdicts = reply::parse(reply, reply_lens.iter().map(Vec::as_slice))?;
    Ok(verdicts
        .into_iter()
        .zip(groups)
        .map(|(reply, charges)| reply?.into_decision(charges))
        .collect())
}
