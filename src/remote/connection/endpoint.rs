//! Where the connections of a lane come from.
//!
//! ```text
//! a server     its address, see direct.rs
//! sentinels    the address that they return, see sentinel.rs
//! a pool       a checkout, which connects by the settings of the pool
//! ```
//!
//! # Why does the store dial on its own?
//!
//! With a URL, the store opens sockets itself and gives them to the client library as streams (`direct.rs`). The library and the
//! pool can dial too, but neither does all that is needed:
//!
//! | need | pool (`deadpool-redis`) | client library (`redis`) |
//! |---|---|---|
//! | a custom authority, a client certificate | by one URL, so no | yes, but it reads the certificates of the system again at each dial |
//! | a provider of cryptography that the store names | no | no: it takes the provider of the process, and panics if there is none or two |
//! | other credentials at each dial | no | a provider, which also starts a task per connection |
//! | another address with the same settings | no | yes |
//! | the server's error to AUTH | no | no: every error is reported as a wrong password, also "max number of clients" |
//! | no timers of the runtime | yes | yes, but not its client for Sentinel |

use std::{fmt, sync::Arc};

use deadpool_redis::{Pool, PoolError, Timeouts};

use crate::error::{Error, ErrorKind};

use super::{
    super::protocol::NodeAddress,
    address::Address,
    classify,
    direct::{self, ConnectionSettings, Expects},
    multiplexed::Connection,
    sentinel::Sentinels,
};

/// Makes connections to one server. Clones share the settings.
#[derive(Clone)]
pub(in crate::remote) enum Endpoint {
    Pool(Pool),
    Sentinels(Arc<Sentinels>, Arc<ConnectionSettings>),
    Server(Address, Arc<ConnectionSettings>),
}

impl Endpoint {
    /// Returns an endpoint with the same settings for another address; `None` if only the application's pool has them.
    pub fn at(&self, address: &NodeAddress) -> Option<Self> {
        match self {
            Self::Pool(_) => None,
            Self::Sentinels(_, settings) | Self::Server(_, settings) => Some(Self::Server(
                Address::Tcp(address.clone()),
                Arc::clone(settings),
            )),
        }
    }

    /// Returns the host and port; `None` if they are not fixed, and for a pool.
    pub fn address(&self) -> Option<&NodeAddress> {
        match self {
            Self::Server(Address::Tcp(address), _) => Some(address),
            Self::Pool(_) | Self::Sentinels(..) | Self::Server(Address::Unix(_), _) => None,
        }
    }

    /// Returns the address of the server for people; `None` for a pool.
    pub fn server(&self) -> Option<String> {
        match self {
            Self::Pool(_) => None,
            Self::Sentinels(sentinels, _) => Some(format!("the primary of {sentinels}")),
            Self::Server(address, _) => Some(address.to_string()),
        }
    }

    /// Returns a question for the message of a connection that was not made in time; empty if none may help.
    pub fn advice(&self) -> &'static str {
        match self {
            // A server without TLS reads the handshake as a command that has not ended.
            Self::Sentinels(_, settings) | Self::Server(_, settings)
                if settings.security.is_encrypted() =>
            {
                ": does the server use TLS on this port?"
            }
            Self::Pool(_) | Self::Sentinels(..) | Self::Server(..) => "",
        }
    }

    /// Returns the most connections that can be made; `None` for no limit.
    pub fn max_connections(&self) -> Option<usize> {
        match self {
            Self::Pool(pool) => Some(pool.status().max_size),
            Self::Sentinels(..) | Self::Server(..) => None,
        }
    }

    /// Makes a connection that is ready for commands. It has no timeout: the caller drops the future.
    ///
    /// # Errors
    ///
    /// Those of the pool, of the sentinels or of the dial, and the server's errors to the handshake.
    pub(super) async fn connect(&self) -> Result<Connection, Error> {
        match self {
            Self::Pool(pool) => {
                let pooled = pool.timeout_get(&Timeouts::new()).await;
                let pooled = pooled.map(Connection::pooled).map_err(pool_error)?;
                pooled.identify().await
            }
            Self::Sentinels(sentinels, settings) => {
                let (_, connection) = sentinels.connect(settings).await?;
                Ok(connection)
            }
            Self::Server(address, settings) => {
                direct::connect(address, settings, Expects::Anything).await
            }
        }
    }
}

/// Names the server in an error.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(_) => f.write_str("redis"),
            Self::Sentinels(sentinels, _) => write!(f, "the primary of {sentinels}"),
            Self::Server(address, _) => write!(f, "redis at {address}"),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(_) => f.write_str("Pool"),
            Self::Sentinels(sentinels, _) => sentinels.fmt(f),
            Self::Server(address, _) => address.fmt(f),
        }
    }
}

/// Returns the error for an error of the pool.
fn pool_error(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) => classify::classify(error),
        error => Error::new(
            ErrorKind::Connect,
            "the pool returned no connection to redis",
        )
        .with_source(error),
    }
}
