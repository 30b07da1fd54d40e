//! The state that the guards of all servers of a store share: mode, latest decisions, stuck slots and warnings.
//!
//! # Log events
//!
//! | level | message | `mode` | when |
//! |---|---|---|---|
//! | WARN | a hash slot of the redis cluster is decided by no node | `degraded` | the first slot is stuck, or one for another reason |
//! | INFO | all hash slots of the redis cluster are decided again | the present one | the last slot is free |
//! | WARN | some decisions fail | `failing` | they are 1 % of the last ten seconds' |
//! | INFO | decisions no longer fail | the present one | they are less than 0.5 % |
//! | WARN | some decisions are not sent, because they would come too late | `shedding` | they are 1 % of the last ten seconds' |
//! | INFO | decisions are sent again | the present one | they are less than 0.5 % |

use std::{sync::Weak, time::Duration};

use crate::{
    charge::Charge,
    clock::{Clock, Timestamp},
    diagnosis::{Code, ErrorChain, SilencedCodes, Warning, WarningLog, log},
    error::Error,
};

use super::{
    modes::Modes,
    recent::{RecentChange, RecentDecisions},
    stuck_slots::{SlotChange, SlotOutage, SlotServer, StuckSlots},
};

/// The state that the guards of all servers share.
#[derive(Debug)]
pub(super) struct AllServers {
    pub modes: Modes,
    pub recent: RecentDecisions,
    pub stuck_slots: StuckSlots,
    /// Findings about the server that only its decisions show.
    pub warnings: WarningLog,
    /// Times outages.
    pub clock: Clock,
}

impl AllServers {
    pub fn new(clock: Clock, silenced: SilencedCodes) -> Self {
        let now = clock.now();
        Self {
            modes: Modes::new(now),
            recent: RecentDecisions::new(now),
            stuck_slots: StuckSlots::default(),
            warnings: WarningLog::new(silenced),
            clock,
        }
    }

    /// Counts the latest decisions anew: an outage has begun or ended, which is logged instead.
    pub fn forget_recent(&self, now: Timestamp) {
        self.recent.forget(now);
        self.recent.set_mode(&self.modes, now);
    }

    /// Notes that the decision on these charges failed, because no node decides on this slot. Returns whether an outage began
    /// with it, of which the caller must warn.
    pub fn slot_failed(
        &self,
        (slot, error): (u16, &Error),
        charges: &[Charge<'_>],
        server: (&Weak<dyn SlotServer>, Duration),
    ) -> bool {
        let now = self.clock.now();
        let changed = self
            .stuck_slots
            .note_failure((slot, error), charges, server, now);
        let Some(change) = changed else { return false };
        log::event!(
            WARN,
            "a hash slot of the redis cluster is decided by no node: its policies apply `on_outage`",
            mode = "degraded",
            slot = slot,
            error = ErrorChain(error),
        );
        let has_begun = matches!(change, SlotChange::Began);
        if has_begun {
            self.modes.opened(now);
            self.forget_recent(now);
        }
        has_begun
    }

    /// Warns that no node decides on a slot.
    pub fn warn_of_slot(&self, slot: u16) {
        self.warnings.report(Warning::new(
            Code::UnreachableSlots,
            format!("no node of the redis cluster decides on slot {slot}"),
        ));
    }

    /// Notes that no slot is stuck any more.
    pub fn slots_are_free(&self, outage: &SlotOutage) {
        let now = self.clock.now();
        self.forget_recent(now);
        self.modes.closed(now);
        log::event!(
            INFO,
            "all hash slots of the redis cluster are decided again",
            mode = self.modes.mode().name(),
            slots = outage.slots,
            outage = format_args!("{:?}", now.since(outage.since)),
        );
    }

    /// Looks whether many of the latest decisions failed or were shed, if it is time to.
    #[inline]
    pub fn look_at_recent(&self, now: Timestamp) {
        self.note_change(self.recent.look_if_due(now), now);
    }

    /// Applies and logs a change of the latest decisions, if there is one.
    #[inline]
    pub fn note_change(&self, change: Option<RecentChange>, now: Timestamp) {
        if let Some(change) = change {
            self.apply(&change, now);
        }
    }

    #[cold]
    fn apply(&self, change: &RecentChange, now: Timestamp) {
        self.recent.set_mode(&self.modes, now);
        let share = format!("{:.1} %", change.share * 100.0);
        let cause = change.cause.as_ref();
        let error = cause.map(|cause| ErrorChain(cause).to_string());
        let error = error.unwrap_or_default();
        if change.begins_failing() {
            log::event!(
                WARN,
                "some decisions fail: their policies apply `on_outage`",
                mode = "failing",
                share = share,
                error = error,
            );
        } else if change.begins_shedding() {
            log::event!(
                WARN,
                "some decisions are not sent, because they would come too late: their policies apply `on_outage`",
                mode = "shedding",
                share = share,
                error = error,
            );
        }
        if change.ends_failing() {
            log::event!(
                INFO,
                "decisions no longer fail",
                mode = self.modes.mode().name(),
                failed_decisions = change.failed,
            );
        }
        if change.ends_shedding() {
            log::event!(
                INFO,
                "decisions are sent again",
                mode = self.modes.mode().name(),
                shed_decisions = change.shed,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{error::ErrorKind, store::Mode};

    use super::*;

    // Regression: a change that another thread applied after an outage had ended stayed the mode until the next change.
    #[test]
    fn change_that_is_applied_late_does_not_undo_what_came_after_it() {
        let all = AllServers::new(Clock::system(), SilencedCodes::default());
        let (overloaded, now) = (Error::new(ErrorKind::Overloaded, "shed"), all.clock.now());
        let change = all.recent.note_shed(&overloaded, now);
        assert!(change.is_some(), "all of them were shed");
        all.forget_recent(now);
        all.note_change(change, now);
        assert_eq!(all.modes.mode(), Mode::Healthy);
    }
}
