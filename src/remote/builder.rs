//! Settings of the Redis store.

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
    connection::{Lane, ServerCheck},
    node::Node,
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

#[derive(Clone)]
enum Server {
    Pool(Pool),
    Url(String),
}

impl RedisStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self::for_server(Server::Url(url.to_owned()))
    }

    /// Settings for a deadpool-redis pool that the application already has.
    ///
    /// The store takes its [`connections`](Self::connections) out of the pool permanently, when they are first needed.
    /// Give the pool more than that if the application uses it too. Set `TCP_NODELAY` in the pool's settings: redis leaves Nagle's algorithm on, which halves the rate over a network. Leave
    /// the response timeout unset, or above the deadline.
    pub fn over_pool(pool: Pool) -> Self {
        Self::for_server(Server::Pool(pool))
    }

    /// Sets how many connections are held and shared.
    ///
    /// Default: 2, so that decisions go on when one breaks. Several calls are in flight on each, so more gain nothing:
    /// 1, 2, 4 and 8 were measured at round trips from 0 to 5 ms. At most 1,024.
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = count;
        self
    }

    /// Sets what all keys in Redis begin with: 1 to 64 visible characters without braces.
    ///
    /// Default: `tollgate`. Instances that share limits must share it.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long one decision may take in all, whatever phase it is in.
    ///
    /// Default: 50 ms, which a healthy server beats a hundredfold. Below 2 ms the timer's resolution shows; above an hour
    /// it is refused.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how long getting a connection may take in all: pool, dial and handshake.
    ///
    /// Default: 500 ms. It happens in the background: a decision waits for it only up to its own deadline.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Takes the time from this process instead of the server, for servers that forbid `TIME` in scripts.
    ///
    /// Default: the server's time. With clocks that differ by `d` between instances, a key may get up to
    /// `capacity + rate * (t + d)` in a span `t`, and callers served by a slow clock wait up to `d` longer. A stored time
    /// is never replaced by an older one. A clock before the year 2001 or after 2255 makes decisions fail.
    pub fn client_time(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Makes the store. It connects when first asked, so a server that is down now is no error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`] when the URL cannot be understood, [`ErrorKind::InvalidConfig`] for a deadline or
    /// connect timeout of zero or above an hour, for 0 or over 1,024 connections, or for an unusable prefix.
    pub fn build(self) -> Result<RedisStore, Error> {
        let refuse = |message: &'static str| Err(Error::new(ErrorKind::InvalidConfig, message));
        if self.deadline.is_zero() {
            return refuse(
                "deadline of zero: no decision could be made in time; the default is 50 ms",
            );
        }
        if self.deadline > LONGEST || self.connect_timeout > LONGEST {
            return refuse(
                "deadline or connect timeout above an hour: nobody waits so long; the defaults are 50 and 500 ms",
            );
        }
        if self.connect_timeout.is_zero() {
            return refuse(
                "connect timeout of zero: no connection could be made; the default is 500 ms",
            );
        }
        if self.connections == 0 {
            return refuse("zero connections: at least one is needed; the default is 2");
        }
        if self.connections > MOST_CONNECTIONS {
            return refuse(
                "over 1,024 connections: a few are shared by all decisions; the default is 2",
            );
        }
        let keyspace = Keyspace::new(&self.prefix)?;
        let pool = self.pool()?;
        let lanes = self.connections.min(pool.status().max_size).max(1);
        let lanes = (0..lanes).map(|_| Lane::new(pool.clone(), self.connect_timeout));
        let check = ServerCheck::new(self.silenced);
        let node = Node::new(lanes.collect(), keyspace, self.deadline, self.clock, check);
        Ok(RedisStore::with(node))
    }

    /// How long one decision may take in all.
    #[must_use]
    pub fn decision_deadline(&self) -> Duration {
        self.deadline
    }

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

    /// Does not report these codes.
    pub(crate) fn silence(mut self, silenced: SilencedCodes) -> Self {
        self.silenced = silenced;
        self
    }

    fn pool(&self) -> Result<Pool, Error> {
        let url = match &self.server {
            Server::Pool(pool) => return Ok(pool.clone()),
            Server::Url(url) => url,
        };
        // The URL itself stays out of the message: it may hold a password.
        let what = if url.starts_with("rediss:") {
            "this build of tollgate speaks no TLS: take a redis:// url"
        } else {
            "the redis url cannot be understood: write redis://[user:password@]host[:port][/database]"
        };
        let invalid = |source| Error::new(ErrorKind::InvalidUrl, what).with_source(source);
        let server = url.as_str().into_connection_info().map_err(invalid)?;
        let server = server.set_tcp_settings(tcp_settings());
        // The store keeps deadlines and the connect timeout itself: the client library's need a runtime with timers.
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
        Self::new(url)
    }
}

impl From<String> for RedisStoreBuilder {
    fn from(url: String) -> Self {
        Self::new(&url)
    }
}

/// Small commands that wait for replies: Nagle's algorithm would hold them back, and a dead peer must be noticed.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
}

const LONGEST: Duration = Duration::from_secs(3_600);
const MOST_CONNECTIONS: usize = 1_024;
