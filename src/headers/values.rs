//! What the headers of one answer will say.

use std::sync::Arc;

use http::{HeaderValue, Response};

use crate::{
    clock::{Timestamp, whole_seconds},
    decision::Decision,
    state::{Outcome, PolicyState, Usage},
};

use super::{
    terms::PolicyTerms,
    writer::{HeaderWriter, write_default},
};

/// The fields of an answer that is still to come: small, since they move along with the request.
#[derive(Debug)]
pub(crate) enum PendingHeaders {
    /// The numbers of the headers that a layer has by default.
    Default { usage: Usage, is_in_flight: bool },
    /// Boxed, and with a share in the plan, which is two writes to what all cores share: the default needs neither.
    Planned(Box<Planned>),
}

impl PendingHeaders {
    /// What is to be told about a decision to let the request go on, if anything is.
    #[inline]
    pub(crate) fn new(
        plan: &Arc<HeaderWriter>,
        decision: &Decision,
        changed: Option<&[PolicyTerms]>,
    ) -> Option<Self> {
        if plan.is_default() {
            let narrowest = decision.narrowest()?;
            return Some(Self::Default {
                usage: narrowest.header_usage()?,
                is_in_flight: narrowest.is_concurrency(),
            });
        }
        plan.tells_success().then(|| {
            let told = plan.told(decision, changed);
            let plan = Arc::clone(plan);
            Self::Planned(Box::new(Planned { plan, told }))
        })
    }

    /// The same for a layer inside another one, which has to know what this one writes.
    #[cold]
    pub(crate) fn nested(
        plan: &Arc<HeaderWriter>,
        decision: &Decision,
        changed: Option<&[PolicyTerms]>,
    ) -> Option<Self> {
        plan.tells_success().then(|| {
            let mut told = plan.told(decision, changed);
            told.is_inner = true;
            let plan = Arc::clone(plan);
            Self::Planned(Box::new(Planned { plan, told }))
        })
    }

    /// Adds the fields to a response. Those that the inner service set itself stay.
    #[inline]
    pub(crate) fn write<B>(&mut self, response: &mut Response<B>) {
        match self {
            Self::Default {
                usage,
                is_in_flight,
            } => write_default(response, usage, *is_in_flight),
            Self::Planned(planned) => planned.plan.write(&mut planned.told, response),
        }
    }
}

// === Planned ===

/// What is told, with the plan that says how.
#[derive(Debug)]
pub(crate) struct Planned {
    plan: Arc<HeaderWriter>,
    told: HeaderValues,
}

// === HeaderValues ===

/// What is taken from a decision before it moves on.
#[derive(Debug)]
pub(super) struct HeaderValues {
    pub(super) narrowest: Option<Narrowest>,
    /// Whole seconds; 0 where waiting does not help or is not needed.
    pub(super) wait: u64,
    pub(super) is_denied: bool,
    /// Whether a layer around this one may have headers of its own.
    pub(super) is_inner: bool,
    /// Draft 11's `RateLimit`.
    pub(super) limits: Option<HeaderValue>,
    /// `RateLimit-Policy` by draft 11 and by draft 6 where it is not what the layer mostly says.
    pub(super) policies: Option<Box<[Option<HeaderValue>; 2]>>,
}

/// Where the narrowest policy stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Narrowest {
    pub(super) usage: Usage,
    /// How narrow it is beside policies of other layers; one that denies is narrower than all that admit.
    pub(super) room: u128,
    /// From the decision to the reset, in microseconds.
    pub(super) until_reset: u64,
    /// The policy by its place in the layer.
    pub(super) place: Option<u16>,
}

impl HeaderValues {
    pub(super) fn of(decision: &Decision) -> Self {
        Self {
            narrowest: None,
            wait: decision.retry_after().map_or(0, whole_seconds),
            is_denied: decision.outcome() == Outcome::Limited,
            is_inner: false,
            limits: None,
            policies: None,
        }
    }
}

impl Narrowest {
    pub(super) fn of(decision: &Decision) -> Option<(Self, &PolicyState)> {
        let state = decision.narrowest()?;
        let usage = state.header_usage()?;
        let now: Timestamp = decision.decided_at();
        let until_reset = usage.reset_at.as_micros().saturating_sub(now.as_micros());
        let room = match decision.is_allowed() {
            true => state.headroom(),
            false => 0,
        };
        let narrowest = Self {
            usage,
            room,
            until_reset,
            place: None,
        };
        Some((narrowest, state))
    }

    /// Whole seconds until all is back, rounded up.
    pub(super) fn seconds(&self) -> u64 {
        self.until_reset.div_ceil(1_000_000)
    }
}
