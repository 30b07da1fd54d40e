//! A TCP proxy that delays and fails on demand.
//!
//! One thread serves all connections and waits with `ppoll`, whose timeout is in nanoseconds. Tokio's timers have a
//! resolution of a millisecond and would turn a round trip of 2 ms into 3 or 4. A delay does not limit throughput: data
//! stays in order, and any amount of it can be in flight.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The treatment of new and open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Swallows both directions and keeps the connections open.
    BlackHole,
    /// Holds each piece of a reply back for this long; requests pass at once.
    Delay(Duration),
    /// Forwards everything.
    Pass,
    /// Loses this many of 1,000 pieces of data. A lost piece arrives after TCP has sent it again: after 200 ms, and after
    /// twice as long for each further loss of it, three at most. What comes after it waits.
    Lose(u32),
    /// Closes the connections.
    Refuse,
    /// Closes the connections with a TCP reset.
    Reset,
    /// Forwards the first byte of a reply, and then closes the connection with a TCP reset.
    ResetInReply,
    /// Adds this to the round trip, half in each direction, as distance does.
    RoundTrip(Duration),
    /// Forwards requests and swallows the replies.
    SwallowReplies,
    /// Forwards the first byte of a reply, and the rest once the mode changes.
    Truncate,
}

impl Mode {
    fn cuts(self) -> bool {
        matches!(self, Self::Refuse | Self::Reset)
    }

    fn truncates(self) -> bool {
        matches!(self, Self::ResetInReply | Self::Truncate)
    }

    /// Returns how long a piece of data is late because it was lost.
    fn retransmission(self) -> Duration {
        let Self::Lose(share) = self else {
            return Duration::ZERO;
        };
        let is_lost = || RandomState::new().build_hasher().finish() % 1_000 < u64::from(share);
        let losses = (0..MAX_LOSSES).take_while(|_| is_lost()).count();
        RETRANSMISSION * ((1 << losses) - 1)
    }
}

/// A proxy on a free loopback port in front of one address.
///
/// It runs on its own thread, named `proxy`, so neither a blocked nor a paused test runtime affects it. Dropping it
/// closes all connections.
///
/// If the upstream is down, connections are accepted and then closed. TCP connections are accepted without delay in
/// every mode; the commands that follow are delayed.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// One byte wakes the worker.
    waker: UnixStream,
    worker: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in [`Mode::Pass`].
    pub(crate) async fn start(upstream: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .and_then(tokio::net::TcpListener::into_std)
            .expect("some port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let (waker, wakes) = UnixStream::pair().expect("a pair of sockets can be made");
        for end in [&waker, &wakes] {
            end.set_nonblocking(true).expect("a socket can be set");
        }
        let shared = Arc::new(Shared::default());
        let worker = Worker {
            upstream,
            listener,
            wakes,
            shared: Arc::clone(&shared),
            connections: Vec::new(),
            buffer: vec![0; CHUNK_BYTES],
        };
        let worker = thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(|| worker.run());
        Self {
            address,
            shared,
            waker,
            worker: Some(worker.expect("a thread can be started")),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Switches the mode, also for open connections and data already held back.
    pub(crate) fn set(&self, mode: Mode) {
        self.shared.conditions().mode = mode;
        self.wake();
    }

    /// Holds back both directions from now on for this long, once. Afterwards all held data passes at once.
    pub(crate) fn stall(&self, duration: Duration) {
        self.shared.conditions().stalled_until = Some(Instant::now() + duration);
        self.wake();
    }

    /// How many connections were accepted so far, refused ones included.
    pub(crate) fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many pieces of data clients have sent so far: about one for each call.
    pub(crate) fn pieces(&self) -> usize {
        self.shared.pieces.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // a full buffer already wakes the worker
        let _ = (&self.waker).write(&[0]);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.has_stopped.store(true, Ordering::Release);
        self.wake();
        if let Some(worker) = self.worker.take() {
            // its panic has been printed; a second one here would abort the process
            let _ = worker.join();
        }
    }
}

#[derive(Default)]
struct Shared {
    conditions: Mutex<Conditions>,
    accepted: AtomicUsize,
    pieces: AtomicUsize,
    has_stopped: AtomicBool,
}

impl Shared {
    fn conditions(&self) -> MutexGuard<'_, Conditions> {
        // plain values, valid even after a panic
        self.conditions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy)]
struct Conditions {
    mode: Mode,
    stalled_until: Option<Instant>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            mode: Mode::Pass,
            stalled_until: None,
        }
    }
}

impl Conditions {
    /// Returns the time at which data may pass; `None` is never.
    fn due(self, arrived: Instant, delay: Duration) -> Option<Instant> {
        let due = arrived.checked_add(delay)?;
        Some(self.stalled_until.map_or(due, |stalled| stalled.max(due)))
    }

    fn request_delay(self) -> Duration {
        match self.mode {
            Mode::RoundTrip(round_trip) => round_trip / 2,
            _ => Duration::ZERO,
        }
    }

    fn reply_delay(self) -> Duration {
        match self.mode {
            Mode::Delay(delay) => delay,
            Mode::RoundTrip(round_trip) => round_trip - round_trip / 2,
            _ => Duration::ZERO,
        }
    }
}

// === Worker ===

/// The proxy's thread. It closes every connection when it ends.
struct Worker {
    upstream: SocketAddr,
    listener: TcpListener,
    wakes: UnixStream,
    shared: Arc<Shared>,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

impl Worker {
    fn run(mut self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
        let mut next_due = None;
        while !self.shared.has_stopped.load(Ordering::Acquire) {
            self.wait(next_due);
            let _ = self.wakes.read(&mut self.buffer);
            self.accept();
            let now = Instant::now();
            let (shared, buffer) = (&self.shared, &mut self.buffer);
            next_due = None;
            self.connections.retain_mut(|connection| {
                let due = connection.step(now, shared, buffer);
                next_due = due.into_iter().chain(next_due).min();
                !connection.is_over(shared.conditions().mode)
            });
        }
    }

    /// Waits until a socket is ready, the waker is written to, or data is due.
    fn wait(&self, due: Option<Instant>) {
        let timeout = due.map(|due| {
            let timeout = due.saturating_duration_since(Instant::now());
            Timespec::try_from(timeout).expect("a delay is not that long")
        });
        let mut sockets = vec![
            PollFd::new(&self.wakes, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        for connection in &self.connections {
            connection.watch(&mut sockets);
        }
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the proxy cannot wait: {error}"),
        }
    }

    fn accept(&mut self) {
        while let Ok((client, _)) = self.listener.accept() {
            self.shared.accepted.fetch_add(1, Ordering::Relaxed);
            // an error means that the client has left
            if let Ok(connection) = Connection::open(client, self.upstream) {
                self.connections.push(connection);
            }
        }
    }
}

// === Connection ===

struct Connection {
    client: TcpStream,
    /// `None` if the upstream could not be reached.
    server: Option<TcpStream>,
    requests: Direction,
    replies: Direction,
    /// Whether a reply was cut in its middle.
    is_cut: bool,
}

impl Connection {
    fn open(client: TcpStream, upstream: SocketAddr) -> io::Result<Self> {
        client.set_nodelay(true)?;
        client.set_nonblocking(true)?;
        let server = TcpStream::connect_timeout(&upstream, CONNECT_TIMEOUT).ok();
        if let Some(server) = &server {
            server.set_nodelay(true)?;
            server.set_nonblocking(true)?;
        }
        Ok(Self {
            client,
            server,
            requests: Direction::default(),
            replies: Direction::default(),
            is_cut: false,
        })
    }

    fn watch<'a>(&'a self, sockets: &mut Vec<PollFd<'a>>) {
        let mut watch = |socket, incoming: &Direction, outgoing: &Direction| {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, !incoming.has_ended);
            events.set(PollFlags::OUT, outgoing.is_blocked);
            // without events, `poll` would still report a closed peer over and over
            if !events.is_empty() {
                sockets.push(PollFd::new(socket, events));
            }
        };
        watch(&self.client, &self.requests, &self.replies);
        if let Some(server) = &self.server {
            watch(server, &self.replies, &self.requests);
        }
    }

    /// Reads arrived data and forwards due data. Returns the time at which more is due.
    fn step(&mut self, now: Instant, shared: &Shared, buffer: &mut [u8]) -> Option<Instant> {
        let mode = shared.conditions().mode;
        let before = self.requests.chunks.len();
        self.requests.collect(&mut self.client, now, buffer, mode);
        let pieces = self.requests.chunks.len() - before;
        shared.pieces.fetch_add(pieces, Ordering::Relaxed);
        let Some(server) = &mut self.server else {
            self.requests.chunks.clear();
            return None;
        };
        self.replies.collect(server, now, buffer, mode);
        // after reading, so that a switch of the mode applies to all data sent after it
        let conditions = *shared.conditions();
        if conditions.mode == Mode::BlackHole {
            self.requests.chunks.clear();
            self.replies.chunks.clear();
            return None;
        }
        if conditions.mode.cuts() {
            return None;
        }
        if conditions.mode == Mode::SwallowReplies {
            self.replies.chunks.clear();
        }
        let truncates = conditions.mode.truncates();
        let due = |delay| move |arrived| conditions.due(arrived, delay);
        let requests = self
            .requests
            .deliver(server, due(conditions.request_delay()), false);
        let replies =
            self.replies
                .deliver(&mut self.client, due(conditions.reply_delay()), truncates);
        let is_begun = |chunk: &Chunk| chunk.sent > 0;
        self.is_cut |= conditions.mode == Mode::ResetInReply
            && self.replies.chunks.front().is_some_and(is_begun);
        requests.into_iter().chain(replies).min()
    }

    /// Returns whether to close the connection. A black hole hides the end of the server.
    fn is_over(&self, mode: Mode) -> bool {
        let is_left = self.requests.has_ended && self.requests.chunks.is_empty();
        let is_down = self.server.is_none()
            || self.requests.is_broken
            || self.replies.has_ended && self.replies.chunks.is_empty();
        let is_over = mode.cuts()
            || self.is_cut
            || is_left
            || self.replies.is_broken
            || is_down && mode != Mode::BlackHole;
        if is_over && (self.is_cut || mode == Mode::Reset) {
            // fails if the client has left
            let _ = rustix::net::sockopt::set_socket_linger(&self.client, Some(Duration::ZERO));
        }
        is_over
    }
}

// === Direction ===

/// Data in flight to one side, in order.
#[derive(Default)]
struct Direction {
    chunks: VecDeque<Chunk>,
    /// Whether the receiver's socket is full.
    is_blocked: bool,
    /// Whether the receiver has left.
    is_broken: bool,
    /// Whether the sender has closed its side or left.
    has_ended: bool,
}

struct Chunk {
    bytes: Vec<u8>,
    sent: usize,
    arrived: Instant,
}

impl Direction {
    fn collect(&mut self, sender: &mut TcpStream, now: Instant, buffer: &mut [u8], mode: Mode) {
        while !self.has_ended {
            match sender.read(buffer) {
                Ok(length @ 1..) => {
                    let before = self.chunks.back().map_or(now, |chunk| chunk.arrived);
                    self.chunks.push_back(Chunk {
                        bytes: buffer[..length].to_vec(),
                        sent: 0,
                        arrived: before.max(now + mode.retransmission()),
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // the peers report the error, not the proxy
                Ok(0) | Err(_) => self.has_ended = true,
            }
        }
    }

    /// Forwards due data, but only the first byte if `truncates`. Returns the time at which more is due.
    fn deliver(
        &mut self,
        receiver: &mut TcpStream,
        due: impl Fn(Instant) -> Option<Instant>,
        truncates: bool,
    ) -> Option<Instant> {
        self.is_blocked = false;
        while let Some(chunk) = self.chunks.front_mut() {
            let due = due(chunk.arrived)?;
            if due > Instant::now() {
                return Some(due);
            }
            let end = if truncates { 1 } else { chunk.bytes.len() };
            if chunk.sent >= end {
                return None;
            }
            match receiver.write(&chunk.bytes[chunk.sent..end]) {
                Ok(length) => chunk.sent += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return None;
                }
                Err(_) => {
                    self.is_broken = true;
                    self.chunks.clear();
                    return None;
                }
            }
            if chunk.sent == chunk.bytes.len() {
                self.chunks.pop_front();
            }
        }
        None
    }
}

const CHUNK_BYTES: usize = 64 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The least time after which Linux sends lost data again.
const RETRANSMISSION: Duration = Duration::from_millis(200);
const MAX_LOSSES: u32 = 3;
