//! Keys and tiers that are found for a request before it can be charged, waiting for them if need be.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::request::Parts;
use smallvec::SmallVec;
use tokio::time::Sleep;

use crate::{
    extract::{Extracted, KeyLookup},
    key::Key,
    policy::Charges,
    tier::Tier,
    tiers::{Asked, TierWait},
};

use super::{
    charging::Caller,
    rejection::Rejection,
    rule::{Rule, Source},
};

/// What is known of a request under one rule.
pub(super) enum Finding {
    /// Nothing was asked yet.
    Unasked,
    /// The key could not be looked up, in time or at all.
    Unidentified(Option<Fault>),
    /// The key was looked up: there may be none.
    Looked(Extracted<Key>),
    /// Whose tier was late.
    Late(Key),
    /// All that is to be known; without a key the request is not counted.
    Known(Option<(Key, Option<Tier>)>),
}

type Fault = Box<dyn Error + Send + Sync>;

/// One finding for each rule.
pub(super) type Findings = SmallVec<[Finding; 2]>;

/// A rule's key or tier that is awaited.
pub(super) struct Pending {
    rule: usize,
    lookup: Lookup,
}

enum Lookup {
    Key(KeyLookup),
    Tier(Key, TierWait),
}

impl Finding {
    /// Finds what can be found without waiting, and says what must be awaited.
    pub(super) fn go_on(
        &mut self,
        (number, rule): (usize, &Rule),
        parts: &Parts,
    ) -> Result<Option<Pending>, Rejection> {
        let step = match std::mem::replace(self, Self::Unasked) {
            Self::Unasked => ask_key(rule, parts)?,
            Self::Looked(found) => match &rule.source {
                Some(Source::Later(extractor)) => identified(
                    rule,
                    rule.looked_up(extractor.as_ref(), found, parts)?,
                    parts,
                ),
                _ => unreachable!("only a key that comes later is looked up"),
            },
            Self::Unidentified(fault) => identified(rule, failed(rule, fault)?, parts),
            Self::Late(key) => {
                let tier = rule.cache.as_ref().and_then(|cache| cache.last_known(&key));
                Ok(Self::Known(Some((key, tier))))
            }
            known @ Self::Known(_) => Ok(known),
        };
        match step {
            Ok(found) => {
                *self = found;
                Ok(None)
            }
            Err(lookup) => Ok(Some(Pending {
                rule: number,
                lookup,
            })),
        }
    }

    /// Adds the charge, when all is known.
    pub(super) fn charge<'a>(
        &'a self,
        rule: &'a Rule,
        parts: &Parts,
        charges: &mut Charges<'a>,
    ) -> Result<(), Rejection> {
        let Self::Known(Some((key, tier))) = self else {
            return Ok(());
        };
        let policy = match tier {
            None => rule.policy(),
            Some(tier) if tier.is_unlimited() => return Ok(()),
            Some(tier) if tier.is_denied() => {
                return Err(Rejection::forbidden(Some(*rule.policy().name())));
            }
            Some(tier) => rule.policy_under(tier),
        };
        charges.push(rule.price_of(policy.charge(*key), parts));
        Ok(())
    }
}

fn ask_key(rule: &Rule, parts: &Parts) -> Result<Result<Finding, Lookup>, Rejection> {
    if !rule.counts(parts) {
        return Ok(Ok(Finding::Known(None)));
    }
    match &rule.source {
        Some(Source::Later(extractor)) => Ok(Err(Lookup::Key(extractor.extract(parts)))),
        Some(Source::Now(extractor)) => {
            let caller = rule.caller(extractor.as_ref(), parts)?;
            Ok(identified(rule, caller, parts))
        }
        None => unreachable!("a rule without a key does not pass build()"),
    }
}

fn identified(rule: &Rule, caller: Caller, parts: &Parts) -> Result<Finding, Lookup> {
    match caller {
        Caller::Known(key) => ask_tier(rule, key, parts),
        // Callers without a key have no tier, so the policy's own quota holds.
        Caller::Shared => Ok(Finding::Known(Some((Key::UNIDENTIFIED, None)))),
        Caller::Uncounted => Ok(Finding::Known(None)),
    }
}

fn ask_tier(rule: &Rule, key: Key, parts: &Parts) -> Result<Finding, Lookup> {
    let chosen = rule
        .choice
        .as_ref()
        .and_then(|choice| choice.tier(parts, &key));
    let tier = match (chosen, &rule.cache) {
        (None, Some(cache)) => match cache.ask(parts, &key) {
            Asked::Known(tier) => tier,
            Asked::Later(wait) => return Err(Lookup::Tier(key, wait)),
        },
        (chosen, _) => chosen,
    };
    Ok(Finding::Known(Some((key, tier))))
}

#[cold]
fn failed(rule: &Rule, fault: Option<Fault>) -> Result<Caller, Rejection> {
    let name = rule.policy().name();
    match fault {
        Some(fault) => rule.warn(format_args!(
            "policy {name}: a key could not be looked up: {fault}"
        )),
        None => rule.warn(format_args!(
            "policy {name}: a key was not looked up in time"
        )),
    }
    rule.not_looked_up()
}

// === Stage ===

/// Waits for all that is pending, until the time is up.
///
/// Nothing is charged yet, so dropping it leaves nothing behind but look-ups of tiers, which go on for others.
pub(super) struct Stage {
    findings: Findings,
    pending: SmallVec<[Pending; 2]>,
    time: Pin<Box<Sleep>>,
}

impl Stage {
    pub(super) fn new(
        findings: Findings,
        pending: SmallVec<[Pending; 2]>,
        time: Pin<Box<Sleep>>,
    ) -> Box<Self> {
        Box::new(Self {
            findings,
            pending,
            time,
        })
    }

    /// What was found, and what is left of the time.
    pub(super) fn into_parts(self) -> (Findings, Pin<Box<Sleep>>) {
        (self.findings, self.time)
    }
}

impl Future for Stage {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            findings,
            pending,
            time,
        } = &mut *self;
        pending.retain(|pending| match pending.lookup.poll(context) {
            Poll::Ready(found) => {
                findings[pending.rule] = found;
                false
            }
            Poll::Pending => true,
        });
        if pending.is_empty() {
            return Poll::Ready(());
        }
        if time.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        for late in pending.drain(..) {
            findings[late.rule] = match late.lookup {
                Lookup::Key(_) => Finding::Unidentified(None),
                Lookup::Tier(key, _) => Finding::Late(key),
            };
        }
        Poll::Ready(())
    }
}

impl Lookup {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Finding> {
        match self {
            Self::Key(lookup) => lookup.as_mut().poll(context).map(|found| match found {
                Ok(key) => Finding::Looked(key),
                Err(fault) => Finding::Unidentified(Some(fault)),
            }),
            Self::Tier(key, wait) => {
                let known = |tier| Finding::Known(Some((*key, tier)));
                wait.as_mut().poll(context).map(known)
            }
        }
    }
}
