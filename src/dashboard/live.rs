//! The state as server-sent events.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::response::sse::{Event, Sse};
use futures_util::stream::{Stream, unfold};
use tokio::sync::watch;

use super::{sampler, shared::Shared};

/// Sends the present state, and then each new one; `None` if too many clients follow, or the dashboard is closed.
///
/// A client that reads slowly misses states, and none is kept for it. A stream ends after [`MAX_EVENTS`], so that the rights
/// of its client are checked again.
pub(super) fn follow(
    shared: &Shared,
) -> Option<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>> {
    let place = Place::take(&shared.clients, shared.max_clients)?;
    let states = shared.live.lock().as_ref()?.subscribe();
    let client = Client {
        states,
        next: Some(sampler::state(shared).into()),
        left: MAX_EVENTS,
        _place: place,
    };
    Some(Sse::new(unfold(client, async |mut client| {
        let state = client.next().await?;
        let event = Event::default().event("state").data(&*state);
        Some((Ok(event), client))
    })))
}

/// A client that follows.
struct Client {
    states: watch::Receiver<Arc<str>>,
    /// The first state.
    next: Option<Arc<str>>,
    /// Number of events until the stream ends.
    left: u32,
    _place: Place,
}

impl Client {
    async fn next(&mut self) -> Option<Arc<str>> {
        self.left = self.left.checked_sub(1)?;
        if let Some(first) = self.next.take() {
            return Some(first);
        }
        self.states.changed().await.ok()?;
        Some(self.states.borrow_and_update().clone())
    }
}

// === Place ===

/// One of the places of clients. It is free again when this is dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(clients: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let one_more = |count| (count < max).then_some(count + 1);
        let taken = clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok().map(|_| Self(Arc::clone(clients)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ten minutes.
const MAX_EVENTS: u32 = 600;
