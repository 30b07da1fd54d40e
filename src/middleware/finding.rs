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
    charge::Charge,
    extract::{Extracted, KeyLookup},
    key::Key,
    tier::Tier,
    tiers::{Asked, TierWait},
};

use super::{
    charging::Caller,
    partial::PartialDecision,
    rejection::Rejection,
    rule::{Rule, Source},
};

/// What is known of a request under one rule.
pub(super) enum Finding {
    /// Nothing was asked yet.
    Unasked,
    /// The key must be looked up.
    Keyless,
    /// The key could not be looked up, in time or at all.
    Unidentified(Option<Fault>),
    /// The key was looked up: there may be none.
    Looked(Extracted<Key>),
    /// The key is known, and its tier must be looked up.
    Untiered(Key),
    /// The key is known, and its tier was not looked up in time.
    Late(Key),
    /// Key and tier are known.
    Known(Key, Option<Tier>),
    /// There is nothing left to charge: the rule does not count the request, or has charged it.
    Done,
}

type Fault = Box<dyn Error + Send + Sync>;

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
    /// Finds the key and the tier, as far as that takes no lookup.
    fn learn(&mut self, rule: &Rule, parts: &Parts) -> Result<(), Rejection> {
        let caller = match std::mem::replace(self, Self::Done) {
            Self::Unasked if !rule.counts(parts) => return Ok(()),
            Self::Unasked => match &rule.source {
                Some(Source::Later(_)) => {
                    *self = Self::Keyless;
                    return Ok(());
                }
                Some(Source::Now(extractor)) => rule.caller(extractor.as_ref(), parts)?,
                None => unreachable!("a rule without a key does not pass build()"),
            },
            Self::Looked(found) => match &rule.source {
                Some(Source::Later(extractor)) => {
                    rule.looked_up(extractor.as_ref(), found, parts)?
                }
                _ => unreachable!("only a key that comes later is looked up"),
            },
            Self::Unidentified(fault) => failed(rule, fault)?,
            Self::Late(key) => {
                let tier = rule.cache.as_ref().and_then(|cache| cache.last_known(&key));
                *self = Self::Known(key, tier);
                return Ok(());
            }
            known => {
                *self = known;
                return Ok(());
            }
        };
        *self = match caller {
            Caller::Known(key) => with_tier(rule, key, parts),
            // Callers without a key have no tier, so the policy's own quota holds.
            Caller::Shared => Self::Known(Key::UNIDENTIFIED, None),
            Caller::Uncounted => Self::Done,
        };
        Ok(())
    }

    /// Whether a lookup is due.
    fn is_open(&self) -> bool {
        matches!(self, Self::Keyless | Self::Untiered(_))
    }

    /// Starts the lookup that is due, if any.
    fn look_up(&mut self, (number, rule): (usize, &Rule), parts: &Parts) -> Option<Pending> {
        let lookup = match (&*self, &rule.source, &rule.cache) {
            (Self::Keyless, Some(Source::Later(extractor)), _) => {
                Lookup::Key(extractor.extract(parts))
            }
            (Self::Untiered(key), _, Some(cache)) => match cache.ask(parts, key) {
                Asked::Known(tier) => {
                    *self = Self::Known(*key, tier);
                    return None;
                }
                Asked::Later(wait) => Lookup::Tier(*key, wait),
            },
            _ => return None,
        };
        Some(Pending {
            rule: number,
            lookup,
        })
    }

    /// Returns the charge, if key and tier are known and there is one.
    fn charge<'a>(
        &'a self,
        rule: &'a Rule,
        parts: &Parts,
    ) -> Result<Option<Charge<'a>>, Rejection> {
        let Self::Known(key, tier) = self else {
            return Ok(None);
        };
        let policy = match tier {
            None => rule.policy(),
            Some(tier) if tier.is_unlimited() => return Ok(None),
            Some(tier) if tier.is_forbidden() => {
                return Err(Rejection::forbidden(Some(*rule.policy().name())));
            }
            Some(tier) => rule.policy_under(tier),
        };
        Ok(Some(rule.price_of(policy.charge(*key), parts)))
    }
}

fn with_tier(rule: &Rule, key: Key, parts: &Parts) -> Finding {
    let choice = rule.choice.as_ref();
    let chosen = choice.and_then(|choice| choice.tier(parts, &key));
    match (chosen, &rule.cache) {
        (None, Some(cache)) => match cache.known(parts, &key) {
            Some(tier) => Finding::Known(key, tier),
            None => Finding::Untiered(key),
        },
        (chosen, _) => Finding::Known(key, chosen),
    }
}

#[cold]
fn failed(rule: &Rule, fault: Option<Fault>) -> Result<Caller, Rejection> {
    rule.log_failed_lookup(fault.as_deref());
    rule.not_looked_up()
}

// === Search ===

/// The state of a request under all rules of a layer.
pub(super) struct Search {
    /// One for each rule.
    findings: SmallVec<[Finding; 2]>,
    /// The decision before the first lookup.
    pub(super) partial: Option<Box<PartialDecision>>,
    /// The remaining time for lookups, once they have begun.
    pub(super) time: Option<Pin<Box<Sleep>>>,
}

impl Search {
    pub(super) fn new(rules: &[Rule]) -> Box<Self> {
        Box::new(Self {
            findings: rules.iter().map(|_| Finding::Unasked).collect(),
            partial: None,
            time: None,
        })
    }

    /// Finds all that takes no lookup. Returns the rejection of the first rule that has one.
    pub(super) fn learn(&mut self, rules: &[Rule], parts: &Parts) -> Option<Rejection> {
        let mut first = None;
        for (rule, finding) in rules.iter().zip(&mut self.findings) {
            if let Err(rejection) = finding.learn(rule, parts) {
                first.get_or_insert(rejection);
            }
        }
        first
    }

    /// Whether a lookup is due.
    pub(super) fn is_open(&self) -> bool {
        self.findings.iter().any(Finding::is_open)
    }

    /// Starts all lookups that are due.
    pub(super) fn look_up(&mut self, rules: &[Rule], parts: &Parts) -> SmallVec<[Pending; 2]> {
        let findings = rules.iter().enumerate().zip(&mut self.findings);
        findings
            .filter_map(|(rule, finding)| finding.look_up(rule, parts))
            .collect()
    }

    /// Returns the known charges, each with the number of its rule.
    pub(super) fn charges<'a>(
        &'a self,
        rules: &'a [Rule],
        parts: &Parts,
    ) -> Result<NumberedCharges<'a>, Rejection> {
        let mut charges = NumberedCharges::new();
        for ((number, rule), finding) in rules.iter().enumerate().zip(&self.findings) {
            let charge = finding.charge(rule, parts)?;
            charges.extend(charge.map(|charge| (number, charge)));
        }
        Ok(charges)
    }

    /// Keeps the decision on the charges known so far, so that they are not made again.
    pub(super) fn note_decided(&mut self, partial: Box<PartialDecision>) {
        self.partial = Some(partial);
        for finding in &mut self.findings {
            if let Finding::Known(..) = finding {
                *finding = Finding::Done;
            }
        }
    }
}

pub(super) type NumberedCharges<'a> = SmallVec<[(usize, Charge<'a>); 2]>;

// === Stage ===

/// Waits for all that is pending, until the time is up.
///
/// Dropped, it leaves nothing behind but lookups of tiers, which go on for others, and what the policies that need no
/// lookup have charged.
pub(super) struct Stage {
    search: Box<Search>,
    pending: SmallVec<[Pending; 2]>,
    time: Pin<Box<Sleep>>,
}

impl Stage {
    pub(super) fn new(
        search: Box<Search>,
        pending: SmallVec<[Pending; 2]>,
        time: Pin<Box<Sleep>>,
    ) -> Box<Self> {
        Box::new(Self {
            search,
            pending,
            time,
        })
    }

    /// Returns the search, with the time that is left.
    pub(super) fn into_search(self) -> Box<Search> {
        let mut search = self.search;
        search.time = Some(self.time);
        search
    }
}

impl Future for Stage {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            search,
            pending,
            time,
        } = &mut *self;
        let findings = &mut search.findings;
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
                let known = |tier| Finding::Known(*key, tier);
                wait.as_mut().poll(context).map(known)
            }
        }
    }
}
