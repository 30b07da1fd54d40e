//! The server for clients and for operators: HTTP/1 and HTTP/2, with an end to each wait for a client.
//!
//! ```text
//! the client does not                   after the timeout
//! send a whole request head             its connection ends
//! send the next piece of an upload      408, see upload.rs
//! read the next piece of a response     the response ends, see unread.rs
//! ```

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, extract::ConnectInfo};
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::sleep,
};
use tower::ServiceExt;

use crate::unread::{self, Streams};

/// Serves until the sender is dropped, and all responses have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    timeout: Duration,
    mut stopping: watch::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.changed() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection =
                    serve_connection(stream, peer, app.clone(), timeout, stopping.clone());
                connections.spawn(unread::end_when_unread(timeout, connection));
            }
            // The client has gone, or the process has too many open files.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
    while connections.join_next().await.is_some() {}
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    app: Router,
    timeout: Duration,
    mut stopping: watch::Receiver<()>,
) {
    // Otherwise the end of a response can wait for the client's acknowledgement of its start.
    let _ = stream.set_nodelay(true);
    let requests = InFlight::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        let (app, in_flight) = (app.clone(), requests.begin());
        // `client_ip` and `peer_ip` read the peer's address from here, and the dashboard counts wrong tokens by it.
        request.extensions_mut().insert(ConnectInfo(peer));
        async move {
            let response = app.oneshot(request.map(Body::new)).await?;
            Ok::<_, Infallible>(response.map(|body| unread::noted(body, in_flight)))
        }
    });
    let mut builder = auto::Builder::new(Streams(timeout));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(timeout)
        .keep_alive_timeout(timeout);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = requests.idle(timeout) => {}
        _ = stopping.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    // A client that reads nothing would keep a connection whose responses have ended.
    tokio::select! {
        _ = connection => {}
        () = requests.idle(timeout) => {}
    }
}

// === InFlight ===

/// The number of requests in flight on one connection, and since when.
#[derive(Clone)]
struct InFlight(Arc<Mutex<(usize, Instant)>>);

impl InFlight {
    /// Counts a request until the result is dropped.
    fn begin(&self) -> InFlightGuard {
        self.change(|count| count + 1);
        InFlightGuard(self.clone())
    }

    /// Waits until no request has been in flight for this long.
    async fn idle(&self, timeout: Duration) {
        loop {
            let (count, since) = *self.lock();
            let left = timeout.saturating_sub(since.elapsed());
            match (count, left) {
                (0, Duration::ZERO) => return,
                (0, left) => sleep(left).await,
                _ => sleep(timeout / 4).await,
            }
        }
    }

    fn change(&self, change: impl Fn(usize) -> usize) {
        let mut requests = self.lock();
        *requests = (change(requests.0), Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for InFlight {
    fn default() -> Self {
        Self(Arc::new(Mutex::new((0, Instant::now()))))
    }
}

/// One request in flight.
pub(crate) struct InFlightGuard(InFlight);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.change(|count| count - 1);
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
