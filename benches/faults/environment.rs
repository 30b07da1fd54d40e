//! The server, the proxy in front of it, and another client that keeps the server busy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use redis::Value;
use tollgate::{RateLimiter, remote::RedisStore};

use crate::{
    callers,
    fault::{DEADLINE, Fault},
    support::{Mode, Proxy, Server},
};

/// The environment of one row.
pub(crate) struct Environment {
    pub(crate) server: Server,
    pub(crate) proxy: Proxy,
    is_busy: Arc<AtomicBool>,
    neighbour: Option<Neighbour>,
}

impl Environment {
    pub(crate) fn start(fault: &Fault) -> Self {
        let server = Server::start_with(fault.server_arguments);
        let proxy = callers::runtime(true).block_on(Proxy::start(server.address()));
        proxy.set(Mode::RoundTrip(fault.round_trip));
        let mut env = Self {
            server,
            proxy,
            is_busy: Arc::default(),
            neighbour: None,
        };
        (fault.prepare)(&mut env);
        env
    }

    /// Returns a limiter with breaker and local fallback. It connects on its first decision.
    pub(crate) fn limiter(&self, fault: &Fault) -> RateLimiter {
        let address = match fault.is_direct {
            true => self.server.address(),
            false => self.proxy.address(),
        };
        let user = match fault.has_user {
            true => format!("{USER}:{PASSWORD}@"),
            false => String::new(),
        };
        let store = RedisStore::builder(format!("redis://{user}{address}"));
        let limiter = RateLimiter::builder()
            .redis(store.connections(fault.connections))
            .deadline(DEADLINE)
            .policy(fault.policy())
            .build();
        limiter.expect("a usable limiter")
    }

    /// Returns the number of connections that the proxy has accepted.
    pub(crate) fn dials(&self) -> usize {
        self.proxy.connections()
    }

    pub(crate) fn command(&self, words: &[&str]) {
        self.server.command(words);
    }

    /// Creates the limiter's user, or restores its permissions.
    pub(crate) fn allow_everything(&mut self) {
        let password = format!(">{PASSWORD}");
        self.command(&["ACL", "SETUSER", USER, "on", &password, "~*", "&*", "+@all"]);
    }

    pub(crate) fn forbid(&self, what: &str) {
        self.command(&["ACL", "SETUSER", USER, what]);
    }

    /// Turns the server into a complete cluster of one shard.
    pub(crate) fn own_all_slots(&mut self) {
        self.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let deadline = Instant::now() + PATIENCE;
        while !self.is_cluster_up() {
            assert!(Instant::now() < deadline, "the cluster does not come up");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The flag that makes the callers' runtime busy.
    pub(crate) fn busy(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_busy)
    }

    pub(crate) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    pub(crate) fn start_neighbour(&mut self) {
        self.neighbour = Some(Neighbour::start(&self.server));
    }

    pub(crate) fn stop_neighbour(&mut self) {
        self.neighbour = None;
    }

    fn is_cluster_up(&self) -> bool {
        match self.server.command(&["CLUSTER", "INFO"]) {
            Value::BulkString(bytes) => bytes.starts_with(b"cluster_state:ok"),
            Value::VerbatimString { text, .. } => text.starts_with("cluster_state:ok"),
            other => panic!("{other:?}"),
        }
    }
}

// === Neighbour ===

/// Another client that sends one command of 30 ms after another.
struct Neighbour {
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    fn start(server: &Server) -> Self {
        let mut connection = server.connection();
        let has_ended = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let has_ended = Arc::clone(&has_ended);
            move || {
                while !has_ended.load(Ordering::Relaxed) {
                    let mut command = redis::cmd("DEBUG");
                    let slept = command.arg("SLEEP").arg("0.03").exec(&mut connection);
                    slept.expect("the server answers");
                }
            }
        });
        Self {
            has_ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // the panic has been printed
            let _ = thread.join();
        }
    }
}

const USER: &str = "bench";
const PASSWORD: &str = "secret";
const PATIENCE: Duration = Duration::from_secs(10);
