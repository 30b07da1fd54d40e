//! The permits of the clients that follow the state.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    task::Mutex,
};

/// Bounds the number of pages that follow, and how long each does.
///
/// With three permits, all of them Ada's:
///
/// ```text
/// Ada      503: she has as many as anybody
/// Bob      takes the oldest of Ada's three: 2 and 1
/// Bob      503: with 1 and 2, they would take turns
/// ```
#[derive(Debug)]
pub(super) struct StreamPermits {
    max: usize,
    clock: Clock,
    taken: Mutex<TakenPermits>,
}

#[derive(Debug, Default)]
struct TakenPermits {
    /// The number of the next permit.
    next: u64,
    /// The oldest first.
    permits: Vec<TakenPermit>,
}

#[derive(Debug)]
struct TakenPermit {
    number: u64,
    until: Timestamp,
    reader: PageReader,
}

/// The one who has pages open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PageReader {
    /// `None` if nothing distinguishes it from others.
    Client(Option<Key>),
    /// The operator that the application names.
    Operator(Arc<str>),
}

impl StreamPermits {
    pub(super) fn new(max: usize, clock: Clock) -> Arc<Self> {
        let taken = Mutex::default();
        Arc::new(Self { max, clock, taken })
    }
}

impl TakenPermits {
    /// Frees the oldest permit of the reader with most of them, if it has at least two more than this one.
    fn make_room_for(&mut self, reader: &PageReader) {
        let count = |of: &PageReader| self.permits.iter().filter(|it| it.reader == *of).count();
        let oldest = self.permits.iter().enumerate().rev();
        let most = oldest.max_by_key(|(_, permit)| count(&permit.reader));
        if let Some((oldest, permit)) = most
            && count(&permit.reader) > count(reader) + 1
        {
            self.permits.remove(oldest);
        }
    }
}

/// One of the permits. It is free again when this is dropped, and at its end.
///
/// The server asks a client's stream for its next event only if the client has read the earlier ones. So the stream of a
/// client that neither reads nor leaves cannot end, but its permit can.
pub(super) struct StreamPermit {
    permits: Arc<StreamPermits>,
    number: u64,
}

impl StreamPermit {
    /// Takes a permit, if one is free or another reader has too many.
    pub(super) fn take(permits: &Arc<StreamPermits>, reader: PageReader) -> Option<Self> {
        let now = permits.clock.now();
        let mut taken = permits.taken.lock();
        taken.permits.retain(|permit| permit.until > now);
        if taken.permits.len() >= permits.max {
            taken.make_room_for(&reader);
        }
        if taken.permits.len() >= permits.max {
            return None;
        }
        let number = taken.next;
        taken.next += 1;
        taken.permits.push(TakenPermit {
            number,
            until: now + MAX_AGE,
            reader,
        });
        drop(taken);
        let permits = Arc::clone(permits);
        Some(Self { permits, number })
    }

    /// Returns whether the stream has to end: it is too old, or another reader has its permit.
    pub(super) fn is_over(&self) -> bool {
        let now = self.permits.clock.now();
        let taken = self.permits.taken.lock();
        let mut permits = taken.permits.iter();
        !permits.any(|permit| permit.number == self.number && permit.until > now)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken.lock();
        taken.permits.retain(|permit| permit.number != self.number);
    }
}

const MAX_AGE: Duration = Duration::from_secs(600);
