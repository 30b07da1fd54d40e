//! Settings of the Redis store, and how its parts are put together.
//!
//! Building opens no connection: the lanes and the watchdog thread start with the first decision.

use std::{fmt, future::Future, path::PathBuf, sync::Arc, time::Duration};

use deadpool_redis::Pool;

use crate::{
    clock::Clock,
    diagnosis::SilencedCodes,
    error::{Error, ErrorKind},
    resilience::GuardSettings,
};

#[cfg(feature = "top-keys")]
use crate::top_keys::TopKeys;

use super::{
    blocks::SharedBlocks,
    client::Client,
    cluster::{Cluster, MakeLanes},
    connection::{Address, Credentials, Endpoint, Lane, Provider, ServerCheck},
    protocol::{Keyspace, NodeAddress},
    sentinel::Sentinel,
    server::{ServerSettings, ServerSource},
    store::RedisStore,
};

#[cfg(feature = "tls-rustls-no-provider")]
use super::connection::TlsConfig;

#[cfg(feature = "top-keys")]
use super::shared_top_keys::SharedTopKeys;

/// Settings of a [`RedisStore`].
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct RedisStoreBuilder {
    /// Boxed: a builder is moved by each of its setters.
    server: Box<ServerSettings>,
    connections: usize,
    prefix: String,
    deadline: Duration,
    connect_timeout: Duration,
    clock: Option<Clock>,
    shares_blocks: bool,
    keeps_denials: bool,
    silenced: SilencedCodes,
    /// Shared with the other instances.
    #[cfg(feature = "top-keys")]
    top_keys: Option<TopKeys>,
}

impl RedisStore {
    /// Returns settings for the server at this URL.
    ///
    /// | URL | connects to |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/database]` | a server, or the nodes of its cluster |
    /// | `rediss://...` | the same by TLS, with the feature `tls-rustls` |
    /// | `unix:///path[?db=0&user=..&pass=..]` | a Unix socket |
    /// | `redis-sentinel://[user:password@]host:port,host:port[/database]?sentinelMasterId=name` | the primary that these sentinels return; `rediss-sentinel` for TLS to all of them |
    ///
    /// `valkey`, `valkeys`, `redis+unix`, `valkey+unix`, `redis+sentinel` and `rediss+sentinel` are accepted too, and
    /// `?protocol=resp3` in all of them. Special characters in a user or a password need `%` escapes; the setters
    /// [`username`](RedisStoreBuilder::username) and [`password`](RedisStoreBuilder::password) take them as they are.
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder::for_server(ServerSource::Url(url.as_ref().to_owned()))
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
        Self::for_server(ServerSource::Pool(pool))
    }

    /// Returns settings for the primary that sentinels return.
    pub fn over_sentinel(sentinel: Sentinel) -> Self {
        Self::for_server(ServerSource::Sentinel(sentinel))
    }

    /// Returns settings for a server by host and port.
    ///
    /// The host is a name, which is resolved at each dial, or an IP address without brackets.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        let address = Address::Tcp(NodeAddress { host, port });
        Self::for_server(ServerSource::Address(address))
    }

    /// Returns settings for a server by the path of its Unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::for_server(ServerSource::Address(Address::Unix(path.into())))
    }

    /// Sets the ACL user of connections.
    ///
    /// Default: that of the URL, else the default user. The [module docs](super#permissions) list the rights it needs.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.server.username = Some(username.into());
        self
    }

    /// Sets the password of connections.
    ///
    /// Default: that of the URL, else none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.server.password = Some(password.into());
        self
    }

    /// Sets a function that returns the user and the password of each new connection.
    ///
    /// Default: none; the user and the password are fixed. Use it for passwords that are rotated, such as the tokens of
    /// managed services. The store calls it for each dial, within the connect timeout. An error, or a panic, is a failed
    /// dial. If the server also ends connections whose token has expired, set [`Credentials::expires_in`]: then the store
    /// calls it for live connections too. See [`Credentials`] for an example.
    pub fn credentials<F, Fut, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.server.provider = Some(Provider::new(provider));
        self
    }

    /// Sets the number of the database.
    ///
    /// Default: that of the URL, else 0. A cluster has only database 0.
    pub fn database(mut self, number: u32) -> Self {
        self.server.database = Some(number);
        self
    }

    /// Sets whether replies come in RESP3, the newer version of the protocol.
    ///
    /// Default: that of the URL, else `false`. Decisions are equal in both.
    pub fn resp3(mut self, is_resp3: bool) -> Self {
        self.server.is_resp3 = Some(is_resp3);
        self
    }

    /// Encrypts connections, whatever the scheme of the URL.
    ///
    /// Default: TLS with the authorities of the system for `rediss` URLs, else none.
    #[cfg(feature = "tls-rustls-no-provider")]
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.server.tls = Some(tls);
        self
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
    /// A request that passes several [layers](crate::middleware#one-layer-inside-another) on one limiter, or a layer with
    /// lookups, has it once for all of its decisions.
    ///
    /// Default: 50 ms, a hundred times the usual reply time of a healthy server in the same data centre. Deadlines are
    /// kept to the millisecond. At most an hour.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the longest time for getting a connection: look-up, dial and handshake together.
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
    /// [`Clock::system`] follows each step of the wall clock here, so that instances agree again once theirs is right.
    pub fn client_time(mut self, clock: Clock) -> Self {
        self.clock = Some(clock.with_steps());
        self
    }

    /// Sets whether keys can be [blocked](crate::RateLimiter::block) for all instances.
    ///
    /// Default: `false`, so that nothing is sent besides decisions. With `true`, each instance asks Redis for changes at
    /// most every 400 ms, behind a decision. The first decision of a process, and one that comes more than 900 ms after
    /// the last time, waits for the reply to that, which is sent at the same time as the decision. All instances need
    /// this setting, and a Redis user needs [more rights](super#permissions).
    pub fn shared_blocks(mut self, are_shared: bool) -> Self {
        self.shares_blocks = are_shared;
        self
    }

    /// Sets whether a denial is repeated in this process while it holds, for 2 s at most, so that a client that goes on asking
    /// costs Redis next to nothing.
    ///
    /// Default: `true`. It denies as Redis would, except for 2 s at most after units come back early: by a reset or a refund through
    /// another instance, another limit, or a change of the key by hand. A reset by this instance takes effect at once, and a refund
    /// under a policy with earlier refunds within 100 ms. Denials of counted slots, of queues, and of policies that count denials
    /// or ban are not kept. A store without a breaker keeps none.
    pub fn denial_cache(mut self, is_on: bool) -> Self {
        self.keeps_denials = is_on;
        self
    }

    /// Makes the store. It connects at the first decision, so the server may be down now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`] if the URL cannot be parsed or needs a feature. [`ErrorKind::InvalidConfig`] for a
    /// deadline or connect timeout of zero or above an hour, for 0 or over 1,024 connections, for an unusable prefix or
    /// certificate, and for settings that contradict each other.
    pub fn build(self) -> Result<RedisStore, Error> {
        self.build_with(None)
    }

    /// Makes the store, with a guard in front of each node of a cluster, or of the only server.
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build), and those of the guards.
    pub(crate) fn build_with(self, guards: Option<GuardSettings>) -> Result<RedisStore, Error> {
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
        let endpoint = self.server.endpoint()?;
        let (connections, timeout) = (self.connections, self.connect_timeout);
        let lanes_of = move |endpoint: &Endpoint| -> Box<[Arc<Lane>]> {
            let most = endpoint.max_connections().unwrap_or(usize::MAX);
            (0..connections.min(most).max(1))
                .map(|_| Lane::new(endpoint.clone(), timeout))
                .collect()
        };
        let check = ServerCheck::new(self.silenced);
        let blocks = self
            .shares_blocks
            .then(|| SharedBlocks::new(self.clock.clone()));
        let client = Client::new(
            endpoint.address().cloned(),
            lanes_of(&endpoint),
            keyspace,
            self.deadline,
            self.clock,
            check,
            self.keeps_denials,
        );
        #[cfg(feature = "top-keys")]
        if let Some(top_keys) = self.top_keys {
            let shared = SharedTopKeys::new(top_keys, Arc::clone(&client.keyspace));
            // Nobody has set others: the client is new.
            let _ = client.registration.top_keys.set(shared);
            client.registration.start();
        }
        let fleet = || Some(client.registration.start());
        let guards = guards.map(|settings| settings.build(fleet)).transpose()?;
        let make_lanes: MakeLanes =
            Box::new(move |address| endpoint.at(address).as_ref().map(&lanes_of));
        let cluster = Cluster::new(client, make_lanes, guards);
        Ok(RedisStore::over(cluster, blocks))
    }

    /// Returns whether the time is that of this process.
    pub(super) fn has_own_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Sets the connect timeout, unless it is longer.
    pub(super) fn connect_timeout_at_least(mut self, timeout: Duration) -> Self {
        self.connect_timeout = self.connect_timeout.max(timeout);
        self
    }

    /// Returns the longest time that one decision takes in all.
    #[must_use]
    pub fn decision_deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the default settings for a server.
    fn for_server(source: ServerSource) -> Self {
        Self {
            server: Box::new(ServerSettings::new(source)),
            connections: 2,
            prefix: "tollgate".to_owned(),
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_millis(500),
            clock: None,
            shares_blocks: false,
            keeps_denials: true,
            silenced: SilencedCodes::default(),
            #[cfg(feature = "top-keys")]
            top_keys: None,
        }
    }

    /// Shares these top keys with the other instances.
    #[cfg(feature = "top-keys")]
    pub(crate) fn share_top_keys(mut self, top_keys: TopKeys) -> Self {
        self.top_keys = Some(top_keys);
        self
    }

    /// Silences warnings with these codes.
    pub(crate) fn silence(mut self, silenced: SilencedCodes) -> Self {
        self.silenced = silenced;
        self
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

/// The longest deadline and connect timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);
/// The most connections of one store.
const MAX_CONNECTIONS: usize = 1_024;
