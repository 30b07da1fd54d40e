//! A decision that a test completes.

use tokio::sync::oneshot;

use crate::{
    charge::{Charge, OwnedCharge},
    decision::Decision,
    error::Error,
};

/// A decision that waits for your test. If you drop this value, the decision stays pending.
#[derive(Debug)]
pub struct PendingDecision {
    pub(super) charges: Vec<OwnedCharge>,
    pub(super) result: oneshot::Sender<Result<Decision, Error>>,
}

impl PendingDecision {
    /// Completes the decision with what `decide` returns for its charges.
    pub fn complete(self, decide: impl FnOnce(&[Charge<'_>]) -> Result<Decision, Error>) {
        let charges: Vec<Charge<'_>> = self.charges.iter().map(OwnedCharge::borrow).collect();
        // The caller may have left.
        let _ = self.result.send(decide(&charges));
    }

    /// Returns whether the caller dropped the decision.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.result.is_closed()
    }

    /// Waits until the caller drops the decision.
    pub async fn abandoned(&mut self) {
        self.result.closed().await;
    }
}
