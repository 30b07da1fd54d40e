//! Requests of one key that wait for the first of them, which asks Redis.
//!
//! When a denial of a slow limit is over, one unit is back, and all callers of a flood come for it. If each asked, the
//! server would deny all but one, again in each interval of the limit and for each instance.
//!
//! A request that has waited for too long ends the flight for all, so one that asks and never ends delays nobody twice.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::oneshot::{self, Receiver, Sender};

use crate::task::Mutex;

/// The keys that are being asked for, by their hashes, and the requests that wait. Those of two keys with one hash wait for each
/// other.
#[derive(Debug, Default)]
pub(super) struct SingleFlight(Mutex<HashMap<u64, Vec<Sender<()>>>>);

/// The turn of a request.
pub(super) enum Turn {
    /// It asks, and the others wait until this is dropped.
    Asks(#[expect(dead_code, reason = "it is dropped")] Asking),
    /// It waits until this ends, in whatever way, and then takes another turn.
    Waits(Receiver<()>),
}

/// A request that asks for the others.
pub(super) struct Asking {
    flights: Arc<SingleFlight>,
    key: u64,
}

impl SingleFlight {
    /// Returns whether a request asks, or waits for another one of its key.
    pub fn turn(self: &Arc<Self>, key: u64) -> Turn {
        let mut flights = self.0.lock();
        if let Some(waiting) = flights.get_mut(&key) {
            let (answer, receiver) = oneshot::channel();
            waiting.push(answer);
            return Turn::Waits(receiver);
        }
        flights.insert(key, Vec::new());
        Turn::Asks(Asking {
            flights: Arc::clone(self),
            key,
        })
    }

    /// Ends the wait of all requests of a key.
    pub fn end(&self, key: u64) {
        let waiting = self.0.lock().remove(&key);
        // Once no lock is held, since each wakes a task.
        drop(waiting);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.flights.end(self.key);
    }
}
