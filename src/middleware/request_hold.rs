//! Holds on the slots of a request beyond its response, such as for a WebSocket.
//!
//! ```text
//! layer with slots ── SharedHold in the extensions ── RequestHold, if somebody takes one ── clones
//!        |                                               |
//!        | the response ends: no RequestHold lives       | the last one is dropped
//!        v                                               v
//!     settled now, as without this file               settled then, for all layers of the request
//! ```
//!
//! # Why is a hold counted by hand?
//!
//! The extensions have a reference to the shared part, and a handler may keep the whole request, for example while it
//! streams its body. That alone must hold nothing. So only what somebody has taken from the extensions is counted,
//! under the lock that the end of a response takes too.

use std::{fmt, mem, sync::Arc};

use http::Extensions;
use smallvec::SmallVec;

use crate::task::Mutex;

/// Holds the slots of a request until it and its clones are dropped, also after the response.
///
/// A slot of a [concurrency](crate::Policy::concurrency) policy is released when the response body has ended, which for
/// a WebSocket is the handshake. Take a `RequestHold` in the handler, and move it into the task of the connection. It
/// also suits work that goes on after the response. Server-sent events and other long bodies do not need it.
///
/// With axum it is an extractor, also as `Option<RequestHold>`. Elsewhere, read it [from the request's
/// extensions](Self::from_extensions). It is there if a layer around the handler has a concurrency policy, also for
/// requests that no rule counts: then it holds nothing. Otherwise the extractor responds with 500 and logs the remedy,
/// and the `Option` is `None`.
///
/// # What it holds
///
/// - All charges of the layers that hold slots for the request. They are settled when the last clone is dropped, or
///   when the response has ended, if that is later. The closure of [`settle`](crate::rules::Rule::settle) is called
///   then, and [`ActualCost::set`](super::ActualCost::set) has an effect until then.
/// - A slot for as long as a clone lives: no time limit applies. In Redis its lease is renewed meanwhile. If the task
///   of a connection panics or is aborted, its clone is dropped.
///
/// A handler that drops it at once, or panics with it, changes nothing. Charges of layers without a concurrency policy
/// are settled at the end of the response as always.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "axum")]
/// # mod example {
/// use axum::{Router, extract::WebSocketUpgrade, response::Response, routing::any};
/// use tollgate::{Policy, RateLimitLayer, extract::PeerIp, middleware::RequestHold};
///
/// async fn connect(upgrade: WebSocketUpgrade, hold: RequestHold) -> Response {
///     upgrade.on_upgrade(async move |mut socket| {
///         while let Some(Ok(_message)) = socket.recv().await { /* .. */ }
///         drop(hold);
///     })
/// }
///
/// fn app() -> Result<Router, tollgate::Error> {
///     let limit = RateLimitLayer::builder()
///         .policy(Policy::concurrency("sockets", 2).key(PeerIp)) // two open sockets per client
///         .build()?;
///     Ok(Router::new().route("/chat", any(connect)).layer(limit))
/// }
/// # }
/// ```
#[must_use = "a hold that is dropped at once holds nothing"]
pub struct RequestHold {
    shared: Arc<Mutex<Shared>>,
}

impl RequestHold {
    /// Takes a hold of the request with these extensions; `None` if no layer around has a concurrency policy.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<Self> {
        Some(extensions.get::<SharedHold>()?.take())
    }
}

impl Clone for RequestHold {
    fn clone(&self) -> Self {
        self.shared.lock().taken += 1;
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for RequestHold {
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        shared.taken -= 1;
        let ended = match shared.taken {
            0 => mem::take(&mut shared.ended),
            _ => return,
        };
        // Settling calls closures of rules, which must not run under the lock.
        drop(shared);
        drop(ended);
    }
}

impl fmt::Debug for RequestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHold").finish_non_exhaustive()
    }
}

// === SharedHold ===

/// The part that the holds of a request share with the layers around its handler.
#[derive(Clone, Default)]
pub(super) struct SharedHold(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// Holds that were taken and are not dropped.
    taken: usize,
    /// The charges of each layer whose response has ended. Dropping them settles them.
    ended: SmallVec<[Box<dyn Send>; 1]>,
}

impl SharedHold {
    /// Returns the shared part in a request's extensions, which all layers around the handler use.
    pub fn attach(extensions: &mut Extensions) -> &Self {
        extensions.get_or_insert_with(Self::default)
    }

    fn take(&self) -> RequestHold {
        self.0.lock().taken += 1;
        RequestHold {
            shared: Arc::clone(&self.0),
        }
    }

    /// Whether a hold lives.
    pub fn is_taken(&self) -> bool {
        self.0.lock().taken > 0
    }

    /// Keeps the charges of a layer until the last hold is dropped. Drops them now if none lives.
    pub fn keep(&self, charges: Box<dyn Send>) {
        let mut shared = self.0.lock();
        if shared.taken > 0 {
            shared.ended.push(charges);
            return;
        }
        drop(shared);
        drop(charges);
    }
}
