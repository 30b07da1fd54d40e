//! Entry points of the fuzz targets, which are built with `--cfg fuzzing`. They are not part of the API.

use redis::Value;

use crate::{charge::OwnedCharge, decision::Decision, error::Error, key::Key, policy::Policy};

use super::protocol::{Keyspace, reply, reply_len};

/// Returns the keys that a policy may have for an identity in Redis, the present one first.
///
/// # Errors
///
/// If the prefix is not usable.
pub fn redis_keys(prefix: &str, policy: &Policy, key: Key) -> Result<Vec<Vec<u8>>, Error> {
    let keyspace = Keyspace::new(prefix)?;
    let present = keyspace.key_of(&policy.charge(key));
    let all = keyspace.all_keys(policy, &key);
    Ok(std::iter::once(present)
        .chain(all)
        .map(|key| key.to_vec())
        .collect())
}

/// Returns the decisions in a reply of the script to a call with these groups of charges.
///
/// # Errors
///
/// If it is not a reply to such a call.
pub fn decisions(
    reply: &Value,
    groups: &[Vec<OwnedCharge>],
) -> Result<Vec<Result<Decision, Error>>, Error> {
    let of_charge = |charge: &OwnedCharge| reply_len(&charge.borrow());
    let reply_lens: Vec<Vec<u8>> = groups
        .iter()
        .map(|group| group.iter().map(of_charge).collect())
        .collect();
    let results = reply::parse(reply, reply_lens.iter().map(Vec::as_slice))?;
    Ok(results
        .into_iter()
        .zip(groups)
        .map(|(reply, charges)| reply?.into_decision(charges))
        .collect())
}
