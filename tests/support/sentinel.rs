//! A primary, its replica, and three sentinels that watch them.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use super::server::{self, Server};

/// A primary and a replica behind three sentinels. It ends when it is dropped.
pub(crate) struct Sentinels {
    /// The primary at first, then its replica, then the sentinels.
    pub(crate) servers: Vec<Server>,
}

impl Sentinels {
    /// Starts all, and waits until each sentinel knows the others and the replica. The primary never counts as failed,
    /// however loaded the machine is.
    ///
    /// # Panics
    ///
    /// If they are not ready in time.
    pub(crate) fn start() -> Self {
        Self::start_with(Duration::from_secs(3_600))
    }

    /// Starts all. A primary that does not reply for `down_after` is replaced.
    pub(crate) fn start_with(down_after: Duration) -> Self {
        let arguments = ["--repl-diskless-sync-delay", "0"];
        let primary = Server::start_with(&arguments);
        let replica = Server::start_with(&arguments);
        let port = primary.port().to_string();
        replica.command(&["REPLICAOF", "127.0.0.1", &port]);
        wait_until("the replica has synchronized", || {
            replica
                .info("replication")
                .get("master_link_status")
                .map(String::as_str)
                == Some("up")
        });
        let down_after = down_after.as_millis();
        let watch = format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {NAME} {down_after}\n\
             sentinel failover-timeout {NAME} 3000\n"
        );
        let mut servers = vec![primary, replica];
        servers.extend((0..3).map(|_| Server::start_sentinel(&watch)));
        let this = Self { servers };
        for sentinel in this.sentinels() {
            wait_until("the sentinels know each other", || {
                let info = sentinel.info("sentinel");
                let master = info.get("master0").map_or("", String::as_str);
                master.contains("status=ok,") && master.ends_with("slaves=1,sentinels=3")
            });
        }
        this
    }

    /// Returns sentinels that all tests of this process share, with a primary that never fails. They end with this
    /// process.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Sentinels> = OnceLock::new();
        SHARED.get_or_init(|| {
            let shared = Self::start();
            server::end_with_this_process(&shared.servers);
            shared
        })
    }

    pub(crate) fn sentinels(&self) -> &[Server] {
        &self.servers[2..]
    }

    /// The URL by which a client finds the primary.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels()
            .iter()
            .map(|sentinel| sentinel.address().to_string())
            .collect();
        format!(
            "redis-sentinel://{}?sentinelMasterId={NAME}",
            hosts.join(",")
        )
    }

    /// Makes the replica the primary, as an operator does.
    pub(crate) fn fail_over(&self) {
        self.sentinels()[0].command(&["SENTINEL", "FAILOVER", NAME]);
    }

    /// Returns whether this server is a primary now.
    pub(crate) fn is_primary(server: &Server) -> bool {
        server.info("replication").get("role").map(String::as_str) == Some("master")
    }

    /// The name that the sentinels have for the primary.
    pub(crate) const NAME: &'static str = NAME;
}

/// Waits until a condition holds.
#[track_caller]
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + START_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(POLL_INTERVAL);
    }
}

const NAME: &str = "limits";
const START_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
