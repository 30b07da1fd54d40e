//! The mode of a store over all its servers, and who waits for a change of it.

use std::mem;

use tokio::sync::watch;

use crate::{clock::Timestamp, store::Mode, task::Mutex};

/// The modes of all servers of one store. The most severe one is that of the store.
#[derive(Debug)]
pub(super) struct Modes {
    state: Mutex<ModeState>,
    reported: watch::Sender<Mode>,
}

#[derive(Debug)]
struct ModeState {
    /// When the present mode began.
    since: Timestamp,
    /// Number of outages: at most one for each server, and one for all stuck hash slots. Negative if the end of an
    /// outage is noted before its beginning.
    outages: isize,
    is_failing: bool,
    is_shedding: bool,
}

impl Modes {
    /// Returns the modes of servers that are taken to be healthy from now on.
    pub fn new(now: Timestamp) -> Self {
        let state = ModeState {
            since: now,
            outages: 0,
            is_failing: false,
            is_shedding: false,
        };
        Self {
            state: Mutex::new(state),
            reported: watch::Sender::default(),
        }
    }

    /// Returns when the present mode began.
    pub fn since(&self) -> Timestamp {
        self.state.lock().since
    }

    /// Returns a channel that holds the present mode, and reports each change.
    pub fn changes(&self) -> watch::Receiver<Mode> {
        self.reported.subscribe()
    }

    /// Notes that an outage has begun.
    pub fn opened(&self, now: Timestamp) {
        self.change(now, |state| state.outages += 1);
    }

    /// Notes that an outage has ended.
    pub fn closed(&self, now: Timestamp) {
        self.change(now, |state| state.outages -= 1);
    }

    /// Notes whether decisions fail outside of an outage, and whether they are shed.
    pub fn set_affected(&self, is_failing: bool, is_shedding: bool, now: Timestamp) {
        self.change(now, |state| {
            (state.is_failing, state.is_shedding) = (is_failing, is_shedding);
        });
    }

    /// Returns the present mode.
    pub fn mode(&self) -> Mode {
        self.state.lock().mode()
    }

    /// Changes the state, and reports the mode if that has changed.
    fn change(&self, now: Timestamp, change: impl FnOnce(&mut ModeState)) {
        let mut state = self.state.lock();
        let before = state.mode();
        change(&mut state);
        let mode = state.mode();
        if mode != before {
            state.since = now;
        }
        // Under the lock, so that of two changes the later one is reported last.
        self.reported
            .send_if_modified(|reported| mem::replace(reported, mode) != mode);
    }
}

impl ModeState {
    fn mode(&self) -> Mode {
        if self.outages > 0 {
            Mode::Degraded
        } else if self.is_failing {
            Mode::Failing
        } else if self.is_shedding {
            Mode::Shedding
        } else {
            Mode::Healthy
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_healthy_once_all_its_servers_are() {
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        let modes = Modes::new(at(1));
        let changes = modes.changes();
        let mode = || (*changes.borrow(), modes.since());
        assert_eq!(mode(), (Mode::Healthy, at(1)));
        modes.set_affected(false, true, at(2));
        assert_eq!(mode(), (Mode::Shedding, at(2)));
        modes.opened(at(3));
        modes.opened(at(4));
        modes.closed(at(5));
        assert_eq!(mode(), (Mode::Degraded, at(3)));
        modes.closed(at(6));
        assert_eq!(mode(), (Mode::Shedding, at(6)));
        modes.set_affected(true, true, at(7));
        assert_eq!(mode(), (Mode::Failing, at(7)));
        modes.opened(at(8));
        modes.set_affected(false, false, at(9));
        assert_eq!(mode(), (Mode::Degraded, at(8)));
        modes.closed(at(10));
        assert_eq!(mode(), (Mode::Healthy, at(10)));
    }

    // Regression: if the thread that noted the end was faster, the mode stayed degraded.
    #[test]
    fn outage_whose_end_is_noted_first_leaves_the_store_healthy() {
        let modes = Modes::new(Timestamp::from_micros(1));
        modes.closed(Timestamp::from_micros(2));
        modes.opened(Timestamp::from_micros(3));
        assert_eq!(modes.mode(), Mode::Healthy);
    }
}
