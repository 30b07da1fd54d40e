//! The mode of a store over all its servers, and who waits for a change of it.

use std::mem;

use tokio::sync::watch;

use crate::{store::Mode, sync::Mutex};

/// The modes of all servers of one store. The most severe one is that of the store.
#[derive(Debug, Default)]
pub(super) struct Modes {
    state: Mutex<State>,
    reported: watch::Sender<Mode>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of servers whose breakers are open.
    degraded: usize,
    is_shedding: bool,
}

impl Modes {
    /// Returns a channel that holds the present mode, and reports each change.
    pub(super) fn changes(&self) -> watch::Receiver<Mode> {
        self.reported.subscribe()
    }

    /// Notes that the breaker of a server has opened.
    pub(super) fn opened(&self) {
        self.change(|state| state.degraded += 1);
    }

    /// Notes that it has closed.
    pub(super) fn closed(&self) {
        self.change(|state| state.degraded = state.degraded.saturating_sub(1));
    }

    /// Notes whether decisions are shed.
    pub(super) fn set_shedding(&self, is_shedding: bool) {
        self.change(|state| state.is_shedding = is_shedding);
    }

    /// Changes the state, and reports the mode if that has changed.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let mode = state.mode();
        // Under the lock, so that of two changes the later one is reported last.
        self.reported
            .send_if_modified(|reported| mem::replace(reported, mode) != mode);
    }
}

impl State {
    fn mode(&self) -> Mode {
        if self.degraded > 0 {
            Mode::Degraded
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
        let modes = Modes::default();
        let changes = modes.changes();
        let mode = || *changes.borrow();
        assert_eq!(mode(), Mode::Healthy);
        modes.set_shedding(true);
        assert_eq!(mode(), Mode::Shedding);
        modes.opened();
        modes.opened();
        modes.closed();
        assert_eq!(mode(), Mode::Degraded);
        modes.closed();
        assert_eq!(mode(), Mode::Shedding);
        modes.set_shedding(false);
        assert_eq!(mode(), Mode::Healthy);
    }
}
