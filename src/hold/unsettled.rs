//! Settlements that the store has not confirmed.

use std::{sync::Arc, time::Duration};

use crate::{
    algorithm::Counter,
    clock::Clock,
    error::{Error, ErrorKind},
    retry::RetryQueue,
    store::{Correction, Settlement},
};

use super::keeper::{Keeper, SETTLED};

/// A settlement under way. Dropped before it is confirmed, it is tried again in the background if that does no harm.
pub(super) struct Unsettled {
    keeper: Arc<Keeper>,
    settlement: Option<Settlement>,
}

impl Unsettled {
    pub(super) fn new(keeper: &Arc<Keeper>, settlement: Settlement) -> Self {
        Self {
            keeper: Arc::clone(keeper),
            settlement: Some(settlement),
        }
    }

    /// Notes the answer of the store. Returns it.
    pub(super) fn end(&mut self, settled: Result<(), Error>) -> Result<(), Error> {
        if let (Some(settlement), Err(error)) = (self.settlement.take(), &settled)
            && settlement.correction() != Correction::Keep
        {
            if is_release(&settlement) || may_repeat(&settlement, error) {
                self.add(settlement);
            } else {
                self.keeper.note(&settled, SETTLED);
            }
        }
        settled
    }

    fn add(&self, settlement: Settlement) {
        // Slots were renewed at the latest until now, so their lease ends then at the latest.
        let until = Clock::system().now() + longest(&settlement);
        if !RetryQueue::add(&self.keeper, settlement, until) {
            self.keeper.note(&Err(too_many()), SETTLED_AGAIN);
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        // Whether a charge was corrected is not known; a release may be repeated.
        if let Some(settlement) = self.settlement.take_if(|settlement| is_release(settlement)) {
            self.add(settlement);
        }
    }
}

/// Whether it may be repeated when it is not known what became of it.
pub(super) fn is_release(settlement: &Settlement) -> bool {
    settlement.correction() == Correction::Release
}

/// Whether another try may succeed, and changes nothing twice.
pub(super) fn may_repeat(settlement: &Settlement, error: &Error) -> bool {
    match settlement.correction() {
        Correction::Keep => false,
        // An operator may give the Redis user a permission that it lacks.
        Correction::Release => {
            error.is_transient() || matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Script)
        }
        Correction::Charge(_) | Correction::Refund(_) => error.was_not_executed(),
    }
}

/// How long it is of use.
fn longest(settlement: &Settlement) -> Duration {
    let charge = settlement.charge();
    match charge.policy().counter() {
        Counter::Concurrency(slots) => slots.lease(),
        _ => charge.policy().quota().period().min(LONGEST),
    }
}

fn too_many() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "too many settlements wait for the shared store",
    )
}

const SETTLED_AGAIN: &str =
    "settled later: its slots stay taken until their lease ends, and its charges stand";
/// The longest time for which a correction is retried.
const LONGEST: Duration = Duration::from_secs(3_600);
