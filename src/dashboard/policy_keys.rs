//! The keys of a caller under each policy, from what an operator knows of it.

use serde::{Deserialize, Serialize};

use crate::{charge::Charge, extract::CallerId, key::Key, policy::Policy, rules::KeySource};

use super::{api::Result, api_error::ApiError, shared::SharedDashboard, watched::WatchedPolicy};

/// The keys of a caller, each with its policy.
///
/// Policies count the same caller by different keys: with an [`or_else`](crate::extract::KeyExtractor::or_else), an address is
/// `x-api-key-or-client-ip!203.0.113.7`. So the extractor of each policy makes its keys.
pub(super) struct PolicyKeys {
    /// Not empty without `without_key`. A policy comes again for each key that it may count.
    pub keys: Vec<PolicyKey>,
    pub without_key: Vec<PolicyWithoutKey>,
    is_of_one_policy: bool,
}

/// A key as a policy counts it.
pub(super) struct PolicyKey {
    pub policy: Policy,
    pub key: Key,
    /// Whether callers may have another quota than that of the policy.
    pub has_tiers: bool,
}

/// A policy that does not count by what the operator knows.
#[derive(Serialize)]
pub(super) struct PolicyWithoutKey {
    policy: String,
    reason: String,
}

impl PolicyKeys {
    /// Makes the keys under one policy, or under all.
    ///
    /// # Errors
    ///
    /// 400 if the text does not have this form, or if there is no such policy.
    pub fn new(
        shared: &SharedDashboard,
        text: &str,
        form: KeyForm,
        policy: Option<&str>,
    ) -> Result<Self> {
        let caller = NamedCaller::parse(shared, text, form)?;
        let mut policies = shared.watched.policies();
        if let Some(name) = policy {
            policies.retain(|watched| watched.policy.name().as_str() == name);
            if policies.is_empty() {
                return Err(ApiError::bad_request("there is no policy of this name"));
            }
        }
        let mut made = Self {
            keys: Vec::new(),
            without_key: Vec::new(),
            is_of_one_policy: policy.is_some(),
        };
        for policy in policies {
            made.add(policy, &caller, form);
        }
        Ok(made)
    }

    fn add(&mut self, watched: WatchedPolicy, caller: &NamedCaller<'_>, form: KeyForm) {
        let WatchedPolicy {
            policy,
            source,
            has_tiers,
        } = watched;
        let mut keys = caller.keys(source.as_ref());
        keys.sort_unstable_by_key(|key| key.as_str().to_owned());
        keys.dedup();
        if let (true, Some(source)) = (keys.is_empty(), &source) {
            self.without_key.push(PolicyWithoutKey {
                policy: policy.name().as_str().to_owned(),
                reason: format!(
                    "it counts by {}, and this {} alone makes no such key",
                    source.label(),
                    form.noun()
                ),
            });
        }
        self.keys.extend(keys.into_iter().map(|key| PolicyKey {
            policy: policy.clone(),
            key,
            has_tiers,
        }));
    }

    /// Returns the keys, for a change.
    ///
    /// # Errors
    ///
    /// 422 without a key, since the change would have no effect.
    pub fn required(&self) -> Result<&[PolicyKey]> {
        if !self.keys.is_empty() {
            return Ok(&self.keys);
        }
        let reasons = self
            .without_key
            .iter()
            .map(|without| format!("{}: {}", without.policy, without.reason));
        let message = match reasons.collect::<Vec<_>>().join("; ") {
            reasons if reasons.is_empty() => "there is no policy".to_owned(),
            reasons => format!("no key can be made: {reasons}"),
        };
        Err(ApiError::no_key(message))
    }

    /// Returns what to block: each key under the policy that was asked for, or once under all.
    ///
    /// # Errors
    ///
    /// As for [`required`](Self::required).
    pub fn targets(&self) -> Result<Vec<(Key, Option<&Policy>)>> {
        let mut targets: Vec<(Key, Option<&Policy>)> = Vec::new();
        for PolicyKey { policy, key, .. } in self.required()? {
            if !targets.iter().any(|(known, _)| known == key) {
                targets.push((*key, self.is_of_one_policy.then_some(policy)));
            }
        }
        Ok(targets)
    }
}

impl PolicyKey {
    pub fn charge(&self) -> Charge<'_> {
        self.policy.charge(self.key)
    }
}

// === NamedCaller ===

/// A caller as the operator names it.
enum NamedCaller<'a> {
    /// By its key, which is the same under each policy.
    Counted(Key),
    Known(CallerId<'a>),
}

impl<'a> NamedCaller<'a> {
    fn parse(shared: &'a SharedDashboard, text: &'a str, form: KeyForm) -> Result<Self> {
        if text.is_empty() || text.len() > MAX_KEY {
            let message = format!("a key has 1 to {MAX_KEY} bytes");
            return Err(ApiError::bad_request(message));
        }
        Ok(Self::Known(match form {
            KeyForm::Address => {
                let not_address = |_| ApiError::bad_request("the key is not an IP address");
                CallerId::Address(text.parse().map_err(not_address)?)
            }
            KeyForm::Counted => {
                let key = Key::of_identity(text).ok_or_else(|| {
                    ApiError::bad_request(
                        "the key is not in the form in which keys are counted: 1 to 46 characters, others escaped",
                    )
                });
                return key.map(Self::Counted);
            }
            KeyForm::Secret => CallerId::Secret {
                secret: text,
                hash_secret: shared.hash_secret.as_ref(),
            },
            KeyForm::Text => CallerId::Text(text),
        }))
    }

    /// Returns the keys that a policy with this source of keys may count.
    fn keys(&self, source: Option<&KeySource>) -> Vec<Key> {
        match (self, source) {
            (Self::Counted(key), _) => vec![*key],
            (Self::Known(caller), Some(KeySource::Extractor(extractor))) => {
                extractor.keys_of(caller)
            }
            // Only the application knows how it makes the keys of a lookup, and of a limiter without a layer.
            (Self::Known(caller), Some(KeySource::Lookup(_)) | None) => vec![caller.key()],
        }
    }
}

// === KeyForm ===

/// The form in which an operator knows a key.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeyForm {
    /// An IP address.
    Address,
    /// As it is counted, and as top keys in plain text show it.
    Counted,
    /// An API key, a token or a session cookie.
    Secret,
    /// Any other text.
    #[default]
    Text,
}

impl KeyForm {
    const fn noun(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Counted => "key",
            Self::Secret => "API key",
            Self::Text => "text",
        }
    }
}

/// In bytes.
const MAX_KEY: usize = 1_024;
