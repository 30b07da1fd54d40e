//! Resolution of keys and tiers that may need a lookup.
//!
//! Each rule of a request goes through these states; the lookups of all rules run at the same time:
//!
//! ```text
//! New --> NeedsBody --> BodyRead ---------+
//!  |                                       v
//!  +--> NeedsKey --> KeyFound | KeyFailed --> NeedsTier --> Resolved --> Done (charged)
//!  |                                        \            \-> TierTimedOut --> Resolved
//!  +--> Done (not counted)                   +--> rejection
//!
//! Resolved, the tier is unlimited --> NeedsBlocks --> Unlimited --> Done
//! ```

#![expect(
    missing_debug_implementations,
    reason = "public only as parts of the future's type"
)]

use std::{
    error::Error,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;
use tokio::time::Sleep;

use crate::{
    block_check::BlockRefresh,
    charge::{Charge, Enforcement},
    extract::{Extracted, KeyLookup},
    key::Key,
    limiter::RateLimiter,
    rejection::Rejection,
    request::{BodyLimits, RequestHead},
    rules::{Caller, KeySource, ModeSetting, Rule, RuleMode},
    tiers::{Cached, Tier, TierFuture, TierResolution},
};

#[cfg(feature = "body")]
use super::body_read::BodyRead;
use super::first_decision::{FirstDecision, RuleNumbers};
#[cfg(not(feature = "body"))]
use super::no_body_read::BodyRead;

// === Resolution ===

/// The keys and tiers of a request under all rules of a layer.
pub(super) struct Resolution {
    /// One for each rule.
    keys: SmallVec<[KeyResolution; 2]>,
    /// The number in the body that sets the cost under each rule. It is found once, however many charges there are.
    numbers_in_body: SmallVec<[Option<u64>; 2]>,
    /// The mode of the layer when the request came.
    layer: RuleMode,
    /// The request is rejected even if the store admits it, since it has no key for a rule.
    pub rejection: Option<Rejection>,
    /// Number of the rule of each charge that the store decides on.
    pub numbers: RuleNumbers,
    /// The decision before the first lookup.
    pub first: Option<Box<FirstDecision>>,
    /// Ends when the lookups must; `None` before the first one.
    pub time_left: Option<Pin<Box<Sleep>>>,
}

impl Resolution {
    pub fn new(rules: &[Rule], layer: RuleMode) -> Box<Self> {
        Box::new(Self {
            keys: rules.iter().map(|_| KeyResolution::New).collect(),
            numbers_in_body: SmallVec::from_elem(None, rules.len()),
            layer,
            rejection: None,
            numbers: RuleNumbers::new(),
            first: None,
            time_left: None,
        })
    }

    /// For a request that is rejected if the store admits it.
    pub fn rejecting(rejection: Rejection) -> Box<Self> {
        let mut resolution = Self::new(&[], RuleMode::Enforce);
        resolution.rejection = Some(rejection);
        resolution
    }

    /// Resolves all that takes no lookup, and keeps the rejection of the first rule that has one.
    pub fn advance(&mut self, rules: &[Rule], limiter: &RateLimiter, head: &RequestHead<'_>) {
        let keys = self.keys.iter_mut().zip(&mut self.numbers_in_body);
        for (rule, (key, number)) in rules.iter().zip(keys) {
            let setting = rule.mode.get().within(self.layer);
            if let Err(rejection) = key.advance(rule, setting, (head, number)) {
                self.rejection.get_or_insert(rejection);
            }
            key.set_unlimited(limiter);
        }
    }

    /// Whether a lookup is due, for a request that is not rejected anyway.
    pub fn is_open(&self) -> bool {
        use KeyResolution::{NeedsBlocks, NeedsBody, NeedsKey, NeedsTier};
        let is_due = |key: &KeyResolution| {
            matches!(key, NeedsBlocks(_) | NeedsBody | NeedsKey | NeedsTier(_))
        };
        self.rejection.is_none() && self.keys.iter().any(is_due)
    }

    /// Returns how much of the body is needed; `None` if none is. From then on it counts as read.
    pub fn begin_body(&mut self, rules: &[Rule]) -> Option<BodyLimits> {
        let mut needed = None;
        for (rule, key) in rules.iter().zip(&mut self.keys) {
            if matches!(key, KeyResolution::NeedsBody) {
                *key = KeyResolution::BodyRead;
                needed = BodyLimits::larger(needed, rule.body_limits());
            }
        }
        needed
    }

    /// Starts all lookups that are due.
    pub fn start_lookups(
        &mut self,
        rules: &[Rule],
        limiter: &RateLimiter,
        head: &RequestHead<'_>,
    ) -> PendingLookups {
        let keys = rules.iter().zip(&mut self.keys).enumerate();
        let lookups = keys.filter_map(|(number, (rule, key))| {
            Some((number, key.start_lookup(rule, limiter, head)?))
        });
        lookups.collect()
    }

    /// Returns the charges with a known key and tier, each with the number of its rule.
    ///
    /// # Errors
    ///
    /// The rejection of a caller whose tier is forbidden.
    pub fn charges<'a>(
        &'a self,
        rules: &'a [Rule],
        limiter: &RateLimiter,
        head: &RequestHead<'_>,
    ) -> Result<NumberedCharges<'a>, Rejection> {
        let mut charges = NumberedCharges::new();
        let keys = self.keys.iter().zip(&self.numbers_in_body);
        for (number, (rule, (key, in_body))) in rules.iter().zip(keys).enumerate() {
            let setting = rule.mode.get().within(self.layer);
            key.add_charges(rule, limiter, (setting, head, *in_body), |charge| {
                charges.push((number, charge));
            })?;
        }
        Ok(charges)
    }

    /// Keeps the first decision, so that its charges are not made again.
    pub fn note_first(&mut self, first: FirstDecision) {
        self.first = Some(Box::new(first));
        self.end_resolved();
    }

    /// Charges nothing more under the rules whose key and tier are known.
    pub fn end_resolved(&mut self) {
        for key in &mut self.keys {
            if let KeyResolution::Resolved(..) | KeyResolution::Unlimited(_) = key {
                *key = KeyResolution::Done;
            }
        }
    }
}

pub(super) type NumberedCharges<'a> = SmallVec<[(usize, Charge<'a>); 2]>;

// === KeyResolution ===

/// The key and tier of a request under one rule.
enum KeyResolution {
    /// Nothing was resolved yet.
    New,
    /// The body is needed.
    NeedsBody,
    /// The body was read, or cannot be.
    BodyRead,
    /// The key needs a lookup.
    NeedsKey,
    /// The lookup of the key failed; `None` if it took too long.
    KeyFailed(Option<LookupFault>),
    /// The lookup of the key ended.
    KeyFound(Extracted<Key>),
    /// The tier needs a lookup.
    NeedsTier(Key),
    /// The lookup of the tier took too long.
    TierTimedOut(Key),
    /// Key and tier are known.
    Resolved(Key, Option<Tier>),
    /// The tier is unlimited, and whether the key is blocked must be looked up.
    NeedsBlocks(Key),
    /// The tier is unlimited: only a block can deny the key.
    Unlimited(Key),
    /// Nothing is left to charge: the rule does not count the request, or has charged it.
    Done,
}

type LookupFault = Box<dyn Error + Send + Sync>;

impl KeyResolution {
    /// Resolves the key and the tier, as far as that takes no lookup.
    ///
    /// # Errors
    ///
    /// The rejection of a request whose key or cost the rule cannot find, if it denies such requests.
    fn advance(
        &mut self,
        rule: &Rule,
        setting: ModeSetting,
        (head, number): (&RequestHead<'_>, &mut Option<u64>),
    ) -> Result<(), Rejection> {
        let found = match mem::replace(self, Self::Done) {
            Self::New if setting.is_off() || !rule.counts(head) => return Ok(()),
            Self::New if rule.needs_body(head) => {
                *self = Self::NeedsBody;
                return Ok(());
            }
            Self::New | Self::BodyRead => match &rule.source {
                Some(KeySource::Lookup(_)) => {
                    *self = Self::NeedsKey;
                    return Ok(());
                }
                Some(KeySource::Extractor(extractor)) => rule.caller(extractor.as_ref(), head),
                None => unreachable!("build() fails for a rule without a key"),
            },
            Self::KeyFound(found) => match &rule.source {
                Some(KeySource::Lookup(extractor)) => {
                    rule.looked_up(extractor.as_ref(), found, head)
                }
                _ => unreachable!("only keys of this source are looked up"),
            },
            Self::KeyFailed(fault) => rule.lookup_failed(fault.as_deref()),
            Self::TierTimedOut(key) => {
                let tier = rule.cache.as_ref().and_then(|cache| cache.last_known(&key));
                *self = Self::Resolved(key, tier);
                return Ok(());
            }
            resolved => {
                *self = resolved;
                return Ok(());
            }
        };
        let (key, is_shared) = match found {
            Ok(Caller::Known(key)) => (key, false),
            Ok(Caller::Shared) => (Key::UNIDENTIFIED, true),
            Err(rejection) if setting.is_enforced() => return Err(rejection),
            Ok(Caller::Uncounted) | Err(_) => return Ok(()),
        };
        *number = match rule.number_in_body(head) {
            Ok(number) => number,
            // The key is known, so the rule denies the request only if the rollout has that key.
            Err(rejection) => {
                let name = rule.policy().name().as_bytes();
                return match setting.enforcement(name, &key) {
                    Enforcement::Enforced => Err(rejection),
                    _ => Ok(()),
                };
            }
        };
        *self = if is_shared {
            // Callers without a key have no tier: the policy's own quota applies.
            Self::Resolved(key, None)
        } else {
            Self::with_tier(rule, key, head)
        };
        Ok(())
    }

    fn with_tier(rule: &Rule, key: Key, head: &RequestHead<'_>) -> Self {
        let choice = rule.choice.as_ref();
        let chosen = choice.and_then(|choice| choice.tier(head, &key));
        match (chosen, &rule.cache) {
            (None, Some(cache)) => match cache.cached(head, &key) {
                Cached::Fresh(tier) | Cached::Stale(tier) => Self::Resolved(key, tier),
                Cached::Missing => Self::NeedsTier(key),
            },
            (chosen, _) => Self::Resolved(key, chosen),
        }
    }

    /// Takes the step after the tier was found to be unlimited.
    fn set_unlimited(&mut self, limiter: &RateLimiter) {
        if let Self::Resolved(key, Some(tier)) = self
            && tier.is_unlimited()
        {
            *self = if limiter.has_old_blocks() {
                Self::NeedsBlocks(*key)
            } else {
                Self::Unlimited(*key)
            };
        }
    }

    /// Starts the lookup that is due, if any.
    fn start_lookup(
        &mut self,
        rule: &Rule,
        limiter: &RateLimiter,
        head: &RequestHead<'_>,
    ) -> Option<Lookup> {
        match (&*self, &rule.source, &rule.cache) {
            (Self::NeedsBlocks(key), ..) => Some(Lookup::Blocks(*key, limiter.renew_old_blocks())),
            (Self::NeedsKey, Some(KeySource::Lookup(extractor)), _) => {
                Some(Lookup::Key(extractor.extract(head)))
            }
            (Self::NeedsTier(key), _, Some(cache)) => match cache.resolve(head, key) {
                TierResolution::Known(tier) => {
                    *self = Self::Resolved(*key, tier);
                    None
                }
                TierResolution::Pending(wait) => Some(Lookup::Tier(*key, wait)),
            },
            _ => None,
        }
    }

    /// Adds the charges if key and tier are known.
    fn add_charges<'a>(
        &'a self,
        rule: &'a Rule,
        limiter: &RateLimiter,
        request: (ModeSetting, &RequestHead<'_>, Option<u64>),
        add: impl FnMut(Charge<'a>),
    ) -> Result<(), Rejection> {
        let (key, policy) = match self {
            Self::Resolved(key, None) => (key, rule.policy()),
            // A block holds in every tier: this charge is denied by it.
            Self::Unlimited(key) if limiter.is_blocked(rule.policy(), key) => (key, rule.policy()),
            Self::Resolved(key, Some(tier)) if tier.is_forbidden() => {
                let name = rule.policy().name();
                return match request.0.enforcement(name.as_bytes(), key) {
                    Enforcement::Enforced => Err(Rejection::forbidden(Some(*name))),
                    _ => Ok(()),
                };
            }
            Self::Resolved(key, Some(tier)) => (key, rule.policy_under(tier)),
            _ => return Ok(()),
        };
        rule.add_charges(policy, key, request, add);
        Ok(())
    }
}

// === Lookups ===

/// Waits for all pending lookups, until the time is up.
///
/// If it is dropped, lookups of tiers go on for other requests, and the charges of the policies that need no lookup are
/// kept.
pub struct Lookups {
    /// `None` once the lookups have ended.
    resolution: Option<Box<Resolution>>,
    pending: PendingLookups,
    /// The body that is being read, which has a time of its own.
    pub(super) body: Option<Box<BodyRead>>,
}

/// Keys and tiers that are being looked up, each with the number of its rule.
type PendingLookups = SmallVec<[(usize, Lookup); 2]>;

pub(super) enum Lookup {
    Blocks(Key, BlockRefresh),
    Key(KeyLookup),
    Tier(Key, TierFuture),
}

impl Lookups {
    /// The resolution must have a time left if lookups are pending.
    pub(super) fn new(
        resolution: Box<Resolution>,
        pending: PendingLookups,
        body: Option<Box<BodyRead>>,
    ) -> Box<Self> {
        Box::new(Self {
            resolution: Some(resolution),
            pending,
            body,
        })
    }

    /// Polls all lookups. Returns the resolution when they have ended or the time is up.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Box<Resolution>> {
        let Self {
            resolution,
            pending,
            body,
        } = self;
        // Both are polled, so that each wakes the request.
        let read = body
            .as_mut()
            .map_or(Poll::Ready(()), |body| body.poll(context));
        let Resolution {
            keys, time_left, ..
        } = &mut **resolution.as_mut().expect(POLLED_ONCE);
        pending.retain(|(rule, lookup)| match lookup.poll(context) {
            Poll::Ready(found) => {
                keys[*rule] = found;
                false
            }
            Poll::Pending => true,
        });
        if let (false, Some(time_left)) = (pending.is_empty(), &mut *time_left) {
            ready!(time_left.as_mut().poll(context));
        }
        for (rule, late) in pending.drain(..) {
            keys[rule] = match late {
                Lookup::Blocks(key, _) => KeyResolution::Unlimited(key),
                Lookup::Key(_) => KeyResolution::KeyFailed(None),
                Lookup::Tier(key, _) => KeyResolution::TierTimedOut(key),
            };
        }
        ready!(read);
        if body.is_some() {
            // It may have taken longer than the lookups that come now may take.
            *time_left = None;
        }
        Poll::Ready(resolution.take().expect(POLLED_ONCE))
    }
}

impl Lookup {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<KeyResolution> {
        match self {
            Self::Blocks(key, refresh) => {
                let refreshed = refresh.as_mut().poll(context);
                refreshed.map(|()| KeyResolution::Unlimited(*key))
            }
            Self::Key(lookup) => lookup.as_mut().poll(context).map(|found| match found {
                Ok(key) => KeyResolution::KeyFound(key),
                Err(fault) => KeyResolution::KeyFailed(Some(fault)),
            }),
            Self::Tier(key, wait) => {
                let resolved = |tier| KeyResolution::Resolved(*key, tier);
                wait.as_mut().poll(context).map(resolved)
            }
        }
    }
}

const POLLED_ONCE: &str = "a future must not be polled after it completed";
