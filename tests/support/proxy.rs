//! A TCP proxy that fails on demand.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{self, Instant};

/// What a [`Proxy`] does to new and to open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Swallows both directions and keeps the connections open.
    BlackHole,
    /// Holds each piece of a reply back for this long, without limiting how many.
    Delay(Duration),
    /// Forwards everything.
    Pass,
    /// Closes the connections.
    Refuse,
    /// Closes the connections with a TCP reset.
    Reset,
    /// Forwards the first byte of a reply, and the rest once the mode changes.
    Truncate,
}

/// A proxy on a free loopback port in front of one address.
///
/// It runs on a thread of its own, so neither a blocked nor a paused test runtime
/// changes what it does. All its connections are closed when it is dropped.
///
/// A dead upstream shows as a connection that is accepted and then closed.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in [`Mode::Pass`].
    pub(crate) async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .and_then(TcpListener::into_std)
            .expect("some port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let shared = Arc::new(Shared::new());
        let worker = thread::spawn({
            let shared = Arc::clone(&shared);
            move || run(listener, upstream, &shared)
        });
        Self {
            address,
            shared,
            worker: Some(worker),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Switches the mode, also for open connections and bytes already held back.
    pub(crate) fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// How many connections were accepted so far, refused ones included.
    pub(crate) fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
        if let Some(worker) = self.worker.take() {
            // its panic has been printed; a second one here would abort the process
            let _ = worker.join();
        }
    }
}

struct Shared {
    mode: watch::Sender<Mode>,
    accepted: AtomicUsize,
    stop: Notify,
}

impl Shared {
    fn new() -> Self {
        Self {
            mode: watch::Sender::new(Mode::Pass),
            accepted: AtomicUsize::new(0),
            stop: Notify::new(),
        }
    }
}

/// A piece of a reply and the time it came in.
struct Chunk {
    bytes: Vec<u8>,
    arrived: Instant,
}

/// Ends with the runtime, and so with every connection that was spawned on it.
fn run(listener: std::net::TcpListener, upstream: SocketAddr, shared: &Shared) {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).expect("the listener is non-blocking");
        tokio::select! {
            () = shared.stop.notified() => {}
            () = accept(listener, upstream, shared) => {}
        }
    });
}

async fn accept(listener: TcpListener, upstream: SocketAddr, shared: &Shared) {
    loop {
        let (client, _) = listener.accept().await.expect("the listener is open");
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(serve(client, upstream, shared.mode.subscribe()));
    }
}

async fn serve(mut client: TcpStream, upstream: SocketAddr, mode: watch::Receiver<Mode>) {
    let reset = tokio::select! {
        biased;
        cut = when(mode.clone(), |mode| matches!(mode, Mode::Refuse | Mode::Reset)) => {
            cut == Mode::Reset
        }
        // how a connection broke is for the peers to see, not for the proxy
        _ = relay(&mut client, upstream, mode) => false,
    };
    if reset {
        // a client that has gone by itself needs no reset
        let _ = client.set_zero_linger();
    }
}

async fn relay(
    client: &mut TcpStream,
    upstream: SocketAddr,
    mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        return lit(mode).await;
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::select! {
        result = forward_requests(from_client, to_server, mode.clone()) => result,
        result = forward_replies(from_server, to_client, mode) => result,
    }
}

async fn forward_requests(
    mut client: ReadHalf<'_>,
    mut server: WriteHalf<'_>,
    mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let length = client.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let swallow = *mode.borrow() == Mode::BlackHole;
        if !swallow && server.write_all(&buffer[..length]).await.is_err() {
            return lit(mode).await;
        }
    }
}

async fn forward_replies(
    server: ReadHalf<'_>,
    mut client: WriteHalf<'_>,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    let (queue, mut chunks) = mpsc::unbounded_channel();
    // reading goes on while a chunk is held back, so a delay doesn't add up
    let deliver = async {
        while let Some(chunk) = chunks.recv().await {
            deliver(chunk, &mut client, &mut mode).await?;
        }
        lit(mode).await
    };
    tokio::try_join!(collect(server, queue), deliver).map(drop)
}

async fn collect(mut server: ReadHalf<'_>, queue: mpsc::UnboundedSender<Chunk>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    // a broken upstream ends the stream of chunks like a closed one
    while let Ok(length @ 1..) = server.read(&mut buffer).await {
        let chunk = Chunk {
            bytes: buffer[..length].to_vec(),
            arrived: Instant::now(),
        };
        if queue.send(chunk).is_err() {
            break;
        }
    }
    Ok(())
}

/// Treats one chunk by the mode of the moment, again after each switch.
async fn deliver(
    chunk: Chunk,
    client: &mut WriteHalf<'_>,
    mode: &mut watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut rest = chunk.bytes.as_slice();
    loop {
        let current = *mode.borrow_and_update();
        match current {
            Mode::BlackHole => return Ok(()),
            Mode::Pass => return client.write_all(rest).await,
            Mode::Delay(delay) => {
                let switched = time::timeout_at(chunk.arrived + delay, mode.changed()).await;
                if switched.is_err() {
                    return client.write_all(rest).await;
                }
            }
            Mode::Truncate => {
                let first = rest.len().min(1);
                client.write_all(&rest[..first]).await?;
                rest = &rest[first..];
                switched(mode).await;
            }
            // `serve` is about to cut the connection
            Mode::Refuse | Mode::Reset => switched(mode).await,
        }
    }
}

/// Waits out a black hole: from inside one, a closed connection can't be seen.
async fn lit(mode: watch::Receiver<Mode>) -> io::Result<()> {
    when(mode, |mode| mode != Mode::BlackHole).await;
    Ok(())
}

async fn switched(mode: &mut watch::Receiver<Mode>) {
    mode.changed().await.expect(SENDER_LIVES);
}

async fn when(mut mode: watch::Receiver<Mode>, wanted: impl Fn(Mode) -> bool) -> Mode {
    *mode
        .wait_for(|&mode| wanted(mode))
        .await
        .expect(SENDER_LIVES)
}

const CHUNK_BYTES: usize = 16 * 1024;
// the worker borrows it from `Shared` for as long as its runtime exists
const SENDER_LIVES: &str = "the mode's sender outlives the connections";
