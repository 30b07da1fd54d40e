//! The state as server-sent events.

use std::{convert::Infallible, sync::Arc};

use axum::response::sse::{Event, Sse};
use futures_util::stream::{Stream, unfold};
use tokio::sync::watch;

use super::{places::Place, sampler, shared::Shared};

/// Sends the present state, and then each new one; `None` if too many clients follow, or the dashboard is closed.
///
/// A client that reads slowly misses states, and none is kept for it. A stream ends with its place, so that the rights of
/// its client are checked again.
pub(super) fn follow(
    shared: &Shared,
) -> Option<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>> {
    let place = Place::take(&shared.places)?;
    let states = shared.live.lock().as_ref()?.subscribe();
    let client = Client {
        states,
        next: Some(sampler::state(shared).into()),
        place,
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
    place: Place,
}

impl Client {
    async fn next(&mut self) -> Option<Arc<str>> {
        let next = match self.next.take() {
            Some(first) => first,
            None => {
                self.states.changed().await.ok()?;
                self.states.borrow_and_update().clone()
            }
        };
        (!self.place.is_over()).then_some(next)
    }
}
