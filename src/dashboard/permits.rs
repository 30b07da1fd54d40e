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
    /// The oldest first.
    taken: Mutex<Vec<Arc<TakenPermit>>>,
}

#[derive(Debug)]
struct TakenPermit {
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
    pub fn new(max: usize, clock: Clock) -> Arc<Self> {
        let taken = Mutex::default();
        Arc::new(Self { max, clock, taken })
    }
}

/// Frees the oldest permit of the reader with most of them, if it has at least two more than this one.
fn make_room_for(reader: &PageReader, taken: &mut Vec<Arc<TakenPermit>>) {
    let count = |of: &PageReader| taken.iter().filter(|it| it.reader == *of).count();
    let oldest = taken.iter().enumerate().rev();
    let most = oldest.max_by_key(|(_, permit)| count(&permit.reader));
    if let Some((oldest, permit)) = most
        && count(&permit.reader) > count(reader) + 1
    {
        taken.remove(oldest);
    }
}

/// One of the permits. It is free again when this is dropped, and at its end.
///
/// The server asks a client's stream for its next event only if the client has read the earlier ones. So the stream of a
/// client that neither reads nor leaves cannot end, but its permit can.
pub(super) struct StreamPermit {
    permits: Arc<StreamPermits>,
    taken: Arc<TakenPermit>,
}

impl StreamPermit {
    /// Takes a permit, if one is free or another reader has too many.
    pub fn take(permits: &Arc<StreamPermits>, reader: PageReader) -> Option<Self> {
        let now = permits.clock.now();
        let mut taken = permits.taken.lock();
        taken.retain(|permit| permit.until > now);
        if taken.len() >= permits.max {
            make_room_for(&reader, &mut taken);
        }
        if taken.len() >= permits.max {
            return None;
        }
        let until = now + MAX_AGE;
        let permit = Arc::new(TakenPermit { until, reader });
        taken.push(Arc::clone(&permit));
        drop(taken);
        Some(Self {
            permits: Arc::clone(permits),
            taken: permit,
        })
    }

    /// Returns whether the stream has to end: it is too old, or another reader has its permit.
    pub fn is_over(&self) -> bool {
        let taken = self.permits.taken.lock();
        let is_taken = taken.iter().any(|permit| Arc::ptr_eq(permit, &self.taken));
        !is_taken || self.taken.until <= self.permits.clock.now()
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken.lock();
        taken.retain(|permit| !Arc::ptr_eq(permit, &self.taken));
    }
}

const MAX_AGE: Duration = Duration::from_secs(600);
