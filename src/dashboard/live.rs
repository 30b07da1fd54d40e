//! The state as server-sent events.

use std::{convert::Infallible, sync::Arc};

use axum::response::sse::{Event, Sse};
use futures_util::stream::{Stream, unfold};
use http::StatusCode;
use tokio::sync::watch;

use super::{
    api_error::ApiError,
    permits::{PageReader, StreamPermit},
    sampler,
    shared::SharedDashboard,
};

/// Sends the present state, and then each new one.
///
/// A client that reads slowly misses states, and none is kept for it. A stream ends with its permit, so that the rights of
/// its client are checked again.
///
/// # Errors
///
/// 503 if too many pages follow, or if the dashboard is closed.
pub(super) fn follow(
    shared: &SharedDashboard,
    reader: PageReader,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>, ApiError> {
    let states = shared.live.lock().as_ref().map(watch::Sender::subscribe);
    let states = states.ok_or_else(|| {
        unavailable(
            "closed",
            "the dashboard is closed, since its server shuts down",
        )
    })?;
    let permit = StreamPermit::take(&shared.permits, reader).ok_or_else(|| {
        let message = "too many pages follow this dashboard: close one, or wait";
        unavailable("too_many_streams", message)
    })?;
    let client = Follower {
        states,
        next: Some(sampler::state(shared).to_string().into()),
        permit,
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
struct Follower {
    states: watch::Receiver<Arc<str>>,
    /// The first state.
    next: Option<Arc<str>>,
    permit: StreamPermit,
}

impl Follower {
    async fn next(&mut self) -> Option<Arc<str>> {
        let next = match self.next.take() {
            Some(first) => first,
            None => {
                self.states.changed().await.ok()?;
                self.states.borrow_and_update().clone()
            }
        };
        (!self.permit.is_over()).then_some(next)
    }
}
