//! The state as server-sent events.

use std::{convert::Infallible, sync::Arc};

use axum::response::sse::{Event, Sse};
use futures_util::stream::{Stream, unfold};
use http::StatusCode;
use tokio::sync::watch;

use super::{
    api_error::ApiError,
    places::{Place, Reader},
    sampler,
    shared::Shared,
};

/// Sends the present state, and then each new one.
///
/// A client that reads slowly misses states, and none is kept for it. A stream ends with its place, so that the rights of
/// its client are checked again.
///
/// # Errors
///
/// 503 if too many pages follow, or if the dashboard is closed.
pub(super) fn follow(
    shared: &Shared,
    reader: Reader,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>, ApiError> {
    let states = shared.live.lock().as_ref().map(watch::Sender::subscribe);
    let states = states.ok_or_else(|| {
        unavailable(
            "closed",
            "the dashboard is closed, since its server shuts down",
        )
    })?;
    let place = Place::take(&shared.places, reader).ok_or_else(|| {
        let message = "too many pages follow this dashboard: close one, or wait";
        unavailable("too_many_streams", message)
    })?;
    let client = Client {
        states,
        next: Some(sampler::state(shared).into()),
        place,
    };
    Ok(Sse::new(unfold(client, async |mut client| {
        let state = client.next().await?;
        let event = Event::default().event("state").data(&*state);
        Some((Ok(event), client))
    })))
}

fn unavailable(code: &'static str, message: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
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
