//! The policies of all layers on a limiter: one name has one quota.

use crate::{
    error::{Error, ErrorKind},
    policy::Policy,
    store::Store,
};

/// A policy, and how many layers have it.
#[derive(Clone, Debug)]
pub(super) struct KnownPolicy {
    pub policy: Policy,
    layers: usize,
}

/// Returns the policies, each with the one that counts its rest.
pub(super) fn with_rests(policies: impl IntoIterator<Item = Policy>) -> Vec<Policy> {
    let both = |policy: Policy| {
        let rest = policy.rest().cloned();
        [Some(policy), rest]
    };
    policies.into_iter().flat_map(both).flatten().collect()
}

/// Checks that no layer has a policy of the same name with another quota.
pub(super) fn check_known(known: &[KnownPolicy], policies: &[Policy]) -> Result<(), Error> {
    for policy in policies {
        let mut others = known.iter().map(|other| &other.policy);
        let other = others.find(|other| other.name() == policy.name());
        if other.is_some_and(|other| !other.counts_same_as(policy)) {
            return Err(conflicting_policy(policy));
        }
    }
    Ok(())
}

pub(super) fn add_known(known: &mut Vec<KnownPolicy>, policies: Vec<Policy>) {
    for policy in policies {
        let mut others = known.iter_mut();
        match others.find(|other| other.policy.name() == policy.name()) {
            Some(other) => other.layers += 1,
            None => known.push(KnownPolicy { policy, layers: 1 }),
        }
    }
}

/// Returns the policies that are known once a layer has others.
#[cfg(feature = "reload")]
pub(super) fn replaced<'a>(
    store: &dyn Store,
    known: &[KnownPolicy],
    old: impl IntoIterator<Item = &'a Policy>,
    new: Vec<Policy>,
) -> Result<Vec<KnownPolicy>, Error> {
    validate_policies(store, &new)?;
    let mut rest = known.to_vec();
    for policy in old {
        let mut others = rest.iter_mut();
        if let Some(own) = others.find(|other| other.policy.name() == policy.name()) {
            own.layers -= 1;
        }
    }
    rest.retain(|other| other.layers > 0);
    check_known(&rest, &new)?;
    add_known(&mut rest, new);
    Ok(rest)
}

pub(super) fn validate_policies(store: &dyn Store, policies: &[Policy]) -> Result<(), Error> {
    for (index, policy) in policies.iter().enumerate() {
        policy.validate()?;
        store.check_policy(policy)?;
        if policies[..index]
            .iter()
            .any(|other| other.name() == policy.name())
        {
            return Err(Error::new(
                ErrorKind::DuplicatePolicy,
                format!(
                    "two policies are named {:?}: give each a different name",
                    policy.name()
                ),
            ));
        }
    }
    if policies.len() > MAX_POLICIES {
        return Err(Error::new(
            ErrorKind::InvalidPolicy,
            format!(
                "{} policies: a layer or limiter takes at most {MAX_POLICIES}",
                policies.len()
            ),
        ));
    }
    Ok(())
}

/// Returns the error for a name that none of the policies has.
#[cold]
pub(crate) fn unknown_policy<'a>(
    owner: &str,
    name: &str,
    policies: impl Iterator<Item = &'a Policy>,
) -> Error {
    let names: Vec<_> = policies.map(|policy| policy.name().as_str()).collect();
    let names = match names.as_slice() {
        [] => "it has none".to_owned(),
        names => format!("its policies are \"{}\"", names.join("\", \"")),
    };
    Error::new(
        ErrorKind::InvalidConfig,
        format!("the {owner} has no policy {name:?}; {names}"),
    )
}

fn conflicting_policy(policy: &Policy) -> Error {
    Error::new(
        ErrorKind::DuplicatePolicy,
        format!(
            "policy {:?} has a different quota or algorithm elsewhere on this limiter: give it a different name",
            policy.name()
        ),
    )
}

/// The most policies of one layer, and of one limiter without layers. Each request compares itself with all of a layer.
pub(crate) const MAX_POLICIES: usize = 1_000;
