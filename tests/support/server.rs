//! A real Redis or Valkey server, one child process per value.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use super::launch::{self, Launch};
use super::tls::{Authority, Identity};

/// A server on a free loopback port. It is killed when it is dropped.
///
/// It keeps nothing on disk, so [`restart`](Self::restart) brings back an empty
/// server.
pub(crate) struct Server {
    launch: Launch,
    port: u16,
    tls_port: Option<u16>,
    child: Child,
}

impl Server {
    /// Starts the server that `TOLLGATE_REDIS_SERVER` names, else the one on `PATH`.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts the same server as [`start`](Self::start) with more arguments.
    ///
    /// They come last, so they win over the defaults given here.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_binary(default_binary(), arguments)
    }

    /// Starts the same server as [`start`](Self::start) as a cluster of one shard, with all slots.
    ///
    /// # Panics
    ///
    /// If it does not serve them in time.
    pub(crate) fn start_cluster() -> Self {
        let server = Self::start_with(&["--cluster-enabled", "yes"]);
        server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        loop {
            let info: String = server.query(&["CLUSTER", "INFO"]);
            if info.contains("cluster_state:ok") {
                return server;
            }
            assert!(Instant::now() < deadline, "{info}");
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Starts the server program at `path`.
    ///
    /// # Panics
    ///
    /// If it is not ready in time. The message ends with its log.
    pub(crate) fn start_binary(path: impl AsRef<Path>, arguments: &[&str]) -> Self {
        Self::run(Launch::new(path.as_ref(), arguments), None)
    }

    /// Starts the same server as [`start`](Self::start) with a port for TLS besides the plain one.
    ///
    /// It trusts clients whose certificate this authority signed, and needs one if `arguments` do not say otherwise.
    pub(crate) fn start_tls(
        authority: &Authority,
        identity: &Identity,
        arguments: &[&str],
    ) -> Self {
        let tls_port = launch::free_port();
        let port = tls_port.to_string();
        let mut all = vec!["--tls-port", port.as_str()];
        all.extend([
            "--tls-cert-file",
            "server.pem",
            "--tls-key-file",
            "server.key",
        ]);
        all.extend(["--tls-ca-cert-file", "ca.pem"]);
        all.extend(arguments);
        let launch = Launch::new(&default_binary(), &all);
        identity.write(launch.directory(), "server");
        let ca = launch.directory().join("ca.pem");
        fs::write(ca, authority.pem()).expect("the directory is writable");
        Self::run(launch, Some(tls_port))
    }

    /// Starts a sentinel with this configuration.
    pub(crate) fn start_sentinel(configuration: &str) -> Self {
        Self::run(Launch::sentinel(&default_binary(), configuration), None)
    }

    fn run(launch: Launch, tls_port: Option<u16>) -> Self {
        let (port, child) = launch.run_anywhere();
        Self {
            launch,
            port,
            tls_port,
            child,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        launch::loopback(self.port)
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// A directory that lives as long as the server.
    pub(crate) fn folder(&self) -> &Path {
        self.launch.directory()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The URL for TLS, by the host name `localhost`.
    pub(crate) fn tls_url(&self) -> String {
        let port = self.tls_port.expect("a server with TLS");
        format!("rediss://localhost:{port}")
    }

    /// Uses another certificate for new connections.
    pub(crate) fn set_identity(&self, identity: &Identity) {
        identity.write(self.folder(), "next");
        let set = [
            "CONFIG",
            "SET",
            "tls-cert-file",
            "next.pem",
            "tls-key-file",
            "next.key",
        ];
        self.command(&set);
    }

    /// Closes all connections of clients.
    pub(crate) fn close_connections(&self) {
        self.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    }

    /// Stops the process; the kernel still accepts connections for it.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        // a signal is delivered after `kill` returns, and one more reply could slip out
        while !self.is_stopped() {
            assert!(Instant::now() < deadline, "the server did not stop");
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Continues a paused process, which then replies to the commands that have queued up.
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// Kills the process at once, like a crash, and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the child is ours to kill");
        self.child.wait().expect("the child is ours to wait for");
    }

    /// Kills the process if it still runs, and starts it again on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = self.launch.run_again(self.port);
    }

    /// Opens a blocking connection whose reads time out.
    pub(crate) fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("the url is well formed");
        let started = Instant::now();
        let connection = loop {
            match client.get_connection_with_timeout(COMMAND_TIMEOUT) {
                Ok(connection) => break connection,
                Err(error) if is_interrupted(&error) => {}
                Err(error) if is_closed(&error) && started.elapsed() < COMMAND_TIMEOUT => {}
                Err(error) => panic!("no connection to {}: {error}", self.url()),
            }
        };
        // The system continues a read that has no timeout, and commands of tests must not be sent twice.
        connection
            .set_read_timeout(None)
            .expect("no timeout can be set");
        connection
    }

    /// Runs one command on a new connection, and blocks for the reply.
    #[track_caller]
    pub(crate) fn command(&self, words: &[&str]) -> redis::Value {
        self.query(words)
    }

    /// Returns the fields of one section of `INFO`.
    #[track_caller]
    pub(crate) fn info(&self, section: &str) -> HashMap<String, String> {
        let text: String = self.query(&["INFO", section]);
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// Returns how often each command ran since the last [`flush_stats`](Self::flush_stats).
    ///
    /// Names are in lower case, a subcommand as in `config|set`. The commands that the methods of this type send count
    /// too, and so does `client|setinfo` of each new connection.
    #[track_caller]
    pub(crate) fn command_calls(&self) -> BTreeMap<String, u64> {
        self.info("commandstats")
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("cmdstat_")?, calls(value)?)))
            .map(|(name, calls)| (name.to_owned(), calls))
            .collect()
    }

    /// Sets the statistics of the server back to zero.
    #[track_caller]
    pub(crate) fn flush_stats(&self) {
        self.command(&["CONFIG", "RESETSTAT"]);
    }

    /// Returns all keys, sorted.
    #[track_caller]
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query(&["KEYS", "*"]);
        keys.sort_unstable();
        keys
    }

    #[track_caller]
    pub(crate) fn query<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let started = Instant::now();
        loop {
            let mut connection = self.connection();
            connection
                .set_read_timeout(Some(COMMAND_TIMEOUT))
                .expect("the timeout is not zero");
            match command.query(&mut connection) {
                Ok(reply) => return reply,
                // commands that are sent here may be sent twice
                Err(error) if is_interrupted(&error) => {}
                Err(error) if is_closed(&error) && started.elapsed() < COMMAND_TIMEOUT => {}
                Err(error) => panic!("{words:?}: {error}"),
            }
        }
    }

    fn signal(&self, name: &str) {
        // `kill` is built into the shell; a slim machine may not have the program
        let status = Command::new("sh")
            .args(["-c", &format!("kill -s {name} {}", self.child.id())])
            .status()
            .expect("sh runs");
        assert!(status.success(), "the server is gone");
    }

    fn is_stopped(&self) -> bool {
        match fs::read_to_string(format!("/proc/{}/stat", self.child.id())) {
            Ok(stat) => stat
                .rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T')),
            // other systems than Linux have no /proc
            Err(_) => true,
        }
    }
}

/// Ends servers that are static, which are not dropped, once this process has ended.
pub(super) fn end_with_this_process(servers: &[Server]) {
    let ids: Vec<u32> = servers.iter().map(Server::id).collect();
    let directories: Vec<&Path> = servers.iter().map(Server::folder).collect();
    launch::end_with_this_process(&ids, &directories);
}

impl Drop for Server {
    fn drop(&mut self) {
        launch::end(&mut self.child);
    }
}

fn default_binary() -> PathBuf {
    let named = env::var_os("TOLLGATE_REDIS_SERVER");
    if let Some(path) = named.filter(|path| !path.is_empty()) {
        return path.into();
    }
    env::var_os("PATH")
        .iter()
        .flat_map(env::split_paths)
        .map(|directory| directory.join("redis-server"))
        .find(|path| path.is_file())
        .expect(
            "no redis-server on PATH: run `bash tests/run.sh`, which installs it, \
             or `apt-get install redis-server`, or set TOLLGATE_REDIS_SERVER to its path",
        )
}

/// Returns whether the system ended a read that has a timeout, as Linux does if a process is stopped and continued.
fn is_interrupted(error: &redis::RedisError) -> bool {
    error.is_io_error() && error.to_string().contains("(os error 4)")
}

/// Returns whether the server closed a connection: a sentinel has a server close all when it gives it another role.
fn is_closed(error: &redis::RedisError) -> bool {
    error.is_connection_dropped()
}

/// Reads `3` from `calls=3,usec=...`.
fn calls(statistics: &str) -> Option<u64> {
    let calls = statistics.strip_prefix("calls=")?;
    calls.split(',').next()?.parse().ok()
}

const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
