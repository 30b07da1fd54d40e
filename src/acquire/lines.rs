//! All lines of a limiter.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
};

use super::{
    error::AcquireError,
    line::{Line, LineKey},
    permit::Grant,
};
use crate::{
    block_check::BlockCheck,
    charge::{Fingerprint, OwnedCharge, Receipt, Turn},
    decision::Decision,
    hold::HoldRegistry,
    store::{Store, StoreFuture},
    task::Mutex,
    telemetry::DecisionObserver,
};

/// All lines of a limiter, and what they need to ask its store.
pub(crate) struct Lines {
    pub(super) store: Arc<dyn Store>,
    pub(super) blocks: Arc<BlockCheck>,
    holds: Arc<HoldRegistry>,
    observer: DecisionObserver,
    lines: Mutex<HashMap<LineKey, Arc<Line>>>,
}

impl Lines {
    pub fn new(
        store: Arc<dyn Store>,
        blocks: Arc<BlockCheck>,
        holds: Arc<HoldRegistry>,
        observer: DecisionObserver,
    ) -> Arc<Self> {
        let lines = Arc::new(Self {
            store,
            blocks,
            observer,
            lines: Mutex::default(),
            holds,
        });
        let weak = Arc::downgrade(&lines);
        lines.holds.on_release(move |keys| {
            if let Some(lines) = weak.upgrade() {
                lines.wake(keys);
            }
        });
        lines
    }

    /// Runs `join` on the line with this key, if somebody waits there.
    pub(super) fn with<T>(&self, key: &LineKey, join: impl FnOnce(&Arc<Line>) -> T) -> Option<T> {
        let lines = self.lines.lock();
        lines.get(key).map(join)
    }

    /// Adds a line, unless there is one. Runs `join` on it while it cannot end, and returns whether it is new.
    pub(super) fn add<T>(&self, line: &Arc<Line>, join: impl FnOnce(&Arc<Line>) -> T) -> (T, bool) {
        let mut lines = self.lines.lock();
        match lines.entry(line.key.clone()) {
            Entry::Occupied(entry) => (join(entry.get()), false),
            Entry::Vacant(entry) => (join(entry.insert(Arc::clone(line))), true),
        }
    }

    /// Removes a line, unless somebody waits there.
    pub(super) fn remove_if_empty(&self, line: &Arc<Line>) -> bool {
        let mut lines = self.lines.lock();
        let is_empty = line.is_empty();
        if is_empty {
            lines.remove(&line.key);
        }
        is_empty
    }

    /// Lets the lines of keys whose slots were released ask again.
    fn wake(&self, keys: &[Fingerprint]) {
        let lines = self.lines.lock();
        for line in lines.values() {
            if line.has_slots && line.slots().any(|key| keys.contains(&key)) {
                line.wake();
            }
        }
    }

    /// Returns the turn of a caller, and shows its decision to the observer.
    pub(super) fn grant(&self, charges: &[OwnedCharge], turn: Turn) -> Grant {
        let borrowed: Vec<_> = charges.iter().map(OwnedCharge::borrow).collect();
        let decision = turn.decision;
        if !self.observer.is_idle() {
            let mut decided = StoreFuture::ready(Ok(decision.clone()));
            self.observer.observe(&borrowed, &mut decided);
        }
        let receipt = Receipt::of(&borrowed, &decision);
        Grant::new(decision, receipt, &self.holds)
    }

    /// Returns the error if a key is blocked.
    pub(super) async fn blocked(&self, charges: &[OwnedCharge]) -> Option<AcquireError> {
        if !self.blocks.is_needed() {
            return None;
        }
        self.blocks.refresh().await;
        let is_blocked = |charge: &OwnedCharge| {
            let charge = charge.borrow();
            !charge.is_shadow() && self.blocks.is_blocked(charge.policy(), charge.key())
        };
        if !charges.iter().any(is_blocked) {
            return None;
        }
        let decided = {
            let borrowed: Vec<_> = charges.iter().map(OwnedCharge::borrow).collect();
            self.blocks.decide(&borrowed)
        };
        match decided.await {
            Ok(decision) if decision.is_allowed() => self.unblocked(charges, decision),
            Ok(decision) => Some(AcquireError::denied(&decision)),
            Err(error) => Some(AcquireError::failed(error)),
        }
    }

    /// Gives back what was charged because the block has just ended.
    fn unblocked(&self, charges: &[OwnedCharge], decision: Decision) -> Option<AcquireError> {
        let turn = Turn {
            start: decision.decided_at(),
            decision,
        };
        drop(self.grant(charges, turn));
        None
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines")
            .field("lines", &self.lines.lock().len())
            .finish_non_exhaustive()
    }
}
