//! The places of the clients that follow the state.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::{Clock, Timestamp},
    sync::Mutex,
};

/// Bounds the number of clients that follow, and how long each does.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    clock: Clock,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// The number of the next place.
    next: u64,
    /// The number of each place that is taken, and its end.
    until: Vec<(u64, Timestamp)>,
}

impl Places {
    pub(super) fn new(max: usize, clock: Clock) -> Arc<Self> {
        let taken = Mutex::default();
        Arc::new(Self { max, clock, taken })
    }
}

/// One of the places. It is free again when this is dropped, and at its end.
///
/// The server asks a client's stream for its next event only if the client has read the earlier ones. So the stream of a
/// client that neither reads nor leaves cannot end, but its place can.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    until: Timestamp,
}

impl Place {
    /// Takes a place, if one is free.
    pub(super) fn take(places: &Arc<Places>) -> Option<Self> {
        let now = places.clock.now();
        let mut taken = places.taken.lock();
        taken.until.retain(|(_, until)| *until > now);
        if taken.until.len() >= places.max {
            return None;
        }
        let (number, until) = (taken.next, now + MAX_AGE);
        taken.next += 1;
        taken.until.push((number, until));
        drop(taken);
        let places = Arc::clone(places);
        Some(Self {
            places,
            number,
            until,
        })
    }

    /// Returns whether the stream has to end.
    pub(super) fn is_over(&self) -> bool {
        self.places.clock.now() >= self.until
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.until.retain(|(number, _)| *number != self.number);
    }
}

const MAX_AGE: Duration = Duration::from_secs(600);
