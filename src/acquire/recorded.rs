//! The wait of a caller, as metrics show it.

use std::{sync::Arc, time::Duration};

use super::{
    begin::Wish,
    error::{AcquireError, AcquireErrorKind},
    lines::Lines,
    permit::Permit,
    server_clock::ServerClock,
};
use crate::{
    charge::OwnedCharge,
    clock::Timestamp,
    telemetry::{CountedWait, WaitOutcome},
};

/// The charges of a caller whose wait is recorded, by the policy of the first one.
pub(super) struct Recorded(Option<Arc<[OwnedCharge]>>);

impl Recorded {
    pub fn of(wish: &Wish) -> Self {
        let charges = wish.charges.as_ref().ok();
        // Without the feature, not even a counter is changed.
        let charges = charges.filter(|charges| cfg!(feature = "metrics") && !charges.is_empty());
        Self(charges.map(Arc::clone))
    }

    /// Records the result of a caller that need not wait.
    #[inline]
    pub fn ended(&self, lines: &Lines, result: &Result<Permit, AcquireError>) {
        self.record(lines, outcome_of(result), Duration::ZERO);
    }

    /// Begins the wait.
    pub fn begin(self, lines: &Arc<Lines>) -> RecordedWait {
        let charge = self.0.as_ref().and_then(|charges| charges.first());
        let counted = charge.map(|charge| lines.waits.begun(charge.borrow().policy()));
        RecordedWait {
            lines: Arc::clone(lines),
            recorded: self,
            began: ServerClock::now(),
            outcome: Some(WaitOutcome::Left),
            _counted: counted,
        }
    }

    #[inline]
    fn record(&self, lines: &Lines, outcome: Option<WaitOutcome>, waited: Duration) {
        if let Some(charges) = &self.0
            && let (Some(charge), Some(outcome)) = (charges.first(), outcome)
        {
            lines.waits.ended(charge.borrow().policy(), outcome, waited);
        }
    }
}

/// A wait that is recorded when it is dropped.
pub(super) struct RecordedWait {
    lines: Arc<Lines>,
    recorded: Recorded,
    began: Timestamp,
    outcome: Option<WaitOutcome>,
    _counted: Option<CountedWait>,
}

impl RecordedWait {
    /// Notes how it ended. Without that, the caller has left.
    pub fn note(&mut self, result: &Result<Permit, AcquireError>) {
        self.outcome = outcome_of(result);
    }
}

impl Drop for RecordedWait {
    fn drop(&mut self) {
        let waited = ServerClock::now().since(self.began);
        self.recorded.record(&self.lines, self.outcome, waited);
    }
}

/// Returns how a wait ended; `None` for a cost that no wait would admit.
fn outcome_of(result: &Result<Permit, AcquireError>) -> Option<WaitOutcome> {
    let error = match result {
        Ok(_) => return Some(WaitOutcome::Turn),
        Err(error) => error,
    };
    Some(match error.kind() {
        AcquireErrorKind::Blocked => WaitOutcome::Denied,
        AcquireErrorKind::Failed => WaitOutcome::Failed,
        AcquireErrorKind::CostAboveLimit => return None,
        AcquireErrorKind::TooLong => WaitOutcome::TooLate,
    })
}
