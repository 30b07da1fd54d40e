//! How a scripted store answers.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    charge::Charge,
    clock::Timestamp,
    decision::{CountedBy, Decision, PolicyState, Retry, Usage},
    error::{Error, ErrorKind},
    store::StoreFuture,
};

/// How a store answers until its test switches it.
#[derive(Clone)]
pub(super) enum Answer {
    Allow,
    Deny(Duration),
    Fail(Error),
    Hang,
    RefuseWrites,
    Script(Arc<DecideFn>),
}

pub(super) type DecideFn = dyn Fn(&[Charge<'_>]) -> StoreFuture<Decision> + Send + Sync;

impl Answer {
    /// Returns whether the store works.
    pub fn is_working(&self) -> bool {
        matches!(self, Self::Allow | Self::Deny(_) | Self::Script(_))
    }

    /// Returns why an operation fails, if it does.
    pub fn failure(&self, is_write: bool) -> Option<Error> {
        match self {
            // What fails was not executed.
            #[cfg(feature = "redis")]
            Self::Fail(error) => Some(error.clone().into_not_executed()),
            #[cfg(not(feature = "redis"))]
            Self::Fail(error) => Some(error.clone()),
            Self::RefuseWrites if is_write => {
                let message = "the scripted store is read-only";
                Some(Error::new(ErrorKind::Unavailable, message))
            }
            _ => None,
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("Allow"),
            Self::Deny(wait) => f.debug_tuple("Deny").field(wait).finish(),
            Self::Fail(error) => f.debug_tuple("Fail").field(&error.kind()).finish(),
            Self::Hang => f.write_str("Hang"),
            Self::RefuseWrites => f.write_str("RefuseWrites"),
            Self::Script(_) => f.write_str("Script"),
        }
    }
}

/// Returns the decision that admits the charges, each as the first one of its key.
pub(super) fn allowed(charges: &[Charge<'_>], now: Timestamp) -> Decision {
    decision(charges, now, |charge| {
        let limit = charge.counter().limit();
        let usage = Usage::new(limit, limit.saturating_sub(charge.units()), now);
        (usage, Retry::Now)
    })
}

/// Returns the decision that denies the charges for this long. A peek passes.
pub(super) fn denied(charges: &[Charge<'_>], now: Timestamp, wait: Duration) -> Decision {
    decision(charges, now, |charge| {
        let usage = Usage::new(charge.counter().limit(), 0, now + wait);
        match charge.units() {
            0 => (usage, Retry::Now),
            _ => (usage, Retry::At(now + wait)),
        }
    })
}

fn decision(
    charges: &[Charge<'_>],
    now: Timestamp,
    state: impl Fn(&Charge<'_>) -> (Usage, Retry),
) -> Decision {
    let states = charges.iter().map(|charge| {
        let (usage, retry) = state(charge);
        let state = PolicyState::counted(*charge.policy().name(), usage, retry);
        let state = state.with_shadow(charge.is_shadow());
        match charge.policy().is_concurrency() {
            true => state.for_concurrency(),
            false => state,
        }
    });
    Decision::new(CountedBy::Shared, now, states)
}
