//! Run with
//!
//! ```sh
//! cargo run --example chat
//! ```
//!
//! How are WebSockets and server-sent events limited? At most two connections per client, and a few messages a second.

#![expect(clippy::print_stdout, reason = "an example prints where it listens")]

use std::{convert::Infallible, env, error::Error, net::SocketAddr};

use axum::{
    Router,
    extract::{
        ConnectInfo, State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    response::{
        Response, Sse,
        sse::{Event, KeepAlive},
    },
    routing::{any, get},
};
use futures_util::{Stream, stream};
use tokio::{net::TcpListener, sync::broadcast};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter, extract::PeerIp, middleware::RequestHold,
    rejection::Rejection,
};

type Room = broadcast::Sender<String>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let messages = Policy::new("messages", Quota::per_second(1).burst(5));
    let limiter = RateLimiter::builder().policy(messages).build()?;
    let limit = RateLimitLayer::builder()
        .limiter(&limiter)
        .policy(Policy::concurrency("connections", 2).key(PeerIp))
        .share_limiter() // for the handlers
        .build()?;

    let app = Router::new()
        .route("/chat", any(chat))
        .route("/events", get(events))
        .layer(limit)
        .with_state(Room::new(100));
    let port = env::var("PORT").unwrap_or_else(|_| "3000".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!(
        "ws://{0}/chat and http://{0}/events",
        listener.local_addr()?
    );
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

/// The slot is held until the socket is closed, and not only until the handshake.
async fn chat(
    upgrade: WebSocketUpgrade,
    State(room): State<Room>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    limiter: RateLimiter,
    hold: RequestHold,
) -> Result<Response, Rejection> {
    let messages = limiter.policy("messages")?;
    Ok(upgrade.on_upgrade(async move |mut socket| {
        while let Some(text) = receive(&mut socket).await {
            let reply = match limiter.enforce(messages.charge(Key::from(peer.ip()))).await {
                Ok(_) => format!("sent to {} readers", room.send(text).unwrap_or(0)),
                Err(rejection) => rejection.message(),
            };
            if socket.send(Message::text(reply)).await.is_err() {
                break;
            }
        }
        drop(hold);
    }))
}

/// Returns the next message; `None` once the client is gone.
async fn receive(socket: &mut WebSocket) -> Option<String> {
    loop {
        match socket.recv().await?.ok()? {
            Message::Text(text) => return Some(text.to_string()),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

/// The slot is held until the body ends, as for every response.
async fn events(State(room): State<Room>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let events = stream::unfold(room.subscribe(), async |mut room| {
        loop {
            match room.recv().await {
                Ok(text) => return Some((Ok(Event::default().data(text)), room)),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
