//! A slot in Redis that outlives the response, for a WebSocket over a real connection.

use std::{
    future::IntoFuture,
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{Router, extract::WebSocketUpgrade, response::Response, routing::any};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time,
};
use tollgate::{
    Key, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead, algorithm::Algorithm,
    middleware::RequestHold, remote::RedisStore,
};

use crate::support::Server;

/// Several of them end while the socket is open.
const LEASE: Duration = Duration::from_millis(LEASE_MILLIS);
const LEASE_MILLIS: u64 = 600;

fn sockets() -> Policy {
    let algorithm = Algorithm::Concurrency { lease: LEASE };
    Policy::new("sockets", Quota::in_flight(1)).algorithm(algorithm)
}

fn store(server: &Server) -> tollgate::remote::RedisStoreBuilder {
    RedisStore::builder(server.url()).deadline(Duration::from_secs(5))
}

async fn connect(upgrade: WebSocketUpgrade, hold: RequestHold) -> Response {
    upgrade.on_upgrade(async move |mut socket| {
        while let Some(Ok(_)) = socket.recv().await {}
        drop(hold);
    })
}

/// Returns the status of a handshake, and its connection.
async fn open_socket(address: SocketAddr) -> (u16, TcpStream) {
    let mut socket = TcpStream::connect(address).await.expect("it listens");
    let handshake = "GET / HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(handshake.as_bytes()).await.expect("open");
    let mut seen = [0; 12];
    let read = time::timeout(Duration::from_secs(10), socket.read_exact(&mut seen)).await;
    read.expect("in time").expect("a status line");
    let status = String::from_utf8_lossy(&seen[9..]).parse();
    (status.expect("a number"), socket)
}

#[tokio::test]
async fn slot_of_an_open_socket_is_renewed_and_released_when_its_client_is_gone() {
    let server = Server::start();
    let layer = RateLimitLayer::builder()
        .policy(sockets().key(|_: &RequestHead<'_>| Some(Key::new("ada"))))
        .redis(store(&server))
        .build()
        .expect("it is well set up");
    let app = Router::new().route("/", any(connect)).layer(layer.clone());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(axum::serve(listener, app).into_future());
    let other = RateLimiter::builder().redis(store(&server)).build();
    let other = other.expect("another instance");
    let free = async || {
        let policy = sockets();
        let peeked = other.peek(policy.charge(Key::new("ada"))).await;
        peeked.expect("a decision").remaining().expect("it counts")
    };

    let (status, socket) = open_socket(address).await;
    assert_eq!(status, 101);
    let ends = || {
        // The only ticket, which comes last, and the end of its lease in milliseconds.
        let key = "tollgate:{ada}:sockets#c";
        let last = server.command(&["ZRANGE", key, "-1", "-1", "WITHSCORES"]);
        let last: Vec<(Vec<u8>, u64)> = redis::from_redis_value(last).expect("a member");
        last.first().expect("the slot is there").1
    };
    let (first, opened) = (ends(), Instant::now());
    while ends() < first + 3 * LEASE_MILLIS {
        assert_eq!(free().await, 0, "after {:?}", opened.elapsed());
        assert!(
            opened.elapsed() < Duration::from_secs(20),
            "it is not renewed"
        );
    }
    assert_eq!(open_socket(address).await.0, 429);
    drop(socket);
    let gone = Instant::now();
    while free().await == 0 {
        assert!(
            gone.elapsed() < LEASE / 2,
            "only the end of the lease would release it"
        );
        tokio::task::yield_now().await;
    }
    assert_eq!(open_socket(address).await.0, 101);
    assert!(layer.warnings().is_empty(), "{:?}", layer.warnings());
}
