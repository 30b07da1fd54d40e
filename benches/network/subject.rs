//! The limiters that are compared.

use std::fmt;

use redis::{AsyncConnectionConfig, Client, Script, aio::MultiplexedConnection};
use redis::{IntoConnectionInfo, io::tcp::TcpSettings};
use tollgate::{
    ErrorKind, Key, Policy, Quota, RateLimiter, decision::CountedBy, remote::RedisStore,
    store::Store,
};

use crate::support::PLAIN_GCRA;

/// A limiter to measure. Its text form is its name on the command line and in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// One `MultiplexedConnection` with `TCP_NODELAY`, one `EVALSHA` of the plain script per decision.
    Mux,
    /// A bare [`RedisStore`].
    Store,
    /// A [`RateLimiter`] over Redis with default settings: breaker in front, local limiter behind.
    Tollgate,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mux => "mux",
            Self::Store => "store",
            Self::Tollgate => "tollgate",
        })
    }
}

impl std::str::FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let subjects = [Self::Mux, Self::Store, Self::Tollgate];
        let found = subjects
            .into_iter()
            .find(|subject| subject.to_string() == text);
        found.ok_or_else(|| "there are mux, store and tollgate".to_owned())
    }
}

/// A connected subject. Clones share the connections.
#[derive(Clone)]
pub(crate) enum Decider {
    Mux(MultiplexedConnection, String),
    Store(RedisStore, Policy),
    Tollgate(RateLimiter, Policy),
}

impl Decider {
    /// Connects and makes a first decision, so that the round includes neither dial nor script load.
    pub(crate) async fn connect(subject: Subject, url: &str) -> Self {
        let decider = match subject {
            Subject::Mux => Self::multiplexed(url).await,
            Subject::Store => {
                let store = RedisStore::builder(url).build();
                Self::Store(store.expect("a usable store"), policy())
            }
            Subject::Tollgate => {
                let limiter = RateLimiter::builder().redis(url).policy(policy()).build();
                Self::Tollgate(limiter.expect("a usable limiter"), policy())
            }
        };
        while decider.decide("first").await.is_err() {
            tokio::task::yield_now().await;
        }
        decider
    }

    /// Makes one decision. Returns an error if Redis did not make it.
    pub(crate) async fn decide(&self, key: &str) -> Result<(), NotByRedis> {
        let decided = match self {
            Self::Mux(connection, hash) => {
                let mut command = redis::cmd("EVALSHA");
                command.arg(hash).arg(1).arg(key);
                command.arg(INTERVAL_MICROS).arg(INTERVAL_MICROS * BURST);
                let reply: redis::RedisResult<[u64; 3]> =
                    command.query_async(&mut connection.clone()).await;
                return match reply {
                    Ok(_) => Ok(()),
                    Err(_) => Err(NotByRedis::RedisError),
                };
            }
            Self::Store(store, policy) => store.decide(&[policy.charge(Key::new(key))]).await,
            Self::Tollgate(limiter, policy) => limiter.check(&[policy.charge(Key::new(key))]).await,
        };
        match decided {
            Ok(decision) => match decision.counted_by() {
                CountedBy::Shared => Ok(()),
                other => Err(NotByRedis::CountedBy(other)),
            },
            Err(error) => Err(NotByRedis::Error(error.kind())),
        }
    }

    async fn multiplexed(url: &str) -> Self {
        let server = url.into_connection_info().expect("the url is well formed");
        // redis-rs leaves Nagle's algorithm on, which halves the rate over a real round trip
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

/// The reason why a decision does not count as made by Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotByRedis {
    CountedBy(CountedBy),
    Error(ErrorKind),
    RedisError,
}

impl fmt::Display for NotByRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CountedBy(by) => write!(f, "{by:?}"),
            Self::Error(kind) => write!(f, "{kind:?}"),
            Self::RedisError => f.write_str("redis error"),
        }
    }
}

/// Returns a policy whose burst no key exhausts: every decision is admitted and writes.
fn policy() -> Policy {
    Policy::new("network", Quota::per_second(1).burst(BURST))
}

const INTERVAL_MICROS: u64 = 1_000_000;
const BURST: u64 = 1_000_000_000;
