//! The ways to a decision that are compared.

use std::fmt;

use redis::{AsyncConnectionConfig, Client, Script, aio::MultiplexedConnection};
use redis::{IntoConnectionInfo, io::tcp::TcpSettings};
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimiter, remote::RedisStore, state::CountedBy, store::Store,
};

use crate::support::PLAIN_GCRA;

/// Which way; its text is its name on the command line and in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One `MultiplexedConnection` with `TCP_NODELAY`, and one `EVALSHA` of the plain script per decision.
    Mux,
    /// A bare [`RedisStore`].
    Store,
    /// A [`RateLimiter`] over Redis, with its breaker and its local limiter, as users get it.
    Tollgate,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mux => "mux",
            Self::Store => "store",
            Self::Tollgate => "tollgate",
        })
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = [Self::Mux, Self::Store, Self::Tollgate];
        let found = kinds.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| "there are mux, store and tollgate".to_owned())
    }
}

/// A way that is connected; clones share the connections.
#[derive(Clone)]
pub(crate) enum Way {
    Mux(MultiplexedConnection, String),
    Store(RedisStore, Policy),
    Tollgate(RateLimiter, Policy),
}

impl Way {
    /// Connects, makes one decision, and waits until it is there: no dial and no script load is left for later.
    pub(crate) async fn connect(kind: Kind, url: &str) -> Self {
        let way = match kind {
            Kind::Mux => Self::multiplexed(url).await,
            Kind::Store => {
                let store = RedisStore::builder(url).build();
                Self::Store(store.expect("a usable store"), policy())
            }
            Kind::Tollgate => {
                let limiter = RateLimiter::builder().redis(url).policy(policy()).build();
                Self::Tollgate(limiter.expect("a usable limiter"), policy())
            }
        };
        while way.decide("first").await.is_err() {
            tokio::task::yield_now().await;
        }
        way
    }

    /// Makes a decision on the key: an error when Redis did not make it.
    pub(crate) async fn decide(&self, key: &str) -> Result<(), Otherwise> {
        let decided = match self {
            Self::Mux(connection, hash) => {
                let mut command = redis::cmd("EVALSHA");
                command.arg(hash).arg(1).arg(key);
                command.arg(INTERVAL_MICROS).arg(INTERVAL_MICROS * BURST);
                let reply: redis::RedisResult<[u64; 3]> =
                    command.query_async(&mut connection.clone()).await;
                return match reply {
                    Ok(_) => Ok(()),
                    Err(_) => Err(Otherwise::RedisError),
                };
            }
            Self::Store(store, policy) => store.decide(&[policy.charge(Key::new(key))]).await,
            Self::Tollgate(limiter, policy) => limiter.check(&[policy.charge(Key::new(key))]).await,
        };
        match decided {
            Ok(decision) => match decision.counted_by() {
                CountedBy::Shared => Ok(()),
                other => Err(Otherwise::CountedBy(other)),
            },
            Err(error) => Err(Otherwise::Error(error.kind())),
        }
    }

    async fn multiplexed(url: &str) -> Self {
        let server = url.into_connection_info().expect("the url is well formed");
        // without it, Nagle's algorithm halves the rate over a distance
        let server = server.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = Client::open(server).expect("the url is well formed");
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.expect("the server is up");
        let script = Script::new(PLAIN_GCRA);
        let loaded = script.prepare_invoke().load_async(&mut connection).await;
        Self::Mux(connection, loaded.expect("the script is well formed"))
    }
}

/// Who decided instead of Redis, or why nobody did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    CountedBy(CountedBy),
    Error(ErrorKind),
    RedisError,
}

impl fmt::Display for Otherwise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CountedBy(by) => write!(f, "{by:?}"),
            Self::Error(kind) => write!(f, "{kind:?}"),
            Self::RedisError => f.write_str("redis error"),
        }
    }
}

/// One a second, and so many at once that no key ever runs out: every decision admits and writes.
fn policy() -> Policy {
    Policy::new("network", Quota::per_second(1).burst(BURST))
}

const INTERVAL_MICROS: u64 = 1_000_000;
const BURST: u64 = 1_000_000_000;
