//! A Redis server: the one that `TOLLGATE_REDIS_SERVER` names, else the `redis-server` on `PATH`.

use std::{
    env,
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::Client;

/// A Redis server of our own, killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where it listens.
    pub url: String,
}

impl Server {
    /// Starts one on a free loopback port.
    ///
    /// # Panics
    ///
    /// Panics when it cannot be started.
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
        let child = Command::new(&binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {binary}: {error}"));
        let url = format!("redis://127.0.0.1:{port}/");
        let server = Self { child, url };
        server.wait_until_up();
        server
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

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when the server is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
