//! Settings of the Redis store, and how its parts are put together.
//!
//! Building opens no connection: the pool, the lanes and the watchdog thread start with the first decision.

use std::{fmt, time::Duration};

use deadpool_redis::{Manager, Pool};
use redis::{
    AsyncConnectionConfig, IntoConnectionInfo,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::{
    clock::Clock,
    diagnosis::SilencedCodes,
    error::{Error, ErrorKind},
};

use super::{
    client::Client,
    connection::{Lane, ServerCheck},
    protocol::Keyspace,
    store::RedisStore,
};

/// Settings of a [`RedisStore`].
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct RedisStoreBuilder {
    server: Server,
    connections: usize,
    prefix: String,
    deadline: Duration,
    connect_timeout: Duration,
    clock: Option<Clock>,
    silenced: SilencedCodes,
}

/// Where the connections come from.
#[derive(Clone)]
enum Server {
    /// A pool of the application.
    Pool(Pool),
    /// A URL, for which the store makes a pool. It is parsed by [`RedisStoreBuilder::build`].
    Url(String),
}

impl RedisStore {
    /// Returns settings for the server at this URL.
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::for_server(Server::Url(url.as_ref().to_owned()))
    }
}

impl RedisStoreBuilder {
    /// Returns settings for a deadpool-redis pool that the application already has.
    ///
    /// The store takes its [`connections`](Self::connections) out of the pool permanently, when they are first needed.
    /// Make the pool larger than that if the application uses it too. Set `TCP_NODELAY` in its settings: the Redis
    /// client library leaves Nagle's algorithm on, which halves the throughput over a network. Leave the response
    /// timeout unset, or above the deadline.
    pub fn over_pool(pool: Pool) -> Self {
        Self::for_server(Server::Pool(pool))
    }

    /// Sets the number of connections that are held and shared.
    ///
    /// Default: 2, so that decisions go on when one breaks. More do not raise the throughput, since several calls are
    /// in flight on each: 1, 2, 4 and 8 were measured at round trips from 0 to 5 ms. At most 1,024.
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = count;
        self
    }

    /// Sets the prefix of all keys in Redis: 1 to 64 visible ASCII characters without braces.
    ///
    /// Default: `tollgate`. Instances that share limits must share the prefix.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the longest time that one decision takes in all.
    ///
    /// Default: 50 ms, a hundred times the usual reply time of a healthy server in the same data centre. Deadlines are
    /// kept to the millisecond. At most an hour.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the longest time for getting a connection: pool, dial and handshake together.
    ///
    /// Default: 500 ms. A decision waits for a connection only until its own deadline. At most an hour.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Takes the time from this process and not from the server, for servers that forbid `TIME` in scripts.
    ///
    /// Default: the server's time. If the clocks of instances differ by `d`, a key may get up to
    /// `capacity + rate * (t + d)` in any time `t`, and callers of an instance with a slow clock wait up to `d` longer.
    /// An older time never replaces a stored one. Decisions fail while the clock is before the year 2001 or after 2255.
    pub fn client_time(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Makes the store. It connects at the first decision, so the server may be down now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`] if the URL cannot be parsed. [`ErrorKind::InvalidConfig`] for a deadline or connect
    /// timeout of zero or above an hour, for 0 or over 1,024 connections, and for an unusable prefix.
    pub fn build(self) -> Result<RedisStore, Error> {
        let invalid = |message: &'static str| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.deadline.is_zero() {
            return invalid(
                "deadline of zero: no decision could be made in time; the default is 50 ms",
            );
        }
        if self.deadline > MAX_TIMEOUT || self.connect_timeout > MAX_TIMEOUT {
            return invalid(
                "deadline or connect timeout above an hour: shorten it; the defaults are 50 and 500 ms",
            );
        }
        if self.connect_timeout.is_zero() {
            return invalid(
                "connect timeout of zero: no connection could be made; the default is 500 ms",
            );
        }
        if self.connections == 0 {
            return invalid("zero connections: at least one is needed; the default is 2");
        }
        if self.connections > MAX_CONNECTIONS {
            return invalid("over 1,024 connections: all decisions share a few; the default is 2");
        }
        let keyspace = Keyspace::new(&self.prefix)?;
        let pool = self.pool()?;
        let lanes = self.connections.min(pool.status().max_size).max(1);
        let lanes = (0..lanes).map(|_| Lane::new(pool.clone(), self.connect_timeout));
        let check = ServerCheck::new(self.silenced);
        let client = Client::new(lanes.collect(), keyspace, self.deadline, self.clock, check);
        Ok(RedisStore::with(client))
    }

    /// Returns the longest time that one decision takes in all.
    #[must_use]
    pub fn decision_deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the default settings for a server.
    fn for_server(server: Server) -> Self {
        Self {
            server,
            connections: 2,
            prefix: "tollgate".to_owned(),
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(500),
            clock: None,
            silenced: SilencedCodes::default(),
        }
    }

    /// Silences warnings with these codes.
    pub(crate) fn silence(mut self, silenced: SilencedCodes) -> Self {
        self.silenced = silenced;
        self
    }

    /// Returns the pool of the application, or a new one for the URL.
    ///
    /// # Errors
    ///
    /// See [`build`](Self::build).
    fn pool(&self) -> Result<Pool, Error> {
        let url = match &self.server {
            Server::Pool(pool) => return Ok(pool.clone()),
            Server::Url(url) => url,
        };
        // Without the URL, which may contain a password.
        let message = if url.starts_with("rediss:") {
            "tollgate does not support TLS yet: use a redis:// url"
        } else {
            "the redis url cannot be parsed: write redis://[user:password@]host[:port][/number of the database], \
             with % escapes for special characters in the password"
        };
        let invalid = |source| Error::new(ErrorKind::InvalidUrl, message).with_source(source);
        let server = url.as_str().into_connection_info().map_err(invalid)?;
        let server = server.set_tcp_settings(tcp_settings());
        // The store keeps these timeouts itself: those of the client library need a runtime with timers.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let manager = Manager::new_with_config(server, config).map_err(invalid)?;
        Pool::builder(manager)
            .max_size(self.connections)
            .build()
            .map_err(|error| {
                Error::new(ErrorKind::InvalidConfig, "the pool cannot be built").with_source(error)
            })
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("connections", &self.connections)
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

impl From<&str> for RedisStoreBuilder {
    fn from(url: &str) -> Self {
        RedisStore::builder(url)
    }
}

impl From<String> for RedisStoreBuilder {
    fn from(url: String) -> Self {
        RedisStore::builder(url)
    }
}

/// Returns settings for small commands that wait for replies: without Nagle's algorithm, which would hold them back,
/// and with keepalive, which notices a dead peer.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
}

/// The longest deadline and connect timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);
/// The most connections of one store.
const MAX_CONNECTIONS: usize = 1_024;
