//! The server and the proxy of the suites do what the suites rely on.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic;
use std::time::{Duration, Instant};

use redis::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time;

use crate::support::{Mode, Proxy, Server};

#[test]
fn server_replies_and_is_gone_after_drop() {
    let server = Server::start();
    let address = server.address();
    assert_eq!(
        server.command(&["PING"]),
        Value::SimpleString("PONG".into())
    );
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    drop(server);
    let error = TcpStream::connect(address).expect_err("nothing listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn server_takes_more_arguments() {
    let server = Server::start_with(&["--maxmemory", "2097152"]);
    assert_eq!(server.info("memory")["maxmemory"], "2097152");
}

#[test]
fn server_that_cannot_start_shows_its_log() {
    let panic = panic::catch_unwind(|| Server::start_with(&["--no-such-option", "yes"]))
        .err()
        .expect("it does not start");
    let message = panic.downcast_ref::<String>().expect("a message");
    // Redis 8 has another error for it, but quotes the line as well. The list of arguments has no such quote.
    assert!(message.contains(">>> 'no-such-option"), "{message}");
}

#[test]
fn paused_server_does_not_reply_until_resumed() -> io::Result<()> {
    let server = Server::start();
    server.pause();
    let mut client = TcpStream::connect(server.address())?;
    client.set_read_timeout(Some(SILENCE))?;
    client.write_all(PING)?;
    let error = client.read(&mut [0]).expect_err("it is paused");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);

    server.resume();
    client.set_read_timeout(Some(PATIENCE))?;
    let mut reply = [0; PONG.len()];
    client.read_exact(&mut reply)?;
    assert_eq!(reply, PONG);
    Ok(())
}

#[test]
fn paused_server_is_gone_after_drop() {
    let server = Server::start();
    let address = server.address();
    server.pause();
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn server_comes_back_on_the_same_port() {
    let mut server = Server::start();
    let address = server.address();
    let mut client = server.connection();
    server.command(&["SET", "key", "value"]);
    server.kill();
    assert!(TcpStream::connect(address).is_err());
    assert!(redis::cmd("PING").exec(&mut client).is_err());

    server.restart();
    assert_eq!(server.address(), address);
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn server_returns_its_keys_and_command_calls() {
    let server = Server::start();
    server.command(&["SET", "b", "1"]);
    server.command(&["SET", "a", "1"]);
    assert_eq!(server.keys(), ["a", "b"]);
    assert_eq!(server.command_calls()["set"], 2);
    server.flush_stats();
    assert_eq!(server.command_calls().get("set"), None);
}

#[test]
fn server_has_the_debug_command() {
    let server = Server::start_with(&[]);
    assert_eq!(server.command(&["DEBUG", "SLEEP", "0"]), Value::Okay);
}

#[tokio::test]
async fn passing_proxy_forwards_and_counts() {
    let (_server, proxy) = proxied().await;
    let url = proxy.url();
    assert_eq!(url, format!("redis://{}", proxy.address()));
    assert_eq!(proxy.connections(), 0);
    for accepted in 1..=2 {
        let mut client = Client::open(proxy.address()).await;
        client.assert_pong().await;
        assert_eq!(proxy.connections(), accepted);
    }
}

#[tokio::test]
async fn delay_holds_each_reply_back_without_adding_up() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    let delay = 4 * SILENCE;
    proxy.set(Mode::Delay(delay));
    let start = Instant::now();
    client.send(PING).await;
    client.assert_silent().await;
    client.send(PING).await;
    assert_eq!(client.read_pong().await, PONG);
    assert!(start.elapsed() >= delay);
    assert_eq!(client.read_pong().await, PONG);
    // one after the other, they would take twice the delay
    assert!(start.elapsed() < 2 * delay);
}

#[tokio::test]
async fn round_trip_is_added_to_the_microsecond_and_does_not_add_up() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    client.assert_pong().await;
    // with Nagle's algorithm the second request waits for the first one's reply
    let unmerged = client.stream.set_nodelay(true);
    unmerged.expect("a socket can be set");
    let round_trip = Duration::from_micros(2_500);
    proxy.set(Mode::RoundTrip(round_trip));
    let mut quickest = PATIENCE;
    for _ in 0..50 {
        let start = Instant::now();
        for _ in 0..8 {
            client.send(PING).await;
        }
        for _ in 0..8 {
            assert_eq!(client.read_pong().await, PONG);
        }
        assert!(start.elapsed() >= round_trip);
        quickest = quickest.min(start.elapsed());
    }
    // A grain of a millisecond, or requests one after the other, would show in the quickest of all.
    assert!(
        quickest < round_trip + Duration::from_micros(900),
        "{quickest:?}"
    );
}

#[tokio::test]
async fn round_trip_delays_requests_by_half_of_it() {
    let (server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    proxy.set(Mode::RoundTrip(4 * SILENCE));
    server.flush_stats();
    let start = Instant::now();
    client.send(PING).await;
    while !server.command_calls().contains_key("ping") {
        assert!(start.elapsed() < PATIENCE, "it never arrives");
    }
    assert!(start.elapsed() >= 2 * SILENCE);
    assert_eq!(client.read_pong().await, PONG);
    assert!(start.elapsed() >= 4 * SILENCE);
}

#[tokio::test]
async fn stall_holds_both_directions_back_and_loses_nothing() {
    let (server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    client.assert_pong().await;
    server.flush_stats();
    let (start, stall) = (Instant::now(), 3 * SILENCE);
    proxy.stall(stall);
    for _ in 0..3 {
        client.send(PING).await;
    }
    client.assert_silent().await;
    assert_eq!(server.command_calls().get("ping"), None);
    for _ in 0..3 {
        assert_eq!(client.read_pong().await, PONG);
    }
    assert!(start.elapsed() >= stall);
    client.assert_pong().await;
}

#[tokio::test]
async fn proxy_keeps_the_order_of_many_bytes_over_a_distance() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    proxy.set(Mode::RoundTrip(Duration::from_millis(1)));
    // more than the sockets on the way can hold
    let text = "0123456789abcdef".repeat(1 << 18);
    let request = format!("*2\r\n$4\r\nECHO\r\n${}\r\n{text}\r\n", text.len());
    let reply = format!("${}\r\n{text}\r\n", text.len());
    let mut received = vec![0; reply.len()];
    let (mut from_proxy, mut to_proxy) = client.stream.split();
    let (sent, read) = tokio::join!(
        to_proxy.write_all(request.as_bytes()),
        in_time(from_proxy.read_exact(&mut received))
    );
    sent.expect("the connection is open");
    read.expect("the connection is open");
    assert!(received == reply.as_bytes());
}

#[tokio::test]
async fn reply_held_back_is_released_when_the_proxy_passes_again() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    proxy.set(Mode::Delay(Duration::from_secs(3600)));
    client.send(PING).await;
    client.assert_silent().await;
    proxy.set(Mode::Pass);
    assert_eq!(client.read_pong().await, PONG);
}

#[tokio::test]
async fn black_hole_swallows_on_open_and_new_connections() {
    let (server, proxy) = proxied().await;
    let mut open = Client::open(proxy.address()).await;
    open.assert_pong().await;
    proxy.set(Mode::BlackHole);
    let mut new = Client::open(proxy.address()).await;
    server.flush_stats();
    open.send(PING).await;
    new.send(PING).await;
    tokio::join!(open.assert_silent(), new.assert_silent());
    assert_eq!(server.command_calls().get("ping"), None);
}

#[tokio::test]
async fn black_hole_hides_the_end_of_the_server() {
    let (mut server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    client.assert_pong().await;
    proxy.set(Mode::BlackHole);
    server.kill();
    client.send(PING).await;
    client.assert_silent().await;
    proxy.set(Mode::Pass);
    client.assert_closed().await;
}

#[tokio::test]
async fn refusing_proxy_closes_open_and_new_connections() {
    let (_server, proxy) = proxied().await;
    let mut open = Client::open(proxy.address()).await;
    open.assert_pong().await;
    proxy.set(Mode::Refuse);
    open.assert_closed().await;
    Client::open(proxy.address()).await.assert_closed().await;
    assert_eq!(proxy.connections(), 2);

    proxy.set(Mode::Pass);
    Client::open(proxy.address()).await.assert_pong().await;
}

#[tokio::test]
async fn truncating_proxy_stalls_after_the_first_byte() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    proxy.set(Mode::Truncate);
    client.send(PING).await;
    let mut first = [0; 1];
    client.read_exact(&mut first).await;
    assert_eq!(first, PONG[..1]);
    client.send(PING).await;
    client.assert_silent().await;
    proxy.set(Mode::Pass);
    let mut rest = [0; 2 * PONG.len() - 1];
    client.read_exact(&mut rest).await;
    assert_eq!(rest[..PONG.len() - 1], PONG[1..]);
}

#[tokio::test]
async fn resetting_proxy_resets_open_and_new_connections() {
    let (_server, proxy) = proxied().await;
    let mut open = Client::open(proxy.address()).await;
    open.assert_pong().await;
    proxy.set(Mode::Reset);
    open.assert_reset().await;
    // the reset may come before the connection is handed out
    if let Ok(stream) = tokio::net::TcpStream::connect(proxy.address()).await {
        Client { stream }.assert_reset().await;
    }
}

#[tokio::test]
async fn proxy_resets_a_connection_after_the_first_byte_of_a_reply() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    client.assert_pong().await;
    proxy.set(Mode::ResetInReply);
    client.send(PING).await;
    let mut read = Vec::new();
    let error = in_time(client.stream.read_to_end(&mut read)).await;
    let error = error.expect_err("a reset").kind();
    assert_eq!(error, io::ErrorKind::ConnectionReset);
    // The byte may have been lost with the connection.
    assert!(read.is_empty() || read == PONG[..1], "{read:?}");
}

#[tokio::test]
async fn proxy_that_swallows_replies_lets_requests_pass() {
    let (server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    proxy.set(Mode::SwallowReplies);
    client.send(b"SET swallowed 1\r\n").await;
    client.assert_silent().await;
    assert_eq!(server.keys(), ["swallowed"]);
    proxy.set(Mode::Pass);
    client.assert_pong().await;
}

#[tokio::test]
async fn lost_data_arrives_in_order_and_late() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::open(proxy.address()).await;
    proxy.set(Mode::Lose(1_000));
    let sent = Instant::now();
    client.send(PING).await;
    client.assert_silent().await;
    // What was lost is late, whatever is lost later.
    proxy.set(Mode::Lose(0));
    client.send(PING).await;
    let mut both = [0; 2 * PONG.len()];
    client.read_exact(&mut both).await;
    assert_eq!(both, [PONG, PONG].concat()[..]);
    assert!(sent.elapsed() >= Duration::from_millis(1_400));
}

#[tokio::test]
async fn dropped_proxy_closes_its_connections_and_its_port() {
    let (_server, proxy) = proxied().await;
    let address = proxy.address();
    let mut client = Client::open(address).await;
    client.assert_pong().await;
    drop(proxy);
    client.assert_closed().await;
    let error = TcpStream::connect(address).expect_err("nothing listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

async fn proxied() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.address()).await;
    (server, proxy)
}

/// A bare connection, so that a client library's handshake is not in the way.
struct Client {
    stream: tokio::net::TcpStream,
}

impl Client {
    async fn open(address: SocketAddr) -> Self {
        let stream = tokio::net::TcpStream::connect(address).await;
        Self {
            stream: stream.expect("the proxy accepts"),
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        let written = self.stream.write_all(bytes).await;
        written.expect("the connection is open");
    }

    async fn read_exact(&mut self, buffer: &mut [u8]) {
        let read = in_time(self.stream.read_exact(buffer)).await;
        read.expect("the connection is open");
    }

    async fn read_pong(&mut self) -> [u8; PONG.len()] {
        let mut reply = [0; PONG.len()];
        self.read_exact(&mut reply).await;
        reply
    }

    async fn assert_pong(&mut self) {
        self.send(PING).await;
        assert_eq!(self.read_pong().await, PONG);
    }

    async fn assert_silent(&mut self) {
        let mut byte = [0];
        let read = self.stream.read(&mut byte);
        assert!(time::timeout(SILENCE, read).await.is_err());
    }

    async fn assert_closed(&mut self) {
        let end = in_time(self.stream.read(&mut [0])).await;
        // unread bytes turn a close into a reset
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    }

    async fn assert_reset(&mut self) {
        let end = in_time(self.stream.read(&mut [0])).await;
        let error = end.expect_err("it is reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    let result = time::timeout(PATIENCE, future).await;
    result.expect("it ends in time")
}

const PING: &[u8] = b"PING\r\n";
const PONG: [u8; 7] = *b"+PONG\r\n";
/// Long enough that a reply on loopback would have come.
const SILENCE: Duration = Duration::from_millis(60);
/// The limit for what is bound to happen.
const PATIENCE: Duration = Duration::from_secs(5);
