//! A Redis server: the binary that `TOLLGATE_REDIS_SERVER` names, else `redis-server` on `PATH`.

use std::{
    env,
    net::TcpListener,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use redis::Client;

use crate::child::KillOnDrop;

/// A running Redis server, killed when dropped.
#[derive(Debug)]
pub struct Server {
    _process: KillOnDrop,
    id: u32,
    /// Its address, as `redis://127.0.0.1:PORT/`.
    pub url: String,
}

impl Server {
    /// Starts a server without persistence on a free loopback port.
    ///
    /// # Panics
    ///
    /// Panics if it does not start.
    pub fn start() -> Self {
        let binary = env::var("TOLLGATE_REDIS_SERVER").unwrap_or_default();
        let binary = if binary.is_empty() {
            "redis-server".to_owned()
        } else {
            binary
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let process = Command::new(&binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {binary}: {error}"));
        let server = Self {
            id: process.id(),
            _process: KillOnDrop(process),
            url: format!("redis://127.0.0.1:{port}/"),
        };
        server.wait_until_up();
        server
    }

    /// Returns the id of its process.
    pub fn id(&self) -> u32 {
        self.id
    }

    fn wait_until_up(&self) {
        let client = Client::open(self.url.as_str()).expect("the url is well formed");
        let deadline = Instant::now() + Duration::from_secs(10);
        while client.get_connection().is_err() {
            assert!(Instant::now() < deadline, "the server did not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
