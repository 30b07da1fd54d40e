//! The places of the clients that follow the state.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    task::Mutex,
};

/// Bounds the number of pages that follow, and how long each does.
///
/// With three places, of which Ada has three:
///
/// ```text
/// Ada      503: she has as many as anybody
/// Bob      takes the oldest of Ada's three: 2 and 1
/// Bob      503: with 1 and 2, they would take turns
/// ```
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
    /// The oldest first.
    places: Vec<Taking>,
}

#[derive(Debug)]
struct Taking {
    number: u64,
    until: Timestamp,
    reader: Reader,
}

/// The one who has pages open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// `None` if nothing distinguishes it from others.
    Client(Option<Key>),
    /// The operator that the application names.
    Operator(Arc<str>),
}

impl Places {
    pub(super) fn new(max: usize, clock: Clock) -> Arc<Self> {
        let taken = Mutex::default();
        Arc::new(Self { max, clock, taken })
    }
}

impl Taken {
    /// Frees the oldest place of the reader with most of them, if it has at least two more than this one.
    fn make_room_for(&mut self, reader: &Reader) {
        let count = |of: &Reader| self.places.iter().filter(|it| it.reader == *of).count();
        let oldest = self.places.iter().enumerate().rev();
        let most = oldest.max_by_key(|(_, place)| count(&place.reader));
        if let Some((oldest, place)) = most
            && count(&place.reader) > count(reader) + 1
        {
            self.places.remove(oldest);
        }
    }
}

/// One of the places. It is free again when this is dropped, and at its end.
///
/// The server asks a client's stream for its next event only if the client has read the earlier ones. So the stream of a
/// client that neither reads nor leaves cannot end, but its place can.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Place {
    /// Takes a place, if one is free or another reader has too many.
    pub(super) fn take(places: &Arc<Places>, reader: Reader) -> Option<Self> {
        let now = places.clock.now();
        let mut taken = places.taken.lock();
        taken.places.retain(|place| place.until > now);
        if taken.places.len() >= places.max {
            taken.make_room_for(&reader);
        }
        if taken.places.len() >= places.max {
            return None;
        }
        let number = taken.next;
        taken.next += 1;
        taken.places.push(Taking {
            number,
            until: now + MAX_AGE,
            reader,
        });
        drop(taken);
        let places = Arc::clone(places);
        Some(Self { places, number })
    }

    /// Returns whether the stream has to end: it is too old, or another reader has its place.
    pub(super) fn is_over(&self) -> bool {
        let now = self.places.clock.now();
        let taken = self.places.taken.lock();
        let mut places = taken.places.iter();
        !places.any(|place| place.number == self.number && place.until > now)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.places.retain(|place| place.number != self.number);
    }
}

const MAX_AGE: Duration = Duration::from_secs(600);
